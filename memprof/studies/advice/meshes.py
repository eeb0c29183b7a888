"""Rules for meshes: values replicated along an axis, and values gathered from all its devices at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import accumulate, combinations
from math import prod
from operator import mul

from memprof.analysis.records.capture import ArgumentLeaf
from memprof.analysis.records.categories import Category, Role
from memprof.analysis.records.live_buffer import LiveBuffer
from memprof.analysis.records.report import Report
from memprof.studies.advice.advice import Proposal
from memprof.studies.advice.logits import is_logits, num_classes
from memprof.studies.advice.recomputation import repeated_modules
from memprof.studies.advice.step_kind import MADE_IN_PASSES, is_inference
from memprof.studies.advice.what_if import Instead, Without, amount, changed_at_peak, made_at
from memprof.workloads.intents import Aim, Intent

_OF_BATCH = MADE_IN_PASSES | {Category.BATCH, Category.COLLECTIVES}
_SENDING_COLLECTIVES = frozenset({"collective-permute", "all-to-all", "ragged-all-to-all"})
_GATHERED_INSTEAD = "parameters are gathered instead"
_KEPT_GATHERED = "; those kept for the backward pass stay gathered (see jax.checkpoint)"
_NO_COST = "none, unless examples are compared with those of other devices"
_COSTS = {
    Role.OPTIMIZER_STATE: "the new parameters are gathered after the update, or are divided, too",
    Role.PARAMS: "they are gathered in the forward pass and again in the backward pass",
}
_COSTS_OF_INFERENCE = {Role.PARAMS: "they are gathered at every call, unless each device computes with its own part"}


def replicated_state(report: Report) -> Iterator[Proposal]:
    """Propose to shard optimizer state or parameters that are replicated along an axis."""
    costs = _COSTS_OF_INFERENCE if is_inference(report) else _COSTS
    for axis, size in _multi_device_axes(report):
        for role, cost in costs.items():
            leaves = {
                leaf.path: leaf for leaf in _with_known_sharding(report, role) if axis not in (leaf.mesh_axes or ())
            }
            without = _divided(frozenset(leaves), size)
            replicated = changed_at_peak(report, without)
            if not replicated:
                continue
            words = role.value.replace("_", " ")
            yield Proposal(
                intent=Intent(
                    aim=Aim.DIVIDE_STATE, names=(role.value,), axes=(axis,), in_shard_map=_is_in_shard_map(report)
                ),
                what=f"Divide {words} over {axis}={size}",
                evidence=f"{amount(replicated, 'arrays')} of {words} are the same on all {size} devices along {axis};"
                f" the largest is {replicated[0].op}",
                cost=cost,
                without=without,
            )


def _is_in_shard_map(report: Report) -> bool:
    """Whether the step is a function in `shard_map`, and not only a part of it: `jit(step)/shard_map/...`."""
    names = [buffer.op.split("/") for buffer in report.temp_buffers if buffer.op.startswith("jit(")]
    return sum("shard_map" in name[1:2] for name in names) > len(names) / 2


def _divided(paths: frozenset[str], size: int) -> Without:
    """Replace arguments by the part on one device, if one of their dimensions is divisible."""

    def without(buffer: LiveBuffer) -> Instead | None:
        is_one = buffer.op in paths and not buffer.is_temp and _is_divisible(buffer, size)
        return Instead(size_bytes=buffer.size_bytes // size) if is_one else None

    return without


def gather_in_chunks(report: Report) -> Iterator[Proposal]:
    """Propose to gather layer by layer, if parameters of several layers, or of a whole scan, are gathered at once.

    In a step without a backward pass, nothing keeps gathered parameters.
    """
    if is_inference(report):
        return
    lengths = {loop.trip_count for loop in report.program.loops}
    layers = sorted((path for paths in repeated_modules(report).values() for path in paths), key=len)

    def is_stacked(buffer: LiveBuffer) -> bool:
        return len(buffer.shape) > 1 and buffer.shape[0] > 1 and buffer.shape[0] in lengths

    def layer_of(buffer: LiveBuffer) -> str:
        return next((path for path in layers if f"{buffer.module}/".startswith(f"{path}/")), buffer.module)

    gathered = [buffer for buffer in report.buffers if buffer.category is Category.GATHERED_PARAMS]
    by_layer: Counter[str] = Counter()
    for buffer in gathered:
        if not is_stacked(buffer):
            by_layer[layer_of(buffer)] += buffer.size_bytes
    largest, largest_bytes = max(by_layer.items(), key=lambda item: item[1], default=("", 0))

    def without(buffer: LiveBuffer) -> Instead | None:
        if buffer.category is not Category.GATHERED_PARAMS:
            return None
        if is_stacked(buffer):
            return Instead(size_bytes=buffer.size_bytes // buffer.shape[0])
        return None if layer_of(buffer) == largest else Instead(size_bytes=0)

    if not changed_at_peak(report, without):
        return
    of_one = f"; those of the largest layer, {largest or 'without a name'}, hold {largest_bytes:,}" if by_layer else ""
    yield Proposal(
        intent=Intent(aim=Aim.GATHER_IN_LAYERS),
        what="Gather parameters layer by layer",
        evidence=f"{amount(gathered, 'arrays')} of gathered parameters are live together at the peak{of_one}",
        cost="each gather waits for its layer, and the backward pass repeats it",
        without=without,
    )


def undivided_batch(report: Report) -> Iterator[Proposal]:
    """Propose to shard the batch over an axis along which it is replicated.

    Axes of tensor, pipeline or expert parallelism are not proposed. The first makes arrays as wide as a part of a
    parameter; the others send examples along the axis.
    """
    batch = _with_known_sharding(report, Role.BATCH)
    used = [axis for axis in report.target.topology.axes if any(axis in (leaf.mesh_axes or ()) for leaf in batch)]
    paths = {leaf.path for leaf in batch}
    rows = [buffer.shape[0] for buffer in report.buffers if buffer.op in paths and not buffer.is_temp and buffer.shape]
    for axis, size in _multi_device_axes(report):
        sends_examples = any(axis in each.axes and each.kind in _SENDING_COLLECTIVES for each in report.collectives)
        if axis in used or sends_examples or not rows or max(rows) % size or _divides_layers(report, size):
            continue

        def without(buffer: LiveBuffer, size: int = size) -> Instead | None:
            is_made_of_it = buffer.category in _OF_BATCH and _is_divisible(buffer, size)
            return Instead(size_bytes=buffer.size_bytes // size) if is_made_of_it else None

        yield Proposal(
            intent=Intent(aim=Aim.DIVIDE_BATCH, axes=(*used, axis)),
            what=f"Divide the batch over {axis}={size}",
            evidence=f"{amount(changed_at_peak(report, without), 'arrays')} of the batch and the passes at the peak:"
            f" all {size} devices along {axis} have the same {max(rows):,} examples",
            cost=_NO_COST
            if is_inference(report)
            else "gradients are added up along it; a batch that is too small must grow",
            without=without,
        )


def gathered_batch(report: Report) -> Iterator[Proposal]:
    """Propose to keep arrays sharded, if they hold the examples of several devices although the batch arrives sharded.

    They are recognised by their number of examples, in a step that gathers more than parameters. XLA may move the
    examples to another dimension than the first; a parameter can have the same length there by chance.
    """
    batch = _with_known_sharding(report, Role.BATCH)
    over = {
        axis: size
        for axis, size in _multi_device_axes(report)
        if any(axis in (leaf.mesh_axes or ()) for leaf in batch) and _gathers_values(report, axis)
    }
    parts = _parts_by_length(report, batch, over.values())
    others = parts.keys() - _widths(report)

    def without(buffer: LiveBuffer) -> Instead | None:
        if not buffer.is_temp or buffer.category not in _OF_BATCH:
            return None
        found = [parts[length] for n, length in enumerate(buffer.shape) if length in (others if n else parts)]
        return Instead(size_bytes=buffer.size_bytes // found[0]) if found else None

    whole = changed_at_peak(report, without)
    if not whole:
        return
    in_words = " and ".join(f"{axis}={size}" for axis, size in over.items())
    largest = max(whole, key=lambda buffer: (buffer.size_bytes, buffer.source != ""))
    divides_params = any(over.keys() & {*(leaf.mesh_axes or ())} for leaf in _with_known_sharding(report, Role.PARAMS))
    instead = _GATHERED_INSTEAD + ("" if is_inference(report) else _KEPT_GATHERED)
    yield Proposal(
        intent=Intent(aim=Aim.KEEP_BATCH_DIVIDED, axes=tuple(over)),
        what=f"Keep all values computed from the batch divided over {in_words}",
        evidence=f"{amount(whole, 'arrays')} at the peak hold the examples of several devices: the batch arrives"
        f" divided over {in_words}, and the step gathers it; the largest is made at {made_at(largest)}",
        cost=instead if divides_params else _NO_COST,
        without=without,
    )


def _parts_by_length(report: Report, batch: list[ArgumentLeaf], sizes: Iterable[int]) -> dict[int, int]:
    """Map the length of a dimension with the examples, or tokens, of several devices to the number of devices."""
    by_path = {leaf.path: leaf for leaf in batch}
    several = {prod(some) for count in range(1, 4) for some in combinations(tuple(sizes), count)}
    return {
        length * num_devices: num_devices
        for buffer in report.buffers
        if buffer.op in by_path and not buffer.is_temp and buffer.shape
        if buffer.shape[0] < by_path[buffer.op].shape[0]
        for length in accumulate(buffer.shape[:2], mul)  # tokens: two dimensions in one
        for num_devices in sorted(several)
    }


def _gathers_values(report: Report, axis: str) -> bool:
    """Whether more than parameters is gathered along an axis, and no examples are sent along it."""
    along = [each for each in report.collectives if axis in each.axes]
    gathered = any(each.kind == "all-gather" and each.size_bytes > each.param_bytes for each in along)
    return gathered and not any(each.kind in _SENDING_COLLECTIVES for each in along)


def _divides_layers(report: Report, size: int) -> bool:
    """Whether the passes make arrays as wide as a parameter divided into `size` parts."""
    widths = _widths(report)
    made = (each for each in report.temp_buffers if each.category in MADE_IN_PASSES and len(each.shape) > 1)
    return any(each.shape[-1] not in widths and each.shape[-1] * size in widths for each in made)


def _widths(report: Report) -> set[int]:
    """Return the lengths of all dimensions of parameters."""
    return {length for leaf in report.arguments if leaf.role is Role.PARAMS for length in leaf.shape}


def undivided_logits(report: Report) -> Iterator[Proposal]:
    """Propose to shard the columns of logits whose whole rows are replicated along an axis."""
    classes = num_classes(report) if report.target.topology.axes else None
    is_whole = any(classes in leaf.shape for leaf in _with_known_sharding(report, Role.PARAMS))
    if classes is None or not is_whole:
        return
    batch = _with_known_sharding(report, Role.BATCH)
    for axis, size in _multi_device_axes(report):
        if classes % size or not batch or any(axis in (leaf.mesh_axes or ()) for leaf in batch):
            continue

        def without(buffer: LiveBuffer, size: int = size) -> Instead | None:
            return Instead(size_bytes=buffer.size_bytes // size) if is_logits(buffer, classes) else None

        logits = changed_at_peak(report, without)
        if logits:
            yield Proposal(
                intent=Intent(aim=Aim.DIVIDE_LOGITS, axes=(axis,)),
                what=f"Divide the columns of the logits over {axis}={size}",
                evidence=f"{amount(logits, 'arrays')} at the peak have all {classes:,} columns on each of the {size}"
                f" devices along {axis}",
                cost="the softmax sums over that axis",
                without=without,
            )


def _multi_device_axes(report: Report) -> list[tuple[str, int]]:
    """Return the mesh axes with several devices."""
    return [(axis, size) for axis, size in report.target.topology.axes.items() if size > 1]


def _with_known_sharding(report: Report, role: Role) -> list[ArgumentLeaf]:
    """Return the arguments of a role that the program takes, if their sharding is known."""
    return [
        leaf
        for leaf in report.arguments
        if leaf.role is role and leaf.parameter_number is not None and leaf.mesh_axes is not None
    ]


def _is_divisible(buffer: LiveBuffer, num_parts: int) -> bool:
    return any(length and length % num_parts == 0 for length in buffer.shape)
