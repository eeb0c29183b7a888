"""The measurements of a run, compared with the prediction, and by operation if a trace exists."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from memprof.analysis.records.measurement import (
    DriverMemory,
    MeasuredDevice,
    Measurement,
    OutOfMemory,
    PoolMemory,
    ResidentMemory,
)
from memprof.analysis.records.report import OpCost, Report
from memprof.reports.document import (
    Block,
    Cell,
    Heading,
    Note,
    Tone,
)
from memprof.reports.units import (
    format_bytes,
    format_count,
    format_exact_bytes,
    format_flops,
    format_fraction,
    format_rate,
    format_short_seconds,
    format_signed_bytes,
    format_signed_share,
)
from memprof.reports.views.cells import aside_cell, category_cell, facts_of, size_cell
from memprof.reports.views.fields import Field, Fields, bar, number, summed, table, text

_SHOWN_LOSSES = 5
_SHOWN_DEVICES = 16
_LOOPS = Note(
    tone=Tone.MUTED,
    text="Times are sums over all threads or streams. Loops and calls are left out, because the operations inside "
    "them are in the list.",
)
_MEAN = replace(_LOOPS, text=f"All is the mean of the devices of one process. {_LOOPS.text}")


def measured_blocks(report: Report) -> tuple[Block, ...]:
    """Build the section of all measurements; empty if the step was not run."""
    measured = report.measured
    if measured is None:
        return ()
    facts = {
        "step time": _step_time(measured),
        "throughput": _throughput(measured),
        "utilization": _utilization(report, measured),
        "loss": _losses(measured),
        "peak": _peak(report, measured.pool),
        **_spreads(measured),
        "allocator": _pool(measured.pool),
        "outside it": _outside(measured.driver, measured.pool),
        "resident": _resident(report, measured.resident),
    }
    return (
        Heading(text="Measured", level=2, aside=_ran(measured)),
        facts_of(facts),
        *_out_of_memory(report, measured.out_of_memory),
        *_explanations(measured),
        *_device_blocks(report),
    )


def measured_summary(report: Report) -> tuple[Block, ...]:
    """List the measurements that concern the verdict; empty if the step was not run."""
    measured = report.measured
    if measured is None:
        return ()
    facts = facts_of(
        {
            "step time": (*_step_time(measured), *_throughput(measured)),
            "peak": _peak(report, measured.pool),
            "resident": _resident(report, measured.resident),
        }
    )
    return (*((facts,) if facts.facts else ()), *_out_of_memory(report, measured.out_of_memory))


def _ran(measured: Measurement) -> str:
    count = len(measured.step_seconds)
    devices = f"{len(measured.devices)} devices ({measured.device})" if measured.devices else measured.device
    processes = f" in {measured.num_processes} processes" if measured.num_processes > 1 else ""
    return f"on {devices}{processes}, {count} steps after {measured.num_warmup_steps} warm-up steps"


def _step_time(measured: Measurement) -> tuple[str, ...]:
    if measured.median_seconds is None:
        return ()
    low, high = (format_short_seconds(measured.percentile_seconds(percent)) for percent in (10, 90))
    return (f"median {format_short_seconds(measured.median_seconds)}", f"{low} to {high} for 80% of the steps")


def _throughput(measured: Measurement) -> tuple[str, ...]:
    rates = {
        "examples": measured.per_second(measured.num_examples),
        "tokens": measured.per_second(measured.num_tokens),
    }
    return tuple(f"{format_rate(rate)} {what}/s" for what, rate in rates.items() if rate is not None)


def _utilization(report: Report, measured: Measurement) -> tuple[str, ...]:
    share = measured.utilization(report.flops - report.recomputed_flops)
    if share is None or measured.peak_flops_per_second is None:
        return ()
    peak = format_flops(round(measured.peak_flops_per_second))
    return (f"MFU {format_fraction(share)}", f"of {peak}/s, dense 16-bit matrix products")


def _losses(measured: Measurement) -> tuple[str, ...]:
    """List some losses of the run, including the first and the last."""
    last = len(measured.losses) - 1
    if last < 0:
        return ()
    steps = sorted({round(last * number / (_SHOWN_LOSSES - 1)) for number in range(_SHOWN_LOSSES)})
    return tuple(f"{measured.losses[step]:.4g} at step {step + 1}" for step in steps)


def _peak(report: Report, pool: PoolMemory | None) -> tuple[str, ...]:
    if pool is None:
        return ()
    if pool.peak_bytes is None:
        most = format_bytes(pool.after_all_steps.peak_bytes)
        return (f"at most {most}: compiling the step or creating its arguments took this, more than running it",)
    return (
        f"{format_bytes(pool.peak_bytes)}, {format_exact_bytes(pool.peak_bytes)} bytes (XLA's allocator)",
        *_against(report, pool.peak_bytes),
    )


def _pool(pool: PoolMemory | None) -> tuple[str, ...]:
    if pool is None:
        return ()
    readings = {
        "before the steps": pool.before_steps,
        "after the first": pool.after_first_step,
        "after the last": pool.after_all_steps,
    }
    return (
        *(f"{format_bytes(reading.current_bytes)} in use {when}" for when, reading in readings.items()),
        *((f"{format_bytes(pool.pool_bytes)} held of the device",) if pool.pool_bytes is not None else ()),
    )


def _outside(driver: DriverMemory | None, pool: PoolMemory | None) -> tuple[str, ...]:
    """List the memory that the driver counts, and the part outside of XLA's pool: CUDA context and library handles."""
    if driver is None:
        return ()
    taken = driver.device_after_bytes - driver.device_before_bytes
    held = taken if driver.process_bytes is None else driver.process_bytes
    counted = "the device's use grew by" if driver.process_bytes is None else "the process holds"
    in_total = f"NVML: {counted} {format_signed_bytes(held)}"
    if pool is None or pool.pool_bytes is None:
        return (in_total,)
    return (
        in_total,
        f"{format_signed_bytes(held - pool.pool_bytes)} outside XLA's pool (CUDA context, library handles)",
    )


