"""Several devices that share a step: what each axis of a mesh divides.

Everything here is a matter of where arrays lie (see `workloads/sharding.py`); what is sent between devices follows from
it. The axes and their sizes are those of `--mesh` (see `workloads/mesh_axes.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import prod
from typing import Any

from memprof.analysis.comparison import Verdict
from memprof.analysis.records.categories import Category, Role
from memprof.analysis.records.report import Report
from memprof.workloads.evidence import in_words, most_bytes, no, total_bytes, used_arguments, yes
from memprof.workloads.intents import Aim, Intent, Means
from memprof.workloads.mesh_axes import DP, FSDP, SP, TP, batch_axes
from memprof.workloads.technique import Observation, Technique
from memprof.workloads.train_config import TrainConfig, require


def divided_evidence(seen: Observation, *, axis: str, roles: tuple[Role, ...], shrinks: Category) -> Verdict:
    """Looks for the axis in the shardings of the arguments, and for fewer bytes of a category on each device.

    Args:
        roles: of the arguments that it should divide, more than half of each by bytes; the first has to be there.
        shrinks: the category of which less should be live than in the reference, if it does not have it already.
    """
    size = seen.report.target.topology.axes.get(axis, 1)
    if size == 1:
        return no(f"no two devices lie along an axis {axis}")
    found = [(role, *_part_over(seen.report, axis, role)) for role in roles]
    said = [f"{in_words(part)} of {in_words(total)} of {role.value}" for role, part, total in found if total]
    sentence = f"{', '.join(said)} sharded over {axis}={size}"
    if not found[0][2]:
        return no(f"the program takes no {roles[0].value} to shard over {axis}={size}")
    if any(2 * part < total for _, part, total in found):
        return no(sentence)
    if seen.reference is None:
        return yes(sentence)
    ours, theirs = most_bytes(seen.report, shrinks), most_bytes(seen.reference, shrinks)
    sentence += f", and at most {in_words(ours)} of {shrinks.value} on a device, in the reference {in_words(theirs)}"
    return yes(sentence) if ours < theirs or theirs == 0 else no(sentence)


def zero2_evidence(seen: Observation) -> Verdict:
    """Looks for the axis in the optimizer state, and for sums over it of which each device gets a part only."""
    # An optimizer without state leaves the gradients to divide.
    state = divided_evidence(seen, axis=DP, roles=(Role.BATCH, Role.OPTIMIZER_STATE), shrinks=Category.OPTIMIZER_STATE)
    parts, whole = (_sent_over(seen.report, DP, kind) for kind in ("reduce-scatter", "all-reduce"))
    sentence = (
        f"{state.evidence}; of the sums over {DP}, each device gets {in_words(parts)} as its part, and "
        f"{in_words(whole)} whole"
    )
    return yes(sentence) if state.took_effect and parts > whole else no(sentence)


def _sent_over(report: Report, axis: str, kind: str) -> int:
    return sum(each.size_bytes for each in report.collectives if each.kind == kind and axis in each.axes)


def _part_over(report: Report, axis: str, role: Role) -> tuple[int, int]:
    """The bytes of the whole arrays of a role that are divided over an axis, and of all."""
    leaves = used_arguments(report, role)
    return total_bytes(leaf for leaf in leaves if axis in (leaf.mesh_axes or ())), total_bytes(leaves)


def check_batch(config: Any, train_config: TrainConfig, axes: Mapping[str, int]) -> None:
    """Raises `MemprofError` unless each device gets equally many examples of each minibatch."""
    used = [axis for axis in batch_axes(train_config) if axis in axes]
    size, num_minibatches = prod(axes[axis] for axis in used), train_config.num_minibatches
    over = ", ".join(f"{axis}={axes[axis]}" for axis in used)
    parts = f" in each of {num_minibatches} minibatches" if num_minibatches > 1 else ""
    require(
        config.batch_size % (size * num_minibatches) == 0,
        f"batch_size is {config.batch_size}, but it must be a multiple of {size * num_minibatches}, to be sharded "
        f"over {over}{parts}: change one of them.",
    )


def check_tensors(config: Any, train_config: TrainConfig, axes: Mapping[str, int]) -> None:
    """Raises `MemprofError` unless each device gets equally many heads and hidden units."""
    for name, size in config.tensor_sizes.items():
        check_divides(name, size, TP, axes)


def check_length(config: Any, train_config: TrainConfig, axes: Mapping[str, int]) -> None:
    """Raises `MemprofError` unless each device gets equally many tokens of each sequence."""
    check_divides("seq_len", config.seq_len, SP, axes)


def check_divides(name: str, size: int, axis: str, axes: Mapping[str, int]) -> None:
    """Raises `MemprofError` unless an axis divides a size of the configuration."""
    require(
        size % axes[axis] == 0,
        f"{name} is {size}, but it must be a multiple of {axes[axis]}, to be sharded over {axis}={axes[axis]}: "
        "change one of them.",
    )


_CONSTRAIN = "jax.lax.with_sharding_constraint"
_SHARDING = "jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec({}))"


def _each_divided(tree: str, axes: tuple[str, ...]) -> str:
    """Code that divides each array of a tree along its first dimension; one without dimensions stays whole."""
    sharding = _SHARDING.format(f"*({_as_code(axes)},)[:x.ndim]")
    return f"{tree} = jax.tree.map(lambda x: {_CONSTRAIN}(x, {sharding}), {tree})"


def _as_code(axes: tuple[str, ...]) -> str:
    return repr(axes[0] if len(axes) == 1 else axes).replace("'", '"')


zero1_evidence = partial(
    divided_evidence, axis=DP, roles=(Role.OPTIMIZER_STATE, Role.BATCH), shrinks=Category.OPTIMIZER_STATE
)
_ZERO = "Rajbhandari et al. 2019, ZeRO, arXiv:1910.02054"

DATA = Technique(
    name="dp",
    about="""Shard the batch over the axis `dp`; every device holds all parameters and all optimizer state.

    Activations shrink with the number of devices; the state does not. The gradients of the devices are added up, so
    that every device makes the same update.""",
    summary="the batch sharded over the axis dp, all state on every device (data parallelism)",
    instruction="Shard the batch over the mesh, and put a copy of the state on every device.",
    code='batch = jax.device_put(batch, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("dp")))',
    reference="JAX documentation, Distributed data loading: "
    "https://docs.jax.dev/en/latest/distributed_data_loading.html",
    sets={"data_parallel": "batch"},
    axis=DP,
    evidence=partial(divided_evidence, axis=DP, roles=(Role.BATCH,), shrinks=Category.ACTIVATIONS),
    check_axes=check_batch,
    shrinks=(Category.BATCH, Category.ACTIVATIONS),
)

ZERO1 = Technique(
    name="zero1",
    about="""Use data parallelism with the optimizer state sharded over the axis `dp`.

    Parameters and gradients are whole on every device, unless XLA itself finds that a part of the gradients is enough.
    Each device updates the part of the parameters whose moments it has, and the parts are then gathered.""",
    summary="data parallelism with the optimizer state sharded over the axis dp",
    instruction="Shard the optimizer state over the devices that share the batch, and keep the parameters whole.",
    code=_each_divided("opt_state", (DP,)),
    reference=_ZERO,
    sets={"data_parallel": "zero1"},
    axis=DP,
    evidence=zero1_evidence,
    check_axes=check_batch,
    shrinks=(Category.OPTIMIZER_STATE, Category.BATCH, Category.ACTIVATIONS),
)

ZERO2 = Technique(
    name="zero2",
    about="""Like `zero1`, with the gradients sharded as well.

    Each device gets the sum of that part of the gradients whose moments it has (a reduce-scatter in place of an
    all-reduce). Parameters are whole.""",
    summary="data parallelism with optimizer state and gradients sharded over the axis dp",
    instruction="Shard the gradients like the optimizer state, before the update.",
    code=_each_divided("gradients", (DP,)),
    reference=_ZERO,
    sets={"data_parallel": "zero2"},
    axis=DP,
    evidence=zero2_evidence,
    check_axes=check_batch,
    shrinks=(Category.OPTIMIZER_STATE, Category.BATCH, Category.ACTIVATIONS),
)

FULLY_SHARDED = Technique(
    name="fsdp",
    about="""Shard parameters, gradients, optimizer state and the batch over the axis `fsdp`.

    Each device keeps its part of every array. A layer's weights are gathered from all devices for its forward pass,
    and kept or gathered again for its backward pass; each device gets its part of the summed gradients. Weights that
    XLA gathers once for both passes stay in memory between them; with `remat` they are gathered twice.""",
    summary="parameters, gradients, optimizer state and batch sharded over the axis fsdp (ZeRO-3)",
    instruction="Shard each parameter over the mesh, the optimizer state in the same way, and the batch.",
    code=_each_divided("params", (FSDP,)),
    reference="Zhao et al. 2023, PyTorch FSDP, arXiv:2304.11277",
    sets={"fully_sharded": True},
    axis=FSDP,
    evidence=partial(
        divided_evidence, axis=FSDP, roles=(Role.PARAMS, Role.OPTIMIZER_STATE, Role.BATCH), shrinks=Category.PARAMS
    ),
    check_axes=check_batch,
    shrinks=(Category.PARAMS, Category.OPTIMIZER_STATE, Category.BATCH, Category.ACTIVATIONS),
    grows=(Category.GATHERED_PARAMS,),
)

TENSOR = Technique(
    name="tp",
    about="""Shard each matrix product over the axis `tp`: by columns, then by rows.

    A device has some of the heads, hidden units and vocabulary entries, with their parameters, optimizer state and
    activations. The residual stream is whole on every device, and is summed twice per layer. A vocabulary whose size
    is not divisible by the axis stays whole.""",
    summary="heads, hidden units and vocabulary sharded over the axis tp (tensor parallelism)",
    instruction="Shard the columns of the first product of a block, and the rows of the second.",
    code='up, down = jax.sharding.PartitionSpec(None, "tp"), jax.sharding.PartitionSpec("tp", None)',
    reference="Shoeybi et al. 2019, Megatron-LM, arXiv:1909.08053",
    sets={"tensor_parallel": True},
    axis=TP,
    evidence=partial(divided_evidence, axis=TP, roles=(Role.PARAMS, Role.OPTIMIZER_STATE), shrinks=Category.PARAMS),
    check_axes=check_tensors,
    shrinks=(Category.PARAMS, Category.OPTIMIZER_STATE, Category.ACTIVATIONS),
)

SEQUENCE = Technique(
    name="sp",
    about="""Shard each sequence over the axis `sp`.

    A device has some of the tokens, with their activations and logits. For attention it gathers the keys and values of
    all devices; its queries stay local. All state is on every device.""",
    summary="sequences sharded over the axis sp; keys and values gathered for attention",
    instruction="Shard the activations by tokens, and keep keys and values whole.",
    code="x = jax.lax.with_sharding_constraint(x, "
    'jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(None, "sp")))',
    reference="Llama team 2024, The Llama 3 Herd of Models, section 3.3.2, arXiv:2407.21783",
    sets={"sequence_parallel": True},
    axis=SP,
    evidence=partial(divided_evidence, axis=SP, roles=(Role.BATCH,), shrinks=Category.ACTIVATIONS),
    check_axes=check_length,
    shrinks=(Category.BATCH, Category.ACTIVATIONS),
)

TECHNIQUES = (DATA, ZERO1, ZERO2, FULLY_SHARDED, TENSOR, SEQUENCE)


def divided_state(intent: Intent) -> Means:
    """Each array along its first dimension; one without dimensions stays whole."""
    of_params = Role.PARAMS.value in intent.names
    if intent.in_shard_map:
        return Means(words=_words_in_shard_map(intent.axes, of_params=of_params))
    return Means(
        code=_each_divided("params" if of_params else "opt_state", intent.axes),
        technique=_along(FULLY_SHARDED if of_params else ZERO1, intent),
    )


def _words_in_shard_map(axes: tuple[str, ...], *, of_params: bool) -> str:
    axis = _as_code(axes)
    if of_params:
        return (
            f"In the specs of shard_map, divide params over {axis}. In the differentiated function, gather each before"
            f" its use: jax.lax.all_gather(param, {axis}, tiled=True). Its gradient is then divided, and summed."
        )
    return (
        f"In the specs of shard_map, divide opt_state over {axis}. In the step, sum the gradients with"
        f" jax.lax.psum_scatter(gradient, {axis}, tiled=True), update each device's part of the parameters, and gather"
        f" them: jax.lax.all_gather(param, {axis}, tiled=True)."
    )


def divided_batch(intent: Intent) -> Means:
    """All its arrays along their first dimension, over one axis or several."""
    return Means(
        code=f"batch = {_CONSTRAIN}(batch, {_SHARDING.format(_as_code(intent.axes))})", technique=_along(DATA, intent)
    )


def kept_divided(intent: Intent) -> Means:
    """What a layer gives: XLA may choose another sharding for each value that has none of its own."""
    return Means(code=f"x = {_CONSTRAIN}(x, {_SHARDING.format(_as_code(intent.axes))})  # after each layer")


def divided_logits(intent: Intent) -> Means:
    """Along the last dimension, that of the vocabulary; XLA keeps what it has chosen for the others."""
    others = "*[jax.sharding.PartitionSpec.UNCONSTRAINED] * (logits.ndim - 1)"
    code = f"logits = {_CONSTRAIN}(logits, {_SHARDING.format(f'{others}, {_as_code(intent.axes)}')})"
    return Means(code=code, technique=_along(TENSOR, intent))


def _along(technique: Technique, intent: Intent) -> str | None:
    """A technique does what is meant where that is about its own axis alone."""
    return technique.name if intent.axes == (technique.axis,) else None


MEANS = {
    Aim.DIVIDE_BATCH: divided_batch,
    Aim.DIVIDE_LOGITS: divided_logits,
    Aim.DIVIDE_STATE: divided_state,
    Aim.KEEP_BATCH_DIVIDED: kept_divided,
    Aim.GATHER_IN_LAYERS: Means(
        words="Loop over the layers by jax.lax.scan, with their parameters stacked and jax.checkpoint around its body."
    ),
}
