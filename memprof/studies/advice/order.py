"""A rule on when operations run: what XLA's order alone keeps live at the peak."""

from __future__ import annotations

from collections.abc import Iterator

from memprof.analysis.records.device_family import family_of
from memprof.analysis.records.report import Report
from memprof.studies.advice.advice import Proposal
from memprof.studies.advice.what_if import amount, made_at
from memprof.workloads.intents import Aim, Intent


def other_order(report: Report) -> Iterator[Proposal]:
    """Arrays that wait for operations which could have run before, or are made before they are needed.

    On one GPU XLA orders operations for memory alone, and on the CPU so that threads find work: nothing is known there
    that would have it take such an order, but that a barrier goes.
    """
    is_alone = report.target.topology.num_devices == 1
    if (
        report.schedule is None
        or not family_of(report.target.platform).has_schedule_options
        or (is_alone and not report.program.has_barriers)
    ):
        return
    schedule = report.schedule
    if schedule.other_bytes >= report.live_peak_bytes:
        return
    if schedule.is_fenced:
        aim = Aim.REMOVE_BARRIER
        what = "Take away the optimization barrier, so that what waits at it can run as soon as it has its operands"
        cost = "what the barrier was for: XLA may merge or move operations across it"
    elif not is_alone:
        aim = Aim.SCHEDULE_FOR_MEMORY
        what = "Have XLA order operations for memory, not to hide communication behind them"
        cost = "devices wait for each other longer: measure"
    else:
        return
    held = sorted((*schedule.waiting, *schedule.early), key=lambda buffer: -buffer.size_bytes)
    if not held:
        return
    yield Proposal(
        intent=Intent(aim=aim),
        what=what,
        evidence=f"{amount(held, 'arrays')} at the peak, are live because of the order of operations alone:"
        f" {len(schedule.waiting)} wait for operations that could have run before, {len(schedule.early)} are made"
        f" before they are needed; the largest is made at {made_at(held[0])}; another order of the same operations"
        f" has {schedule.other_bytes:,} bytes live at its peak (XLA may find"
        f" yet another), and any order at least {schedule.bound_bytes:,}",
        cost=cost,
        without=lambda buffer: None,
        live_peak_bytes=schedule.other_bytes,
    )
