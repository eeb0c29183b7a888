"""The HTML report in a real browser: it draws, answers to the mouse and the keyboard, and asks nobody for anything.

`open_page` checks after each test that there was no request and nothing on the console.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate
from typing import Any

import pytest
from comparisons_data import COMPARISONS, techniques
from diffs_data import DIFFS
from report_builder import buffer, report
from reports_data import REPORTS, many_buffers
from transformer_report import transformer

from memprof.analysis.categories import Category, Phase
from memprof.analysis.report import Report
from memprof.analysis.timeline import Change, PhaseSpan, Timeline
from memprof.reports.format import RenderOptions
from memprof.reports.formats.html import FORMAT
from memprof.reports.units import format_bytes

OpenPage = Callable[..., Any]


def staircase() -> Report:
    """Three activations of 1, 2 and 4 MiB that come alive one after the other at 10, 20 and 30 and die at 80, 70, 60.

    Live beside 1 MiB of parameters: 2 MiB from 10, 4 MiB from 20, 8 MiB from 30 (the peak), 4 from 60, 2 from 70.
    """
    mebi = 2**20
    names = ("first", "second", "third")
    arguments = [buffer((mebi // 4,), "f32", Category.PARAMS, op="params['w']", phase=Phase.ARGUMENT)]
    stairs = [
        replace(
            buffer((2**n * mebi // 4,), "f32", Category.ACTIVATIONS, module=f"net/{name}", op=f"jit(step)/{name}/dot"),
            start=10 * (n + 1),
            end=80 - 10 * n,
            offset=mebi * (2**n - 1),
            held=(n, 5 - n),
        )
        for n, name in enumerate(names)
    ]
    made = report([*arguments, *stairs], label="tiny stairs")
    sizes = [each.size_bytes for each in stairs]
    changes = [Change(10 * (n + 1), Category.ACTIVATIONS, size) for n, size in enumerate(sizes)]
    changes += [Change(60 + 10 * n, Category.ACTIVATIONS, -size) for n, size in enumerate(reversed(sizes))]
    live = sorted([*arguments, *stairs], key=lambda each: -each.size_bytes)
    return replace(
        made,
        buffers=tuple(live),
        temp_buffers=tuple(stairs),
        timeline=Timeline(
            num_positions=100,
            base={Category.PARAMS: mebi},
            changes=tuple(changes),
            phases=(
                PhaseSpan(phase=Phase.FORWARD, start=0, end=49),
                PhaseSpan(phase=Phase.BACKWARD, start=50, end=99),
            ),
            peak_position=30,
        ),
    )


def _html(made: Report) -> str | bytes:
    return FORMAT.render_report(made, RenderOptions())


def _point_at(page: Any, plot: str, share_x: float, share_y: float = 0.5) -> tuple[float, float]:
    """The middle of the screen is `share` of the way through a chart's area."""
    page.locator(plot).scroll_into_view_if_needed()
    area = page.locator(f"{plot} .area").bounding_box()
    return area["x"] + share_x * area["width"], area["y"] + share_y * area["height"]


# Reports with a chart of memory, but of nothing that is placed in a temp block: the address map says so.
_WITHOUT_TEMP_BLOCK = ("measured_on_gpu", "one_buffer", "zero_size")


@pytest.mark.parametrize(
    ("name", "width", "color_scheme"),
    [
        *((name, 390, "light") for name in REPORTS),
        *((name, 1280, "dark") for name in ("transformer", "hostile_names")),
    ],
)
def test_every_report_is_drawn_and_fits_the_screen(
    name: str, width: int, color_scheme: str, open_page: OpenPage
) -> None:
    page = open_page(_html(REPORTS[name]()), width=width, color_scheme=color_scheme)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.locator(".waiting:visible").count() == (1 if name in _WITHOUT_TEMP_BLOCK else 0)


@pytest.mark.parametrize("name", list(COMPARISONS))
def test_every_comparison_fits_the_screen(name: str, open_page: OpenPage) -> None:
    for width in (1280, 390):
        page = open_page(FORMAT.render_comparison(COMPARISONS[name](), RenderOptions()), width=width)
        assert page.evaluate("document.documentElement.scrollWidth") == width


