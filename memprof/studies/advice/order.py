"""A rule on the order of operations: arrays that are live at the peak only because of it."""

from __future__ import annotations

from collections.abc import Iterator

from memprof.analysis.records.device_family import family_of
from memprof.analysis.records.report import Report
from memprof.studies.advice.advice import Proposal
from memprof.studies.advice.what_if import amount, made_at
from memprof.workloads.intents import Aim, Intent


def other_order(report: Report) -> Iterator[Proposal]:
    """Propose another order, if arrays are made too early, or wait for operations that could have run earlier.

    On one GPU, XLA orders operations for memory only, and on the CPU to give all threads work. No option changes that
    order, so the only proposal there is to remove a barrier.
    """
    is_one_device = report.target.topology.num_devices == 1
    if (
        report.schedule is None
        or not family_of(report.target.platform).has_schedule_options
        or (is_one_device and not report.program.has_barriers)
    ):
        return
    schedule = report.schedule
    if schedule.other_bytes >= report.live_peak_bytes:
        return
    if schedule.is_fenced:
        aim = Aim.REMOVE_BARRIER
        what = "Remove the optimization barrier, so that operations after it can run as soon as their operands exist"
        cost = "XLA may then merge or move operations across it"
    elif not is_one_device:
        aim = Aim.SCHEDULE_FOR_MEMORY
        what = "Have XLA order operations to save memory, not to hide communication"
        cost = "devices wait longer for each other; measure it"
    else:
        return
    held = sorted((*schedule.waiting, *schedule.early), key=lambda buffer: -buffer.size_bytes)
    if not held:
        return
    yield Proposal(
        intent=Intent(aim=aim),
        what=what,
        evidence=f"{amount(held, 'arrays')} at the peak are live only because of the order of operations:"
        f" {len(schedule.waiting)} wait for operations that could have run earlier, and {len(schedule.early)} are made"
        f" before they are needed; the largest is made at {made_at(held[0])}; another order of the same operations"
        f" has {schedule.other_bytes:,} live bytes at its peak (XLA may find"
        f" yet another one), and every order at least {schedule.bound_bytes:,}",
        cost=cost,
        without=lambda buffer: None,
        live_peak_bytes=schedule.other_bytes,
    )
