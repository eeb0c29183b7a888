"""The measurements of each device of a mesh: their spread, and each device compared with the prediction."""

from __future__ import annotations

from memprof.analysis.records.measurement import MeasuredDevice, Measurement
from memprof.analysis.records.report import Report
from memprof.reports.document import Align, Block, Cell, Column, Fact, Heading, Row, Table
from memprof.reports.units import format_bytes, format_exact_bytes, format_signed_bytes, format_signed_share
from memprof.reports.views.cells import aside_cell, more_label, size_cell

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
    counted = [each for each in devices if each.pool is not None]
    if not counted:
        return ()
    counted.sort(key=lambda each: (-(each.peak_bytes or 0), each.device))
    rows = [_row(each, report.footprint_bytes) for each in counted[:_SHOWN_DEVICES]]
    if rest := counted[_SHOWN_DEVICES:]:
        rows.append(Row(cells=(aside_cell(more_label(len(rest))), *(Cell(text=""),) * 5)))
    return (
        Heading(text="Measured on each device", level=2, aside="XLA's allocator"),
        Table(
            columns=(
                Column(title="device"),
                Column(title="process", align=Align.RIGHT, priority=2),
                Column(title="arguments", align=Align.RIGHT, priority=1),
                Column(title="before the steps", align=Align.RIGHT, priority=1),
                Column(title="peak", align=Align.RIGHT),
                Column(title="against predicted", align=Align.RIGHT),
            ),
            rows=tuple(rows),
        ),
    )


def _row(device: MeasuredDevice, predicted_bytes: int) -> Row:
    assert device.pool is not None
    peak_bytes = device.peak_bytes
    peak = (
        (aside_cell("hidden"), aside_cell("-"))
        if peak_bytes is None
        else (size_cell(peak_bytes), Cell(text=format_signed_bytes(peak_bytes - predicted_bytes)))
    )
    return Row(
        cells=(
            Cell(text=device.device),
            Cell(text=str(device.process)),
            size_cell(device.argument_bytes),
            size_cell(device.pool.before_steps.current_bytes),
            *peak,
        )
    )