@pytest.mark.parametrize("name", list(DIFFS))
def test_every_diff_fits_the_screen(name: str, open_page: OpenPage) -> None:
    for width in (1280, 390):
        page = open_page(FORMAT.render_diff(DIFFS[name](), RenderOptions()), width=width)
        assert page.evaluate("document.documentElement.scrollWidth") == width


def test_dark_and_light_differ_in_the_charts_too(open_page: OpenPage) -> None:
    page = open_page(_html(staircase()))
    line = "getComputedStyle(document.querySelector('#timeline .byte-tick')).borderTopColor"
    light = page.evaluate(line)
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(line) != light


def test_hovering_shows_what_is_live_there(open_page: OpenPage) -> None:
    page = open_page(_html(staircase()))
    panel = page.locator("#timeline-panel")
    assert "8.00 MiB live at position 30 (forward), 4 buffers" in panel.inner_text()
    page.mouse.move(*_point_at(page, "#timeline", 0.255))
    _until(page, "document.querySelector('#timeline-panel').innerText.includes('4.00 MiB live at')")
    assert [row.split("\t")[0] for row in panel.locator("tbody tr").all_inner_texts()] == [
        "2.00 MiB",
        "1.00 MiB",
        "1.00 MiB",
    ]
    assert "net/third" not in panel.inner_text()


def test_a_click_pins_a_point_until_it_is_released(open_page: OpenPage) -> None:
    page = open_page(_html(staircase()))
    panel = page.locator("#timeline-panel")
    page.mouse.click(*_point_at(page, "#timeline", 0.755))
    page.wait_for_selector("#timeline-panel.pinned")
    assert "pinned: 2.00 MiB live at position 75 (backward), 2 buffers" in panel.inner_text()
    page.mouse.move(*_point_at(page, "#timeline", 0.4))
    page.wait_for_timeout(200)
    assert "position 75" in panel.inner_text()
    page.locator("#timeline-unpin").click()
    assert "8.00 MiB live at position 30" in panel.inner_text()
    assert page.locator("#timeline-panel.pinned").count() == 0


def test_the_timeline_answers_to_the_keyboard(open_page: OpenPage) -> None:
    page = open_page(_html(staircase()))
    page.locator("#timeline-position").focus()
    page.keyboard.press("ArrowLeft")
    assert "pinned: 4.00 MiB live at position 29" in page.locator("#timeline-panel").inner_text()
    page.keyboard.press("Escape")
    assert page.locator("#timeline-panel.pinned").count() == 0


def test_zooming_into_the_timeline_keeps_what_it_shows_exact(open_page: OpenPage) -> None:
    page = open_page(_html(staircase()))
    start, end = _point_at(page, "#timeline", 0.201), _point_at(page, "#timeline", 0.399)
    page.mouse.move(*start)
    page.mouse.down()
    page.mouse.move(*end, steps=4)
    assert page.locator("#timeline .selection").is_visible()
    page.mouse.up()
    assert _shown_positions(page, "#timeline") == "positions 20 to 39"
    assert page.locator("#timeline .selection").is_hidden()
    page.mouse.move(*_point_at(page, "#timeline", 0.99))
    assert "8.00 MiB live at position 39" in page.locator("#timeline-panel").inner_text()
    assert page.locator("#timeline-panel.pinned").count() == 0
    page.mouse.dblclick(*_point_at(page, "#timeline", 0.5))
    assert _shown_positions(page, "#timeline") == "positions 0 to 99"


@pytest.mark.parametrize("plot", ["#timeline", "#map"])
def test_a_chart_is_zoomed_and_moved_from_the_keyboard(plot: str, open_page: OpenPage) -> None:
    page = open_page(_html(staircase()))
    page.locator(f"{plot} .area").focus()
    for key, shown in (
        ("+", "25 to 74"),
        ("+", "38 to 62"),
        ("ArrowLeft", "32 to 56"),
        ("-", "20 to 69"),
        ("0", "0 to 99"),
    ):
        page.keyboard.press(key)
        assert _shown_positions(page, plot) == f"positions {shown}"


def test_buttons_zoom_and_never_leave_the_program(open_page: OpenPage) -> None:
    page = open_page(_html(staircase()))
    for title, shown in (
        ("zoom out", "0 to 99"),
        ("zoom in", "25 to 74"),
        ("move right", "38 to 87"),
        ("show all", "0 to 99"),
    ):
        page.locator("#timeline").get_by_role("button", name=title).click()
        assert _shown_positions(page, "#timeline") == f"positions {shown}"


