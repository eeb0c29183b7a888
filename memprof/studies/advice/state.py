"""Rules for the state of parameters: the parameter, its gradient, its optimizer state and its next value."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

from memprof.analysis.attribution.module_paths import path_keys
from memprof.analysis.records.capture import ArgumentLeaf
from memprof.analysis.records.categories import Category, Phase, Role
from memprof.analysis.records.device_family import family_of
from memprof.analysis.records.live_buffer import LiveBuffer
from memprof.analysis.records.report import Report
from memprof.studies.advice.advice import Proposal
from memprof.studies.advice.step_kind import is_inference
from memprof.studies.advice.what_if import Instead, Without, amount, changed_at_peak, made_at
from memprof.workloads.intents import Aim, Intent

_STATE = (Role.PARAMS, Role.OPTIMIZER_STATE, Role.KV_CACHE, Role.OTHER_STATE)
_CARRIED = (Role.KV_CACHE, Role.OTHER_STATE)  # state that a step returns without an optimizer's update
_MIN_FACTORED_LENGTH = 128  # optax.adafactor's min_dim_size_to_factor
_FLOAT32_BYTES = 4
_NEARLY_ALL = 0.9  # of the bytes of the optimizer's state
_NARROW = ("bf16", "f16")


def donate_state(report: Report) -> Iterator[Proposal]:
    """Propose to donate arguments whose memory the update's results could reuse."""
    aliased = _aliased(report)
    if not aliased:
        return
    reused = {id(buffer) for buffer, _ in aliased}

    def without(buffer: LiveBuffer) -> Instead | None:
        return Instead(size_bytes=0) if id(buffer) in reused else None

    yield Proposal(
        intent=_donation([leaf for _, leaf in aliased]),
        what="Donate the state: the new state reuses its memory",
        evidence=f"{amount(changed_at_peak(report, without), 'results')} have the shape of an argument that is not"
        " donated",
        cost="none, but the old state can no longer be used",
        without=without,
    )


def _aliased(report: Report) -> list[tuple[LiveBuffer, ArgumentLeaf]]:
    """Return results, each with a leaf of the state whose memory it could reuse.

    A donated argument is deleted, also where nothing reuses it. So no argument with frozen parameters is donated. Where
    it is unknown which leaves are carried, arguments that the results cover come first, the largest before the others.
    """
    given = {buffer.op: buffer for buffer in report.buffers if buffer.category in set(map(Category, _STATE))}
    arguments: dict[int | str, list[ArgumentLeaf]] = defaultdict(list)
    for role in _STATE:
        for leaf in report.arguments:
            if leaf.role is role and not leaf.donated and leaf.path in given:
                arguments[path_keys(leaf.path)[0] if leaf.position is None else leaf.position].append(leaf)
    for key in [key for key, leaves in arguments.items() if any(leaf.is_carried is False for leaf in leaves)]:
        del arguments[key]
    results = [buffer for buffer in report.buffers if buffer.category is Category.OUTPUTS]
    aliased: list[tuple[LiveBuffer, ArgumentLeaf]] = []
    while arguments:
        found = {key: _reusing(results, leaves, given) for key, leaves in arguments.items()}

        def rank(key: int | str, found: dict[int | str, Any] = found) -> tuple[bool, int]:
            reused = sum(leaf.size_bytes for _, leaf in found[key])
            return reused >= _NEARLY_ALL * sum(leaf.size_bytes for leaf in arguments[key]), reused

        best = max(arguments, key=rank)
        if not found[best]:
            break
        aliased += found[best]
        taken = {id(buffer) for buffer, _ in found[best]}
        results = [buffer for buffer in results if id(buffer) not in taken]
        del arguments[best]
    return aliased


def _reusing(
    results: Sequence[LiveBuffer], leaves: Sequence[ArgumentLeaf], given: Mapping[str, LiveBuffer]
) -> list[tuple[LiveBuffer, ArgumentLeaf]]:
    """Return the results that could reuse the memory of some leaves, each with its leaf."""
    free: dict[tuple[str, tuple[int, ...]], list[ArgumentLeaf]] = defaultdict(list)
    for leaf in leaves:
        free[given[leaf.path].dtype, given[leaf.path].shape].append(leaf)
    found: list[tuple[LiveBuffer, ArgumentLeaf]] = []
    for buffer in results:
        fitting = free[buffer.dtype, buffer.shape]
        # Returned gradients and predictions only have the shape of parameters.
        if fitting and (buffer.phase is Phase.UPDATE or fitting[0].role in _CARRIED):
            found.append((buffer, fitting.pop(0)))
    return found


def _donation(leaves: Sequence[ArgumentLeaf]) -> Intent:
    """Return the intent to donate whole arguments: a leaf of a pytree cannot be donated without the others."""
    numbers = sorted({leaf.position for leaf in leaves if leaf.position is not None})
    names = dict.fromkeys(path_keys(leaf.path)[0] for leaf in leaves if leaf.position is None)
    return Intent(aim=Aim.DONATE, positions=tuple(numbers), names=tuple(names))


