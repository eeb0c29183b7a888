"""From a capture to a report."""

from __future__ import annotations

import itertools
from dataclasses import replace

from added_up_step import added_up_step
from hlo import Step
from hlo_nodes import BACKWARD, FORWARD, f32, tuple_of
from measurements import GPU_RUN

from memprof.analysis.pipeline import analyze
from memprof.analysis.records.capture import ArgumentLeaf
from memprof.analysis.records.categories import Category, Phase, Role
from memprof.analysis.records.live_buffer import LiveBuffer, StackFrame
from memprof.analysis.records.measurement import OpTime
from memprof.analysis.records.report import ModuleNode
from memprof.analysis.records.timeline import LiveChange, PhaseSpan

V = f32(4)


def test_every_byte_of_the_footprint_has_a_category() -> None:
    report = analyze(added_up_step().capture())
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


def test_the_bytes_of_each_argument_on_one_device_are_those_of_its_allocation() -> None:
    capture = added_up_step().capture()
    report = analyze(capture)
    assert report.parameter_bytes == {0: 16, 1: 16, 2: 16}
    sharded = [replace(leaf, shape=(8,), size_bytes=32) for leaf in capture.arguments]
    assert [report.device_bytes(leaf) for leaf in sharded] == [16, 16, 16]
    dropped = replace(sharded[0], parameter_number=None)
    assert report.device_bytes(dropped) == 32


def test_what_is_live_at_the_peak_is_listed_largest_first() -> None:
    buffers = analyze(added_up_step().capture()).buffers
    assert all(buffer.at_peak for buffer in buffers)
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
        at_peak=True,
        family=2,  # after that of t, which is larger
        stack=(StackFrame("model.py", "f", 12, is_own=True),),
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
            Category.GRADIENTS: 16,
            Category.ACTIVATIONS: 16,
        },
        children=(),
    )
    root = analyze(added_up_step().capture()).modules
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
    timeline = analyze(added_up_step().capture()).timeline
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
        LiveChange(4, Category.ACTIVATIONS, 16),
        LiveChange(5, Category.FORWARD_TEMPS, 32),
        LiveChange(7, Category.GRADIENTS, 16),
        LiveChange(7, Category.FORWARD_TEMPS, -32),
        LiveChange(8, Category.COTANGENTS, 8),
        LiveChange(8, Category.COTANGENTS, -8),
        LiveChange(8, Category.GRADIENTS, -16),
        LiveChange(8, Category.ACTIVATIONS, -16),
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
        LiveChange(1, Category.FORWARD_TEMPS, 16),
        LiveChange(2, Category.FORWARD_TEMPS, -16),
        LiveChange(2, Category.ACTIVATIONS, 16),
        LiveChange(2, Category.ACTIVATIONS, -16),
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
        LiveChange(1, Category.FORWARD_TEMPS, 16),
        LiveChange(2, Category.FORWARD_TEMPS, 32),
        LiveChange(2, Category.FORWARD_TEMPS, -16),
        LiveChange(3, Category.ACTIVATIONS, 32),
        LiveChange(4, Category.ACTIVATIONS, 16),
    )
    held = [(buffer.name, buffer.start, buffer.end) for buffer in report.buffers if buffer.offset is not None]
    assert held == [("t", 2, 4), ("y", 3, 4), ("z", 4, 4)]


def test_the_timeline_knows_the_two_changes_of_each_temp_buffer() -> None:
    report = analyze(added_up_step().capture())
    changes = report.timeline.temp_changes
    assert {buffer.name: places for buffer, places in zip(report.temp_buffers, changes, strict=True)} == {
        "h": (0, 7),
        "t": (1, 3),
        "dw": (2, 6),
        "dx": (4, 5),
    }
    assert all(buffer in report.temp_buffers for buffer in report.buffers if buffer.is_temp)
    for buffer, places in zip(report.temp_buffers, changes, strict=True):
        born, died = (report.timeline.changes[place] for place in places)
        assert born == LiveChange(buffer.start, buffer.category, buffer.size_bytes)
        assert died == LiveChange(buffer.end, buffer.category, -buffer.size_bytes)


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
    assert [column.live_bytes for column in report.timeline.slices(80)] == [16]


def test_arguments_that_jit_dropped_cost_nothing() -> None:
    capture = added_up_step().capture()
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
        ("a", 4, 64),
        ("b", 6, 0),
    ]


def test_the_facts_of_the_capture_are_carried_over() -> None:
    capture = added_up_step().capture()
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


def test_the_operations_of_a_trace_are_joined_by_name() -> None:
    times = (
        OpTime(name="h", seconds=0.5, num_calls=2),
        OpTime(name="new_w", seconds=0.25, num_calls=2),
        OpTime(name="from elsewhere", seconds=0.125, num_calls=1),
    )
    capture = replace(added_up_step().capture(), measured=replace(GPU_RUN, op_times=times))
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
    assert analyze(added_up_step().capture()).op_costs == ()


def test_the_timeline_says_which_module_is_at_work() -> None:
    timeline = analyze(added_up_step().capture()).timeline
    spans = timeline.modules
    assert {span.path for span in spans} == {"a"}
    assert all(0 <= span.start <= span.end < timeline.num_positions for span in spans)
    assert all(before.end < after.start for before, after in itertools.pairwise(spans))


def test_the_work_of_the_forward_pass_is_told_by_module() -> None:
    scopes = {"jit(step)/jvp(Net)/a": 5, "jit(step)/jvp(Net)/a/gelu": 1, "jit(step)/jvp(Net)": 2}
    capture = replace(added_up_step().capture(), flops_by_scope=scopes | {"jit(step)/transpose(jvp(Net))/a": 70})
    assert analyze(capture).forward_flops == {"a": 6, "": 2}


def test_what_differentiates_nothing_is_a_forward_pass_as_a_whole() -> None:
    capture = replace(added_up_step().capture(), flops_by_scope={"jit(step)/Net/a": 5, "jit(step)/Net": 2})
    report = analyze(capture)
    assert report.forward_flops == {"a": 5, "": 2}
    assert (report.modules.forward_flops, report.modules.children[0].forward_flops) == (7, 5)


def test_without_the_order_of_operations_all_but_what_needs_it_is_the_same() -> None:
    capture = added_up_step().capture()
    whole, quick = analyze(capture), analyze(capture, with_order=False)
    assert whole.schedule is not None
    assert len(whole.reasons) == len(whole.buffers)
    assert (quick.schedule, quick.reasons) == (None, ())
    assert replace(whole, schedule=None, reasons=(), analysis_seconds=0) == replace(quick, analysis_seconds=0)
