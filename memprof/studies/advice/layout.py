"""A rule on the layout of arrays: they are stored in tiles, so their dimensions are padded."""

from __future__ import annotations

from collections.abc import Iterator

from memprof.analysis.records.live_buffer import LiveBuffer, array_type
from memprof.analysis.records.report import Report
from memprof.studies.advice.advice import Proposal
from memprof.studies.advice.what_if import Instead, amount, changed_at_peak
from memprof.workloads.intents import Aim, Intent

_Kind = tuple[str, tuple[int, ...], tuple[int, ...]]


def padded_axes(report: Report) -> Iterator[Proposal]:
    """Propose to fold or extend an axis that does not fill whole tiles; one proposal for each type and shape."""
    kinds = dict.fromkeys(_kind(buffer) for buffer in report.buffers if buffer.padding_bytes and buffer.padded)
    for kind in kinds:
        yield _proposal(report, kind)


def _proposal(report: Report, kind: _Kind) -> Proposal:
    def without(buffer: LiveBuffer) -> Instead | None:
        is_padded = buffer.padding_bytes and _kind(buffer) == kind
        return Instead(size_bytes=buffer.size_bytes - buffer.padding_bytes) if is_padded else None

    dtype, shape, padded = kind
    arrays = changed_at_peak(report, without)
    axis = max(range(len(shape)), key=lambda number: padded[number] / max(shape[number], 1))
    padding = sum(buffer.padding_bytes for buffer in arrays)
    return Proposal(
        intent=Intent(aim=Aim.FOLD_AXIS),
        what=f"Fold the axis of {shape[axis]} in {array_type(dtype, shape)} into another one, or make it a"
        f" multiple of its tile: {padded[axis]}",
        evidence=f"{amount(arrays, 'arrays')} at the peak are stored as {array_type(dtype, padded)}:"
        f" {padding:,} bytes of padding",
        cost="none, if the operations that read it accept the other shape",
        without=without,
    )


def _kind(buffer: LiveBuffer) -> _Kind:
    return buffer.dtype, buffer.shape, buffer.padded
