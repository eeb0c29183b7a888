"""Text in terminal cells."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from memprof.reports.text import cell_width, printable, shorten_end, shorten_middle, wrap

anything = st.text(st.characters(codec=None))
widths = st.integers(min_value=1, max_value=40)


def test_the_middle_goes_and_both_ends_stay() -> None:
    assert shorten_middle("jit(step)/jvp(Model)/layers_0/dot_general", 21) == "jit(step)/…ot_general"
    assert shorten_middle("short", 5) == "short"
    assert shorten_middle("abcdefgh", 6, ellipsis="..") == "ab..gh"
    assert shorten_middle("abcdefgh", 1) == "a"


def test_an_ellipsis_needs_a_cell_beside_it() -> None:
    """Of an odd number of cells the end has one more."""
    middle = [shorten_middle("abcdefgh", width) for width in (2, 3, 4, 7, 8)]
    assert middle == ["…h", "a…h", "a…gh", "abc…fgh", "abcdefgh"]
    assert [shorten_end("abcdefgh", width) for width in (1, 2, 7, 8)] == ["a", "a…", "abcdef…", "abcdefgh"]
    assert shorten_middle("模型模型", 5) == "模…型"  # two cells each
    assert shorten_end("模型模型", 4) == "模…"


def test_prose_loses_its_end() -> None:
    assert shorten_end("values of the forward pass", 12) == "values of t…"
    assert shorten_end("values", 6) == "values"


@given(anything, widths, st.sampled_from(["…", ".."]))
def test_shortened_text_fits(text: str, width: int, ellipsis: str) -> None:
    for shorten in (shorten_middle, shorten_end):
        assert cell_width(shorten(text, width, ellipsis=ellipsis)) <= width


@given(anything)
def test_printable_text_is_printable_and_stays_so(text: str) -> None:
    clean = printable(text, ascii_only=False)
    assert clean.replace("\u200d", "").isprintable()
    assert printable(clean, ascii_only=False) == clean
    clean.encode()


@given(anything)
def test_ascii_text_is_ascii(text: str) -> None:
    clean = printable(text, ascii_only=True)
    assert clean.isascii()
    assert clean.isprintable()


def test_what_moves_the_cursor_or_turns_the_text_is_escaped() -> None:
    assert printable("a\x1b[31m\n\u202eb\ud800", ascii_only=False) == "a\\x1b[31m\\n\\u202eb\\ud800"


@pytest.mark.parametrize("text", ["plain", "模型", "e\u0301", "🔥🚀", "שלום", "…─█▁"])
def test_cell_width_agrees_with_rich(text: str) -> None:
    assert cell_width(text) == cell_len(text)


def test_a_number_and_its_unit_stay_on_one_line() -> None:
    text = "this leaves 1.50 GiB (20 GiB spare)"
    assert wrap(text, 15) == ["this leaves", "1.50 GiB", "(20 GiB spare)"]


def test_only_what_follows_a_number_stays_with_it() -> None:
    assert wrap("layer2 grows", 8) == ["layer2", "grows"]  # no number
    assert wrap("2x grows 3 GiB", 7) == ["2x", "grows", "3 GiB"]
    assert wrap("a bc", 4) == ["a bc"]
    assert wrap("ab cd", 4) == ["ab", "cd"]
    assert wrap("", 4) == []


@given(
    st.lists(st.text(st.characters(categories=["L"]), min_size=1), min_size=1), st.integers(min_value=3, max_value=40)
)
def test_wrapped_lines_fit_and_keep_their_words(words: list[str], width: int) -> None:
    lines = wrap(" ".join(words), width)
    assert all(cell_width(line) <= width for line in lines)
    assert " ".join(lines).split() == [shorten_middle(word, width) for word in words]
