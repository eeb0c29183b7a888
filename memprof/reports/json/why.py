"""What `memprof show --why --format json` prints, as typed records (see `report.py`)."""

# Without `from __future__ import annotations`: from texts msgspec makes these types in three times the time.

from collections.abc import Sequence
from typing import Annotated

from msgspec import Struct

from memprof.analysis.records.categories import Category, Phase
from memprof.analysis.records.report import Report
from memprof.analysis.records.why_live import Reason, WhyLive
from memprof.reports.json.types import Size, about, filled

_Position = Annotated[int, about("Position in program order.")]


class OperationJson(Struct, frozen=True, kw_only=True):
    """One operation of the compiled program."""

    name: Annotated[str, about("Name of the HLO instruction.")]
    op: Annotated[str, about("JAX's name; empty if there is none.")]
    source: Annotated[str, about("The line of the user's own code, file.py:12; empty if it is unknown.")]
    module: str
    phase: Phase
    position: _Position


class LinkJson(Struct, frozen=True, kw_only=True):
    """Operations of one phase and module that depend on each other, in order."""

    phase: Phase
    module: str
    op: Annotated[str, about("JAX's name of the first operation.")]
    num_operations: int


class WhyBufferJson(Struct, frozen=True, kw_only=True):
    """The reason why one buffer is live at the peak."""

    name: Annotated[str, about("Name of the HLO instruction that makes it.")]
    size_bytes: Size
    category: Category
    start: _Position
    reason: Annotated[
        Reason,
        about("whole step: an argument, a result or a constant; waiting and early: only because of the order."),
    ]
    users: Annotated[tuple[OperationJson, ...], about("Operations after the peak that use it, in order.")]
    ready: Annotated[int, about("The position after which the last of them has all its operands; -1 if it needs none.")]
    chain: Annotated[tuple[LinkJson, ...], about("The operations that connect the peak with the last of them.")]


class WhyJson(Struct, frozen=True, kw_only=True, tag_field="schema", tag="memprof.why/1"):
    """The reasons why buffers are live at the peak: `memprof show --why NAME --format json`."""

    label: str
    target: str
    live_peak_bytes: Size
    other_order_bytes: Annotated[Size, about("The live peak of the best other order of the operations that was found.")]
    any_order_bytes: Annotated[Size, about("A lower bound on the live peak of every order of the same operations.")]
    at_peak: Annotated[OperationJson | None, about("The operation at the peak; null if the temp block is empty.")]
    buffers: Annotated[tuple[WhyBufferJson, ...], about("The buffers with that name, largest first.")]


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
