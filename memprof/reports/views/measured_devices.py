"""The measurements of each device of a mesh: their spread, and each device compared with the prediction."""

from __future__ import annotations

from memprof.analysis.records.measurement import MeasuredDevice, Measurement, PoolMemory
from memprof.analysis.records.report import Report
from memprof.reports.document import Block, Cell, Fact, Heading
from memprof.reports.units import format_bytes, format_exact_bytes, format_signed_bytes, format_signed_share
from memprof.reports.views.cells import aside_cell, size_cell
from memprof.reports.views.fields import Fields, number, table, text

_SHOWN_DEVICES = 16


def spread_facts(measured: Measurement) -> tuple[Fact, ...]:
    """List the spread of peaks and arguments over the devices; the values are empty for one device."""
    peaks = {each.device: each.peak_bytes for each in measured.devices if each.peak_bytes is not None}
    held = {each.device: each.argument_bytes for each in measured.devices}
    return (
        Fact(label="peaks", values=_spread(peaks) if len(peaks) == len(held) else ()),
        Fact(label="arguments", values=_spread(held)),
    )


def _spread(sizes: dict[str, int]) -> tuple[str, ...]:
    if not sizes:
        return ()
    least, most = min(sizes, key=sizes.__getitem__), max(sizes, key=sizes.__getitem__)
    if sizes[least] == sizes[most]:
        return (
            f"{format_bytes(sizes[most])}, {format_exact_bytes(sizes[most])} bytes on each of {len(sizes)} devices",
        )
    difference = sizes[most] - sizes[least]
    return (
        f"maximum {format_bytes(sizes[most])} ({most})",
        f"minimum {format_bytes(sizes[least])} ({least})",
        f"imbalance {format_signed_bytes(difference)} ({format_signed_share(difference, sizes[least])})",
    )


def device_blocks(report: Report) -> tuple[Block, ...]:
    """Build a table of the devices, the highest peak first; empty for one device or devices without an allocator."""
    devices = report.measured.devices if report.measured else ()
    counted = [(each, each.pool) for each in devices if each.pool is not None]
    if not counted:
        return ()
    counted.sort(key=lambda each: (-(each[1].peak_bytes or 0), each[0].device))

    def against_predicted(peak_bytes: int | None) -> str | Cell:
        return aside_cell("-") if peak_bytes is None else format_signed_bytes(peak_bytes - report.footprint_bytes)

    fields: Fields[tuple[MeasuredDevice, PoolMemory]] = (
        text("device", lambda each: each[0].device),
        number("process", lambda each: str(each[0].process), priority=2),
        number("arguments", lambda each: size_cell(each[0].argument_bytes), priority=1),
        number("before the steps", lambda each: size_cell(each[1].before_steps.current_bytes), priority=1),
        number(
            "peak", lambda each: aside_cell("hidden") if each[1].peak_bytes is None else size_cell(each[1].peak_bytes)
        ),
        number("against predicted", lambda each: against_predicted(each[1].peak_bytes)),
    )
    heading = Heading(text="Measured on each device", level=2, aside="XLA's allocator")
    return (heading, table(counted, fields, top=_SHOWN_DEVICES))