def param_copies(report: Report) -> Iterator[Proposal]:
    """Propose to cast within checkpoints, if casts of parameters to 16 bits are kept for the backward pass.

    Without a checkpoint, a cast within a layer is kept, too, and most of a new checkpoint's saving is other arrays.
    """
    at_peak = [buffer for buffer in report.buffers if buffer.category is Category.PARAM_COPIES]
    has_checkpoints = any(buffer.category is Category.RECOMPUTED for buffer in report.temp_buffers)
    if sum(map(_is_cast, at_peak)) < 2 or not has_checkpoints or is_inference(report):
        return
    # One layer runs at a time and still has its copy.
    largest = max(at_peak, key=lambda buffer: buffer.size_bytes)

    def without(buffer: LiveBuffer) -> Instead | None:
        if buffer.category is not Category.PARAM_COPIES or (buffer.name, buffer.start) == (largest.name, largest.start):
            return None
        return Instead(size_bytes=0)

    yield Proposal(
        intent=Intent(aim=Aim.CAST_WEIGHTS_IN_LAYERS),
        what="Cast weights inside each checkpointed layer, not before",
        evidence=f"{amount(at_peak, 'copies of parameters')} are live together at the peak",
        cost="recomputes the casts and the rest of the checkpointed layer",
        without=without,
        at_most_bytes=sum(buffer.size_bytes for buffer in at_peak),
    )


def _is_cast(buffer: LiveBuffer) -> bool:
    """Whether a copy of a parameter is a cast; other copies are transposed, or precede a cast."""
    return buffer.dtype in _NARROW or buffer.dtype.startswith("f8")


def factored_optimizer(report: Report) -> Iterator[Proposal]:
    """Propose factored moments, if the optimizer state has arrays of the parameters' shapes, unlike L-BFGS."""
    params = [leaf for leaf in report.arguments if leaf.role is Role.PARAMS]
    shapes = {leaf.shape for leaf in params}
    state = [leaf for leaf in report.arguments if leaf.role is Role.OPTIMIZER_STATE]
    of_params = sum(leaf.size_bytes for leaf in state if leaf.shape in shapes)
    if of_params < _NEARLY_ALL * sum(leaf.size_bytes for leaf in state):
        return
    state_bytes = sum(buffer.size_bytes for buffer in _optimizer_state(report))
    factored_bytes = sum(_on_device(report, leaf, _factored_bytes(leaf.shape)) for leaf in params)
    if state_bytes <= 2 * factored_bytes:
        return
    without = _with_optimizer_state_of(report, factored_bytes)
    # Another update has other temporaries, and other arrays leave other gaps.
    at_most_bytes = sum(
        buffer.size_bytes - instead.size_bytes
        for buffer in changed_at_peak(report, without)
        if (instead := without(buffer)) is not None
    )
    at_most_bytes += report.categories[Category.UPDATE_TEMPS] + report.categories[Category.FRAGMENTATION]
    num_params = max(1, sum(_on_device(report, leaf, leaf.num_elements) for leaf in params))
    per_param = state_bytes / num_params
    yield Proposal(
        intent=Intent(aim=Aim.FACTOR_OPTIMIZER_STATE),
        what="Use an optimizer with factored second moments (Adafactor)",
        evidence=f"{amount(changed_at_peak(report, without), 'arrays')} are optimizer state, or results that may be the"
        f" next one: {per_param:.1f} bytes of state for each parameter; factored moments take "
        f"{factored_bytes / num_params:.2f}",
        cost="another optimizer: training takes another course, and needs another learning rate",
        without=without,
        at_most_bytes=at_most_bytes,
    )


def _on_device(report: Report, leaf: ArgumentLeaf, amount: int) -> int:
    """Return one device's share of an amount that belongs to a leaf."""
    return amount * report.device_bytes(leaf) // max(1, leaf.size_bytes)


