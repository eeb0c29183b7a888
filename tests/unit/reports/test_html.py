"""The HTML page without a browser: what stands in the file. tests/browser looks at it in one."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from comparisons_data import techniques
from report_builder import buffer, report
from reports_data import REPORTS, hostile_names, many_buffers
from transformer_report import transformer

from memprof.analysis.records.categories import Category
from memprof.errors import MemprofError
from memprof.reports.formats.html import FORMAT, comparison_fragment, html_fragment
from memprof.reports.options import RenderOptions, editor_link
from memprof.reports.web.page import escaped, script_json
from memprof.reports.web.report_data import SourceText, source_texts


class _Page(HTMLParser):
    """The tags and the text of a page, and what its `<script id=data>` holds."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.data = ""
        self._inside = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._inside = tag if tag != "script" else dict(attrs).get("id") or "script"
        assert not any(name.startswith("on") for name, _ in attrs), attrs

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "data":
            self.data += data
        elif self._inside not in ("script", "style"):
            self.texts.append(data)

    @property
    def text(self) -> str:
        return "".join(self.texts)


def _page(name: str) -> _Page:
    rendered = FORMAT.render_report(REPORTS[name](), RenderOptions())
    assert isinstance(rendered, str)
    return _Page(rendered)


def test_names_from_the_program_never_become_elements() -> None:
    hostile, plain = _page("hostile_names"), _page("transformer")
    assert hostile.tags.count("script") == plain.tags.count("script") == 2
    assert "<script>alert('x')</script>" in hostile.text
    assert r"שלום עולם \u202eoverride" in hostile.text


def test_the_data_hold_every_buffer_and_say_what_the_report_says() -> None:
    source = transformer()
    data = json.loads(_page("transformer").data)
    at_peak = data["num_at_peak"]
    assert at_peak == len(source.buffers)
    assert sum(data["buffers"]["size_bytes"][:at_peak]) == source.live_peak_bytes
    assert {len(values) for values in data["buffers"].values()} == {at_peak}
    ops = [data["strings"][number] for number in data["buffers"]["op"]]
    assert ops == [each.op for each in source.buffers]


def test_what_is_not_live_at_the_peak_comes_after_what_is() -> None:
    gone = replace(buffer((4,), "f32", Category.FORWARD_TEMPS, op="step/gone"), at_peak=False)
    live = report([buffer((2,), "f32", Category.ACTIVATIONS, op="step/kept")])
    timeline = replace(live.timeline, temp_changes=((0, 0), *live.timeline.temp_changes))
    both = replace(live, temp_buffers=(gone, *live.temp_buffers), timeline=timeline)
    rendered = FORMAT.render_report(both, RenderOptions())
    assert isinstance(rendered, str)
    data = json.loads(_Page(rendered).data)
    assert [data["strings"][number] for number in data["buffers"]["op"]] == ["step/kept", "step/gone"]
    assert data["num_at_peak"] == 1


@pytest.mark.parametrize("name", list(REPORTS))
def test_the_page_may_ask_nobody_for_anything(name: str) -> None:
    rendered = FORMAT.render_report(REPORTS[name](), RenderOptions())
    assert isinstance(rendered, str)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', rendered)
    assert policy is not None
    assert policy[1].startswith("default-src 'none';")
    assert "http" not in policy[1]
    assert not set(_Page(rendered).tags) & {"iframe", "img", "object", "base", "form"}


def test_everything_is_said_without_a_script() -> None:
    text = _page("transformer").text
    for shown in ("11.1 GiB", "activations", "8,592,588,800", "layers_{0..11}", "f32[8,12,1024,1024]"):
        assert shown in text
    comparison = FORMAT.render_comparison(techniques(), RenderOptions())
    assert isinstance(comparison, str)
    for shown in ("bf16+donate+scan+remat+accum4", "-9.58 GiB", "Differences by module", "276 operations"):
        assert shown in _Page(comparison).text


def test_the_page_is_small() -> None:
    assert len(FORMAT.render_report(transformer(), RenderOptions())) < 2**18
    assert len(FORMAT.render_report(many_buffers(20_000), RenderOptions())) < 3.2e6  # 160 bytes each


def test_json_in_a_script_cannot_end_it() -> None:
    text = "</script><!-- <script>"
    assert "<" not in script_json({"name": text})
    assert json.loads(script_json({"name": text})) == {"name": text}


def test_escaped_text_is_ascii_without_markup() -> None:
    assert escaped("<b a='\"'>&\u202e\x1b é") == "&lt;b a=&#x27;&quot;&#x27;&gt;&amp;\\u202e\\x1b &#233;"


def test_the_lines_around_a_source_line_are_shown_where_the_capture_holds_them() -> None:
    made = report([buffer((4,), "f32", Category.ACTIVATIONS, op="step/add", source="model.py:5")])
    made = replace(made, source_lines={"model.py": {number: f"line_{number} = {number}" for number in range(1, 10)}})
    shown = FORMAT.render_report(made, RenderOptions())
    hidden = FORMAT.render_report(made, RenderOptions(source=False))
    assert isinstance(shown, str)
    assert isinstance(hidden, str)
    (text,) = json.loads(_Page(shown).data)["sources"].values()
    assert text == {"first_line": 3, "line": 5, "lines": [f"line_{number} = {number}" for number in range(3, 8)]}
    assert json.loads(_Page(hidden).data)["sources"] == {}


def test_no_file_is_opened_for_a_source_line(tmp_path: Path) -> None:
    secret = tmp_path / "secret.py"
    secret.write_text("secret\n")
    made = report([buffer((4,), "f32", Category.ACTIVATIONS, op="step/add", source=f"{secret}:1")])
    page = FORMAT.render_report(made, RenderOptions())
    assert isinstance(page, str)
    assert json.loads(_Page(page).data)["sources"] == {}


def test_the_text_around_a_line_ends_where_the_capture_holds_no_more() -> None:
    lines = {"a.py": {1: "one", 2: "two", 4: "four", 5: "five", 6: "six"}}
    found = source_texts(["a.py:1", "a.py:5", "a.py:3", "b.py:1", "a.py", "a.py:x", "nothing"], lines)
    assert found == {
        "a.py:1": SourceText(first_line=1, lines=("one", "two")),
        "a.py:5": SourceText(first_line=4, lines=("four", "five", "six")),
    }


def test_a_fragment_for_a_notebook_has_no_script_and_brings_its_style() -> None:
    for fragment in (html_fragment(hostile_names()), comparison_fragment(techniques())):
        page = _Page(fragment)
        assert "script" not in page.tags
        assert page.tags[:2] == ["div", "style"]
        assert len(fragment.partition("<iframe")[0]) < 40_000


def test_a_fragment_holds_the_whole_page_in_a_frame_of_its_own() -> None:
    made = hostile_names()
    (frame,) = re.findall(r'<iframe sandbox="allow-scripts" [^>]* srcdoc="([^"]*)">', html_fragment(made))
    assert html.unescape(frame) == FORMAT.render_report(made, RenderOptions())


def test_a_fragment_says_what_is_looked_at_first() -> None:
    assert "footprint 11.1 GiB of JAX's pool of 59.3 GiB" in _Page(html_fragment(transformer())).text


@pytest.mark.parametrize("text", ["code {file}", "javascript:alert('{file}')", "vscode://file", ""])
def test_what_is_no_link_into_an_editor_is_refused(text: str) -> None:
    with pytest.raises(MemprofError, match="is no link into an editor: give one such as"):
        editor_link(text)
