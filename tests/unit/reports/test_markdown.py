"""Markdown, read back by a parser that knows tables, so that what is escaped is proved to be shown as it is."""

from __future__ import annotations

from itertools import pairwise

import pytest
from comparisons_data import COMPARISONS
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token
from reports_data import REPORTS
from transformer_report import transformer

from memprof.reports.formats.markdown import FORMAT, escape_markdown, fenced
from memprof.reports.options import By, RenderOptions
from memprof.reports.text import printable

_PARSER = MarkdownIt("commonmark").enable(["table", "strikethrough"])
_LONGEST_COMMENT = 65_536  # characters, on GitHub


def _shown(inline: Token) -> str:
    """What a reader sees of a paragraph or a cell; anything but text and code is an error."""
    texts = []
    for token in inline.children or ():
        assert token.type in ("text", "text_special", "code_inline"), token.type
        texts.append(token.content)
    return "".join(texts)


def _cells(markdown: str) -> list[list[str]]:
    rows: list[list[str]] = []
    tokens = _PARSER.parse(markdown)
    for before, token in pairwise(tokens):
        if before.type == "tr_open":
            rows.append([])
        if before.type in ("td_open", "th_open"):
            rows[-1].append("".join(child.content for child in token.children or ()))
    return rows


@given(st.text(alphabet="a1 |\\`*_[]<>~$&#@:/.!()+-=\n", max_size=20))
def test_text_is_shown_as_it_is(text: str) -> None:
    said = printable(text, ascii_only=False).strip()
    inline = _PARSER.parse(f"| x{escape_markdown(said)}x |\n| --- |")[4]
    assert _shown(inline) == f"x{said}x"


def test_nobody_is_notified_and_nothing_is_linked() -> None:
    assert escape_markdown("@everyone see #12 at https://x.org or www.x.org, a@ #b 1:2") == (
        "`@`everyone see `#`12 at https`:`//x.org or www`.`x.org, a@ \\#b 1:2"
    )


def test_names_stay_readable() -> None:
    assert escape_markdown("layers_{0..11}/mlp_norm bf16+remat 1.50 GiB -3% __init__") == (
        "layers\\_{0..11}/mlp_norm bf16+remat 1.50 GiB -3% \\_\\_init\\_\\_"
    )


def test_a_fence_is_longer_than_what_it_holds() -> None:
    assert fenced(["```", "x"]) == "````text\n```\nx\n````"


@pytest.mark.parametrize("name", COMPARISONS)
@pytest.mark.parametrize("by", [None, By.CATEGORY, By.MODULE])
def test_no_html_and_no_links_from_a_comparison(name: str, by: By | None) -> None:
    markdown = FORMAT.render_comparison(COMPARISONS[name](), RenderOptions(by=by))
    assert _markup(markdown) == set()
    assert all(_cells(markdown))
    assert len(markdown) < _LONGEST_COMMENT


@pytest.mark.parametrize("name", REPORTS)
@pytest.mark.parametrize("by", [None, *By])
def test_no_html_and_no_links_from_a_report(name: str, by: By | None) -> None:
    markdown = FORMAT.render_report(REPORTS[name](), RenderOptions(by=by))
    assert _markup(markdown) == set()
    assert all(_cells(markdown))
    assert len(markdown) < _LONGEST_COMMENT


def _markup(markdown: str) -> set[str]:
    """The kinds of markup in it that no report makes of its own accord."""
    tokens = _PARSER.parse(markdown)
    kinds = {token.type for token in tokens} | {child.type for token in tokens for child in token.children or ()}
    return kinds & {
        "html_block",
        "html_inline",
        "link_open",
        "image",
        "code_block",
        "hr",
        "blockquote_open",
        "s_open",
    }


def test_a_table_has_the_cells_of_the_terminal() -> None:
    rows = _cells(FORMAT.render_comparison(COMPARISONS["troubled"](), RenderOptions()))
    assert rows[0][:4] == ["configuration", "footprint", "change", "ratio"]
    assert rows[2][:4] == ["bf16+scan", "9.43 GiB", "-3.08 GiB", "0.75x"]
    assert rows[2][-2:] == ["✗ no", "✗ flagged"]
    assert rows[4][:3] == ["accum3", "✗ failed", ""]


def test_numbers_stand_right() -> None:
    lines = FORMAT.render_report(transformer(), RenderOptions(by=By.DTYPE)).splitlines()
    assert lines[lines.index("| dtype | size | share | bytes |") + 1] == "| :--- | ---: | ---: | ---: |"


def test_a_tree_and_a_total() -> None:
    text = FORMAT.render_report(transformer(), RenderOptions(by=By.MODULE))
    rows = [row[0] for row in _cells(text)]
    assert rows[1:6] == ["layers_{0..11}", "↳ attn", "↳ mlp", "↳ ln_1", "↳ ln_2"]
    assert rows[-1] == "footprint"
    assert "| **footprint** |" in text


def test_hostile_names_come_back_whole() -> None:
    rows = _cells(FORMAT.render_comparison(COMPARISONS["hostile"](), RenderOptions()))
    assert [row[0] for row in rows[1:5]] == [
        "a|b `c` *d* __e__ @everyone #1 https://example.org",
        '=HYPERLINK("x")',
        "<script>alert(1)</script>\\r\\n| injected | row |",
        "```\\n```",
    ]
