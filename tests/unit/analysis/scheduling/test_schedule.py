"""Why a buffer is live at the peak, in programs by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hlo import Step
from hlo_nodes import BACKWARD, FORWARD, PLAIN, f32

from memprof.analysis.pipeline import analyze, analyze_peak
from memprof.analysis.records.categories import Role
from memprof.analysis.records.report import Schedule
from memprof.analysis.records.why_live import Reason, WhyLive
from memprof.errors import MemprofError

pytestmark = pytest.mark.with_one_jax
LASTING = 4 * 4 + 4  # the argument and the result


def deferred() -> Step:
    """`waits` is read last of all, though nothing else has to come before; `kept` is read by what needs the peak.

    bytes    kept 40, waits 400, peak 800; in the other order `waits` is not there beside `peak`
    """
    step = Step()
    x = step.argument("x", Role.BATCH, f32(4))
    kept = step.op("kept", "multiply", f32(10), [x, x], FORWARD)
    waits = step.op("waits", "multiply", f32(100), [x, x], FORWARD)
    peak = step.op("peak", "broadcast", f32(200), [kept], BACKWARD)
    between = step.op("between", "reduce", f32(1), [peak], BACKWARD)
    user = step.op("user", "add", f32(1), [kept, between], BACKWARD)
    late = step.op("late", "reduce", f32(1), [waits], BACKWARD)
    for freed, after in ((peak, between), (between, user), (kept, user), (waits, late)):
        step.free(freed, after=after)
    step.result(step.op("y", "add", f32(1), [user, late], PLAIN))
    return step


def _why(step: Step, name: str) -> WhyLive:
    (why,) = analyze_peak(step.capture(), name)[1]
    return why


def _schedule(step: Step, **fields: Any) -> Schedule:
    report = analyze(replace(step.capture(), **fields))
    assert report.schedule is not None
    return report.schedule


def test_what_is_read_late_for_no_reason_waits() -> None:
    why = _why(deferred(), "waits")
    assert why.reason is Reason.WAITING
    assert [user.name for user in why.users] == ["late"]
    assert why.ready == 2  # where `waits` is made
    assert why.chain == ()


def test_what_is_read_by_what_needs_the_peak_is_live_in_any_order() -> None:
    why = _why(deferred(), "kept")
    assert why.reason is Reason.ANY_ORDER
    assert why.at_peak is not None
    assert why.at_peak.name == "between"  # what it reads, 800 bytes, is still there
    assert [user.name for user in why.users] == ["user"]
    assert why.chain == ()  # it needs the operation at the peak itself


def test_an_argument_is_there_for_the_whole_step() -> None:
    assert _why(deferred(), "x").reason is Reason.WHOLE_STEP


def test_the_schedule_says_what_another_order_holds() -> None:
    schedule = _schedule(deferred())
    assert [buffer.name for buffer in schedule.waiting] == ["waits"]
    assert schedule.early == ()
    assert schedule.other_bytes == LASTING + 40 + 800 + 4  # at `between`; `waits` is made after it
    assert schedule.bound_bytes == LASTING + 40 + 800  # after `peak`
    assert not schedule.is_fenced


def test_what_is_made_long_before_it_is_read_is_early() -> None:
    """`early` is made first, and read by what comes after the peak."""
    step = Step()
    x = step.argument("x", Role.BATCH, f32(4))
    early = step.op("early", "broadcast", f32(100), [x], FORWARD)
    peak = step.op("peak", "broadcast", f32(200), [x], FORWARD)
    small = step.op("small", "reduce", f32(1), [peak], FORWARD)
    last = step.op("last", "add", f32(1), [small, early], FORWARD)
    for freed, after in ((peak, small), (small, last), (early, last)):
        step.free(freed, after=after)
    step.result(step.op("y", "negate", f32(1), [last], PLAIN))
    assert _why(step, "early").reason is Reason.EARLY
    schedule = _schedule(step)
    assert [buffer.name for buffer in schedule.early] == ["early"]
    assert schedule.other_bytes == LASTING + 800 + 4


def test_what_waits_at_a_barrier_is_told_so() -> None:
    step = Step()
    x = step.argument("x", Role.BATCH, f32(4))
    waits = step.op("waits", "multiply", f32(100), [x, x], FORWARD)
    peak = step.op("peak", "broadcast", f32(200), [x], BACKWARD)
    small = step.op("small", "reduce", f32(1), [peak], BACKWARD)
    passed = step.op("passed", "bitcast", f32(100), [waits], "jit(step)/optimization_barrier")
    late = step.op("late", "reduce", f32(1), [passed], BACKWARD)
    for freed, after in ((peak, small), (waits, late)):
        step.free(freed, after=after)
    step.result(step.op("y", "add", f32(1), [small, late], PLAIN))
    assert _schedule(step).is_fenced
    assert [analyze(each.capture()).program.has_barriers for each in (step, deferred())] == [True, False]


@pytest.mark.parametrize(
    ("values", "is_fenced"),
    [
        ({"jvp(Net)/mul": ("/home/me/model.py:12", "/home/me/train.py:40")}, True),
        ({"jvp(Net)/mul": ("/home/me/train.py:40",)}, False),
        ({"jvp(Net)/mul": ("/home/me/other_model.py:12",)}, False),
        ({"et)/mul": ("/home/me/model.py:12",)}, False),
        ({"transpose(jvp(Net))/mul": ("/home/me/model.py:12",)}, False),
        ({}, False),
    ],
)
def test_what_waits_at_a_barrier_that_xla_has_removed_is_known_from_the_traced_step(
    values: dict[str, tuple[str, ...]], is_fenced: bool
) -> None:
    step = Step()
    x = step.argument("x", Role.BATCH, f32(4))
    frame = step.frame("/home/me/model.py", 12)
    waits = step.op("waits", "multiply", f32(100), [x, x], "jit(step)/jvp(Net)/mul", frame=frame)
    peak = step.op("peak", "broadcast", f32(200), [x], BACKWARD)
    small = step.op("small", "reduce", f32(1), [peak], BACKWARD)
    late = step.op("late", "reduce", f32(1), [waits], BACKWARD)
    for freed, after in ((peak, small), (waits, late)):
        step.free(freed, after=after)
    step.result(step.op("y", "add", f32(1), [small, late], PLAIN))
    assert _schedule(step, fenced_values=values).is_fenced == is_fenced
    assert analyze(replace(step.capture(), fenced_values=values)).program.has_barriers == bool(values)


def test_a_name_that_nothing_has_is_refused_in_one_sentence() -> None:
    with pytest.raises(MemprofError, match=r"no buffer at the peak of .* is called 'nothing'"):
        analyze_peak(deferred().capture(), "nothing")


def test_a_part_of_an_op_name_finds_all_that_have_it() -> None:
    _, found = analyze_peak(deferred().capture(), "jvp(Net)")
    assert [why.buffer.name for why in found] == ["peak", "waits", "kept", "between"]  # largest first


def test_at_the_peak_runs_the_operation_and_not_the_call_that_begins_with_it() -> None:
    """The peak is reached with the first operation of a call; what begins there is the call, what runs is `large`."""
    step = Step()
    x = step.argument("x", Role.BATCH, f32(4))
    kept = step.op("kept", "broadcast", f32(10), [x], FORWARD)
    gone = step.op("gone", "broadcast", f32(2), [x], FORWARD)
    called = step.computation("called")
    large = called.op("large", "iota", f32(200), [], FORWARD)
    small = called.op("small", "reduce", f32(1), [large], FORWARD)
    step.free(gone, after=large)  # from here on the program holds less
    step.free(large, after=small)
    call = step.op("call", "call", f32(1), [], FORWARD, called=[called])
    user = step.op("user", "add", f32(1), [kept, call], FORWARD)
    step.free(kept, after=user)
    step.result(step.op("y", "negate", f32(1), [user], PLAIN))
    why = _why(step, "kept")
    assert why.at_peak is not None
    assert (why.at_peak.name, why.reason) == ("large", Reason.EARLY)
    assert [each.name for each in why.users] == ["user"]


def test_the_chain_names_the_operations_between_the_peak_and_a_user() -> None:
    """`kept` waits for three operations after the one at the peak, of which two are of one phase and module."""
    step = Step()
    x = step.argument("x", Role.BATCH, f32(4))
    kept = step.op("kept", "broadcast", f32(10), [x], FORWARD)
    peak = step.op("peak", "broadcast", f32(200), [kept], BACKWARD)
    between = step.op("between", "reduce", f32(1), [peak], BACKWARD)
    first = step.op("first", "negate", f32(1), [between], BACKWARD)
    second = step.op("second", "negate", f32(1), [first], BACKWARD)
    third = step.op("third", "negate", f32(1), [second], PLAIN)
    user = step.op("user", "add", f32(1), [kept, third], PLAIN)
    for freed, after in ((peak, between), (between, first), (first, second), (second, third), (kept, user)):
        step.free(freed, after=after)
    step.result(step.op("y", "negate", f32(1), [user], PLAIN))
    why = _why(step, "kept")
    assert why.at_peak is not None
    assert (why.reason, why.at_peak.name) == (Reason.ANY_ORDER, "between")
    assert [(link.op, link.num_operations) for link in why.chain] == [(BACKWARD, 2), (PLAIN, 1)]