def _factored_bytes(shape: tuple[int, ...]) -> int:
    """Return the bytes of state of a parameter under Adafactor without momentum, in float32.

    The mean squares of an array are stored by row and by column of its two largest dimensions; those of small arrays
    and vectors are stored whole (Shazeer and Stern 2018, algorithm 4).
    """
    large = sorted(shape)[-2:]
    if len(large) < 2 or large[0] < _MIN_FACTORED_LENGTH:
        return _FLOAT32_BYTES * prod(shape)
    return _FLOAT32_BYTES * (prod(shape) // large[0] + prod(shape) // large[1])


def offload_optimizer(report: Report) -> Iterator[Proposal]:
    """Propose host memory for optimizer state, which only the update uses."""
    state_bytes = sum(buffer.size_bytes for buffer in _optimizer_state(report))
    updates = [span for span in report.timeline.phases if span.phase is Phase.UPDATE]
    if not (state_bytes and updates) or not family_of(report.target.platform).offloads:
        return
    span = (min(span.start for span in updates), max(span.end for span in updates))
    without_state = _with_optimizer_state_of(report, 0)

    def without(buffer: LiveBuffer) -> Instead | None:
        if buffer.category is Category.OPTIMIZER_STATE and not buffer.is_temp:
            return Instead(size_bytes=buffer.size_bytes, spans=[span])
        return without_state(buffer)

    yield Proposal(
        intent=Intent(aim=Aim.OFFLOAD_OPTIMIZER_STATE),
        what="Keep the optimizer state in host memory between updates",
        evidence=f"{amount(changed_at_peak(report, without), 'arrays')} of optimizer state, or results that may be "
        "the next one, stay on the device for the whole step, and only the update uses them",
        cost=f"{2 * state_bytes:,} bytes over the bus in each step, and {state_bytes:,} bytes of host memory",
        without=without,
    )


def _optimizer_state(report: Report) -> list[LiveBuffer]:
    """Return the buffers of the optimizer state in the arguments."""
    return [buffer for buffer in report.buffers if buffer.category is Category.OPTIMIZER_STATE and not buffer.is_temp]


def _with_optimizer_state_of(report: Report, size_bytes: int) -> Without:
    """Return the replacements if the optimizer state takes `size_bytes` in total.

    Without donation, the next state is among the results, which have no names. Results with the shape of both
    parameters and optimizer state count as state in proportion to their leaves.
    """
    state = _optimizer_state(report)
    share = size_bytes / max(1, sum(buffer.size_bytes for buffer in state))
    num_state = Counter((buffer.dtype, buffer.shape) for buffer in state)
    donated = {leaf.path for leaf in report.arguments if leaf.donated}
    num_given = Counter(
        (buffer.dtype, buffer.shape)
        for buffer in report.buffers
        if not buffer.is_temp and buffer.op not in donated and buffer.category is not Category.OUTPUTS
    )

    def without(buffer: LiveBuffer) -> Instead | None:
        if buffer.is_temp:
            return None
        if buffer.category is Category.OPTIMIZER_STATE:
            return Instead(size_bytes=round(share * buffer.size_bytes))
        kind = (buffer.dtype, buffer.shape)
        if buffer.category is Category.OUTPUTS and num_given[kind] and num_state[kind]:
            of_state = min(1.0, num_state[kind] / num_given[kind])
            return Instead(size_bytes=round(buffer.size_bytes * (1 - of_state * (1 - share))))
        return None

    return without


def narrow_accumulators(report: Report) -> Iterator[Proposal]:
    """Propose bfloat16 for float32 accumulators of gradients that are live during the passes of minibatches.

    The trip count of a loop over minibatches is known; that of a line search or an adaptive solver is not.
    """
    gradients = [buffer for buffer in report.temp_buffers if _is_wide_gradient(buffer)]
    of_passes = (buffer for buffer in report.temp_buffers if buffer.category is not Category.GRADIENTS)
    last_forward = max((buffer.start for buffer in of_passes if buffer.phase is Phase.FORWARD), default=-1)
    # The gradients of one batch are made after its forward pass; a gradient that is live earlier sums several batches.
    accumulators = [buffer for buffer in gradients if buffer.start < last_forward <= buffer.end]
    if not accumulators or not any((loop.trip_count or 0) > 1 for loop in report.program.loops):
        return
    additions = {buffer.op for buffer in accumulators}

    def without(buffer: LiveBuffer) -> Instead | None:
        is_accumulator = _is_wide_gradient(buffer) and buffer.op in additions
        return Instead(size_bytes=buffer.size_bytes // 2) if is_accumulator else None

    yield Proposal(
        intent=Intent(aim=Aim.CAST_ACCUMULATORS),
        what="Accumulate gradients in bfloat16",
        evidence=f"{amount(changed_at_peak(report, without), 'accumulators')} at the peak are float32 and live during"
        " the passes",
        cost="sums of minibatches are rounded to 8 bits of mantissa",
        without=without,
    )


def _is_wide_gradient(buffer: LiveBuffer) -> bool:
    is_gradient = buffer.category is Category.GRADIENTS and not buffer.is_stacked
    return is_gradient and buffer.dtype == "f32" and buffer.is_temp


def update_peak(report: Report) -> Iterator[Proposal]:
    """Propose to update parameters one by one, if the peak is in the update, after the backward pass.

    Only arrays that are larger than every parameter would shrink.
    """
    backward_end = report.program.backward_end
    if not -1 < backward_end < report.timeline.peak_position:
        return
    params = (leaf for leaf in report.arguments if leaf.role is Role.PARAMS)
    largest_param = max(map(report.device_bytes, params), default=0)

    def without(buffer: LiveBuffer) -> Instead | None:
        is_of_update = (
            buffer.is_temp
            and buffer.start > backward_end
            and buffer.category in (Category.GRADIENTS, Category.UPDATE_TEMPS)
        )
        return Instead(size_bytes=largest_param) if is_of_update and buffer.size_bytes > largest_param else None

    stacked = changed_at_peak(report, without)
    if not (stacked and largest_param):
        return
    yield Proposal(
        intent=Intent(aim=Aim.CHUNK_UPDATE),
        what="Update one parameter after another",
        evidence=f"the peak is after the last operation of the backward pass, and {amount(stacked, 'arrays')}"
        f" are larger than every parameter; the largest is made at {made_at(stacked[0])}",
        cost="none, if operations on all gradients at once return a scalar, such as their norm",
        without=without,
    )
