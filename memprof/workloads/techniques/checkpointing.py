"""Checkpointing: parts of the forward pass are computed again in the backward pass instead of being kept.

JAX names what a checkpoint computes again, so the program tells which modules that is in. XLA may still have merged it
with the forward pass (that is what the barrier is against); where there is a program to compare with, the activations
must be fewer.
"""

from __future__ import annotations

from functools import partial

from memprof.analysis.comparison import Verdict
from memprof.analysis.records.categories import Category, Phase
from memprof.errors import unknown_name
from memprof.workloads.evidence import in_words, most_bytes, no, num_operations, yes
from memprof.workloads.intents import Aim, Intent, Means
from memprof.workloads.scopes import ATTENTION, MLP, RESIDUALS
from memprof.workloads.technique import ARGUMENT, Argument, Observation, Technique
from memprof.workloads.techniques.offload import check_has_host_memory


def activation_function_evidence(seen: Observation) -> Verdict:
    """Looks for anything that is computed again."""
    number = seen.report.program.num_recomputed_operations
    if number == 0:
        return no("no operation is recomputed in the backward pass")
    return _with_fewer_activations(seen, f"{number} operations are computed again in the backward pass")


def recomputed_evidence(seen: Observation, *, modules: tuple[str, ...], others: tuple[str, ...] = ()) -> Verdict:
    """Looks for operations of all these modules, and of no others, among what is computed again."""
    if ":" in seen.report.workload:  # a user's loss, whose modules have names of their own
        return activation_function_evidence(seen)
    numbers = {name: num_operations(seen.report, Phase.RECOMPUTE, name) for name in modules + others}
    again = ", ".join(f"{number} of {name}" for name, number in numbers.items() if number)
    if not again:
        return no(f"no operation of {' and '.join(modules)} is recomputed in the backward pass")
    sentence = f"operations recomputed in the backward pass: {again}"
    if not all(numbers[name] for name in modules) or any(numbers[name] for name in others):
        return no(f"{sentence}, but only those of {' and '.join(modules)} were expected")
    return _with_fewer_activations(seen, sentence)


both_evidence = partial(recomputed_evidence, modules=(ATTENTION, MLP))


def partly_kept_evidence(seen: Observation) -> Verdict:
    """Looks for any part of the blocks among what is computed again: which one is up to what is kept."""
    modules = tuple(name for name in (ATTENTION, MLP) if num_operations(seen.report, Phase.RECOMPUTE, name))
    return recomputed_evidence(seen, modules=modules or (ATTENTION, MLP))


def offloaded_residuals_evidence(seen: Observation) -> Verdict:
    """Looks for parts of the blocks among what is computed again, and for host memory in use."""
    verdict = partly_kept_evidence(seen)
    host_bytes = seen.report.program.host_bytes
    if host_bytes == 0:
        return no(f"{verdict.evidence}; but the program holds no data in host memory")
    sentence = f"{verdict.evidence}; the program holds {in_words(host_bytes)} in host memory"
    return Verdict(took_effect=verdict.took_effect, evidence=sentence)


def _with_fewer_activations(seen: Observation, sentence: str) -> Verdict:
    """Looks for fewer activations than in the reference, where there is one."""
    if seen.reference is None:
        return yes(sentence)
    before, after = (most_bytes(each, Category.ACTIVATIONS) for each in (seen.reference, seen.report))
    compared = f"{sentence}; at most {in_words(after)} of activations at a time, {in_words(before)} in the reference"
    return yes(compared) if after < before else no(compared)


def parse_names(text: str) -> str:
    """Returns the names, joined by commas; raises `MemprofError` for one that does not exist."""
    for name in text.split(","):
        if name not in RESIDUALS:
            raise unknown_name("residual", name, RESIDUALS)
    return text


REMAT = Technique(
    name="remat",
    about="""Checkpoint each block.

    Only the residual stream between the blocks is kept (batch x length x hidden size for each); everything inside a
    block is recomputed when the backward pass reaches it. The cost is one more forward pass through the blocks, about
    a third more operations.""",
    summary="each Transformer block checkpointed: its inside is recomputed in the backward pass",
    instruction="Checkpoint each block.",
    code="block = jax.checkpoint(block)  # in Flax: nn.remat(Block)",
    reference="Chen et al. 2016, Training Deep Nets with Sublinear Memory Cost, arXiv:1604.06174",
    sets={"remat_modules": "block", "remat_policy": "nothing", "remat_names": ""},
    evidence=both_evidence,
    shrinks=(Category.ACTIVATIONS,),
    grows=(Category.RECOMPUTED,),
)