def _resident(report: Report, resident: ResidentMemory | None) -> tuple[str, ...]:
    if resident is None:
        return ()
    of_all = f" of {resident.num_devices} devices" if resident.num_devices > 1 else ""
    return (
        f"{format_bytes(resident.growth_bytes)} for arguments and steps{of_all} (growth of the process)",
        *_against(report, resident.growth_bytes, num_devices=resident.num_devices),
    )


def _against(report: Report, measured_bytes: int, *, num_devices: int = 1) -> tuple[str, ...]:
    predicted = num_devices * report.footprint_bytes
    difference = measured_bytes - predicted
    return (
        f"predicted {format_bytes(predicted)}",
        f"difference {format_signed_bytes(difference)} ({format_signed_share(difference, predicted)})",
    )


def _out_of_memory(report: Report, end: OutOfMemory | None) -> tuple[Note, ...]:
    if end is None:
        return ()
    asked = f"asked for {format_bytes(end.asked_bytes)}" if end.asked_bytes is not None else "asked for more"
    there = ""
    if end.limit_bytes is not None and end.in_use_bytes is not None:
        there = f", with {format_bytes(end.in_use_bytes)} of {format_bytes(end.limit_bytes)} in use"
    text = (
        f"Out of memory while {end.doing}: {asked}{there}. The compiled program takes "
        f"{format_bytes(report.footprint_bytes)}; its parts are below."
    )
    return (Note(tone=Tone.BAD, text=text),)


def _explanations(measured: Measurement) -> tuple[Note, ...]:
    if measured.resident is None or measured.out_of_memory is not None:
        return ()
    text = (
        "A CPU has no allocator statistics: resident is the growth of the whole process during the steps (including "
        "threads, libraries and freed blocks that malloc keeps) plus the size of the arguments."
    )
    if measured.devices:
        text += " The share of each device is unknown."
    return (Note(tone=Tone.MUTED, text=text),)


def operation_blocks(report: Report, *, top: int) -> tuple[Block, ...]:
    """Build the table of operations by time; empty if no trace was taken."""
    costs = [cost for cost in report.op_costs if not cost.contains_others]
    if not costs or report.measured is None:
        return ()
    num_steps = len(report.measured.step_seconds)
    whole = sum(cost.seconds for cost in costs)

    def seconds(title: str, show: Callable[[float], str]) -> Field[OpCost]:
        return summed(title, lambda costs: show(sum(cost.seconds for cost in costs)))

    def of(cost: OpCost) -> Cell:
        return category_cell(cost.category) if cost.category else aside_cell("-")

    return (
        Heading(text="Slowest operations", level=2, aside="a step, from the trace"),
        table(
            costs,
            [
                text("operation", lambda cost: cost.name, min_width=16),
                seconds("time", lambda seconds: format_short_seconds(seconds / num_steps)),
                seconds("share", lambda seconds: format_fraction(seconds / whole)),
                bar(lambda cost: round(cost.seconds * 1e9), priority=4),
                number("calls", lambda cost: format_count(round(cost.num_calls / num_steps)), priority=3),
                text("phase", lambda cost: cost.phase.value, priority=2),
                text("module", lambda cost: cost.module or aside_cell("-"), priority=1, min_width=12),
                number("holds", lambda cost: size_cell(cost.held_bytes)),
                text("of", of, priority=1),
            ],
            top=top,
            whole="all operations",
        ),
        _MEAN if report.measured.devices else _LOOPS,
    )


def _spreads(measured: Measurement) -> dict[str, tuple[str, ...]]:
    """Return the spread of peaks and arguments over the devices; the values are empty for one device."""
    peaks = {each.device: each.peak_bytes for each in measured.devices if each.peak_bytes is not None}
    held = {each.device: each.argument_bytes for each in measured.devices}
    return {"peaks": _spread(peaks) if len(peaks) == len(held) else (), "arguments": _spread(held)}


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


def _device_blocks(report: Report) -> tuple[Block, ...]:
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
