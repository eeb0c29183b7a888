"""From hand-built traces to reports: the peak, its categories, and what the allocator adds."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from memprof.analysis.memory.caching_allocator import MIB, AllocatorSettings, OutOfMemoryError
from memprof.analysis.memory.card import judge_reserved
from memprof.analysis.records.capture import NO_COMPILER, Capture, Target, Timings, Toolchain
from memprof.analysis.records.categories import Category, Phase
from memprof.analysis.records.live_buffer import StackFrame
from memprof.analysis.records.pool import Answer
from memprof.analysis.records.report import Report
from memprof.analysis.records.timeline import ModuleSpan, PhaseSpan
from memprof.analysis.records.trace import Recording, Trace, TracedValue, TraceEvent, fault_of
from memprof.analysis.traced import analyze_trace
from memprof.errors import MemprofError
from memprof.sources.capture_file import read_capture, write_capture

TARGET = Target(
    name="t4", description="", platform="cuda", memory_bytes=16 << 30, compute_capability="7.5", reason="asked for"
)
TOOLCHAIN = Toolchain(
    memprof="0",
    python="3",
    jax="",
    jaxlib="",
    cuda_plugin=None,
    flax=None,
    optax=None,
    xla_flags="",
    torch="2",
)


def _value(size: int, category: Category, phase: Phase = Phase.FORWARD) -> TracedValue:
    return TracedValue(
        size_bytes=size,
        shape=(size // 4,),
        dtype="f32",
        category=category,
        phase=phase,
        module="layer",
        name=category.value,
        op="aten.mm",
        source="model.py:1",
        library="",
        rule="",
        evidence="",
    )


# A parameter of 3 MiB is kept. In each of two steps an activation of 5 MiB lives from the first operation to the third,
# a gradient of 3 MiB from the second to the last. The first step makes the optimizer's state of 6 MiB.
VALUES = (
    _value(3 * MIB, Category.PARAMS, Phase.ARGUMENT),
    _value(5 * MIB, Category.ACTIVATIONS),
    _value(3 * MIB, Category.GRADIENTS, Phase.BACKWARD),
    _value(6 * MIB, Category.OPTIMIZER_STATE, Phase.ARGUMENT),
    _value(5 * MIB, Category.ACTIVATIONS),
    _value(3 * MIB, Category.GRADIENTS, Phase.BACKWARD),
)
TRACE = Trace(
    framework="torch",
    num_positions=8,
    step_starts=(0, 4),
    values=VALUES,
    events=(
        TraceEvent(0, 0, True),
        TraceEvent(0, 1, True),
        TraceEvent(1, 2, True),
        TraceEvent(2, 1, False),
        TraceEvent(3, 3, True),
        TraceEvent(3, 2, False),
        TraceEvent(4, 4, True),
        TraceEvent(5, 5, True),
        TraceEvent(6, 4, False),
        TraceEvent(7, 5, False),
    ),
    phases=(PhaseSpan(phase=Phase.FORWARD, start=0, end=7),),
)


def trace_capture(trace: Trace = TRACE) -> Capture:
    return Capture(
        label="step",
        workload="step",
        techniques=(),
        config={},
        target=TARGET,
        toolchain=TOOLCHAIN,
        compiler=NO_COMPILER,
        arguments=(),
        flops=0,
        recomputed_flops=0,
        timings=Timings(lower_seconds=0.0, compile_seconds=0.0),
        trace=trace,
    )


def _report(trace: Trace, settings: AllocatorSettings | None = None) -> Report:
    return analyze_trace(trace_capture(trace), settings=settings)


@pytest.mark.parametrize(
    ("phases", "num_passes"),
    [
        ((Phase.FORWARD,), 0),
        ((Phase.FORWARD, Phase.BACKWARD), 1),
        ((Phase.FORWARD, Phase.BACKWARD, Phase.UPDATE), 1),
        ((Phase.FORWARD, Phase.BACKWARD, Phase.FORWARD, Phase.BACKWARD), 2),  # accumulated gradients
        ((Phase.FORWARD, Phase.BACKWARD, Phase.RECOMPUTE, Phase.BACKWARD), 1),  # recomputed within the pass
        ((Phase.BACKWARD, Phase.FORWARD), 0),
    ],
)
def test_a_backward_pass_follows_each_forward_pass_of_the_last_step(phases: tuple[Phase, ...], num_passes: int) -> None:
    spans = [PhaseSpan(phase=phase, start=4 + number, end=4 + number) for number, phase in enumerate(phases)]
    first = [
        PhaseSpan(phase=phase, start=2 * n, end=2 * n + 1) for n, phase in enumerate((Phase.FORWARD, Phase.BACKWARD))
    ]
    facts = _report(replace(TRACE, phases=(*first, *spans))).program.traced
    assert facts is not None
    assert facts.num_backward_passes == num_passes
    # An activation of 5 MiB, and nothing else of the forward pass; no gradient outlives a step.
    assert (facts.forward_bytes, facts.kept_gradient_bytes) == ({"f32": 5 * MIB}, 0)


def test_gradients_that_outlive_a_step_are_kept() -> None:
    kept = [event for event in TRACE.events if event != TraceEvent(3, 2, False)]
    facts = _report(replace(TRACE, events=(*kept, TraceEvent(7, 2, False)))).program.traced
    assert facts is not None
    assert facts.kept_gradient_bytes == 3 * MIB


def test_the_step_with_the_highest_peak_is_reported_and_its_categories_add_up() -> None:
    report = _report(TRACE)
    # Second step: 3 + 6 kept, 5 + 3 of the step. The first step has 3 + 5 + 3 at most.
    assert report.live_peak_bytes == 17 * MIB
    assert report.footprint_bytes == 20 * MIB  # one segment for all: 5 + 3 + 6 + 3 fit it
    assert {category: size // MIB for category, size in report.categories.items() if size} == {
        Category.PARAMS: 3,
        Category.OPTIMIZER_STATE: 6,
        Category.GRADIENTS: 3,
        Category.ACTIVATIONS: 5,
        Category.FRAGMENTATION: 3,
    }
    assert [buffer.size_bytes // MIB for buffer in report.buffers] == [6, 5, 3, 3]


def test_no_compiler_has_given_totals() -> None:
    totals = asdict(_report(TRACE).compiler)
    assert totals.pop("is_complete") is True
    assert set(totals.values()) == {0, None}


def test_the_timeline_of_the_reported_step_has_its_peak() -> None:
    timeline = _report(TRACE).timeline
    assert timeline.num_positions == 4
    assert timeline.base == {Category.PARAMS: 3 * MIB, Category.OPTIMIZER_STATE: 6 * MIB}
    assert [piece.live_bytes // MIB for piece in timeline.slices(4)] == [14, 17, 17, 12]
    assert timeline.peak_position == 1
    assert timeline.temp_changes == ((0, 2), (1, 3))


def test_phases_and_modules_are_cut_to_the_reported_step() -> None:
    """The second step has the positions 4 to 7: what ends at 3 is gone, what ends at 4 or begins at 7 is there."""
    spans = [(0, 3), (1, 4), (3, 9), (5, 6), (7, 7)]
    trace = replace(
        TRACE,
        num_positions=12,
        step_starts=(0, 4, 8),
        events=tuple(each for each in TRACE.events if each.position < 8),
        phases=tuple(PhaseSpan(phase=Phase.FORWARD, start=start, end=end) for start, end in spans),
        modules=tuple(ModuleSpan(path="layer", start=start, end=end) for start, end in (*spans, (8, 9))),
    )
    timeline = _report(trace).timeline
    kept = [(0, 0), (0, 3), (1, 2), (3, 3)]
    assert [(each.start, each.end) for each in timeline.phases] == kept
    assert [(each.start, each.end) for each in timeline.modules] == kept


def test_a_value_that_an_earlier_step_leaves_behind_is_live_until_it_dies() -> None:
    events = tuple(event for event in TRACE.events if event != TraceEvent(3, 2, False))
    kept = replace(TRACE, events=(*events[:-3], TraceEvent(5, 2, False), *events[-3:]))
    report = _report(kept)
    (first, *_) = [buffer for buffer in report.temp_buffers if buffer.category is Category.GRADIENTS]
    assert (first.start, first.end) == (0, 1)
    assert report.live_peak_bytes == 17 * MIB  # it dies before the new gradient is there


def test_rounding_is_fragmentation_and_the_allocators_figures_are_kept_apart() -> None:
    odd = replace(TRACE, values=(replace(VALUES[0], size_bytes=4), *VALUES[1:]))
    report = _report(odd)
    assert report.categories[Category.PARAMS] == 4
    assert report.allocator is not None
    assert report.allocator.requested_bytes == report.live_peak_bytes == 14 * MIB + 4
    # The new activation of 5 MiB takes a free block of 6 MiB whole: a rest of 1 MiB is not split off.
    assert report.allocator.allocated_bytes == 15 * MIB + 512
    assert report.allocator.reserved_bytes == report.footprint_bytes == 22 * MIB


def test_the_verdict_leaves_room_for_the_cuda_context() -> None:
    assert _report(TRACE).fits
    capacity = (16 << 30) - 1050 * MIB  # 1050 MiB lie outside on such a card
    assert judge_reserved(capacity, TARGET).answer is Answer.FITS
    verdict = judge_reserved(capacity + MIB, TARGET)
    assert (verdict.answer, verdict.short_bytes) == (Answer.DOES_NOT_FIT, MIB)
    assert verdict.sentence.startswith("does not fit: 15.0 GiB reserved, 1.00 MiB more than the 15.0 GiB that t4 has")


def test_a_limit_that_the_step_exceeds_is_an_error() -> None:
    with pytest.raises(OutOfMemoryError):
        _report(TRACE, settings=AllocatorSettings(limit_bytes=16 * MIB))


def test_a_recorded_allocator_is_believed_and_its_blocks_are_not_known() -> None:
    recording = Recording(reserved_bytes=40 * MIB, addresses=(0, 1, 2, 3, 4, 5))
    report = _report(replace(TRACE, recording=recording))
    assert report.allocator is not None
    assert (report.footprint_bytes, report.live_peak_bytes) == (40 * MIB, 17 * MIB)
    assert (report.allocator.allocated_bytes, report.allocator.reserved_bytes) == (None, 40 * MIB)
    assert report.categories[Category.FRAGMENTATION] == 23 * MIB


def test_a_capture_of_a_trace_survives_the_file(tmp_path: Path) -> None:
    stacks = ((), (StackFrame("model.py", "forward", 7, True),))
    trace = replace(TRACE, stacks=stacks, values=(replace(VALUES[0], stack=1), *VALUES[1:]))
    capture = trace_capture(replace(trace, recording=Recording(reserved_bytes=17 * MIB, addresses=(0, 1, 2, 3, 4, 5))))
    path = write_capture(capture, tmp_path / "step.memprof")
    assert replace(read_capture(path), pool=capture.pool) == capture


FIRST = TRACE.events[0]


@pytest.mark.parametrize(
    ("trace", "fault"),
    [
        (TRACE, ""),
        (replace(TRACE, events=(FIRST, FIRST)), "a value is allocated or freed twice"),
        (replace(TRACE, events=(TraceEvent(0, 0, False),)), "a value is allocated or freed twice"),
        (replace(TRACE, events=(TraceEvent(0, 6, True),)), "its events are out of order"),
        (replace(TRACE, events=(TraceEvent(8, 0, True),)), "its events are out of order"),
        (replace(TRACE, events=(TraceEvent(3, 0, True), TraceEvent(2, 1, True))), "its events are out of order"),
        (replace(TRACE, step_starts=(4, 0)), "its steps are out of order"),
        (replace(TRACE, step_starts=()), "its steps are out of order"),
        (replace(TRACE, step_starts=(0, 9)), "its steps are out of order"),
        (replace(TRACE, values=(replace(VALUES[0], stack=1), *VALUES[1:])), "a value has a stack that does not exist"),
        (replace(TRACE, phases=(PhaseSpan(phase=Phase.FORWARD, start=0, end=8),)), "a span is outside its operations"),
        (
            replace(TRACE, recording=Recording(reserved_bytes=17 * MIB - 1, addresses=(0,) * 6)),
            "less memory is reserved than is allocated",
        ),
        *(
            (
                replace(TRACE, recording=Recording(reserved_bytes=1, addresses=tuple(range(num_addresses)))),
                "it does not have one address for each value",
            )
            for num_addresses in (5, 7)
        ),
    ],
)
def test_a_trace_that_contradicts_itself_is_refused(trace: Trace, fault: str, tmp_path: Path) -> None:
    assert fault_of(trace) == fault
    if fault:
        with pytest.raises(MemprofError, match=fault):
            write_capture(trace_capture(trace), tmp_path / "step.memprof")
