"""How often a loop runs, by the constants that it counts with."""

from __future__ import annotations

from typing import Any

import pytest

from memprof.analysis.hlo.hlo_proto import HloProto, Literal
from memprof.analysis.hlo.trip_counts import trip_count

pytestmark = pytest.mark.with_one_jax

BODY, TEST, AROUND = 1, 2, 3


class _Loop:
    """A loop that counts up: `for (i = first; i < last; i += step)`, at the place 1 of what it carries."""

    def __init__(self, first: int, last: int, step: int) -> None:
        self.module = HloProto().hlo_module
        test = self._computation(TEST)
        bound = self._constant(test, last)
        counter = self._op(test, "get-tuple-element", self._op(test, "parameter"), tuple_index=1)
        test.root_id = self._op(test, "compare", counter, bound, comparison_direction="LT").id
        body = self._computation(BODY)
        carried = self._op(body, "parameter")
        held = self._op(body, "get-tuple-element", carried, tuple_index=0)
        counter = self._op(body, "get-tuple-element", carried, tuple_index=1)
        self.update = self._op(body, "add", counter, self._constant(body, step))
        body.root_id = self._op(body, "tuple", held, self._op(body, "copy", self.update)).id
        around = self._computation(AROUND)
        begin = self._op(around, "copy", self._constant(around, first))
        self.loop = self._op(around, "while", self._op(around, "tuple", self._op(around, "parameter"), begin))
        self.loop.called_computation_ids.extend([BODY, TEST])
        self.around, self.test = around, test

    @property
    def count(self) -> int | None:
        return trip_count(self.loop, self.around, {each.id: each for each in self.module.computations})

    def _computation(self, number: int) -> Any:
        return self.module.computations.add(id=number)

    def _op(self, computation: Any, opcode: str, *operands: Any, **fields: Any) -> Any:
        number = 100 * computation.id + len(computation.instructions)
        return computation.instructions.add(id=number, opcode=opcode, operand_ids=[o.id for o in operands], **fields)

    def _constant(self, computation: Any, value: int) -> Any:
        return self._op(computation, "constant", literal=Literal(s32s=[value]).SerializeToString())


@pytest.mark.parametrize(
    ("first", "last", "step", "expected"),
    [
        (0, 4, 1, 4),
        (1, 4, 1, 3),
        (0, 7, 2, 4),
        (-3, 3, 3, 2),
        (5, 5, 1, 0),
        (9, 5, 1, 0),
        (0, 4, 0, None),
        (0, 4, -1, None),
    ],
)
def test_a_loop_that_counts_up_to_a_constant_is_counted(first: int, last: int, step: int, expected: int | None) -> None:
    assert _Loop(first, last, step).count == expected


def test_any_other_loop_is_left_alone() -> None:
    other_direction, other_update, data, damaged = (_Loop(0, 4, 1) for _ in range(4))
    other_direction.test.instructions[-1].comparison_direction = "NE"
    other_update.update.opcode = "multiply"
    data.test.instructions[0].opcode = "parameter"  # the bound is no constant
    damaged.test.instructions[0].literal = b"\xff"
    assert [each.count for each in (other_direction, other_update, data, damaged)] == [None] * 4
    absent = _Loop(0, 4, 1)
    del absent.loop.called_computation_ids[1]
    assert absent.count is None


def test_a_place_that_no_tuple_has_tells_nothing() -> None:
    for place in (-1, 2):
        loop = _Loop(0, 4, 1)
        next(each for each in loop.test.instructions if each.opcode == "get-tuple-element").tuple_index = place
        assert loop.count is None
