"""Computations that are equal but for their names are decoded once: what comes out is what decoding each gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hlo import program_of
from hlo_nodes import f32, write_shape

from memprof.analysis.hlo.hlo_proto import HloProto, ShapeProto
from memprof.analysis.hlo.program import Program
from memprof.analysis.hlo.repeated_bodies import Body, BodyKey
from memprof.errors import InternalError


def _serialized_shape(*dimensions: int) -> bytes:
    shape = ShapeProto()
    write_shape(shape, f32(*dimensions))
    return bytes(shape.SerializeToString())


def _add_body(module: Any, number: int, *, size: int = 4, operands: Sequence[int] = (0, 1), calls: int = 0) -> Any:
    """The sum of two parameters, numbered as XLA does: by computation in the upper half, and with gaps."""
    base, shape = number << 32, _serialized_shape(size)
    places = (0, 1, 200)
    computation = module.computations.add(id=number, name=f"body.{number}", root_id=base + places[2])
    for parameter in (0, 1):
        computation.instructions.add(
            id=base + places[parameter],
            name=f"p{parameter}.{number}",
            opcode="parameter",
            parameter_number=parameter,
            shape=shape,
        )
    added = computation.instructions.add(
        id=base + places[2],
        name=f"add.{number}",
        opcode="add",
        shape=shape,
        operand_ids=[base + places[operand] for operand in operands],
        called_computation_ids=[calls] if calls else [],
    )
    added.metadata.op_name = f"jit(step)/layers_{number}/add"
    added.metadata.stack_frame_id = number
    return computation


def _program(*numbers: int) -> Any:
    proto = HloProto()
    for number in numbers:
        _add_body(proto.hlo_module, number)
    proto.hlo_module.entry_computation_id = numbers[0]
    return proto


def _decoded_one_by_one(proto: Any, monkeypatch: pytest.MonkeyPatch) -> Program:
    with monkeypatch.context() as patch:
        patch.setattr(Body, "key", lambda self, order: None)
        return program_of(proto)


def _key(computation: Any, order: Sequence[int]) -> BodyKey | None:
    return Body(computation.SerializeToString()).key(order)


def _kinds(program: Program) -> list[int]:
    return [computation.first_alike for computation in program.computations]


def test_bodies_that_differ_in_names_are_decoded_as_each_would_be(monkeypatch: pytest.MonkeyPatch) -> None:
    proto = _program(8, 77, 5000, 5001)
    program = program_of(proto)
    assert _kinds(program) == [0, 0, 2, 2]  # the numbers of the last two take a byte more
    plain = _decoded_one_by_one(proto, monkeypatch)
    assert program.instructions == plain.instructions
    ids = [each.id for computation in proto.hlo_module.computations for each in computation.instructions]
    for each in (program, plain):
        assert [each.index_of_id[number] for number in ids] == list(range(12))
        assert all(number in each.index_of_id for number in ids)
        strangers = (0, 200, 9000 << 32, 77 << 32 | 9, 5001 << 32 | 9)
        assert not any(number in each.index_of_id for number in strangers)
    assert [replace(each, first_alike=0) for each in program.computations] == [
        replace(each, first_alike=0) for each in plain.computations
    ]


def test_what_runs_in_another_order_than_it_is_listed_keeps_its_names(monkeypatch: pytest.MonkeyPatch) -> None:
    proto = _program(77, 78)
    for number in (77, 78):
        base = number << 32
        proto.hlo_module.schedule.sequences.add(key=number).value.instruction_ids.extend([base + 1, base, base + 200])
    program = program_of(proto)
    assert _kinds(program) == [0, 0]
    assert program.instructions == _decoded_one_by_one(proto, monkeypatch).instructions
    assert program.computations[1].instructions == (4, 3, 5)


@pytest.mark.parametrize("change", [{"size": 5}, {"operands": (1, 0)}, {"operands": (0, 0)}, {"operands": (0,)}])
def test_bodies_that_differ_in_more_than_names_have_different_keys(change: dict[str, Any]) -> None:
    module = HloProto().hlo_module
    first, second = _add_body(module, 77), _add_body(module, 78, **change)
    assert _key(first, ()) != _key(second, ())
    assert _key(first, ()) == _key(_add_body(module, 79), ())


def test_the_order_in_which_a_computation_runs_is_in_its_key() -> None:
    computation = _add_body(HloProto().hlo_module, 77)
    base = 77 << 32
    assert _key(computation, [base, base + 1]) != _key(computation, [base + 1, base])


def test_numbers_that_are_not_by_computation_have_no_key() -> None:
    assert _key(_add_body(HloProto().hlo_module, 0), ()) is None
    assert _key(HloProto().hlo_module.computations.add(id=1), ()) is None


def test_each_body_calls_its_own_computations() -> None:
    proto = _program(77, 78)
    for number, calls in ((79, 77), (80, 78)):
        _add_body(proto.hlo_module, number, calls=calls, size=5)
    program = program_of(proto)
    assert [program.instructions[computation.root].called for computation in program.computations] == [
        *((), ()),
        *((0,), (1,)),
    ]


@pytest.mark.parametrize("by_first", [2, 1])
def test_a_body_that_calls_another_number_than_its_like_is_refused(by_first: int) -> None:
    """The first calls a computation once or twice, and the second, which is equal but for that, once more or less."""
    proto = HloProto()
    for number, num_calls in ((79, by_first), (80, 3 - by_first)):
        _add_body(proto.hlo_module, number, size=5)
        proto.hlo_module.computations[-1].instructions[2].called_computation_ids.extend([77] * num_calls)
    _add_body(proto.hlo_module, 77)
    proto.hlo_module.entry_computation_id = 77
    with pytest.raises(InternalError, match=r"add\.80 calls a different number of computations"):
        program_of(proto)


def test_an_instruction_that_another_computation_runs_instead_of_its_own_is_refused() -> None:
    proto = _program(77, 78)
    _add_body(proto.hlo_module, 80, operands=(0, 0))
    order = [80 << 32, 78 << 32 | 1, 80 << 32 | 200]  # a parameter of the second, which is like the first
    proto.hlo_module.schedule.sequences.add(key=80).value.instruction_ids.extend(order)
    with pytest.raises(InternalError, match=r"runs an instruction that another computation runs, too"):
        program_of(proto)
