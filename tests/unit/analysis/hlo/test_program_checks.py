"""The limits of a single array of a program."""

from __future__ import annotations

import pytest
from hlo import Step, program_of
from hlo_nodes import f32, tuple_of

from memprof.analysis.hlo.program_checks import MAX_BYTES, _check_buffer, check_shape, check_unique
from memprof.errors import InternalError


@pytest.mark.parametrize(
    ("element_bytes", "dimensions", "is_possible"),
    [
        (4, (), True),
        (4, (0,), True),
        (4, (-1,), False),
        (4, (2, -1, -1), False),  # the product is positive
        (1, (1,) * 100, False),
        (1, (MAX_BYTES,), True),
        (1, (MAX_BYTES + 1,), False),
        (2, (MAX_BYTES // 2,), True),
        (2, (MAX_BYTES // 2 + 1,), False),
    ],
)
def test_the_limits_of_an_array(element_bytes: int, dimensions: tuple[int, ...], is_possible: bool) -> None:
    if is_possible:
        check_shape(element_bytes, dimensions)
    else:
        with pytest.raises(InternalError, match="it has an array of an impossible shape"):
            check_shape(element_bytes, dimensions)


def test_numbers_that_identify_things_differ() -> None:
    check_unique("instructions", [])
    check_unique("instructions", [1, 2, 3])
    with pytest.raises(InternalError, match="two of its instructions have the same number"):
        check_unique("instructions", [1, 2, 1])


def test_a_tuple_has_the_elements_of_its_shape_and_no_other() -> None:
    step = Step()
    made = step.op("made", "custom-call", tuple_of(f32(1), tuple_of()), target="anything")
    program = program_of(step.proto())
    for place in ((0,), (1,)):  # an empty tuple has a table of pointers
        _check_buffer((1, 8, made.id, place), 8, program, {})
    for place in ((2,), (0, 0)):
        with pytest.raises(InternalError, match="an element that its instruction does not have"):
            _check_buffer((1, 8, made.id, place), 8, program, {})
