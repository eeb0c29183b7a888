"""Pruning: weights that are masked, or heads and units that are gone."""

from __future__ import annotations

from memprof.analysis.comparison import Verdict
from memprof.analysis.records.categories import Category, Role
from memprof.workloads.evidence import in_words, no, total_bytes, undecided, used_arguments, yes
from memprof.workloads.technique import ARGUMENT, Argument, Observation, Technique
from memprof.workloads.train_config import require

_FRACTION = r"[0-9]*\.?[0-9]+"


def masks_evidence(seen: Observation) -> Verdict:
    """Looks for a mask for each weight matrix among the arguments."""
    masks = [leaf for leaf in used_arguments(seen.report, Role.OTHER_STATE) if leaf.dtype == "bool"]
    shapes = sorted(leaf.shape for leaf in masks)
    kernels = sorted(
        leaf.shape for leaf in used_arguments(seen.report, Role.PARAMS) if leaf.path.endswith("['kernel']")
    )
    if not masks or shapes != kernels:
        return no(f"the program takes {len(masks)} masks for {len(kernels)} weight matrices")
    return yes(f"the program takes a mask for each of {len(kernels)} weight matrices: {in_words(total_bytes(masks))}")


def fewer_params_evidence(seen: Observation) -> Verdict:
    """Looks for fewer parameters than in the reference, in arrays of the same names."""
    if seen.reference is None:
        return undecided(
            f"the program takes {seen.report.num_params} parameters; the number removed shows only in comparison with "
            "a row without pruning"
        )
    sentence = f"the program takes {seen.report.num_params} parameters, the reference {seen.reference.num_params}"
    return yes(sentence) if seen.report.num_params < seen.reference.num_params else no(sentence)


def parse_fraction(text: str) -> float:
    """Returns the number; raises `MemprofError` unless it is above 0 and below 1."""
    fraction = float(text)
    require(0 < fraction < 1, f"The ratio is {text}, but it must be above 0 and below 1, for example 0.5.")
    return fraction


PRUNE = Technique(
    name="prune",
    about="""Mask this fraction of each weight matrix, the smallest weights, to zero.

    It saves no memory while training. The zeros are stored like other numbers, gradients and optimizer state are as
    large as before, the masks take a byte for each weight, and the masked copies of the weights are kept for the
    backward pass. Only kernels for sparse matrices would benefit from the zeros, and XLA has none. The technique
    exists to show that.""",
    summary="the smallest weights masked to zero; saves no memory, and the masks cost a byte per weight",
    instruction="Set the smallest weights to zero with boolean masks that are kept beside the parameters.",
    code="params = jax.tree.map(lambda x: x * (jnp.abs(x) >= jnp.quantile(jnp.abs(x), <RATIO>)), params)",
    reference="Han et al. 2015, Learning both Weights and Connections for Efficient Neural Networks, arXiv:1506.02626",
    sets={"pruned_fraction": ARGUMENT},
    argument=Argument(spelling="prune=<RATIO>", pattern=_FRACTION, example="0.5", parse=parse_fraction),
    evidence=masks_evidence,
    grows=(Category.OTHER_STATE,),
    tolerance=None,
)

PRUNE_STRUCTURED = Technique(
    name="prune-structured",
    about="""Remove this fraction of the attention heads and of the MLPs' hidden units.

    Whole heads and units, those with the smallest weights, are removed, which leaves a smaller dense model: fewer
    parameters, less optimizer state, smaller activations. The residual stream keeps its width.""",
    summary="whole attention heads and hidden units removed: a smaller dense model",
    instruction="Build the model without this fraction of the attention heads and hidden units.",
    reference="Michel et al. 2019, Are Sixteen Heads Really Better than One?, arXiv:1905.10650",
    sets={"structurally_pruned_fraction": ARGUMENT},
    argument=Argument(spelling="prune-structured=<RATIO>", pattern=_FRACTION, example="0.5", parse=parse_fraction),
    evidence=fewer_params_evidence,
    shrinks=(Category.PARAMS, Category.OPTIMIZER_STATE, Category.ACTIVATIONS),
    tolerance=None,
)

TECHNIQUES = (PRUNE, PRUNE_STRUCTURED)
