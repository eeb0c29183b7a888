"""Where in the schedule things happen."""

from __future__ import annotations

from hlo import Step, program_of
from hlo_nodes import BACKWARD, FORWARD, PLAIN, UNNAMED, array, f32, tuple_of

from memprof.analysis.attribution.aliases import AliasSets
from memprof.analysis.attribution.op_names import Named, named_phase
from memprof.analysis.hlo.buffer_table import Event, EventKind, HeapTrace, decode_buffer_table
from memprof.analysis.hlo.program import Instruction
from memprof.analysis.hlo.program_order import ProgramOrder
from memprof.analysis.records.categories import Phase, Role
from memprof.analysis.records.timeline import ModuleSpan, PhaseSpan

V = f32(4)


def _order(step: Step) -> ProgramOrder:
    proto = step.proto()
    program = program_of(proto)
    return ProgramOrder(program, AliasSets(program, decode_buffer_table(proto, program)).order)


def _looping() -> Step:
    """x; a loop whose body has a fusion; y."""
    step = Step()
    x = step.argument("x", Role.BATCH, V)
    body, condition, fused = step.computation("body"), step.computation("condition"), step.computation("fused")
    carried = body.parameter(tuple_of(V))
    fused.op("inside", "negate", V, [fused.parameter(V)])
    body.tuple(body.op("fusion", "fusion", V, [body.element(carried, 0)], called=[fused]))
    condition.parameter(tuple_of(V))
    condition.op("less", "constant", array("pred"))
    loop = step.op("loop", "while", tuple_of(V), [step.tuple(x)], called=[body, condition])
    step.result(step.op("y", "negate", V, [step.element(loop, 0)]))
    return step


def test_loops_stand_in_line_and_fused_operations_have_no_place() -> None:
    assert [instruction.name for instruction in _order(_looping()).instructions] == [
        "x",
        "main.tuple1",
        "condition.p0",
        "less",
        "body.p0",
        "body.p0.element0.in.body",
        "fusion",
        "body.tuple3",
        "loop",
        "loop.element0.in.main",
        "y",
    ]


def test_memory_is_taken_where_its_value_is_made_and_given_back_where_the_program_stands() -> None:
    alloc, free, share = EventKind.ALLOC, EventKind.FREE, EventKind.SHARE_WITH
    events = [(alloc, "x"), (alloc, "fusion"), (free, "x"), (share, "y"), (free, "fusion"), (alloc, "unknown")]
    trace = HeapTrace(allocation=0, events=tuple(Event(kind, 0, 0, name) for kind, name in events))
    # x stands at 0, fusion at 6, y at 10. XLA names the value in the FREE too, not the place where it happens.
    assert _order(_looping()).event_positions(trace) == (0, 6, 6, 10, 10, 10, 10)


def test_time_does_not_run_backwards() -> None:
    events = tuple(Event(EventKind.ALLOC, 0, 0, name) for name in ("y", "x", "fusion"))
    assert _order(_looping()).event_positions(HeapTrace(allocation=0, events=events)) == (10, 10, 10, 10)


def test_the_phases_cover_the_schedule_and_what_has_none_belongs_to_the_one_around_it() -> None:
    step = Step()
    x = step.argument("x", Role.BATCH, V)
    for number, op_name in enumerate([FORWARD, UNNAMED, FORWARD, BACKWARD, UNNAMED, PLAIN, FORWARD]):
        step.op(f"op{number}", "negate", V, [x], op_name)
    step.result(x)

    def phase_of(instruction: Instruction) -> Phase:
        phases = {Named.FORWARD: Phase.FORWARD, Named.BACKWARD: Phase.BACKWARD, Named.UNPHASED: Phase.UPDATE}
        return phases.get(named_phase(instruction.op_name), Phase.NONE)

    order = _order(step)
    assert order.length == 9  # x, the seven, and the tuple of the results
    assert order.phase_spans(phase_of) == (
        PhaseSpan(phase=Phase.FORWARD, start=0, end=3),
        PhaseSpan(phase=Phase.BACKWARD, start=4, end=5),
        PhaseSpan(phase=Phase.UPDATE, start=6, end=6),
        PhaseSpan(phase=Phase.FORWARD, start=7, end=8),
    )


def test_a_module_is_at_work_until_another_one_is_whatever_does_no_work_between() -> None:
    step = Step()
    x = step.argument("x", Role.BATCH, V)
    a = step.op("a", "negate", V, [x])
    b = step.op("b", "tanh", V, [step.op("view", "bitcast", V, [a])])
    other = step.op("other", "negate", V, [b])
    outside = step.op("outside", "negate", V, [other])
    step.result(step.op("again", "negate", V, [outside]))
    modules = {"a": "layer", "b": "layer", "other": "head", "again": "head"}
    # x stands at 0 and the view at 2; what belongs to no module ends the stretch of the one before it
    assert _order(step).module_spans(lambda instruction: modules.get(instruction.name, "")) == (
        ModuleSpan(path="layer", start=1, end=3),
        ModuleSpan(path="head", start=4, end=4),
        ModuleSpan(path="head", start=6, end=6),
    )


def test_a_program_without_phases_has_no_spans() -> None:
    assert _order(_looping()).phase_spans(lambda _: Phase.NONE) == ()
