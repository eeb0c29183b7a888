"""The form of the program: what is donated, and whether the layers are a loop."""

from __future__ import annotations

from memprof.analysis.comparison import Verdict
from memprof.analysis.records.categories import Category, Role
from memprof.analysis.records.report import Report
from memprof.workloads.evidence import (
    BACKWARD,
    FORWARD,
    in_words,
    loop_direction,
    loop_scopes,
    no,
    total_bytes,
    used_arguments,
    yes,
)
from memprof.workloads.intents import Aim, Intent, Means
from memprof.workloads.scopes import LAYERS, LOSS_CHUNKS
from memprof.workloads.technique import Observation, Technique


def layer_loop_evidence(seen: Observation) -> Verdict:
    """Looks for a loop over stacked parameters in the forward pass, and for one of the same length backwards."""
    params = used_arguments(seen.report, Role.PARAMS)
    depths = {leaf.shape[0] for leaf in params if f"['{LAYERS}']" in leaf.path and leaf.shape}
    if len(depths) != 1:
        return no("the program takes no parameters that are stacked over layers")
    (depth,) = depths
    forward, backward = _loops_through_layers(seen.report, FORWARD), _loops_through_layers(seen.report, BACKWARD)
    if depth in forward and depth in backward:
        return yes(f"a loop runs {depth} times over the layers in the forward pass, and one in the backward pass")
    return no(f"parameters of {depth} layers are stacked, but the loops over them run {forward} and {backward} times")


def _loops_through_layers(report: Report, direction: str) -> list[int | None]:
    return [
        loop.trip_count
        for loop in report.program.loops
        if loop_direction(loop) == direction and LOSS_CHUNKS not in loop_scopes(loop)
    ]


def donation_evidence(seen: Observation) -> Verdict:
    """Looks for results in the memory of all donated arguments."""
    donated = donated_device_bytes(seen.report)
    aliased = seen.report.compiler.alias_bytes
    if donated == 0:
        return no("no argument of the program is donated")
    sentence = f"the compiler reports {in_words(aliased)} of results in the memory of arguments"
    if aliased >= donated:
        return yes(f"{sentence}, all of the {in_words(donated)} donated on the device")
    return no(
        f"{sentence}, but {in_words(donated)} are donated: an argument cannot be reused if no result has its "
        "shape and dtype"
    )


def no_donation_evidence(seen: Observation) -> Verdict:
    """Looks for the absence of results in the memory of arguments."""
    aliased = seen.report.compiler.alias_bytes
    sentence = f"the compiler reports {in_words(aliased)} of results in the memory of arguments"
    return yes(sentence) if aliased == 0 else no(sentence)


def donated_device_bytes(report: Report) -> int:
    """Returns the bytes of donated arguments that are in device memory.

    The compiler's total of arguments leaves out those in host memory, which for this purpose are all donated or none.
    """
    used = [leaf for leaf in report.arguments if leaf.parameter_number is not None]
    on_host = max(0, total_bytes(used) - report.compiler.argument_bytes)
    return max(0, total_bytes(leaf for leaf in used if leaf.donated) - on_host)


DONATE = Technique(
    name="donate",
    about="""Let the new state reuse the buffers of the old one.

    Without donation XLA must keep the old parameters and optimizer state intact while it writes the new ones, so both
    exist when the step ends. A donated state cannot be used after the call.""",
    summary="the new state reuses the buffers of the old one (donate_argnums)",
    instruction="Donate the training state, so that the new one takes the place of the old one.",
    code="step = jax.jit(step, donate_argnums=(0,))",
    reference="JAX documentation, Buffer donation: https://docs.jax.dev/en/latest/buffer_donation.html",
    sets={"donate": True},
    evidence=donation_evidence,
    shrinks=(Category.OUTPUTS,),
    tolerance=0.0,
)

NO_DONATE = Technique(
    name="no-donate",
    about="""Keep the old state intact beside the new one, and say so in the label.

    This is the default of `jax.jit`, and many training scripts use it unknowingly.""",
    summary="old and new state beside each other, as in the baseline",
    instruction="Donate no argument, which is JAX's default.",
    code="step = jax.jit(step)",
    reference="JAX documentation, Buffer donation: https://docs.jax.dev/en/latest/buffer_donation.html",
    sets={"donate": False},
    evidence=no_donation_evidence,
    restates_baseline=True,
    tolerance=0.0,
)

SCAN = Technique(
    name="scan",
    about="""Run the layers in one loop instead of one copy of the program per layer.

    The layers' parameters are stacked into one array with the layer as its first axis. Compile time no longer grows
    with depth. Every residual of the forward pass is written to a stack and read in the backward pass, in the form
    that JAX saved it: values that XLA could fuse or drop across an unrolled layer's forward and backward pass are
    kept, so activations usually grow. Together with `remat` there is little to stack, and most of the difference
    disappears.""",
    summary="a loop over layers with stacked parameters (nn.scan), instead of a copy of the program per layer",
    instruction="Loop over one block whose parameters are stacked, instead of calling a block for each layer:"
    " `nn.scan` in Flax, or `jax.lax.scan`.",
    reference="Flax documentation, flax.linen.scan: https://flax.readthedocs.io",
    sets={"scan_layers": True},
    evidence=layer_loop_evidence,
    grows=(Category.ACTIVATIONS, Category.GRADIENTS),
)

TECHNIQUES = (DONATE, NO_DONATE, SCAN)


def donated(intent: Intent) -> Means:
    """Arguments that have no position are keywords."""
    arguments = [f"donate_argnums={intent.positions}"] if intent.positions else []
    arguments += [f"donate_argnames={intent.names}"] if intent.names else []
    return Means(code=f"step = jax.jit(step, {', '.join(arguments)})", technique=DONATE.name)


def in_pieces(intent: Intent) -> Means:
    """No technique: which array that is differs from model to model."""
    return Means(
        words=f"Compute it in {intent.num_parts} parts: use jax.lax.map over the rows of its inputs, with "
        f"batch_size= their number divided by {intent.num_parts}"
        + (", and jax.checkpoint around the function that computes and uses a row." if intent.trains else ".")
    )


MEANS = {
    Aim.DONATE: donated,
    Aim.CHUNK_ARRAY: in_pieces,
    Aim.FOLD_AXIS: Means(
        code="x = x.reshape(*x.shape[:-2], -1)  # where it is made; the present shape where it is read"
    ),
    Aim.SCAN_LAYERS: Means(
        words="Loop over the layers by jax.lax.scan, with their parameters stacked.", technique=SCAN.name
    ),
}
