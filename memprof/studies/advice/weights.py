"""Rules on the weights of a step that trains nothing: their type, and copies that every call makes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from math import prod

from memprof.analysis.records.categories import Category, Role
from memprof.analysis.records.live_buffer import LiveBuffer, array_type
from memprof.analysis.records.report import Report
from memprof.studies.advice.advice import Proposal
from memprof.studies.advice.step_kind import MADE_IN_PASSES, is_inference
from memprof.studies.advice.what_if import MAX_SAVED_IN_HALF, Instead, amount, changed_at_peak, made_at
from memprof.workloads.intents import Aim, Intent

_NARROW = re.compile(r"u?int[248]|float[468]_\w+")
# How many quantised numbers an element of a wider type may hold.
_NUM_PACKED = {"int8": (2, 4), "uint8": (2, 4), "int32": (4, 8), "uint32": (4, 8)}


def is_weight(buffer: LiveBuffer) -> bool:
    """Whether it is a parameter that takes part in matrix products."""
    return buffer.category is Category.PARAMS and len(buffer.shape) > 1


def kind_of(buffer: LiveBuffer) -> tuple[str, tuple[int, ...]]:
    """Return the dtype and sorted lengths of an array, so that transposed arrays are equal."""
    return buffer.dtype, tuple(sorted(buffer.shape))


def of_wide_cache(report: Report) -> Callable[[LiveBuffer], bool]:
    """Return a predicate for a float32 cache and its copies; it is always False if the cache is quantised."""
    caches = [buffer for buffer in report.buffers if buffer.category is Category.KV_CACHE]
    if {buffer.dtype for buffer in caches} != {"f32"}:  # float32 arrays beside others may be scales
        return lambda buffer: False
    kinds = set(map(kind_of, caches))
    copies = MADE_IN_PASSES | {Category.OUTPUTS}
    return lambda buffer: (
        buffer.category is Category.KV_CACHE or (buffer.category in copies and kind_of(buffer) in kinds)
    )


def wide_weights(report: Report) -> Iterator[Proposal]:
    """Propose bfloat16 for float32 weights of a step that trains nothing, and for its cache if that is float32, too.

    Keys computed from bfloat16 weights cannot be written into a float32 cache.
    """
    if not is_inference(report):
        return
    is_of_cache = of_wide_cache(report)

    def without(buffer: LiveBuffer) -> Instead | None:
        is_wide = (is_weight(buffer) and buffer.dtype == "f32") or is_of_cache(buffer)
        return Instead(size_bytes=buffer.size_bytes // 2) if is_wide else None

    weights = changed_at_peak(report, without)
    if not any(map(is_weight, weights)):
        return
    has_cache = any(map(is_of_cache, weights))
    # Values computed from narrow weights are narrow, too.
    wide_temps = [
        each.size_bytes for each in report.buffers if each.is_temp and each.dtype == "f32" and each not in weights
    ]
    yield Proposal(
        intent=Intent(aim=Aim.CAST_WEIGHTS_AND_CACHE if has_cache else Aim.CAST_WEIGHTS),
        what=f"Store the weights{' and the cache' if has_cache else ''} in bfloat16: the step trains nothing",
        evidence=f"{amount(weights, 'arrays')} are weights{', keys or values' if has_cache else ''} in float32",
        cost=f"weights{', keys and values' if has_cache else ''} of 8 bits of precision, as most models are published",
        without=without,
        at_most_bytes=sum(buffer.size_bytes // 2 for buffer in weights) + int(MAX_SAVED_IN_HALF * sum(wide_temps)),
    )


def copied_weights(report: Report) -> Iterator[Proposal]:
    """Propose to convert weights once, if every call casts, transposes or gathers them."""
    if not is_inference(report):
        return
    dequantised, slices = _dequantised_sizes(report), slices_of_stacks(report)

    def without(buffer: LiveBuffer) -> Instead | None:
        is_copy = buffer.category is Category.PARAM_COPIES and not _is_dequantised(buffer, dequantised)
        return Instead(size_bytes=0) if is_copy and without_leading_ones(buffer.shape) not in slices else None

    copies = changed_at_peak(report, without)
    if not copies:
        return
    yield Proposal(
        intent=Intent(aim=Aim.CONVERT_WEIGHTS_ONCE),
        what="Convert the weights once, before the first call",
        evidence=f"{amount(copies, 'arrays')} at the peak are made of weights alone at every call, the largest"
        f" {array_type(copies[0].dtype, copies[0].shape)} at {made_at(copies[0])}",
        cost="none, if the weights are needed in no other form",
        without=without,
    )


def dequantised_weights(report: Report) -> Iterator[Proposal]:
    """Propose to scale results instead of weights, if quantised weights are copied in the dtype of the product."""
    if not is_inference(report):
        return
    dequantised = _dequantised_sizes(report)

    def without(buffer: LiveBuffer) -> Instead | None:
        return Instead(size_bytes=0) if _is_dequantised(buffer, dequantised) else None

    copies = changed_at_peak(report, without)
    if not copies:
        return
    yield Proposal(
        intent=Intent(aim=Aim.SCALE_RESULTS),
        what="Multiply the results of products by the scales, not the weights",
        evidence=f"{amount(copies, 'arrays')} at the peak are dequantised copies of quantised weights, the largest"
        f" {array_type(copies[0].dtype, copies[0].shape)} at {made_at(copies[0])}",
        cost="none for scales of columns; sums of each group for scales of groups of rows",
        without=without,
    )


def _dequantised_sizes(report: Report) -> set[int]:
    """Return the element counts of quantised weights: whole, and of one layer of a stack that a loop reads."""
    trip_counts = {loop.trip_count for loop in report.program.loops}
    sizes = set()
    for leaf in report.arguments:
        if leaf.role is Role.PARAMS and (_NARROW.fullmatch(leaf.dtype) or leaf.dtype in _NUM_PACKED):
            whole = prod(leaf.shape)
            parts = {whole, whole // leaf.shape[0]} if leaf.shape and leaf.shape[0] in trip_counts else {whole}
            held = (*_NUM_PACKED.get(leaf.dtype, ()), *((1,) if _NARROW.fullmatch(leaf.dtype) else ()))
            sizes |= {size * number for size in parts for number in held}
    return sizes


def _is_dequantised(buffer: LiveBuffer, sizes: set[int]) -> bool:
    is_wide = buffer.dtype in ("f32", "bf16", "f16")
    return buffer.category is Category.PARAM_COPIES and is_wide and prod(buffer.shape) in sizes


def slices_of_stacks(report: Report) -> set[tuple[int, ...]]:
    """Return the shapes of one layer of the stacked weights that a loop reads. Such a copy is one iteration's slice."""
    trip_counts = {loop.trip_count for loop in report.program.loops}
    params = [leaf.shape for leaf in report.arguments if leaf.role is Role.PARAMS]
    return {without_leading_ones(shape[1:]) for shape in params if len(shape) > 1 and shape[0] in trip_counts}


def without_leading_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape without its leading axes of length 1."""
    first = next((axis for axis, length in enumerate(shape) if length != 1), len(shape))
    return shape[first:]