def test_marks_outside_of_what_is_shown_are_not_drawn(open_page: OpenPage) -> None:
    page = open_page(_html(staircase()))
    page.mouse.click(*_point_at(page, "#timeline", 0.4))
    marks = page.locator("#timeline .peak-mark, #timeline .pin-line")
    assert marks.count() == 2
    for key in ("+", "+", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    assert _shown_positions(page, "#timeline") == "positions 50 to 74"
    assert marks.count() == 0


def test_the_map_zooms_into_addresses_too(open_page: OpenPage) -> None:
    page = open_page(_html(staircase()))
    assert page.locator("#map .byte-tick").all_inner_texts()[-1] == "7.00 MiB"
    start, end = _point_at(page, "#map", 0.0, 0.99), _point_at(page, "#map", 1.0, 6 / 7)
    page.mouse.move(*start)
    page.mouse.down()
    page.mouse.move(*end, steps=4)
    page.mouse.up()
    assert page.locator("#map .byte-tick").all_inner_texts()[-1] == "896 KiB"


@pytest.mark.parametrize("make", [staircase, transformer])
def test_the_highest_point_of_the_chart_is_the_live_peak(make: Any, open_page: OpenPage) -> None:
    made = make()
    page = open_page(_html(made))
    # The chart is 1.1 times as high as the peak, and drawn in a square of 1000 units, from the top.
    tops = page.evaluate("[...document.querySelectorAll('#timeline path[data-category]')].map((p) => p.getBBox().y)")
    assert min(tops) == pytest.approx(1000 * (1 - 1 / 1.1), abs=0.01)
    assert page.locator("#timeline .peak-mark").inner_text() == f"peak {format_bytes(made.live_peak_bytes)}"


def test_a_box_of_the_icicle_zooms_in_and_out(open_page: OpenPage) -> None:
    page = open_page(_html(staircase()))
    second, third = (page.locator("#icicle .box", has_text=re.compile(f"^{name}")) for name in ("second", "third"))
    assert second.count() == 1
    third.click()
    assert second.count() == 0
    assert page.locator("#icicle .path button").all_inner_texts() == [
        "live at the peak 8.00 MiB",
        "net 7.00 MiB",
        "third 4.00 MiB",
    ]
    page.locator("#icicle .path button").first.click()
    assert second.count() == 1


def test_a_box_of_the_icicle_says_what_it_is_made_of(open_page: OpenPage) -> None:
    page = open_page(_html(staircase()))
    page.locator("#icicle .box", has_text=re.compile("^net")).hover()
    tip = page.locator("#icicle .tip")
    assert tip.inner_text().split("\n") == ["net", "7.00 MiB, 87.5% of the peak", "Aactivations 7.00 MiB"]
    page.mouse.move(0, 0)
    assert tip.is_hidden()


def test_the_icicle_answers_to_the_keyboard(open_page: OpenPage) -> None:
    page = open_page(_html(staircase()))
    focused = "document.activeElement.getAttribute('aria-label')"
    page.locator("#icicle .box").first.focus()
    assert page.evaluate(focused) == "net, 7.00 MiB"
    for key, label in (
        ("ArrowRight", "third, 4.00 MiB"),
        ("ArrowDown", "second, 2.00 MiB"),
        ("ArrowLeft", "net, 7.00 MiB"),
        ("Enter", "third, 4.00 MiB"),
        ("Escape", "net, 7.00 MiB"),
    ):
        page.keyboard.press(key)
        assert page.evaluate(focused) == label


def test_the_boxes_of_the_icicle_add_up_to_the_live_peak(open_page: OpenPage) -> None:
    page = open_page(_html(many_buffers(2_000)))
    for _ in range(2):
        boxes = page.evaluate(
            "[...document.querySelectorAll('#icicle .box')].map((box) => "
            "[Number(box.dataset.level), parseFloat(box.style.top), parseFloat(box.style.height)])"
        )
        # Without gaps from the top to the bottom, and what is in a box stands beside it.
        columns = [sorted(each[1:] for each in boxes if each[0] == level) for level in (0, 1)]
        for column in columns:
            assert [top for top, _ in column] == pytest.approx([0, *accumulate(h for _, h in column)][:-1], abs=0.01)
        assert [sum(height for _, height in column) for column in columns] == pytest.approx([100, 100])
        page.locator("#icicle .box").first.click()


def test_what_is_too_low_to_see_is_one_box_that_opens(open_page: OpenPage) -> None:
    page = open_page(_html(many_buffers(20_000)))
    page.locator("#icicle .box").first.click()
    assert page.locator("#icicle .box").count() < 2_000
    smaller = page.locator("#icicle .box[aria-label*=' smaller, ']").first
    number = int(smaller.get_attribute("aria-label").split()[0])
    smaller.focus()
    page.keyboard.press("Enter")
    assert number > 1
    assert page.locator("#icicle .path button").last.inner_text().startswith(f"{number} smaller")


def test_the_address_map_tells_which_buffer_lies_where(open_page: OpenPage) -> None:
    page = open_page(_html(staircase()))
    panel = page.locator("#map-panel")
    # The third lies at 3 to 7 of 7 MiB, from 30 to 60; the first below 1 MiB, from 10 to 80.
    page.mouse.move(*_point_at(page, "#map", 0.45, 0.2))
    assert "4.00 MiB f32[1048576]" in panel.inner_text()
    assert "net/third" in panel.inner_text()
    page.mouse.move(*_point_at(page, "#map", 0.15, 0.95))
    assert "1.00 MiB f32[262144]" in panel.inner_text()


def test_buffers_are_searched_and_sorted(open_page: OpenPage) -> None:
    page = open_page(_html(staircase()))
    table = page.locator("#buffer-table")

    def sizes() -> list[str]:
        return [row.strip() for row in table.locator("tbody tr td:first-child").all_inner_texts()]

    assert sizes() == ["4.00 MiB", "2.00 MiB", "1.00 MiB", "1.00 MiB"]
    table.get_by_role("button", name="size", exact=True).click()
    assert sizes() == ["1.00 MiB", "1.00 MiB", "2.00 MiB", "4.00 MiB"]
    assert table.locator("th[aria-sort=ascending]").inner_text().startswith("size")
    page.locator("#buffer-search").fill("SECOND dot")
    assert sizes() == ["2.00 MiB"]
    assert page.locator("#buffer-count").inner_text() == "1 buffers, 2.00 MiB"
    page.locator("#buffer-search").fill("")
    page.locator("#buffer-category").select_option("params")
    assert sizes() == ["1.00 MiB"]


def test_a_row_opens_from_the_keyboard_and_says_why(open_page: OpenPage) -> None:
    page = open_page(_html(staircase()))
    page.locator("#buffer-table tbody button").first.focus()
    page.keyboard.press("Enter")
    details = page.locator("#buffer-table .details").inner_text()
    for shown in ("4,194,304 bytes", "jit(step)/third/dot", "3,145,728 in the temp block", "made by hand for a test"):
        assert shown in details
    page.keyboard.press("Enter")
    assert page.locator("#buffer-table .details").count() == 0


def test_source_lines_are_text(open_page: OpenPage, tmp_path: Any) -> None:
    path = tmp_path / "model.py"
    path.write_text("a = 1\nb = '<img src=x onerror=alert(1)>'\nc = 3\n")
    made = report([buffer((4,), "f32", Category.ACTIVATIONS, op="step/add", source=f"{path}:2")])
    page = open_page(_html(made))
    page.locator("#buffer-table tbody button").first.click()
    assert page.locator("#buffer-table pre mark").inner_text().strip().endswith("b = '<img src=x onerror=alert(1)>'")
    assert page.locator("#buffer-table img").count() == 0


def test_hostile_names_are_shown_and_never_run(open_page: OpenPage) -> None:
    page = open_page(_html(REPORTS["hostile_names"]()))
    assert page.locator("h1").inner_text().startswith("[bold]label[/bold] <script>alert('x')</script>")
    page.locator("#buffer-search").fill("<script>")
    page.locator("#buffer-table tbody button").first.click()
    assert "<script>alert('x')</script>" in page.locator("#buffer-table .details").inner_text()
    assert page.locator("#icicle b").count() == 0


def test_tables_of_a_comparison_are_sorted_by_what_they_mean(open_page: OpenPage) -> None:
    page = open_page(FORMAT.render_comparison(techniques(), RenderOptions()))
    table = page.locator("section", has=page.get_by_role("heading", name="Configurations")).locator("table")
    table.get_by_role("button", name="footprint", exact=True).click()
    column = table.locator("tbody tr td:nth-child(2)").all_inner_texts()
    assert column == sorted(column, key=_bytes, reverse=True)
    table.get_by_role("button", name="footprint", exact=True).click()
    assert table.locator("tbody tr td:nth-child(2)").all_inner_texts() == column[::-1]


def test_a_legend_lights_up_its_category(open_page: OpenPage) -> None:
    page = open_page(FORMAT.render_comparison(techniques(), RenderOptions()))
    legend = page.locator(".legend").first
    legend.get_by_role("button", name="outputs").click()
    assert page.locator(".part.lit").count() == page.locator(".part[data-category=outputs]").count() == 6
    legend.get_by_role("button", name="outputs").click()
    assert page.locator("[data-only]").count() == 0


def test_without_javascript_everything_is_still_said(open_page: OpenPage) -> None:
    page = open_page(_html(transformer()), scripts=False)
    text = page.locator("body").inner_text()
    for shown in ("11.1 GiB", "activations", "layers_{0..11}", "This picture needs JavaScript"):
        assert shown in text
    assert page.locator("figure svg path").count() >= 5


def test_the_page_writes_sizes_as_the_report_does(open_page: OpenPage) -> None:
    sizes = [0, 1, 1023, 1024, 1_048_063, 1_048_064, 10_234, 102_349, 2**30 - 1, 123_456_789_012, 2**53 - 1]
    made = report([buffer((max(size, 0),), "u8", Category.ACTIVATIONS, op=f"step/{size}") for size in sizes])
    page = open_page(_html(made))
    shown = page.locator("#buffer-table tbody tr td:first-child").all_inner_texts()
    assert [text.strip() for text in shown] == [format_bytes(size) for size in sorted(sizes, reverse=True)]


def test_twenty_thousand_buffers_are_searched_at_once(open_page: OpenPage) -> None:
    page = open_page(_html(many_buffers(20_000)))
    seconds = page.evaluate(
        "(() => { const start = performance.now(); const search = document.getElementById('buffer-search');"
        "search.value = 'part_7'; search.dispatchEvent(new Event('input'));"
        "return (performance.now() - start) / 1000; })()"
    )
    assert seconds < 1
    assert page.locator("#buffer-table tbody tr").count() == 25
    assert (
        page.locator("#buffer-count").inner_text().startswith("1,100 buffers")
    )  # part_7 and part_70 to part_79, times 100


def test_zooming_keeps_the_lit_category_alone(open_page: OpenPage) -> None:
    page = open_page(_html(staircase()))
    figure = page.locator("figure", has=page.locator("#timeline"))
    figure.get_by_role("button", name="activations").click()
    page.locator("#timeline").get_by_role("button", name="zoom in").click()
    opacities = page.evaluate(
        "[...document.querySelectorAll('#timeline path[data-category]')].map((path) => "
        "[path.dataset.category, getComputedStyle(path).opacity])"
    )
    assert dict(opacities) == {"params": "0.15", "activations": "1"}


@pytest.mark.parametrize("color_scheme", ["light", "dark"])
def test_everything_is_printed_on_white(color_scheme: str, open_page: OpenPage) -> None:
    page = open_page(_html(transformer()), color_scheme=color_scheme)
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    for chart in ("#timeline .area", "#icicle .box", "#map .area"):
        assert page.locator(chart).first.is_visible()
    assert page.locator(".controls:visible").count() == 0
    # A4 between margins of 12 mm: nothing is cut off.
    page.set_viewport_size({"width": 700, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") == 700


def test_twenty_thousand_buffers_open_in_under_two_seconds(open_page: OpenPage) -> None:
    page = open_page(_html(many_buffers(20_000)))
    assert page.evaluate("performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd") < 2_000


def _shown_positions(page: Any, plot: str) -> str:
    text: str = page.locator(f"{plot} [role=status]").inner_text()
    return text


def _until(page: Any, condition: str) -> None:
    """Wait for a condition. Playwright's own way would have the page evaluate a text, which its policy forbids."""
    deadline = time.monotonic() + 10
    while not page.evaluate(condition):
        assert time.monotonic() < deadline, condition
        page.wait_for_timeout(50)


def _bytes(text: str) -> float:
    number, unit = text.split()
    return float(number) * 1024.0 ** ["B", "KiB", "MiB", "GiB"].index(unit)
