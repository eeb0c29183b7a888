"""The optimizer, and with it the state that it keeps for each parameter."""

from __future__ import annotations

from collections import Counter

from memprof.analysis.comparison import Verdict
from memprof.analysis.records.capture import ArgumentLeaf
from memprof.analysis.records.categories import Category, Role
from memprof.analysis.records.report import Report
from memprof.workloads import registry
from memprof.workloads.evidence import in_words, is_same_program, no, total_bytes, undecided, yes
from memprof.workloads.intents import Aim, Means
from memprof.workloads.technique import ARGUMENT, Argument, Observation, Technique

Leaf = tuple[tuple[int, ...], str]  # shape and dtype


def optimizer_evidence(seen: Observation) -> Verdict:
    """Looks for the optimizer's own state among the arguments, and for another one in the reference."""
    found = _state(seen.report)
    kept, kept_bytes = _kept_by(str(seen.argument), seen.report)
    held = f"the program holds {in_words(total_bytes(_leaves(seen.report, Role.OPTIMIZER_STATE)))} of optimizer state"
    if found != kept:
        return no(f"{held}, which is not the {in_words(kept_bytes)} that {seen.argument} keeps")
    if seen.reference is not None and found == _state(seen.reference):
        if not _differ_only_in_optimizer(seen.report, seen.reference, f"opt={seen.argument}"):
            return undecided(
                f"{held}, as the reference does; the effect shows only in comparison with a row that differs in "
                "nothing but the optimizer"
            )
        if is_same_program(seen.report, seen.reference):
            return no(f"{held}, exactly like the reference, and the program is the same")
        return yes(f"{held}, as the reference does, but the program of its update differs")
    return yes(f"{held}, which matches {seen.argument} leaf by leaf")


def _differ_only_in_optimizer(report: Report, reference: Report, label: str) -> bool:
    return set(report.techniques) - {label, "baseline"} == set(reference.techniques) - {label, "baseline"}


def _state(report: Report) -> Counter[Leaf]:
    return Counter((leaf.shape, leaf.dtype) for leaf in _leaves(report, Role.OPTIMIZER_STATE))


def _kept_by(optimizer: str, report: Report) -> tuple[Counter[Leaf], int]:
    """The leaves of the state that an optimizer keeps for the program's parameters, and their bytes."""
    import jax

    leaves = _leaves(report, Role.PARAMS)
    with jax.enable_x64(any(leaf.dtype.endswith("64") for leaf in leaves)):
        params = {leaf.path: {_name(leaf): jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)} for leaf in leaves}
        state = jax.tree.leaves(registry.optimizer(optimizer).state(params))
    kept = Counter((tuple(leaf.shape), str(leaf.dtype)) for leaf in state)
    return kept, sum(leaf.size * leaf.dtype.itemsize for leaf in state)


def _leaves(report: Report, role: Role) -> list[ArgumentLeaf]:
    return [leaf for leaf in report.arguments if leaf.role is role]


def _name(leaf: ArgumentLeaf) -> str:
    """The last key of its path: `kernel`."""
    return leaf.path.rstrip("]").rpartition("[")[2].strip("'\"")


def parse(text: str) -> str:
    """Returns the name of an optimizer; raises `MemprofError` with all names where there is none of that name."""
    return registry.optimizer(text).name


OPT = Technique(
    name="opt",
    about="""Use another optimizer, with another optimizer state.

    Adam's two moments are 8 bytes a parameter in float32, twice the parameters themselves. Optimizers that keep less
    (one moment, sums over rows and columns, 8-bit codes, a subspace) lower memory that neither a smaller batch nor
    rematerialization can. `memprof list optimizers` shows what each keeps.""",
    summary="another optimizer: memprof list optimizers shows what each keeps",
    instruction="Use another optimizer. Training changes: choose a new learning rate.",
    code="optimizer = <NAME>",
    argument_code=lambda name: registry.optimizer(str(name)).code,
    reference="optax documentation, Optimizers: https://optax.readthedocs.io/en/latest/api/optimizers.html",
    sets={"optimizer": ARGUMENT},
    # Any text, so that the error for a wrong name can list the right ones. The example keeps less than the baseline.
    argument=Argument(spelling="opt=<NAME>", pattern="[^+]+", example="momentum", parse=parse),
    shrinks=(Category.OPTIMIZER_STATE,),
    tolerance=None,
    evidence=optimizer_evidence,
)

TECHNIQUES = (OPT,)
MEANS = {
    Aim.FACTOR_OPTIMIZER_STATE: Means(
        code="optimizer = optax.adafactor(1e-3)  # choose a new learning rate", technique=f"{OPT.name}=adafactor"
    ),
    Aim.NARROW_OPTIMIZER_STATE: Means(
        code="opt_state = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16) if leaf.ndim else leaf, opt_state)"
        "  # between updates"
    ),
    Aim.CHUNK_UPDATE: Means(
        words="Update one parameter after another, with jax.tree.map; do not stack or flatten them into one array."
    ),
}
