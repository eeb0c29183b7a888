"""Laws of reading logs: any text is read or rejected in one sentence, and no pattern can take more than linear time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oom_logs import POSTED

from memprof.errors import MemprofError
from memprof.studies.explain import log as explain_log
from memprof.studies.explain.log import read_log
from memprof.untrusted import MAX_BYTES

_REPEATS = {re._constants.MAX_REPEAT, re._constants.MIN_REPEAT}  # type: ignore[attr-defined]
_UNITS_OF_A_REPEAT = 4096
_LINES = [line for log in POSTED.values() for line in log.text.splitlines()]
_HOSTILE = st.sampled_from(
    [
        "\n", " ", "\t", "1", "[111", "9" * 400, "1.2.3 bytes", "Attempting to reserve 1 at the bottom of memory",
        "Out of memory while trying to allocate ", "  Buffer 1:\n Size: 1.0G\n", "1. Size: 2.00G\n", 'op_name="', "\\",
        "124 Chunks of size 3964928 totalling", "RESOURCE_EXHAUSTED: ", "] ****", "\x1b[31m", "Limit: 9\n", "\u2028",
    ]
)  # fmt: skip


def _patterns() -> Iterator[re.Pattern[str]]:
    for value in vars(explain_log).values():
        if isinstance(value, re.Pattern):
            yield value
        elif isinstance(value, dict):
            yield from (item for item in value.values() if isinstance(item, re.Pattern))
    yield from (form.pattern for form in explain_log._FORMS)


def _longest_repeats(tokens: Any) -> Iterator[int]:
    """The bounds of all repeats, multiplied where they are nested."""
    for operator, argument in tokens:
        if operator in _REPEATS:
            _, most, inner = argument
            yield from (int(most) * bound for bound in [1, *_longest_repeats(inner)])
        elif isinstance(argument, tuple):
            for part in argument:
                branches = part if isinstance(part, list) else [part]
                for branch in branches:
                    if isinstance(branch, re._parser.SubPattern):  # type: ignore[attr-defined]
                        yield from _longest_repeats(branch)


@pytest.mark.parametrize("pattern", list(_patterns()), ids=lambda pattern: pattern.pattern[:40])
def test_every_repeat_of_a_pattern_is_bounded(pattern: re.Pattern[str]) -> None:
    bounds = list(_longest_repeats(re._parser.parse(pattern.pattern)))  # type: ignore[attr-defined]
    assert max(bounds, default=1) <= _UNITS_OF_A_REPEAT


def test_an_unbounded_or_deeply_nested_repeat_would_be_noticed() -> None:
    for pattern in (r"a*", r"(?:x|a+)b", r"(?:a{1,100}b){1,100}", r"a.*?b"):
        assert max(_longest_repeats(re._parser.parse(pattern))) > _UNITS_OF_A_REPEAT  # type: ignore[attr-defined]


@given(
    st.lists(st.one_of(_HOSTILE, st.sampled_from(_LINES), st.text(max_size=20)), max_size=30),
    st.sampled_from(["", "\n"]),
)
def test_any_text_is_read_or_rejected_in_one_sentence(pieces: list[str], between: str) -> None:
    sentence, amounts = _sentence_and_amounts(between.join(pieces))
    assert "\n" not in sentence
    assert all(0 <= amount <= MAX_BYTES for amount in amounts)


def _sentence_and_amounts(log: str) -> tuple[str, list[int]]:
    try:
        found = read_log(log)
    except MemprofError as error:
        return str(error), []
    amounts = [found.asked_bytes, found.free_bytes, found.capacity_bytes, *found.parts.values()]
    return found.message, [each for each in amounts if each is not None] + [each.size_bytes for each in found.buffers]


@pytest.mark.parametrize("title", [title for title in POSTED if not title.startswith("the allocator")])
def test_a_report_deep_in_a_long_log_is_read_as_alone(title: str) -> None:
    other_lines = "step 1, loss 0.3, 12 it/s\n" * 10_000  # several blocks
    assert read_log(other_lines + POSTED[title].text) == read_log(POSTED[title].text)
