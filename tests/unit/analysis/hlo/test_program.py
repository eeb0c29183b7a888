"""Decoding the program."""

from __future__ import annotations

from typing import Any

import pytest
from hlo import Step, program_of
from hlo_nodes import array, f32, tuple_of, write_shape

from memprof.analysis.hlo.hlo_proto import HloProto, ShapeProto
from memprof.analysis.hlo.program import Frame, Program, ResultLeaf, Shape
from memprof.analysis.records.categories import Role
from memprof.errors import InternalError


def _decode_shape(write: Any) -> Shape:
    """The shape of the one instruction of a program."""
    shape = ShapeProto()
    write(shape)
    proto = HloProto()
    proto.hlo_module.entry_computation_id = 1
    computation = proto.hlo_module.computations.add(id=1, root_id=1)
    computation.instructions.add(id=1, name="p", opcode="parameter", shape=shape.SerializeToString())
    return program_of(proto).instructions[0].shape


def test_an_array_has_one_leaf() -> None:
    shape = _decode_shape(lambda message: write_shape(message, array("bf16", 2, 3)))
    assert shape == Shape((ResultLeaf((), "bf16", (2, 3)),), None)


def test_a_nested_tuple_has_its_arrays_as_leaves_in_order() -> None:
    nested = tuple_of(f32(2), tuple_of(array("s32"), array("pred", 1)), tuple_of(), array("u8", 9))
    shape = _decode_shape(lambda message: write_shape(message, nested))
    assert shape.leaves == (
        ResultLeaf((0,), "f32", (2,)),
        ResultLeaf((1, 0), "s32", ()),
        ResultLeaf((1, 1), "pred", (1,)),
        ResultLeaf((3,), "u8", (9,)),
    )
    assert [list(shape.child(index)) for index in range(4)] == [[0], [1, 2], [], [3]]


def test_an_empty_tuple_has_no_leaves() -> None:
    assert _decode_shape(lambda message: write_shape(message, tuple_of())) == Shape((), (0,))


def test_an_unknown_dtype_keeps_its_number() -> None:
    def write(message: Any) -> None:
        message.element_type = 999

    assert _decode_shape(write).leaves == (ResultLeaf((), "type999", ()),)


def test_operands_calls_and_positions_are_dense_indices() -> None:
    step = Step()
    x = step.argument("x", Role.BATCH, f32(4))
    fused = step.computation("fused", fused=True)
    inside = fused.parameter(f32(4))
    fused.tuple(fused.op("neg", "negate", f32(4), [inside]), inside)
    fusion = step.op("fusion", "fusion", tuple_of(f32(4), f32(4)), [x], "jit(f)/neg", called=[fused])
    step.result(step.element(fusion, 1))
    program = program_of(step.proto())

    names = [instruction.name for instruction in program.instructions]
    assert names == ["x", "fusion", "fusion.element1.in.main", "fused.p0", "neg", "fused.tuple2"]
    assert [instruction.operands for instruction in program.instructions] == [(), (0,), (1,), (), (3,), (4, 3)]
    # One position per leaf: the fusion and the tuple have two.
    assert [list(instruction.positions) for instruction in program.instructions] == [[0], [1, 2], [3], [4], [5], [6, 7]]
    assert program.num_positions == 8
    assert program.instructions[1].called == (1,)
    assert program.instructions[1].op_name == "jit(f)/neg"
    assert program.instructions[2].tuple_index == 1
    assert (program.entry.name, program.entry.parameters, program.entry.root) == ("main", (0,), 2)
    assert program.computations[1].instructions == (3, 4, 5)


def test_parameters_are_in_the_order_of_their_numbers() -> None:
    step = Step()
    step.argument("a", Role.BATCH, f32(1))
    step.argument("b", Role.BATCH, f32(2))
    proto = step.proto()
    first, second = proto.hlo_module.computations[0].instructions
    first.parameter_number, second.parameter_number = 1, 0
    assert program_of(proto).entry.parameters == (1, 0)


def test_the_schedule_tells_the_order_of_instructions() -> None:
    step = Step()
    a = step.op("a", "iota", f32(4))
    b = step.op("b", "iota", f32(4))
    step.result(step.op("c", "add", f32(4), [a, b]))
    proto = step.proto()
    sequence = proto.hlo_module.schedule.sequences.add(key=1)
    sequence.value.instruction_ids.extend([b.id, a.id, step.root.id])
    assert program_of(proto).entry.instructions == (1, 0, 2)


def _traced() -> tuple[Step, Program]:
    """A program with a stack of two frames at instruction 0, a lone frame at 1, and nothing at 2."""
    step = Step()
    outer = step.frame("train.py", 10, function="step")
    inner = step.frame("model.py", 20, function="net", caller=outer)
    for number, frame in enumerate([inner, outer, 0]):
        step.op(f"op{number}", "iota", f32(4), frame=frame)
    return step, program_of(step.proto())


def test_a_stack_starts_at_the_innermost_frame() -> None:
    _, program = _traced()
    train, model = Frame("train.py", "step", 10), Frame("model.py", "net", 20)
    assert [program.stack(instruction) for instruction in program.instructions] == [(model, train), (train,), ()]


def test_without_a_stack_the_source_line_of_the_instruction_stands_for_it() -> None:
    step, _ = _traced()
    proto = step.proto()
    metadata = proto.hlo_module.computations[0].instructions[2].metadata
    metadata.source_file, metadata.source_line = "loss.py", 7
    program = program_of(proto)
    assert program.stack(program.instructions[2]) == (Frame("loss.py", "", 7),)


def test_frames_that_call_each_other_in_a_circle_end() -> None:
    step, _ = _traced()
    proto = step.proto()
    proto.hlo_module.stack_frame_index.stack_frames[0].parent_frame_id = 2
    program = program_of(proto)
    train, model = Frame("train.py", "step", 10), Frame("model.py", "net", 20)
    assert program.stack(program.instructions[0]) == (model, train)


def test_fields_that_memprof_does_not_read_are_skipped() -> None:
    step, expected = _traced()
    data = step.proto().SerializeToString()
    unknown_field = bytes([0xFA, 0x7D, 3, 1, 2, 3])  # field 2015, three bytes long
    assert program_of(HloProto.FromString(data + unknown_field)) == expected


@pytest.mark.parametrize("damage", ["entry", "operand", "root", "called", "scheduled", "frame"])
def test_a_program_that_refers_to_what_is_not_there_is_an_error(damage: str) -> None:
    step, _ = _traced()
    proto = step.proto()
    module = proto.hlo_module
    match damage:
        case "entry":
            module.entry_computation_id = 77
        case "operand":
            module.computations[0].instructions[0].operand_ids.append(77)
        case "root":
            module.computations[0].root_id = 77
        case "called":
            module.computations[0].instructions[0].called_computation_ids.append(77)
        case "scheduled":
            module.schedule.sequences.add(key=1).value.instruction_ids.append(77)
        case "frame":
            module.stack_frame_index.stack_frames[0].file_location_id = 77
    with pytest.raises(InternalError, match="program"):
        program_of(proto)