REMAT_MLP = Technique(
    name="remat-mlp",
    about="""Checkpoint the MLP of each block.

    The MLP's hidden units are four times as wide as the residual stream, and exist in several versions (before and
    after the activation function, and for its derivative). They are recomputed; the activations of attention are
    kept.""",
    summary="the MLP of each Transformer block checkpointed",
    instruction="Checkpoint the MLP of each block: `nn.remat` of its class, or `jax.checkpoint` of a function.",
    reference="Chen et al. 2016, Training Deep Nets with Sublinear Memory Cost, arXiv:1604.06174",
    sets={"remat_modules": "mlp", "remat_policy": "nothing", "remat_names": ""},
    evidence=partial(recomputed_evidence, modules=(MLP,), others=(ATTENTION,)),
    shrinks=(Category.ACTIVATIONS,),
    grows=(Category.RECOMPUTED,),
)

REMAT_ATTN = Technique(
    name="remat-attn",
    about="""Checkpoint the attention of each block.

    Its probabilities grow with the square of the length and are the largest activation of long sequences. They are
    recomputed; the activations of the MLP are kept.""",
    summary="the attention of each Transformer block checkpointed",
    instruction="Checkpoint the attention of each block: `nn.remat` of its class, or `jax.checkpoint` of a function.",
    reference="Chen et al. 2016, Training Deep Nets with Sublinear Memory Cost, arXiv:1604.06174",
    sets={"remat_modules": "attention", "remat_policy": "nothing", "remat_names": ""},
    evidence=partial(recomputed_evidence, modules=(ATTENTION,), others=(MLP,)),
    shrinks=(Category.ACTIVATIONS,),
    grows=(Category.RECOMPUTED,),
)

REMAT_MLP_ATTN = Technique(
    name="remat-mlp-attn",
    about="""Checkpoint attention and MLP of each block separately.

    Unlike `remat`, this also keeps the residual stream between attention and MLP; in return, only one of the two is
    recomputed at a time, which lowers the peak of the backward pass.""",
    summary="attention and MLP of each Transformer block checkpointed separately",
    instruction="Checkpoint the attention and the MLP of each block, each on its own: `nn.remat` of their classes in "
    "Flax, or `jax.checkpoint` of functions.",
    reference="UvA Deep Learning Tutorials, Training Models at Scale: https://uvadlc-notebooks.readthedocs.io",
    sets={"remat_modules": "mlp,attention", "remat_policy": "nothing", "remat_names": ""},
    evidence=both_evidence,
    shrinks=(Category.ACTIVATIONS,),
    grows=(Category.RECOMPUTED,),
)

REMAT_ACT = Technique(
    name="remat-act",
    about="""Checkpoint only the activation function of each MLP.

    The smallest example of `jax.checkpoint` on a function: the value before the activation function is kept, and the
    inputs of its derivative are recomputed from it instead of being kept beside it. It costs no matrix product. In
    unrolled layers XLA does the same by itself, because it repeats cheap operations inside fusions of the backward
    pass; in a loop over layers XLA keeps whatever JAX saves, so there the technique has an effect.""",
    summary="only the activation function of each MLP checkpointed",
    instruction="Checkpoint the activation function.",
    code="activation = jax.checkpoint(jax.nn.gelu)",
    reference="JAX documentation, Gradient checkpointing: https://docs.jax.dev/en/latest/gradient-checkpointing.html",
    sets={"remat_activation": True},
    evidence=activation_function_evidence,
    shows_with=("scan",),
    shrinks=(Category.ACTIVATIONS,),
)

REMAT_DOTS = Technique(
    name="remat-dots",
    about="""Checkpoint each block, but keep the results of its projections.

    The policy is `dots_with_no_batch_dims_saveable`: matrix products with weights are kept, because they cost the most
    to recompute; the products of attention (which have batch dimensions) are not, because their results grow with the
    square of the length. `dots_saveable` would keep those too, and lose most of the saving.""",
    summary="each Transformer block checkpointed, with the results of its projections kept",
    instruction="Checkpoint each block, or the loss, with a policy that saves the matrix products with weights.",
    code="block = jax.checkpoint(block, policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable)",
    reference="JAX documentation, Gradient checkpointing: https://docs.jax.dev/en/latest/gradient-checkpointing.html",
    sets={"remat_modules": "block", "remat_policy": "products", "remat_names": ""},
    evidence=partly_kept_evidence,
    shrinks=(Category.ACTIVATIONS,),
    grows=(Category.RECOMPUTED,),
)

