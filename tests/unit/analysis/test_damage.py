"""Captures that are damaged, or whose numbers do not agree with the compiler's: an error, and no report."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
from added_up_step import added_up_step
from hlo import Step, program_of
from hlo_nodes import FORWARD, Shape, array, f32, serialized_shape, tuple_of

from memprof.analysis.hlo.buffer_table import decode_buffer_table
from memprof.analysis.memory.checks import check_memory_spaces, replay_totals
from memprof.analysis.pipeline import analyze
from memprof.analysis.records.capture import ReplayTotals, Topology
from memprof.analysis.records.categories import Role
from memprof.analysis.records.report import Report
from memprof.errors import InternalError, MemprofError


def _field(number: int, content: bytes) -> bytes:
    """A field of bytes, or of a message, as protobuf writes it."""
    size, written = len(content), bytearray([number << 3 | 2])
    while size > 0x7F:
        written.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([*written, size]) + content


@pytest.mark.parametrize("data", [b"no proto", b"\xff" * 40, b"\x0a\x05abc"])
def test_what_is_no_proto_is_said_to_be_damaged(data: bytes) -> None:
    with pytest.raises(MemprofError, match=r"cannot be read .* it is damaged: make the capture again"):
        analyze(replace(added_up_step().capture(), hlo_proto=data))


@pytest.mark.parametrize(
    "module",
    [
        pytest.param(b"\x1a\x00" * (6 << 20), id="12 MiB of computations of two bytes"),
        pytest.param(_field(3, _field(2, b"") * 700_000), id="as many instructions of two bytes in one computation"),
        pytest.param(_field(3, _field(2, b"") * 350_000) * 2, id="or in two"),
    ],
)
def test_a_program_with_more_parts_than_a_compiler_makes_is_refused_before_it_is_read(module: bytes) -> None:
    with pytest.raises(MemprofError, match=r"it has more parts than any compiled program of its size\); it is damaged"):
        analyze(replace(added_up_step().capture(), hlo_proto=_field(1, module)))


def test_a_value_of_no_bytes_is_no_damage() -> None:
    step = Step()
    x = step.argument("x", Role.BATCH, f32(4))
    step.op("empty", "slice", f32(0, 4), [x], FORWARD)
    step.result(step.op("y", "negate", f32(4), [x], FORWARD))
    assert analyze(step.capture()).footprint_bytes == 32


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


def _instruction(proto: Any, name: str) -> Any:
    return next(each for each in proto.hlo_module.computations[0].instructions if each.name == name)


def _edit(proto: Any, what: str) -> None:
    module, assignment = proto.hlo_module, proto.buffer_assignment
    match what:
        case "the same number twice":
            _instruction(proto, "h").id = _instruction(proto, "t").id
        case "a computation twice":
            module.computations.add().CopyFrom(module.computations[0])
        case "a later operand":
            _instruction(proto, "h").operand_ids[0] = _instruction(proto, "t").id
        case "itself as operand":
            _instruction(proto, "h").operand_ids[0] = _instruction(proto, "h").id
        case "a parameter left out":
            _instruction(proto, "x").parameter_number = 7
        case "a parameter twice":
            _instruction(proto, "x").parameter_number = 0
        case "calls itself":
            _instruction(proto, "h").called_computation_ids.append(1)
        case "a schedule that leaves out":
            module.schedule.sequences.add(key=1).value.instruction_ids.append(module.computations[0].root_id)
        case "a negative dimension":
            _instruction(proto, "h").shape = serialized_shape(f32(-4))
        case "a huge array":
            _instruction(proto, "h").shape = serialized_shape(f32(4, 2**40, 2**40))
        case "an element of an array":
            _instruction(proto, "h").opcode = "get-tuple-element"
        case "a loop without a body":
            _instruction(proto, "h").opcode = "while"
        case "a frame of no file":
            module.stack_frame_index.file_locations[0].file_name_id = 0
        case "a frame of a negative file":
            module.stack_frame_index.file_locations[0].file_name_id = -1
        case "a negative size":
            assignment.buffer_allocations[-1].size = -1
        case "a place beyond the end":
            assignment.buffer_allocations[-1].assigned[0].offset = 10**6
        case "two places":
            twice = assignment.buffer_allocations[-1].assigned
            twice.add().CopyFrom(twice[0])
        case "no such parameter":
            assignment.buffer_allocations[0].parameter_number = 9
        case "differs from that of its place":
            assignment.logical_buffers[-1].size += 1
        case "no such instruction":
            assignment.logical_buffers[-1].defined_at.instruction_id = 999
        case "no such element":
            assignment.logical_buffers[-1].defined_at.shape_index.append(3)
        case "no such buffer":
            del assignment.logical_buffers[-1]


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        ("the same number twice", "two instructions of the program have the same number"),
        ("a computation twice", "two of its computations have the same number"),
        ("a later operand", r"h uses a value that its computation has not made yet"),
        ("itself as operand", r"h uses a value that its computation has not made yet"),
        ("a parameter left out", "the parameters of main are not numbered from 0 on"),
        ("a parameter twice", "two parameters of one computation have number 0"),
        ("calls itself", "main calls itself"),
        ("a schedule that leaves out", "its schedule leaves instructions out"),
        ("a negative dimension", "an array of an impossible shape"),
        ("a huge array", "an array of an impossible shape"),
        ("an element of an array", r"h \(get-tuple-element\) refers to an element that does not exist"),
        ("a loop without a body", r"h \(while\) calls the wrong number of computations"),
        ("a frame of no file", r"refers to something that is not in it \(0\)"),
        ("a frame of a negative file", r"refers to something that is not in it \(-1\)"),
        ("a negative size", "allocation 5 has an impossible size"),
        ("a place beyond the end", "allocation 5 is smaller than one of its buffers"),
        ("two places", "one of its logical buffers lies in two places"),
        ("no such parameter", "allocation 0 belongs to a parameter that the program does not have"),
        ("differs from that of its place", "differs from that of its place"),
        ("no such instruction", "belongs to an instruction that the program does not have"),
        ("no such element", "belongs to an element that its instruction does not have"),
        ("no such buffer", "holds a buffer that is not in its list"),
    ],
)
def test_a_program_that_does_not_hold_together_is_an_error(what: str, sentence: str) -> None:
    step = added_up_step()
    proto = step.proto()
    _edit(proto, what)
    capture = replace(step.capture(), hlo_proto=proto.SerializeToString())
    with pytest.raises(InternalError, match=sentence):
        analyze(capture)
    with pytest.raises(MemprofError, match=f"^a.memprof is damaged, or from .*{sentence}.*; create it again") as caught:
        analyze(replace(capture, file="a.memprof"))
    assert type(caught.value) is MemprofError  # a file is damaged; only what was just compiled is a defect


def _complaint(opcode: str, operands: int | Shape, result: Shape) -> str:
    """What is wrong with a program of one odd instruction, with so many operands or one tuple; empty: nothing."""
    step = Step()
    x = step.argument("x", Role.BATCH, f32(4))
    called = [step.computation("called")] if opcode == "async-start" else []
    for computation in called:
        computation.op("inside", "negate", f32(4), [computation.parameter(f32(4))])
    given = [x] * operands if isinstance(operands, int) else [step.tuple(*[x] * len(operands.elements))]
    step.op("odd", opcode, result, given, called=called)
    try:
        program_of(step.proto())
    except InternalError as error:
        return str(error).partition(": ")[2]
    return ""


@pytest.mark.parametrize(
    ("opcode", "num_operands"),
    [
        *((opcode, 1) for opcode in ("bitcast", "optimization-barrier", "add-dependency", "domain", "async-update")),
        *((opcode, 1) for opcode in ("all-reduce-done", "copy", "transpose", "reshape", "convert", "broadcast")),
        *((opcode, 1) for opcode in ("while", "scatter")),
        *((opcode, 2) for opcode in ("conditional", "dynamic-update-slice", "multiply", "divide")),
    ],
)
def test_an_instruction_has_the_operands_that_it_is_followed_to(opcode: str, num_operands: int) -> None:
    lacks = f"odd ({opcode}) lacks an operand"
    assert _complaint(opcode, num_operands - 1, f32(4)) == lacks
    assert _complaint(opcode, num_operands, f32(4)) != lacks


@pytest.mark.parametrize(
    ("opcode", "num_elements"),
    [("copy-done", 1), ("async-done", 2), ("all-gather-done", 2), ("collective-permute-done", 2)],
)
def test_what_ends_an_operation_takes_an_element_that_is_there(opcode: str, num_elements: int) -> None:
    not_there = f"odd ({opcode}) refers to an element that does not exist"
    assert _complaint(opcode, 0, f32(4)) == f"odd ({opcode}) lacks an operand"
    assert _complaint(opcode, tuple_of(*[f32(4)] * (num_elements - 1)), f32(4)) == not_there
    assert _complaint(opcode, tuple_of(*[f32(4)] * num_elements), f32(4)) == ""


@pytest.mark.parametrize("opcode", ["copy-start", "async-start"])
def test_what_starts_an_operation_gives_the_element_that_its_end_takes(opcode: str) -> None:
    not_there = f"odd ({opcode}) refers to an element that does not exist"
    assert _complaint(opcode, 1, tuple_of(f32(4))) == not_there
    assert _complaint(opcode, 1, tuple_of(f32(4), f32(4))) == ""


def test_names_are_cleaned_where_they_are_decoded() -> None:
    step = added_up_step()
    proto = step.proto()
    h = _instruction(proto, "h")
    for event in proto.buffer_assignment.heap_simulator_traces[0].events:
        event.instruction_name = event.instruction_name.replace("h", "h\x1b[2J")
    h.name, h.metadata.op_name = "h\x1b[2J", "jit(step)/jvp(Net)/a/\x1b]0;title\x07mul"
    report = analyze(replace(step.capture(), hlo_proto=proto.SerializeToString()))
    (buffer,) = (each for each in report.temp_buffers if each.name == r"h\x1b[2J")
    assert buffer.op == r"jit(step)/jvp(Net)/a/\x1b]0;title\x07mul"


@pytest.mark.parametrize(("length", "kept"), [(1 << 14, 1 << 14), ((1 << 14) + 1, 1 << 14)])
def test_texts_longer_than_any_rule_needs_are_cut(length: int, kept: int) -> None:
    step = added_up_step()
    proto = step.proto()
    _instruction(proto, "h").metadata.op_name = "x" * length
    report = analyze(replace(step.capture(), hlo_proto=proto.SerializeToString()))
    (buffer,) = (each for each in report.temp_buffers if each.name == "h")
    assert buffer.op == "x" * kept


@pytest.mark.parametrize("field", ["footprint_bytes", "peak_bytes", "num_events", "byte_events"])
def test_a_replay_that_comes_to_another_total_than_where_it_was_made_is_an_error(field: str) -> None:
    """On a CPU the compiler gives no peak, so that nothing else tells of a trace that was altered."""
    capture = added_up_step().capture()
    totals = replay_totals(capture.hlo_proto, capture.target.platform)
    # h, 16 bytes for all but the last of 8 events; t, 32 from the second to the fourth; dw, 16 for 4; dx, 8 for 1
    byte_events = 16 * 7 + 32 * 2 + 16 * 4 + 8 * 1
    assert totals == ReplayTotals(footprint_bytes=132, peak_bytes=64, num_events=8, byte_events=byte_events)
    no_peak = replace(capture, compiler=replace(capture.compiler, peak_memory_bytes=None))
    assert analyze(replace(no_peak, replay=totals)).footprint_bytes == 132
    for off_by in (1, -1):
        other = replace(totals, **{field: getattr(totals, field) + off_by})
        with pytest.raises(InternalError, match=rf"gives another total \({field} "):
            analyze(replace(no_peak, replay=other))


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


def test_each_memory_space_is_compared_with_the_compilers_report_of_it() -> None:
    step = added_up_step()
    proto = step.proto()
    for index, size in ((6, 1000), (7, 24)):
        proto.buffer_assignment.buffer_allocations.add(index=index, size=size, color=5, maybe_live_out=True)
    table = decode_buffer_table(proto, program_of(proto))
    check_memory_spaces(table, {0: 132, 5: 1024})
    check_memory_spaces(table, {})
    with pytest.raises(InternalError, match=r"^the bytes of memory space 5 .* \(1,024\) .* \(1,023\)"):
        check_memory_spaces(table, {0: 132, 5: 1023})


# Lasting are 48 of arguments, 4 of results and 8 of constants; the temporaries of the device are 64 at their highest.
@pytest.mark.parametrize(("host_bytes", "compilers_peak"), [(50, 60 + 64), (64, 60 + 64), (100, 60 + 100)])
def test_the_compilers_peak_is_of_the_memory_with_the_most_temporaries(host_bytes: int, compilers_peak: int) -> None:
    proto, capture = added_up_step().proto(), added_up_step().capture()
    assignment = proto.buffer_assignment
    name = assignment.heap_simulator_traces[0].events[0].instruction_name
    on_host = proto.hlo_module.computations[-1].instructions.add(id=99, name="on_host", opcode="custom-call")
    on_host.shape = serialized_shape(array("u8", host_bytes))
    buffer = assignment.logical_buffers.add(id=99, size=host_bytes, color=5)
    buffer.defined_at.instruction_id = on_host.id
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


def test_a_size_that_contradicts_its_shape_is_an_error() -> None:
    step = added_up_step()
    proto = step.proto()
    shapes = {each.id: each for each in proto.hlo_module.computations[-1].instructions}
    first = next(each for each in shapes.values() if each.opcode not in ("parameter", "tuple"))
    first.shape = serialized_shape(f32(5))
    with pytest.raises(InternalError, match=r"has 20 bytes by its shape, but \d+ by its buffer"):
        analyze(replace(step.capture(), hlo_proto=proto.SerializeToString()))


def test_an_event_of_an_unknown_instruction_is_an_error() -> None:
    step = added_up_step()
    proto = step.proto()
    proto.buffer_assignment.heap_simulator_traces[0].events[0].instruction_name = "elsewhere"
    with pytest.raises(InternalError, match="names the instruction 'elsewhere', which the program does not have"):
        analyze(replace(step.capture(), hlo_proto=proto.SerializeToString()))


def test_an_argument_of_another_shape_than_its_parameter_is_an_error() -> None:
    capture = added_up_step().capture()
    first, *others = capture.arguments
    with pytest.raises(InternalError, match="has the shape"):
        analyze(replace(capture, arguments=(replace(first, shape=(*first.shape, 2)), *others)))


@pytest.mark.parametrize(
    ("num_devices", "shape", "is_damaged"),
    [
        (1, (4,), False),
        (1, (8,), True),
        (2, (8,), False),  # each of two devices has half of it
        (2, (2,), True),  # a part is no larger than the whole
        (2, (8, 1), True),
    ],
)
def test_a_device_has_the_argument_or_a_part_of_it(num_devices: int, shape: tuple[int, ...], is_damaged: bool) -> None:
    capture = added_up_step().capture()
    first, *others = capture.arguments
    target = replace(capture.target, topology=Topology(num_devices=num_devices, axes={"data": num_devices}))
    changed = replace(capture, target=target, arguments=(replace(first, shape=shape), *others))
    with pytest.raises(InternalError, match="has the shape") if is_damaged else nullcontext():
        analyze(changed)


def test_an_allocation_that_does_not_hold_its_parameter_is_an_error() -> None:
    step = added_up_step()
    proto = step.proto()
    first, second = [
        each for each in proto.buffer_assignment.buffer_allocations if each.is_entry_computation_parameter
    ][:2]
    first.parameter_number, second.parameter_number = second.parameter_number, first.parameter_number
    with pytest.raises(InternalError, match="does not hold the parameter that it belongs to"):
        analyze(replace(step.capture(), hlo_proto=proto.SerializeToString()))


def test_a_negative_number_of_an_instruction_is_an_error() -> None:
    step = added_up_step()
    proto = step.proto()
    for computation in proto.hlo_module.computations:
        computation.instructions[0].id = -(2**40)
    with pytest.raises(InternalError):
        analyze(replace(step.capture(), hlo_proto=proto.SerializeToString()))
