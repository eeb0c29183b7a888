"""From a capture to a report."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hlo import BACKWARD, FORWARD, PLAIN, Step, array, f32, tuple_of
from measurements import GPU_RUN

from memprof.analysis.capture import ArgumentLeaf
from memprof.analysis.categories import Category, Phase, Role
from memprof.analysis.measurement import OpTime
from memprof.analysis.pipeline import analyze
from memprof.analysis.report import LiveBuffer, ModuleNode, Report
from memprof.analysis.timeline import Change, PhaseSpan
from memprof.errors import InternalError, MemprofError

V = f32(4)


def _step() -> Step:
    """A step with donated state, of which every number can be added up by hand.

    Outside the temp block: three arguments of 16 bytes, a constant of 8, a result of 4. In it: h (16 bytes), t (32,
    dies as soon as dw is made), dw (16), dx (8).
    """
    step = Step()
    line = step.frame("model.py", 12)
    w = step.argument("params['a']['w']", Role.PARAMS, V, donated=True)
    w.frame = line  # the line of an argument tells nothing of its own
    m = step.argument("opt.m['a']['w']", Role.OPTIMIZER_STATE, V, donated=True)
    x = step.argument("x", Role.BATCH, V)
    c = step.op("c", "constant", f32(2))
    h = step.op("h", "multiply", V, [w, x], "jit(step)/jvp(Net)/a/mul", frame=line)
    t = step.op("t", "dot", f32(8), [h, h], FORWARD)
    loss = step.op("loss", "reduce", f32(), [t, c], FORWARD)
    dw = step.op("dw", "multiply", V, [h, x], BACKWARD)
    step.free(t, after=dw)
    step.op("dx", "multiply", array("bf16", 4), [h, w], BACKWARD)
    new_m = step.op("new_m", "add", V, [m, dw], PLAIN, shares=m)
    new_w = step.op("new_w", "subtract", V, [w, new_m], PLAIN, shares=w)
    step.result(new_w, new_m, loss)
    return step


def test_every_byte_of_the_footprint_has_a_category() -> None:
    report = analyze(_step().capture())
    # 3 * 16 + 8 + 4 outside, 16 + 32 + 16 + 8 in the temp block.
    assert report.footprint_bytes == 132
    # t and dw are live together, dx comes later: 72 - 8 bytes of the block are live at the peak.
    assert report.live_peak_bytes == 124
    expected = {
        Category.PARAMS: 16,
        Category.OPTIMIZER_STATE: 16,
        Category.BATCH: 16,
        Category.GRADIENTS: 16,
        Category.ACTIVATIONS: 16,
        Category.FORWARD_TEMPS: 32,
        Category.OUTPUTS: 4,
        Category.CONSTANTS: 8,
        Category.FRAGMENTATION: 8,
    }
    assert report.categories == dict.fromkeys(Category, 0) | expected
    assert list(report.categories) == list(Category)
    assert report.by_dtype == {"f32": 124, "": 8}
    assert report.by_source == {"": 116, "model.py:12": 16}
    assert report.by_phase == {
        Phase.FORWARD: 52,  # h, t, loss
        Phase.ARGUMENT: 48,
        Phase.BACKWARD: 16,
        Phase.CONSTANT: 8,
        Phase.NONE: 8,
    }


def test_what_is_live_at_the_peak_is_listed_largest_first() -> None:
    buffers = analyze(_step().capture()).buffers
    assert [buffer.name for buffer in buffers] == [
        "t",
        "params['a']['w']",
        "opt.m['a']['w']",
        "x",
        "h",
        "dw",
        "c",
        "loss",
    ]
    assert buffers[4] == LiveBuffer(
        size_bytes=16,
        shape=(4,),
        dtype="f32",
        category=Category.ACTIVATIONS,
        phase=Phase.FORWARD,
        module="a",
        name="h",
        op="jit(step)/jvp(Net)/a/mul",
        source="model.py:12",
        rule="activations",
        evidence="made in the forward pass, used in the backward pass",
        start=4,  # after three arguments and the constant
        end=8,  # the last event of the trace stands at dx
        offset=0,
        held=(0, 7),  # see test_the_timeline_tells_what_comes_and_goes
    )
    assert (buffers[0].start, buffers[0].end, buffers[0].offset) == (5, 7, 16)
    assert (buffers[1].start, buffers[1].end, buffers[1].offset) == (0, 11, None)


def test_the_module_tree_holds_everything() -> None:
    a = ModuleNode(
        path="a",
        num_params=4,
        params=(("w", (4,), "float32"),),
        categories={
            Category.PARAMS: 16,
            Category.OPTIMIZER_STATE: 16,
            Category.ACTIVATIONS: 16,
        },
        children=(),
    )
    root = analyze(_step().capture()).modules
    assert root == ModuleNode(
        path="",
        num_params=4,
        params=(),
        categories={
            Category.PARAMS: 16,
            Category.OPTIMIZER_STATE: 16,
            Category.BATCH: 16,
            Category.GRADIENTS: 16,
            Category.ACTIVATIONS: 16,
            Category.FORWARD_TEMPS: 32,
            Category.OUTPUTS: 4,
            Category.CONSTANTS: 8,
            Category.FRAGMENTATION: 8,
        },
        children=(a,),
    )


def test_the_timeline_tells_what_comes_and_goes() -> None:
    timeline = analyze(_step().capture()).timeline
    assert timeline.num_positions == 12
    assert timeline.base == {
        Category.PARAMS: 16,
        Category.OPTIMIZER_STATE: 16,
        Category.BATCH: 16,
        Category.CONSTANTS: 8,
        Category.OUTPUTS: 4,
    }
    # XLA gives the memory of t back after dw has got its own, and dies out at the end.
    assert timeline.changes == (
        Change(4, Category.ACTIVATIONS, 16),
        Change(5, Category.FORWARD_TEMPS, 32),
        Change(7, Category.GRADIENTS, 16),
        Change(7, Category.FORWARD_TEMPS, -32),
        Change(8, Category.COTANGENTS, 8),
        Change(8, Category.COTANGENTS, -8),
        Change(8, Category.GRADIENTS, -16),
        Change(8, Category.ACTIVATIONS, -16),
    )
    assert timeline.phases == (
        PhaseSpan(phase=Phase.FORWARD, start=0, end=6),
        PhaseSpan(phase=Phase.BACKWARD, start=7, end=8),
        PhaseSpan(phase=Phase.UPDATE, start=9, end=11),
    )
    assert timeline.peak_position == 7


def test_shared_memory_belongs_to_the_value_that_took_it_last() -> None:
    step = Step()
    x = step.argument("x", Role.BATCH, V)
    h = step.op("h", "negate", V, [x], FORWARD)
    y = step.op("y", "negate", V, [h], FORWARD, shares=h)
    step.result(step.op("dx", "multiply", V, [y, x], BACKWARD))
    report = analyze(step.capture())
    # One piece of 16 bytes: h has it up to y, y up to the end. At the peak, where it is first reached, h has it.
    assert [(buffer.name, buffer.start, buffer.end) for buffer in report.buffers[1:] if buffer.offset is not None] == [
        ("h", 1, 2)
    ]
    assert report.timeline.changes == (
        Change(1, Category.FORWARD_TEMPS, 16),
        Change(2, Category.FORWARD_TEMPS, -16),
        Change(2, Category.ACTIVATIONS, 16),
        Change(2, Category.ACTIVATIONS, -16),
    )


def test_memory_that_is_taken_again_is_held_twice() -> None:
    step = Step()
    x = step.argument("x", Role.BATCH, V)
    h = step.op("h", "negate", V, [x], FORWARD)
    t = step.op("t", "negate", f32(8), [h], FORWARD)
    step.free(h, after=t)
    y = step.op("y", "negate", f32(8), [t], FORWARD)
    z = step.op("z", "negate", V, [y], FORWARD, shares=h)  # after h has died, in its memory
    step.result(step.op("dx", "multiply", V, [z, y], BACKWARD))
    report = analyze(step.capture())
    # x, dx and the 16 + 32 + 32 bytes of the temp block
    assert (report.footprint_bytes, report.live_peak_bytes) == (112, 112)
    assert report.timeline.changes[:5] == (
        Change(1, Category.FORWARD_TEMPS, 16),
        Change(2, Category.FORWARD_TEMPS, 32),
        Change(2, Category.FORWARD_TEMPS, -16),
        Change(3, Category.ACTIVATIONS, 32),
        Change(4, Category.ACTIVATIONS, 16),
    )
    held = [(buffer.name, buffer.start, buffer.end) for buffer in report.buffers if buffer.offset is not None]
    assert held == [("t", 2, 4), ("y", 3, 4), ("z", 4, 4)]


def test_each_temp_buffer_knows_its_two_changes_of_the_timeline() -> None:
    report = analyze(_step().capture())
    assert {buffer.name: buffer.held for buffer in report.temp_buffers} == {
        "h": (0, 7),
        "t": (1, 3),
        "dw": (2, 6),
        "dx": (4, 5),
    }
    assert all(buffer in report.temp_buffers for buffer in report.buffers if buffer.held)
    for buffer in report.temp_buffers:
        assert buffer.held is not None
        born, died = (report.timeline.changes[place] for place in buffer.held)
        assert born == Change(buffer.start, buffer.category, buffer.size_bytes)
        assert died == Change(buffer.end, buffer.category, -buffer.size_bytes)


def test_a_temp_block_of_pointers_alone_holds_nothing_at_the_peak() -> None:
    step = Step()
    x = step.argument("x", Role.BATCH, V)
    inner = step.tuple(x, x, table=True)
    step.result(step.op("y", "custom-call", V, [inner], FORWARD))
    report = analyze(step.capture())
    assert (report.footprint_bytes, report.live_peak_bytes) == (48, 32)
    assert [buffer.name for buffer in report.buffers] == ["x", "y"]


def test_tables_of_pointers_are_part_of_the_footprint_but_not_of_the_peak() -> None:
    step = Step()
    x = step.argument("x", Role.BATCH, V)
    call = step.op("call", "custom-call", tuple_of(V, V), [x], FORWARD, table=True)
    step.result(step.op("y", "negate", V, [step.element(call, 0)], FORWARD))
    report = analyze(step.capture())
    # x, y and two arrays of 16 bytes; XLA leaves the two pointers out of its trace.
    assert (report.footprint_bytes, report.live_peak_bytes) == (80, 64)
    assert report.categories[Category.FRAGMENTATION] == 16


def test_a_step_that_makes_nothing_of_its_own_has_arguments_only() -> None:
    step = Step()
    x = step.argument("x", Role.BATCH, V)
    step.result(x)
    report = analyze(step.capture())
    assert (report.footprint_bytes, report.live_peak_bytes, report.timeline.changes) == (16, 16, ())
    assert [column.live_bytes for column in report.timeline.columns(80)] == [16]


def test_arguments_that_jit_dropped_cost_nothing() -> None:
    capture = _step().capture()
    unused = ArgumentLeaf(
        path="params['b']['w']",
        role=Role.PARAMS,
        shape=(2, 3),
        dtype="float32",
        size_bytes=24,
        donated=False,
        parameter_number=None,
    )
    report = analyze(replace(capture, arguments=(*capture.arguments, unused)))
    assert (report.footprint_bytes, report.num_params) == (132, 10)
    assert [(node.path, node.num_params, node.size_bytes) for node in report.modules.children] == [
        ("a", 4, 48),
        ("b", 6, 0),
    ]


def test_the_facts_of_the_capture_are_carried_over() -> None:
    capture = _step().capture()
    report = analyze(capture)
    assert (report.label, report.workload, report.techniques, report.config) == (
        capture.label,
        capture.workload,
        capture.techniques,
        capture.config,
    )
    assert (report.target, report.toolchain, report.compiler, report.timings) == (
        capture.target,
        capture.toolchain,
        capture.compiler,
        capture.timings,
    )
    assert (report.arguments, report.flops, report.recomputed_flops) == (capture.arguments, 1000, 0)
    assert report.analysis_seconds > 0


# Damage


@pytest.mark.parametrize("data", [b"no proto", b"\xff" * 40, b"\x0a\x05abc"])
def test_what_is_no_proto_is_said_to_be_damaged(data: bytes) -> None:
    with pytest.raises(MemprofError, match=r"cannot be read .* it is damaged: make the capture again"):
        analyze(replace(_step().capture(), hlo_proto=data))


def test_a_proto_cut_off_anywhere_is_an_error() -> None:
    capture = _step().capture()
    for length in range(len(capture.hlo_proto)):
        with pytest.raises(MemprofError):
            analyze(replace(capture, hlo_proto=capture.hlo_proto[:length]))


@pytest.mark.parametrize(
    "edit",
    [
        pytest.param(lambda arguments: arguments[:-1], id="one missing"),
        pytest.param(lambda arguments: (*arguments, replace(arguments[0], parameter_number=9)), id="one too many"),
        pytest.param(lambda arguments: (replace(arguments[0], parameter_number=None), *arguments[1:]), id="unused"),
    ],
)
def test_arguments_that_do_not_fit_the_program_are_an_error(edit: Any) -> None:
    capture = _step().capture()
    with pytest.raises(InternalError, match="3 parameters"):
        analyze(replace(capture, arguments=edit(capture.arguments)))


def test_an_allocation_that_holds_nothing_is_an_error() -> None:
    step = _step()
    proto = step.proto()
    del proto.buffer_assignment.buffer_allocations[4].assigned[:]
    with pytest.raises(InternalError, match=r"allocation 4 \(4 bytes\) holds no value"):
        analyze(replace(step.capture(), hlo_proto=proto.SerializeToString()))


# Conservation: the totals of `_step`, each off by one.


@pytest.mark.parametrize(
    ("field", "what", "here", "compilers"),
    [
        ("argument_bytes", "the bytes of the arguments", 48, 49),
        ("output_bytes", "the bytes of the outputs", 4, 5),
        ("alias_bytes", "the bytes of the outputs", 4, 3),
        ("temp_bytes", "the bytes of the temp block", 72, 73),
        ("peak_memory_bytes", "the live peak", 124, 125),
    ],
)
def test_a_total_that_is_not_the_compilers_is_an_error(field: str, what: str, here: int, compilers: int) -> None:
    capture = _step().capture()
    totals = replace(capture.compiler, **{field: getattr(capture.compiler, field) + 1})
    message = rf"^{what} in the buffer assignment \({here}\) differs from the compiler's total \({compilers}\)"
    with pytest.raises(InternalError, match=message):
        analyze(replace(capture, compiler=totals))


def test_the_peak_is_not_compared_where_the_compiler_gives_none() -> None:
    capture = _step().capture()
    report = analyze(replace(capture, compiler=replace(capture.compiler, peak_memory_bytes=None)))
    assert report.live_peak_bytes == 124


def test_results_in_the_memory_of_the_host_count_in_the_compilers_peak_alone() -> None:
    step = _step()
    proto, capture = step.proto(), step.capture()
    proto.buffer_assignment.buffer_allocations.add(index=6, size=1000, color=5, maybe_live_out=True)
    totals = replace(capture.compiler, peak_memory_bytes=1124)
    report = analyze(replace(capture, hlo_proto=proto.SerializeToString(), compiler=totals))
    assert (report.footprint_bytes, report.live_peak_bytes, report.program.host_bytes) == (132, 124, 1000)


# Lasting are 48 of arguments, 4 of results and 8 of constants; the temporaries of the device are 64 at their highest.
@pytest.mark.parametrize(("host_bytes", "compilers_peak"), [(50, 60 + 64), (64, 60 + 64), (100, 60 + 100)])
def test_the_compilers_peak_is_of_the_memory_with_the_most_temporaries(host_bytes: int, compilers_peak: int) -> None:
    proto, capture = _step().proto(), _step().capture()
    assignment = proto.buffer_assignment
    name = assignment.heap_simulator_traces[0].events[0].instruction_name
    buffer = assignment.logical_buffers.add(id=99, size=host_bytes, color=5)
    buffer.defined_at.CopyFrom(assignment.logical_buffers[-2].defined_at)
    allocation = assignment.buffer_allocations.add(index=6, size=host_bytes, color=5)
    allocation.assigned.add(logical_buffer_id=99, offset=0, size=host_bytes)
    events = assignment.heap_simulator_traces.add().events
    for kind in (0, 1):
        events.add(kind=kind, buffer_id=99, instruction_name=name)

    def report_with(peak_bytes: int) -> Report:
        totals = replace(capture.compiler, peak_memory_bytes=peak_bytes)
        return analyze(replace(capture, hlo_proto=proto.SerializeToString(), compiler=totals))

    report = report_with(compilers_peak)
    assert (report.footprint_bytes, report.live_peak_bytes, report.program.host_bytes) == (132, 124, host_bytes)
    with pytest.raises(InternalError, match="the live peak"):
        report_with(compilers_peak + 1)


def test_a_trace_that_replays_to_another_peak_is_an_error() -> None:
    step = _step()
    proto = step.proto()
    events = proto.buffer_assignment.heap_simulator_traces[0].events
    del events[-1]
    assert analyze(replace(step.capture(), hlo_proto=proto.SerializeToString())).live_peak_bytes == 124
    freed = next(number for number, event in enumerate(events) if event.kind == 1)
    del events[freed]
    with pytest.raises(InternalError, match=r"the live peak .* \(132\) .* \(124\)"):
        analyze(replace(step.capture(), hlo_proto=proto.SerializeToString()))


def test_the_operations_of_a_trace_are_joined_by_name() -> None:
    times = (
        OpTime(name="h", seconds=0.5, num_calls=2),
        OpTime(name="new_w", seconds=0.25, num_calls=2),
        OpTime(name="from elsewhere", seconds=0.125, num_calls=1),
    )
    capture = replace(_step().capture(), measured=replace(GPU_RUN, op_times=times))
    costs = analyze(capture).op_costs
    assert [(cost.name, cost.seconds, cost.num_calls) for cost in costs] == [
        ("h", 0.5, 2),
        ("new_w", 0.25, 2),
        ("from elsewhere", 0.125, 1),
    ]
    h, new_w, elsewhere = costs
    assert (h.op, h.phase, h.module) == ("jit(step)/jvp(Net)/a/mul", Phase.FORWARD, "a")
    assert (h.category, h.held_bytes) == (Category.ACTIVATIONS, 16)
    # It updates the parameter in place: that memory is the argument's.
    assert (new_w.phase, new_w.category, new_w.held_bytes) == (Phase.UPDATE, None, 0)
    assert (elsewhere.op, elsewhere.phase, elsewhere.module, elsewhere.category) == ("", Phase.NONE, "", None)
    assert analyze(_step().capture()).op_costs == ()


def test_the_timeline_says_which_module_is_at_work() -> None:
    timeline = analyze(_step().capture()).timeline
    spans = timeline.modules
    assert {span.path for span in spans} == {"a"}
    assert all(0 <= span.start <= span.end < timeline.num_positions for span in spans)
    assert all(before.end < after.start for before, after in itertools.pairwise(spans))
