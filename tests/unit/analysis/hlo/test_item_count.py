"""How many parts a serialized message has, counted before anything is made of it."""

from __future__ import annotations

import pytest

from memprof.analysis.hlo.hlo_proto import parse_shape
from memprof.analysis.hlo.item_count import count_items
from memprof.errors import MemprofError

_MESSAGES = {
    "Outer": {"name": (1, "string"), "inner": (2, "Inner[]"), "size": (3, "int64")},
    "Inner": {"id": (1, "bytes")},
}
_EMPTY_INNER = b"\x12\x00"


def _count(data: bytes, *, most: int = 100) -> int:
    return count_items(data, "Outer", _MESSAGES, most=most)


@pytest.mark.parametrize(
    ("data", "count"),
    [
        pytest.param(b"", 0, id="nothing"),
        pytest.param(b"\x0a\x02ab", 1, id="a string"),
        pytest.param(b"\x18\x05" + b"\x18\xff\xff\x03" + _EMPTY_INNER, 1, id="numbers are no items"),
        pytest.param(b"\x12\x05" + b"\x0a\x01a" + b"\x0a\x00" + b"\x0a\x00", 4, id="a message and what is in it"),
        pytest.param(b"\x12\x03\x0a\x01a" * 2 + b"\x0a\x00", 5, id="what follows a message is the outer one's again"),
        pytest.param(b"\x12\x03\x12\x01a" + b"\x0a\x00", 2, id="a field that the inner message does not have"),
        pytest.param(b"\x22\x02\x12\x00" + b"\x0a\x00", 1, id="what lies in an unknown field is left out"),
        pytest.param(b"\x09" + b"\x12" * 8 + b"\x0d" + b"\x12" * 4 + _EMPTY_INNER, 1, id="numbers of fixed size"),
        pytest.param(b"\x0a\xac\x02" + b"\x12" * 300 + _EMPTY_INNER, 2, id="a size of two bytes"),
        pytest.param(b"\x0a\x80\x80\x02" + b"\x12" * 2**15 + _EMPTY_INNER, 2, id="a size of three bytes"),
        pytest.param(b"\x92\x01\x02\x0a\x00" + _EMPTY_INNER, 1, id="a field number of two bytes"),
        pytest.param(_EMPTY_INNER + b"\x0b" + _EMPTY_INNER, 1, id="it ends at what is no field"),
        pytest.param(_EMPTY_INNER + b"\x18\xff", 1, id="it ends within a number"),
        pytest.param(_EMPTY_INNER + b"\x0a", 1, id="it ends before a size"),
    ],
)
def test_strings_and_messages_are_counted(data: bytes, count: int) -> None:
    assert _count(data) == count


def test_counting_ends_where_there_are_more_than_the_most() -> None:
    assert [_count(_EMPTY_INNER * 9, most=most) for most in (0, 3, 8, 9)] == [1, 4, 9, 9]


def test_a_message_that_declares_nothing_is_counted_and_not_looked_into() -> None:
    messages = {"Outer": {"inner": (2, "Inner[]")}, "Inner": {}}
    assert count_items(b"\x12\x03\x0a\x01a" * 3, "Outer", messages, most=100) == 3


def test_a_shape_with_more_elements_than_a_compiler_makes_is_refused_before_it_is_read() -> None:
    with pytest.raises(MemprofError, match="more parts than any compiled program of its size"):
        parse_shape(b"\x22\x00" * (6 << 20))
