"""Rules on a cache of keys and values: its copies, its type, its length and its heads."""

from __future__ import annotations

from collections.abc import Iterator

from memprof.analysis.records.categories import Category
from memprof.analysis.records.live_buffer import LiveBuffer, array_type
from memprof.analysis.records.report import Report
from memprof.studies.advice.advice import Proposal
from memprof.studies.advice.step_kind import MADE_IN_PASSES, is_inference
from memprof.studies.advice.weights import is_weight, kind_of, of_wide_cache, slices_of_stacks, without_leading_ones
from memprof.studies.advice.what_if import Instead, amount, changed_at_peak, made_at
from memprof.workloads.intents import Aim, Intent

_MIN_NUM_AXES = 3  # of a cache: tokens, heads and their width


def copied_cache(report: Report) -> Iterator[Proposal]:
    """Propose an array for each layer, if a loop over layers copies the cache: it reads one array, writes another."""
    stacked, of_weights = _cache_kinds(report, looped=True), slices_of_stacks(report)
    trip_counts = {loop.trip_count for loop in report.program.loops}
    of_caches = {
        (dtype, _without_length(shape, each)) for dtype, shape in stacked for each in {*shape} if each in trip_counts
    }

    def without_copies(buffer: LiveBuffer) -> Instead | None:
        is_copy = buffer.category in MADE_IN_PASSES and kind_of(buffer) in stacked
        return Instead(size_bytes=0) if is_copy else None

    def without(buffer: LiveBuffer) -> Instead | None:
        shape = without_leading_ones(buffer.shape)
        is_of_cache = buffer.category in MADE_IN_PASSES and (buffer.dtype, tuple(sorted(shape))) in of_caches
        is_of_weights = buffer.category is Category.PARAM_COPIES and shape in of_weights
        return Instead(size_bytes=0) if is_of_cache or is_of_weights else without_copies(buffer)

    copies = changed_at_peak(report, without_copies)
    if not copies:
        return
    yield Proposal(
        intent=Intent(aim=Aim.SPLIT_CACHE),
        what="Store the cache of each layer in a separate array, and call the layers one after another",
        evidence=f"{amount(copies, 'arrays')} at the peak are copies of the whole cache that a loop over layers makes,"
        f" the largest at {made_at(copies[0])}",
        cost="a longer compile: the program has a copy of each layer",
        without=without,
    )


def relaid_cache(report: Report) -> Iterator[Proposal]:
    """Propose attention's order of axes for the cache, if caches of several layers are copied into it."""
    if not is_inference(report):
        return
    kinds = _cache_kinds(report, looped=False)

    def without(buffer: LiveBuffer) -> Instead | None:
        is_copy = buffer.category in MADE_IN_PASSES and kind_of(buffer) in kinds
        return Instead(size_bytes=0) if is_copy else None

    copies = changed_at_peak(report, without)
    if len(copies) < 2:  # one layer at a time
        return
    yield Proposal(
        intent=Intent(aim=Aim.REORDER_CACHE),
        what="Store the cache in the order of axes that attention reads",
        evidence=f"{amount(copies, 'arrays')} at the peak are copies of caches in another order, the largest"
        f" {array_type(copies[0].dtype, copies[0].shape)}",
        cost="none, if nothing else reads the cache",
        without=without,
    )


def _cache_kinds(report: Report, *, looped: bool) -> set[tuple[str, tuple[int, ...]]]:
    """Return the kinds of caches that a loop over layers reads layer by layer, or of all others."""
    trip_counts = {loop.trip_count for loop in report.program.loops}
    return {
        kind_of(buffer)
        for buffer in report.buffers
        if buffer.category is Category.KV_CACHE and bool(trip_counts & {*buffer.shape}) is looped
    }


def _without_length(lengths: tuple[int, ...], length: int) -> tuple[int, ...]:
    place = lengths.index(length)
    return lengths[:place] + lengths[place + 1 :]


