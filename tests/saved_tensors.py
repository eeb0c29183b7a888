"""What autograd saves in a traced step of PyTorch: the live bytes at the moment that the backward pass begins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from memprof.analysis.records.capture import Capture
from memprof.analysis.records.categories import Category, Phase
from memprof.analysis.records.trace import Trace, TraceEvent

# What a forward pass makes and the backward pass finds.
_SAVED = Category.ACTIVATIONS, Category.PARAM_COPIES, Category.CONSTANTS


def saved_for_backward(capture: Capture) -> dict[Category, int]:
    """Return the live bytes by category before the first operation of the second step's last backward pass."""
    trace = capture.trace
    assert trace is not None
    live = Counter[Category]()
    for event in _events_before(trace, _start_of_backward(trace)):
        value = trace.values[event.value]
        live[value.category] += value.size_bytes if event.is_birth else -value.size_bytes
    return {category: live[category] for category in _SAVED}


def gradient_bytes(capture: Capture) -> int:
    """Return the bytes of the gradients that the second step's update finds."""
    trace = capture.trace
    assert trace is not None
    last_backward = _start_of_backward(trace)
    update = next(span.start for span in trace.phases if span.phase is Phase.UPDATE and span.start > last_backward)
    live = Counter[str]()
    for event in _events_before(trace, update):
        value = trace.values[event.value]
        if value.name.endswith(".grad"):
            live[value.name] += value.size_bytes if event.is_birth else -value.size_bytes
    return live.total()


def check_every_moment(capture: Capture, peak_bytes: int) -> None:
    """Check that the categories add up to the live bytes after each birth and death, and that the most is the peak."""
    trace = capture.trace
    assert trace is not None
    by_category, live = Counter[Category](), set[int]()
    live_bytes = most = 0
    for event in trace.events:
        value = trace.values[event.value]
        change = value.size_bytes if event.is_birth else -value.size_bytes
        (live.add if event.is_birth else live.remove)(event.value)
        by_category[value.category] += change
        live_bytes += change
        assert by_category[value.category] >= 0
        most = max(most, live_bytes)
    assert by_category.total() == live_bytes == sum(trace.values[each].size_bytes for each in live)
    assert by_category[Category.UNATTRIBUTED] == 0
    assert most == peak_bytes


def _events_before(trace: Trace, position: int) -> Iterator[TraceEvent]:
    return (event for event in trace.events if event.position < position)


def _start_of_backward(trace: Trace) -> int:
    """Return the first position of the last backward pass. A loss scaler's operations after it are no forward pass."""
    in_backward = Phase.BACKWARD, Phase.RECOMPUTE
    follows = [
        after.start
        for before, after in pairwise(trace.phases)
        if before.phase is Phase.FORWARD and after.phase in in_backward
    ]
    return follows[-1]