REMAT_NAMES = Technique(
    name="remat-names",
    about="""Checkpoint each block, but keep the values with these names.

    Keep values that are small but expensive to recompute: keeping `attention_out`, for example, avoids recomputing
    all of attention before the MLP. The names are in `scopes.py`; the values are marked with `checkpoint_name`.""",
    summary="each Transformer block checkpointed, with the named values kept",
    instruction="Name the values to keep with `jax.ad_checkpoint.checkpoint_name`, and checkpoint each block with a "
    "policy that saves them.",
    code="block = jax.checkpoint(block, policy=jax.checkpoint_policies.save_only_these_names(<A,B>))",
    argument_code=lambda names: ", ".join(f'"{name}"' for name in str(names).split(",")),
    reference="JAX documentation, Gradient checkpointing: https://docs.jax.dev/en/latest/gradient-checkpointing.html",
    sets={"remat_modules": "block", "remat_policy": "names", "remat_names": ARGUMENT},
    argument=Argument(spelling="remat-names=<A,B>", pattern="[^+]+", example="qkv,attention_out", parse=parse_names),
    evidence=partly_kept_evidence,
    shrinks=(Category.ACTIVATIONS,),
    grows=(Category.RECOMPUTED,),
)

REMAT_OFFLOAD = Technique(
    name="remat-offload",
    about="""Checkpoint each block, and keep its named values in host memory.

    The results of the projections and the residual stream (see `scopes.py`) are copied to pinned host memory in the
    forward pass and back in the backward pass; the rest is recomputed. The memory saved on the device is used on the
    host, and the cost is traffic between the two instead of operations.""",
    summary="each Transformer block checkpointed, with its named values in host memory (pinned_host)",
    instruction="Name the values to keep with `jax.ad_checkpoint.checkpoint_name`, and checkpoint each block with a "
    "policy that offloads them to host memory.",
    code="""policy = jax.checkpoint_policies.save_and_offload_only_these_names(
    names_which_can_be_saved=[], names_which_can_be_offloaded=["qkv"],  # your names
    offload_src="device", offload_dst="pinned_host",
)
block = jax.checkpoint(block, policy=policy)""",
    reference="JAX documentation, Host offloading: https://docs.jax.dev/en/latest/notebooks/host-offloading.html",
    sets={"remat_modules": "block", "remat_policy": "offload", "remat_names": ",".join(RESIDUALS)},
    evidence=offloaded_residuals_evidence,
    shrinks=(Category.ACTIVATIONS,),
    grows=(Category.RECOMPUTED,),
    check_target=check_has_host_memory,
)

TECHNIQUES = (REMAT, REMAT_MLP, REMAT_ATTN, REMAT_MLP_ATTN, REMAT_ACT, REMAT_DOTS, REMAT_NAMES, REMAT_OFFLOAD)


def of_modules(intent: Intent) -> Means:
    """Modules that repeat are the blocks, or what memprof's own models call so inside them."""
    inside = {"mlp": REMAT_MLP.name, "attention": REMAT_ATTN.name}
    blocks = None if "/" in intent.modules else REMAT.name
    return Means(
        code="block = jax.checkpoint(block)  # in Flax: nn.remat(Block)",
        technique=inside.get(intent.modules.rpartition("/")[2], blocks),
    )


MEANS = {
    Aim.RECOMPUTE_MODULES: of_modules,
    Aim.RECOMPUTE_SCAN: Means(
        code="body = jax.checkpoint(body, prevent_cse=False)  # before the scan", technique=REMAT.name
    ),
    Aim.RECOMPUTE_ALL_BUT_PRODUCTS: Means(
        code="block = jax.checkpoint(block, policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable)",
        technique=REMAT_DOTS.name,
    ),
    Aim.CAST_WEIGHTS_IN_LAYERS: Means(
        code="block = jax.checkpoint(lambda params, *inputs, block=block: "
        "block(jax.tree.map(lambda x: x.astype(jnp.bfloat16) if x.dtype == jnp.float32 else x, params), *inputs))"
        "  # without the casts before it"
    ),
}