def wide_cache(report: Report) -> Iterator[Proposal]:
    """Propose bfloat16 for a float32 cache, if the weights have 16 bits or fewer."""
    weights = {buffer.dtype for buffer in report.buffers if is_weight(buffer)}
    if not weights or "f32" in weights:
        return
    is_of_cache = of_wide_cache(report)

    def without(buffer: LiveBuffer) -> Instead | None:
        return Instead(size_bytes=buffer.size_bytes // 2) if is_of_cache(buffer) else None

    held = changed_at_peak(report, without)
    if not held:
        return
    yield Proposal(
        intent=Intent(aim=Aim.CAST_CACHE),
        what="Store the cache in bfloat16, like the weights",
        evidence=f"{amount(held, 'arrays')} are keys and values in float32, made by weights of 16 bits or fewer",
        cost="keys and values of 8 bits of precision, as most engines hold them",
        without=without,
    )


def growing_cache(report: Report) -> Iterator[Proposal]:
    """Propose a cache of full length, if it is returned longer than it was passed: each call copies and recompiles."""
    caches = {(each.dtype, each.shape) for each in report.buffers if each.category is Category.KV_CACHE}

    def growth(buffer: LiveBuffer) -> int:
        is_result = buffer.category is Category.OUTPUTS
        grown = (_growth(shape, buffer.shape) for dtype, shape in caches if dtype == buffer.dtype)
        return max(grown, default=0) if is_result else 0

    def without(buffer: LiveBuffer) -> Instead | None:
        return Instead(size_bytes=0) if growth(buffer) else None

    longer = changed_at_peak(report, without)
    if not longer:
        return
    yield Proposal(
        intent=Intent(aim=Aim.FILL_CACHE),
        what="Write into a cache of full length, instead of returning a longer one",
        evidence=f"{amount(longer, 'results')} at the peak are caches that come back longer by {growth(longer[0])},"
        f" the largest {array_type(longer[0].dtype, longer[0].shape)}: every call copies the cache, and JAX recompiles"
        " the step for every length",
        cost="memory for the full length from the first token on",
        without=without,
    )


def _growth(before: tuple[int, ...], after: tuple[int, ...]) -> int:
    """Return how much longer the only differing axis is; 0 if it is shorter, or if several differ."""
    if len(before) != len(after) or len(before) < _MIN_NUM_AXES:
        return 0
    changes = [new - old for old, new in zip(before, after, strict=True) if new != old]
    return max(changes[0], 0) if len(changes) == 1 else 0


def repeated_heads(report: Report) -> Iterator[Proposal]:
    """Propose to store each head once, if heads are repeated before they are stored."""
    copies = {leaf.path: leaf.num_copies for leaf in report.arguments if leaf.num_copies > 1}

    def without(buffer: LiveBuffer) -> Instead | None:
        is_repeated = buffer.category is Category.KV_CACHE and buffer.op in copies
        return Instead(size_bytes=buffer.size_bytes // copies[buffer.op]) if is_repeated else None

    held = changed_at_peak(report, without)
    if not held:
        return
    yield Proposal(
        intent=Intent(aim=Aim.REPEAT_HEADS_LATER),
        what="Store each head of keys and values once, and repeat them after they are read",
        evidence=f"{amount(held, 'arrays')} at the peak hold every head {copies[held[0].op]} times: the step repeats"
        " keys and values before it stores them",
        cost="none, if attention takes query heads in groups; otherwise a repeated copy of one layer at a time",
        without=without,
    )


def long_cache(report: Report) -> Iterator[Proposal]:
    """Propose a cache of the last tokens, if a mask hides all others."""
    windows = {leaf.path: leaf.window for leaf in report.arguments if leaf.window}

    def without(buffer: LiveBuffer) -> Instead | None:
        if buffer.category is not Category.KV_CACHE or buffer.op not in windows:
            return None
        size, length = windows[buffer.op]
        return Instead(size_bytes=buffer.size_bytes * size // length)

    held = changed_at_peak(report, without)
    if not held:
        return
    size, length = windows[held[0].op]
    yield Proposal(
        intent=Intent(aim=Aim.KEEP_WINDOW),
        what=f"Store only the last {size:,} tokens of each sequence",
        evidence=f"{amount(held, 'arrays')} at the peak have room for {length:,} tokens, and a mask hides all except"
        f" the last {size:,}",
        cost="none, unless another program reads the older tokens",
        without=without,
    )
