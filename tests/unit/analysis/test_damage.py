"""Captures that are damaged, or whose numbers do not agree with the compiler's: an error, and no report."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from added_up_step import added_up_step

from memprof.analysis.pipeline import analyze
from memprof.analysis.report import Report
from memprof.errors import InternalError, MemprofError


@pytest.mark.parametrize("data", [b"no proto", b"\xff" * 40, b"\x0a\x05abc"])
def test_what_is_no_proto_is_said_to_be_damaged(data: bytes) -> None:
    with pytest.raises(MemprofError, match=r"cannot be read .* it is damaged: make the capture again"):
        analyze(replace(added_up_step().capture(), hlo_proto=data))


def test_a_proto_cut_off_anywhere_is_an_error() -> None:
    capture = added_up_step().capture()
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
    capture = added_up_step().capture()
    with pytest.raises(InternalError, match="3 parameters"):
        analyze(replace(capture, arguments=edit(capture.arguments)))


def test_an_allocation_that_holds_nothing_is_an_error() -> None:
    step = added_up_step()
    proto = step.proto()
    del proto.buffer_assignment.buffer_allocations[4].assigned[:]
    with pytest.raises(InternalError, match=r"allocation 4 \(4 bytes\) holds no value"):
        analyze(replace(step.capture(), hlo_proto=proto.SerializeToString()))


# Conservation: the totals of `added_up_step`, each off by one.


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
    capture = added_up_step().capture()
    totals = replace(capture.compiler, **{field: getattr(capture.compiler, field) + 1})
    message = rf"^{what} in the buffer assignment \({here}\) differs from the compiler's total \({compilers}\)"
    with pytest.raises(InternalError, match=message):
        analyze(replace(capture, compiler=totals))


def test_the_peak_is_not_compared_where_the_compiler_gives_none() -> None:
    capture = added_up_step().capture()
    report = analyze(replace(capture, compiler=replace(capture.compiler, peak_memory_bytes=None)))
    assert report.live_peak_bytes == 124


def test_results_in_the_memory_of_the_host_count_in_the_compilers_peak_alone() -> None:
    step = added_up_step()
    proto, capture = step.proto(), step.capture()
    proto.buffer_assignment.buffer_allocations.add(index=6, size=1000, color=5, maybe_live_out=True)
    totals = replace(capture.compiler, peak_memory_bytes=1124)
    report = analyze(replace(capture, hlo_proto=proto.SerializeToString(), compiler=totals))
    assert (report.footprint_bytes, report.live_peak_bytes, report.program.host_bytes) == (132, 124, 1000)


# Lasting are 48 of arguments, 4 of results and 8 of constants; the temporaries of the device are 64 at their highest.
@pytest.mark.parametrize(("host_bytes", "compilers_peak"), [(50, 60 + 64), (64, 60 + 64), (100, 60 + 100)])
def test_the_compilers_peak_is_of_the_memory_with_the_most_temporaries(host_bytes: int, compilers_peak: int) -> None:
    proto, capture = added_up_step().proto(), added_up_step().capture()
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
    step = added_up_step()
    proto = step.proto()
    events = proto.buffer_assignment.heap_simulator_traces[0].events
    del events[-1]
    assert analyze(replace(step.capture(), hlo_proto=proto.SerializeToString())).live_peak_bytes == 124
    freed = next(number for number, event in enumerate(events) if event.kind == 1)
    del events[freed]
    with pytest.raises(InternalError, match=r"the live peak .* \(132\) .* \(124\)"):
        analyze(replace(step.capture(), hlo_proto=proto.SerializeToString()))
