"""What the compiled program does, apart from where its memory lies."""

from __future__ import annotations

from dataclasses import replace

from hlo import Step
from hlo_nodes import BACKWARD, RECOMPUTED, array, f32, tuple_of

from memprof.analysis.pipeline import analyze
from memprof.analysis.records.categories import Phase, Role
from memprof.analysis.records.report import Loop, ProgramFacts, ScopedOperations

V = f32(4)


def _looping(*op_names: str) -> Step:
    """A step with a loop for each op name, one after another."""
    step = Step()
    carried = step.tuple(step.op("copy", "copy", V, [step.argument("x", Role.BATCH, V)]))
    for number, op_name in enumerate(op_names):
        body, condition = step.computation(f"body{number}"), step.computation(f"condition{number}")
        old = body.element(body.parameter(tuple_of(V)), 0)
        body.tuple(body.op(f"next{number}", "negate", V, [old], op_name, shares=step.nodes[1]))
        condition.parameter(tuple_of(V))
        condition.op(f"less{number}", "constant", array("pred"))
        loop = step.op(f"loop{number}", "while", tuple_of(V), [carried], op_name, called=[body, condition])
        carried = step.tuple(step.op(f"copy{number}", "copy", V, [step.element(loop, 0)]))
    return step


def test_loops_tell_their_phase_and_how_often_they_run() -> None:
    forward, backward = "jit(step)/jvp(Net)/while", "jit(step)/transpose(jvp(Net))/while"
    step = _looping(forward, backward)
    proto = step.proto()
    loops = [node for node in proto.hlo_module.computations[0].instructions if node.opcode == "while"]
    loops[0].backend_config = b'{"known_trip_count":{"n":"12"},"known_induction_variable":{"tuple_index":"0"}}'
    report = analyze(replace(step.capture(), hlo_proto=proto.SerializeToString()))
    assert report.program == ProgramFacts(
        num_recomputed_operations=0,
        loops=(
            Loop(op=forward, phase=Phase.FORWARD, trip_count=12),
            Loop(op=backward, phase=Phase.BACKWARD, trip_count=None),
        ),
        host_bytes=0,
        operations=(
            ScopedOperations(scope="step/Net", phase=Phase.BACKWARD, num_operations=2),
            ScopedOperations(scope="step/Net", phase=Phase.FORWARD, num_operations=2),
        ),
        backward_end=17,
    )


def test_recomputed_operations_are_counted_inside_fusions_too() -> None:
    step = Step()
    x = step.argument("x", Role.BATCH, V)
    again = step.op("again", "negate", V, [x], RECOMPUTED)
    fused = step.computation("fused", fused=True)
    inner = fused.op("inner", "negate", V, [fused.parameter(V)], RECOMPUTED)
    fused.op("root", "negate", V, [inner], BACKWARD)
    step.result(step.op("fusion", "fusion", V, [again], BACKWARD, called=[fused]))
    assert analyze(step.capture()).program.num_recomputed_operations == 2


def test_memory_of_the_host_is_counted_apart() -> None:
    step = _looping()
    proto = step.proto()
    index = len(proto.buffer_assignment.buffer_allocations)
    proto.buffer_assignment.buffer_allocations.add(index=index, size=1000, color=5)
    proto.buffer_assignment.buffer_allocations.add(index=index + 1, size=2000, color=5, is_thread_local=True)
    proto.buffer_assignment.buffer_allocations.add(index=index + 2, size=4000, color=3)
    report = analyze(replace(step.capture(), hlo_proto=proto.SerializeToString()))
    # The argument and its copy are on the device.
    assert (report.program.host_bytes, report.footprint_bytes) == (1000, 32)
