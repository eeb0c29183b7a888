"""The ways through a page: links, the address, the keyboard from opening to a source line, and what axe-core says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from typing import Any

import pytest
from comparisons_data import techniques
from pages import OpenPage, point_at, report_html, shown_positions, staircase, until
from stacked_report import stacked
from transformer_report import transformer

from memprof.analysis.records.categories import Phase
from memprof.analysis.records.live_buffer import LiveBuffer
from memprof.analysis.records.report import Report, Schedule
from memprof.analysis.records.why_live import Link, Operation, Reason, WhyLive
from memprof.reports.formats.html import FORMAT
from memprof.reports.options import RenderOptions
from memprof.reports.views.hierarchies import Paths
from memprof.reports.views.why import order_facts, sources_of, why_facts

_FILE = "/home/me/project/net/blocks.py"
_AXE_OPTIONS = "{resultTypes: ['violations'], runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'best-practice']}"


_UPDATE = Operation(
    name="update", op="jit(step)/sub", source="/home/me/project/train.py:30", module="", phase=Phase.UPDATE, position=1
)


def _why(buffers: Sequence[LiveBuffer]) -> tuple[WhyLive, ...]:
    """Each waits for the update, which needs what runs at the peak through one layer."""
    peak = replace(_UPDATE, op="jit(step)/dot", source=f"{_FILE}:69", position=0)
    link = Link(phase=Phase.BACKWARD, module="layers_1/attention", op="dot", num_operations=3)
    return tuple(
        WhyLive(buffer=each, reason=Reason.ANY_ORDER, at_peak=peak, users=(_UPDATE,), chain=(link,)) for each in buffers
    )


def _with_source() -> Report:
    """With the text around lines, and with why each buffer is live at the peak."""
    lines = {number: f"line_{number} = {number}" for number in range(67, 73)}
    schedule = Schedule(bound_bytes=8 << 20, other_bytes=12 << 20)
    made = stacked()
    return replace(made, source_lines={_FILE: lines}, schedule=schedule, reasons=_why(made.buffers))


def test_the_keyboard_leads_from_opening_to_the_source_line_of_the_largest_buffer(open_page: OpenPage) -> None:
    page = open_page(report_html(_with_source()))
    for key in ("/", "ArrowDown", "Enter"):
        page.keyboard.press(key)
    details = page.locator("#buffer-table .details")
    assert details.locator("pre mark").inner_text().strip().endswith("line_69 = 69")
    reached = []
    for _ in range(16):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.getAttribute('href')") or "")
    assert f"vscode://file{_FILE}:69" in reached
    assert {"vscode://file/home/me/project/train.py:30", "#at=1", "#module=layers_1%2Fattention"} < set(reached)
    page.keyboard.press("Escape")
    assert details.count() == 0
    assert page.evaluate("document.activeElement.dataset.buffer") == "0"
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.id") == "buffer-search"


def test_arrows_go_from_row_to_row(open_page: OpenPage) -> None:
    page = open_page(report_html(stacked()))
    page.locator("#buffer-search").focus()
    reached = []
    for key in ("ArrowDown", "ArrowDown", "ArrowUp", "ArrowUp"):
        page.keyboard.press(key)
        reached.append(page.evaluate("document.activeElement.dataset.buffer ?? document.activeElement.id"))
    assert reached == ["0", "4", "0", "buffer-search"]  # the four layers of attention are one row


def test_a_row_shows_the_whole_stack_with_libraries_folded(open_page: OpenPage) -> None:
    page = open_page(report_html(_with_source()))
    page.locator("#buffer-search").fill("mul")
    page.locator("#buffer-table tbody button").first.click()
    calls = page.locator("#buffer-table .calls > li")
    assert [text.replace("\n", " ") for text in calls.all_inner_texts()] == [
        "step train.py:30",
        "step.loss train.py:12",
        "Net.__call__ net/net.py:8",
        "Attention.__call__ net/blocks.py:70 line_70 = 70",
        "1 call of flax",
    ]
    calls.last.locator("summary").click()
    assert "Dropout.__call__ flax/linen/stochastic.py:107" in calls.last.inner_text()
    assert calls.last.locator("a").count() == 0  # where packages lie is not known


def test_a_row_says_why_its_buffer_is_live_in_the_words_of_the_terminal(open_page: OpenPage) -> None:
    report = _with_source()
    page = open_page(report_html(report))
    page.locator("#buffer-table tbody button").first.click()
    of_buffer, of_program = (page.locator(".details h3 + dl.facts").nth(number).inner_text() for number in (0, 1))
    names = {source: Paths(report).line_name(source) for source in sources_of(_why(report.buffers))}
    assert report.schedule is not None
    for shown, facts in (
        (of_buffer, why_facts(*_why(report.buffers[:1]), names)),
        (of_program, order_facts(report, report.schedule)),
    ):
        words = [word for label, cells in facts for word in (label, *(cell.text for cell in cells))]
        assert shown.split() == " ".join(words).split()
    assert "Due to order alone: 4.00 MiB to 8.00 MiB" in page.locator(".details p.note").inner_text()


def test_without_an_editor_nothing_links_to_one(open_page: OpenPage) -> None:
    page = open_page(FORMAT.render_report(_with_source(), RenderOptions(editor="")))
    page.locator("#buffer-table tbody button").first.click()
    assert page.locator("a[href^='vscode']").count() == 0
    assert "/home/me" not in page.content()


def test_what_is_named_links_to_it(open_page: OpenPage) -> None:
    page = open_page(report_html(staircase()))
    count = page.locator("#buffer-count")
    page.locator("#timeline-panel a", has_text="f32[524288]").click()  # a live buffer
    assert page.evaluate("document.activeElement.innerText") == "2.00 MiB"
    details = page.locator("#buffer-table .details")
    details.locator("a", has_text="20").first.click()  # a time
    assert "pinned: 4.00 MiB live at position 20" in page.locator("#timeline-panel").inner_text()
    details.locator("a", has_text="net/second").click()  # a module
    assert count.inner_text() == "1 buffers, 2.00 MiB"
    page.locator("#buffer-module").select_option("")
    page.locator("#buffer-table a", has_text="params").click()  # a category
    assert count.inner_text() == "1 buffers, 1.00 MiB"
    page.mouse.click(*point_at(page, "#map", 0.45, 0.2))  # a rectangle
    page.locator("#map-panel a").click()
    assert "net/third" in details.inner_text()
    page.locator("#flame-by").get_by_role("button", name="by module").click()
    page.locator("#flame .box", has_text="net").first.press("ArrowDown")


def test_the_address_keeps_what_is_selected_and_zoomed(open_page: OpenPage) -> None:
    page = open_page(report_html(staircase()))
    page.locator("#timeline").get_by_role("button", name="zoom in").click()
    page.locator("#flame-by").get_by_role("button", name="by module").click()
    page.locator("#flame .box", has_text="second").first.click()
    page.locator("#buffer-search").fill("dot net")
    page.locator("#buffer-phase").select_option("forward")
    page.locator("#buffer-table tbody button").nth(1).click()
    zoomed = page.locator("#flame .box:not(.around)").first.inner_text()
    until(page, "location.hash.includes('&buffer=')")  # it is written a little later
    page.reload()
    assert shown_positions(page, "#timeline") == "positions 25 to 74"
    assert page.locator("#flame .box:not(.around)").first.inner_text() == zoomed
    assert page.locator("#buffer-search").input_value() == "dot net"
    assert page.locator("#buffer-count").inner_text() == "3 buffers, 7.00 MiB"
    assert "net/second" in page.locator("#buffer-table .details").inner_text()


def test_an_address_that_means_nothing_does_nothing(open_page: OpenPage) -> None:
    page = open_page(report_html(staircase()))
    with page.expect_event("load"):  # for it is loaded anew
        page.evaluate("location.hash = 'buffer=99&at=x&time=a b&flame=stack 9999&map=1&nothing=1&module=<b>'")
    page.wait_for_selector("html[data-ready]", state="attached")
    assert page.locator("#flame .box").count() > 1


def test_the_table_of_contents_stays_and_leads_to_every_section(open_page: OpenPage) -> None:
    page = open_page(report_html(stacked()))
    for link in page.locator(".contents a").all():
        link.click()
        top = page.evaluate("document.activeElement.getBoundingClientRect().top")
        assert page.evaluate("document.activeElement.id") == link.get_attribute("href")[1:]
        assert 0 <= top < 900
        assert page.locator(".contents").bounding_box()["y"] == 0


def test_verdict_timeline_and_its_largest_buffers_are_within_the_first_screen(open_page: OpenPage) -> None:
    page = open_page(report_html(staircase()))
    for place in (".verdict", "#timeline .area", "#timeline .positions", "#timeline-panel"):
        box = page.locator(place).bounding_box()
        assert box["y"] + box["height"] < 800


def test_advice_leads_to_the_buffers_that_it_is_about(open_page: OpenPage) -> None:
    page = open_page(report_html(transformer()))
    piece = page.locator(".advice").first
    what = piece.locator(".what").inner_text()
    piece.locator("summary").click()
    piece.get_by_role("link").click()
    assert page.locator("#buffer-advice").input_value() == what
    count = page.locator("#buffer-count")
    few = count.inner_text()
    page.locator("#buffer-advice").select_option("")
    assert 0 < _number(few) < _number(count.inner_text())


def test_the_rows_of_a_comparison_are_searched_and_named_from_the_keyboard(open_page: OpenPage) -> None:
    page = open_page(FORMAT.render_comparison(techniques(), RenderOptions()))
    page.keyboard.press("/")
    page.keyboard.type("layers attn")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.cells[0].innerText") == "attn"
    assert page.locator("tbody tr:visible").count() == 2  # with what it is in
    page.keyboard.press("Escape")
    assert page.locator("tbody tr:visible").count() == page.locator("tbody tr").count()
    page.locator(".bar-label a").nth(1).click()
    named = page.locator("tbody tr.named")
    assert named.locator("th").inner_text().endswith(page.locator(".bar-label").nth(1).inner_text())
    until(page, "location.hash.startsWith('#row=')")  # it is written a little later
    page.reload()
    assert named.count() == 1


@pytest.mark.parametrize(("width", "color_scheme"), [(1280, "light"), (390, "dark")])
def test_axe_finds_nothing_serious(width: int, color_scheme: str, open_page: OpenPage) -> None:
    axe = pytest.importorskip("axe_playwright_python", reason="axe-playwright-python is not installed")
    script = files(axe).joinpath("axe.min.js").read_text(encoding="utf-8")
    page = open_page(report_html(_with_source()), width=width, color_scheme=color_scheme)
    page.locator("#buffer-table tbody button").first.click()
    page.evaluate("document.querySelectorAll('details').forEach((each) => each.setAttribute('open', ''))")
    assert _violations(page, script) == []
    page.locator("#flame-by").get_by_role("button", name="by module").click()
    assert _violations(page, script) == []
    comparison = open_page(FORMAT.render_comparison(techniques(), RenderOptions()), width=width)
    assert _violations(comparison, script) == []


def _number(count: str) -> int:
    return int(count.split()[0].replace(",", ""))


def _violations(page: Any, script: str) -> list[tuple[str, str, str]]:
    page.evaluate(script)
    found = page.evaluate(f"axe.run(document, {_AXE_OPTIONS})")["violations"]
    return [(each["id"], each["impact"], node["html"]) for each in found for node in each["nodes"]]
