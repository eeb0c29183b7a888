"""What `memprof show --why --format json` prints, as typed records (see `report.py`)."""

# Without `from __future__ import annotations`: from texts msgspec makes these types in three times the time.

from collections.abc import Sequence
from typing import Annotated

from msgspec import Struct

from memprof.analysis.records.categories import Category, Phase
from memprof.analysis.records.report import Report
from memprof.analysis.records.why_live import Reason, WhyLive
from memprof.reports.json.types import Size, about, filled

_Position = Annotated[int, about("In program order.")]


class OperationJson(Struct, frozen=True, kw_only=True):
    """One operation of the compiled program."""

    name: Annotated[str, about("Of the HLO instruction.")]
    op: Annotated[str, about("JAX's name of it; empty where there is none.")]
    source: Annotated[str, about("file.py:12 of the user's own code; empty where the program does not tell.")]
    module: str
    phase: Phase
    position: _Position


class LinkJson(Struct, frozen=True, kw_only=True):
    """Operations of one phase and module, each of which needs the one before."""

    phase: Phase
    module: str
    op: Annotated[str, about("JAX's name of the first.")]
    num_operations: int


class WhyBufferJson(Struct, frozen=True, kw_only=True):
    """Why one buffer is live at the peak."""

    name: Annotated[str, about("Of the HLO instruction that makes it.")]
    size_bytes: Size
    category: Category
    start: _Position
    reason: Annotated[
        Reason,
        about("whole step: an argument, a result or a constant; waiting and early: because of the order alone."),
    ]
    users: Annotated[tuple[OperationJson, ...], about("What has yet to use it after the peak, in order.")]
    ready: Annotated[int, about("The position after which the last of them has all that it needs; -1: none.")]
    chain: Annotated[tuple[LinkJson, ...], about("How the last of them depends on what runs at the peak.")]


class WhyJson(Struct, frozen=True, kw_only=True, tag_field="schema", tag="memprof.why/1"):
    """Why buffers are live at the peak: `memprof show --why NAME --format json`."""

    label: str
    target: str
    live_peak_bytes: Size
    other_order_bytes: Annotated[Size, about("The live peak in the best other order of the operations that was found.")]
    any_order_bytes: Annotated[Size, about("No order of the same operations has a lower live peak.")]
    at_peak: Annotated[OperationJson | None, about("What runs at the peak; null where the temp block is empty.")]
    buffers: Annotated[tuple[WhyBufferJson, ...], about("Those of the name, largest first.")]


def why_json(report: Report, reasons: Sequence[WhyLive]) -> WhyJson:
    """What is printed of buffers and why they are live."""
    schedule = report.schedule
    assert schedule is not None
    buffers = [
        filled(
            WhyBufferJson,
            why,
            **{name: getattr(why.buffer, name) for name in ("name", "size_bytes", "category", "start")},
        )
        for why in reasons
    ]
    return filled(
        WhyJson,
        report,
        target=report.target.name,
        other_order_bytes=schedule.other_bytes,
        any_order_bytes=schedule.bound_bytes,
        at_peak=reasons[0].at_peak,
        buffers=buffers,
    )
