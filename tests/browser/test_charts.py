"""The charts of the HTML report in a real browser: they show what is so, by mouse and by keyboard."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import Any

import pytest
from comparisons_data import techniques
from pages import OpenPage, point_at, report_html, shown_positions, staircase, until
from reports_data import many_buffers
from stacked_report import stacked
from transformer_report import transformer

from memprof.analysis.records.categories import Category
from memprof.analysis.records.timeline import LiveChange
from memprof.reports.formats.html import FORMAT
from memprof.reports.options import RenderOptions
from memprof.reports.units import format_bytes


def test_pointing_shows_a_moment_in_a_box_with_a_crosshair(open_page: OpenPage) -> None:
    page = open_page(report_html(staircase()))
    tip, lines = page.locator(".chart > .tip").first, page.locator("#timeline .cross")
    assert tip.is_hidden()
    page.mouse.move(*point_at(page, "#timeline", 0.255))
    until(page, "!document.querySelector('.chart > .tip').hidden")
    assert tip.inner_text().split("\n") == [
        "4.00 MiB live",
        "position 25, forward",
        "Aactivations 3.00 MiB",
        "Pparams 1.00 MiB",
        "jit(step)/second/dot",
    ]
    upright, level = lines.all()
    area = page.locator("#timeline .area").bounding_box()
    assert upright.bounding_box()["x"] == pytest.approx(area["x"] + 0.255 * area["width"], abs=2)
    # 4 of 8 MiB, of a chart that is 1.1 times as high as the peak
    assert level.bounding_box()["y"] == pytest.approx(area["y"] + area["height"] * (1 - 0.5 / 1.1), abs=2)
    page.mouse.move(0, 0)
    assert tip.is_hidden()
    assert lines.first.is_hidden()


def test_the_moment_stands_beside_the_chart_with_its_buffers(open_page: OpenPage) -> None:
    page = open_page(report_html(staircase()))
    panel = page.locator("#timeline-panel")
    assert "8.00 MiB live at position 30 (forward), 4 buffers" in panel.inner_text()
    page.mouse.click(*point_at(page, "#timeline", 0.255))
    assert [row.split("\t")[0] for row in panel.locator("tbody tr").all_inner_texts()] == [
        "2.00 MiB",
        "1.00 MiB",
        "1.00 MiB",
    ]
    assert "net/third" not in panel.inner_text()
    chart, beside = page.locator("#timeline .area").bounding_box(), panel.bounding_box()
    assert beside["x"] > chart["x"] + chart["width"]
    assert beside["y"] < chart["y"] + chart["height"]


def test_arrows_move_a_pin_to_the_next_change(open_page: OpenPage) -> None:
    page = open_page(report_html(staircase()))
    page.mouse.click(*point_at(page, "#timeline", 0.255))
    page.locator("#timeline .area").focus()
    found = []
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft", "ArrowLeft", "ArrowLeft", "ArrowLeft"):
        page.keyboard.press(key)
        title = page.locator("#timeline-panel h2").inner_text()
        found.append(title.partition("position ")[2].partition(" ")[0])
    assert found == ["30", "60", "30", "20", "10", "10"]


def test_the_peak_is_seen_at_its_height_however_short_it_is(open_page: OpenPage) -> None:
    """A peak of one position of 100,000 is two pixels wide."""
    made = staircase()
    changes = [LiveChange(50_000, Category.ACTIVATIONS, 64 << 20), LiveChange(50_001, Category.ACTIVATIONS, -64 << 20)]
    timeline = replace(made.timeline, num_positions=100_000, changes=tuple(changes), peak_position=50_000)
    page = open_page(report_html(replace(made, timeline=replace(timeline, temp_changes=((0, 1),) * 3))))
    widths = page.evaluate(
        "[...document.querySelectorAll('#timeline path[data-category=activations]')].map((path) => "
        "path.getBBox()).filter((box) => box.y < 100).map((box) => box.width)"
    )
    area = page.locator("#timeline .area").bounding_box()
    assert min(widths) * area["width"] / 1000 == pytest.approx(2, abs=0.1)


def test_a_click_pins_a_point_until_it_is_released(open_page: OpenPage) -> None:
    page = open_page(report_html(staircase()))
    panel = page.locator("#timeline-panel")
    page.mouse.click(*point_at(page, "#timeline", 0.755))
    page.wait_for_selector("#timeline-panel.pinned")
    assert "pinned: 2.00 MiB live at position 75 (backward), 2 buffers" in panel.inner_text()
    page.mouse.move(*point_at(page, "#timeline", 0.4))
    page.wait_for_timeout(200)
    assert "position 75" in panel.inner_text()
    page.locator("#timeline-unpin").click()
    assert "8.00 MiB live at position 30" in panel.inner_text()
    assert page.locator("#timeline-panel.pinned").count() == 0


def test_the_timeline_answers_to_the_keyboard(open_page: OpenPage) -> None:
    page = open_page(report_html(staircase()))
    page.locator("#timeline-position").focus()
    page.keyboard.press("ArrowLeft")
    assert "pinned: 4.00 MiB live at position 29" in page.locator("#timeline-panel").inner_text()
    page.keyboard.press("Escape")
    assert page.locator("#timeline-panel.pinned").count() == 0


def test_zooming_into_the_timeline_keeps_what_it_shows_exact(open_page: OpenPage) -> None:
    page = open_page(report_html(staircase()))
    start, end = point_at(page, "#timeline", 0.201), point_at(page, "#timeline", 0.399)
    page.mouse.move(*start)
    page.mouse.down()
    page.mouse.move(*end, steps=4)
    assert page.locator("#timeline .selection").is_visible()
    page.mouse.up()
    assert shown_positions(page, "#timeline") == "positions 20 to 39"
    assert page.locator("#timeline .selection").is_hidden()
    page.mouse.move(*point_at(page, "#timeline", 0.99))
    assert "position 39" in page.locator(".chart > .tip").first.inner_text()
    assert page.locator("#timeline-panel.pinned").count() == 0
    page.mouse.dblclick(*point_at(page, "#timeline", 0.5))
    assert shown_positions(page, "#timeline") == "positions 0 to 99"


@pytest.mark.parametrize("plot", ["#timeline", "#map"])
def test_a_chart_is_zoomed_and_moved_from_the_keyboard(plot: str, open_page: OpenPage) -> None:
    page = open_page(report_html(staircase()))
    page.locator(f"{plot} .area").focus()
    for key, shown in (
        ("+", "25 to 74"),
        ("+", "38 to 62"),
        ("ArrowLeft", "32 to 56"),
        ("-", "20 to 69"),
        ("0", "0 to 99"),
    ):
        page.keyboard.press(key)
        assert shown_positions(page, plot) == f"positions {shown}"


def test_buttons_zoom_and_never_leave_the_program(open_page: OpenPage) -> None:
    page = open_page(report_html(staircase()))
    for title, shown in (
        ("zoom out", "0 to 99"),
        ("zoom in", "25 to 74"),
        ("move right", "38 to 87"),
        ("show all", "0 to 99"),
    ):
        page.locator("#timeline").get_by_role("button", name=title).click()
        assert shown_positions(page, "#timeline") == f"positions {shown}"


def test_marks_outside_of_what_is_shown_are_not_drawn(open_page: OpenPage) -> None:
    page = open_page(report_html(staircase()))
    page.mouse.click(*point_at(page, "#timeline", 0.4))
    marks = page.locator("#timeline .peak-mark, #timeline .pin-line")
    assert marks.count() == 2
    for title in ("zoom in", "zoom in", "move right", "move right"):
        page.locator("#timeline").get_by_role("button", name=title).click()
    assert shown_positions(page, "#timeline") == "positions 50 to 74"
    assert marks.count() == 0


def test_the_map_zooms_into_addresses_too(open_page: OpenPage) -> None:
    page = open_page(report_html(staircase()))
    assert page.locator("#map .byte-tick").all_inner_texts()[-1] == "7.00 MiB"
    start, end = point_at(page, "#map", 0.0, 0.99), point_at(page, "#map", 1.0, 6 / 7)
    page.mouse.move(*start)
    page.mouse.down()
    page.mouse.move(*end, steps=4)
    page.mouse.up()
    assert page.locator("#map .byte-tick").all_inner_texts()[-1] == "896 KiB"


@pytest.mark.parametrize("make", [staircase, transformer])
def test_the_highest_point_of_the_chart_is_the_live_peak(make: Any, open_page: OpenPage) -> None:
    made = make()
    page = open_page(report_html(made))
    # The chart is 1.1 times as high as the peak, and drawn in a square of 1000 units, from the top.
    tops = page.evaluate("[...document.querySelectorAll('#timeline path[data-category]')].map((p) => p.getBBox().y)")
    assert min(tops) == pytest.approx(1000 * (1 - 1 / 1.1), abs=0.01)
    assert page.locator("#timeline .peak-mark").inner_text() == f"peak {format_bytes(made.live_peak_bytes)}"


def _boxes(page: Any, kind: str = "box") -> list[str]:
    return [label.split(",")[0] for label in page.locator(f"#flame .{kind}").evaluate_all(_LABELS)]


_LABELS = "(boxes) => boxes.map((box) => box.getAttribute('aria-label'))"


def test_a_box_of_the_flame_graph_zooms_in_and_out(open_page: OpenPage) -> None:
    page = open_page(report_html(stacked()))
    attention = page.locator("#flame .box", has_text="Attention.__call__")
    assert "train.py:14" in _boxes(page)
    attention.click()
    assert "train.py:14" not in _boxes(page)
    around = ["live at the peak", "step (train.py)", "step.loss (train.py)", "Net.__call__ (net.py)"]
    assert _boxes(page, "around") == around
    width = "document.querySelector('#flame').getBoundingClientRect().width"
    assert attention.bounding_box()["width"] == pytest.approx(page.evaluate(width), abs=1)
    page.locator("#flame .box").first.click()
    assert "train.py:14" in _boxes(page)


def test_the_flame_graph_goes_by_stack_module_and_category(open_page: OpenPage) -> None:
    page = open_page(report_html(stacked()))
    firsts = {"stack": "step (train.py)", "module": "(no module)", "category": "activations"}
    for name, first in firsts.items():
        button = page.locator("#flame-by").get_by_role("button", name=f"by {name}")
        button.click()
        assert button.get_attribute("aria-pressed") == "true"
        assert _boxes(page)[1] == first


def test_colours_of_the_flame_graph_tell_modules_apart(open_page: OpenPage) -> None:
    page = open_page(report_html(transformer()))
    page.locator("#flame-by").get_by_role("button", name="by module").click()
    # Of layers as of all: the operations of a module have its hue, and arrays that of their category.
    hues = page.locator("#flame .box").evaluate_all(
        "(boxes) => boxes.map((box) => [box.ariaLabel.split(',')[0], box.style.getPropertyValue('--c')])"
    )
    of_modules = dict(hues)
    modules = [name for name in ("layers_{0..11}", "attn", "mlp") if name in of_modules]
    assert len(modules) == 3, of_modules
    assert len({of_modules[name] for name in modules}) == 3
    for name in modules:
        assert {hue for other, hue in hues if other == name} == {of_modules[name]}
    assert {hue for name, hue in hues if "#" in name} == {""}


def test_a_box_of_the_flame_graph_says_what_it_is_made_of(open_page: OpenPage) -> None:
    page = open_page(report_html(stacked()))
    page.locator("#flame .box", has_text="Net.__call__").hover()
    tip = page.locator("#flame .tip")
    assert tip.inner_text().split("\n") == [
        "Net.__call__ (net.py)",
        "12.0 MiB, 75.0% of the peak",
        "Aactivations 12.0 MiB",
    ]
    page.mouse.move(0, 0)
    assert tip.is_hidden()


def test_the_flame_graph_answers_to_the_keyboard(open_page: OpenPage) -> None:
    page = open_page(report_html(stacked()))
    focused = "document.activeElement.getAttribute('aria-label')"
    page.locator("#flame .box").first.focus()
    assert page.evaluate(focused) == "live at the peak, 16.0 MiB"
    for key, label in (
        ("ArrowDown", "step (train.py), 14.0 MiB"),
        ("ArrowRight", "(arguments of the step), 1.00 MiB"),
        ("ArrowLeft", "step (train.py), 14.0 MiB"),
        ("ArrowDown", "step.loss (train.py), 13.0 MiB"),
        ("Enter", "step.loss (train.py), 13.0 MiB"),
        ("ArrowUp", "step (train.py), 14.0 MiB"),
        ("Escape", "step (train.py), 14.0 MiB"),
        ("Escape", "live at the peak, 16.0 MiB"),
    ):
        page.keyboard.press(key)
        assert page.evaluate(focused) == label


def test_the_boxes_of_the_flame_graph_add_up_to_the_live_peak(open_page: OpenPage) -> None:
    page = open_page(report_html(many_buffers(2_000)))
    for _ in range(2):
        boxes = page.evaluate(
            "[...document.querySelectorAll('#flame .box:not(.around)')].map((box) => "
            "[Number(box.dataset.level), parseFloat(box.style.left), parseFloat(box.style.width)])"
        )
        first = min(level for level, _, _ in boxes)
        # Without gaps from one side to the other, and what is in a box stands below it.
        rows = [sorted(each[1:] for each in boxes if each[0] == first + level) for level in (0, 1)]
        for row in rows:
            assert [left for left, _ in row] == pytest.approx([0, *accumulate(w for _, w in row)][:-1], abs=0.01)
        assert [sum(width for _, width in row) for row in rows] == pytest.approx([100, 100])
        page.locator("#flame .box[data-level='1']").first.click()


def test_what_is_too_narrow_to_see_is_one_box_that_opens(open_page: OpenPage) -> None:
    page = open_page(report_html(many_buffers(20_000)))
    page.locator("#flame-by").get_by_role("button", name="by module").click()
    assert page.locator("#flame .box").count() < 2_000
    smaller = page.locator("#flame .box[aria-label*=' smaller, ']").first
    number = smaller.get_attribute("aria-label").split()[0]
    smaller.focus()
    page.keyboard.press("Enter")
    assert int(number.replace(",", "")) > 1
    assert page.evaluate("document.activeElement.getAttribute('aria-label')").startswith(f"{number} smaller")


def test_the_address_map_tells_which_buffer_lies_where(open_page: OpenPage) -> None:
    page = open_page(report_html(staircase()))
    panel = page.locator("#map-panel")
    # The third lies at 3 to 7 of 7 MiB, from 30 to 60; the first below 1 MiB, from 10 to 80.
    page.mouse.move(*point_at(page, "#map", 0.45, 0.2))
    assert "4.00 MiB f32[1048576]" in panel.inner_text()
    assert "net/third" in panel.inner_text()
    page.mouse.move(*point_at(page, "#map", 0.15, 0.95))
    assert "1.00 MiB f32[262144]" in panel.inner_text()


def test_a_legend_lights_up_its_category(open_page: OpenPage) -> None:
    page = open_page(FORMAT.render_comparison(techniques(), RenderOptions()))
    legend = page.locator(".legend").first
    legend.get_by_role("button", name="outputs").click()
    assert page.locator(".part.lit").count() == page.locator(".part[data-category=outputs]").count() == 6
    legend.get_by_role("button", name="outputs").click()
    assert page.locator("[data-only]").count() == 0


def test_a_category_filters_chart_flame_graph_and_buffers_and_is_in_the_address(open_page: OpenPage) -> None:
    page = open_page(report_html(staircase()))
    figure = page.locator("figure", has=page.locator("#timeline"))
    drawn = (
        "[...new Set([...document.querySelectorAll('#timeline path[data-category]')].map((p) => p.dataset.category))]"
    )
    assert page.evaluate(drawn) == ["params", "activations"]
    figure.get_by_role("button", name="activations").click()
    page.locator("#timeline").get_by_role("button", name="zoom in").click()
    until(page, "location.hash.includes('category=activations')")  # it is written a little later
    for _ in range(2):
        assert page.evaluate(drawn) == ["activations"]
        assert page.locator("#buffer-count").inner_text() == "3 buffers, 7.00 MiB"
        assert page.locator("#flame .box").first.get_attribute("aria-label") == "live at the peak, 7.00 MiB"
        assert figure.get_by_role("button", name="activations").get_attribute("aria-pressed") == "true"
        page.reload()
        page.wait_for_selector("html[data-ready]", state="attached")
    page.locator("#buffer-category").select_option("")
    assert page.evaluate(drawn) == ["params", "activations"]
    assert page.locator("[data-only]").count() == 0
