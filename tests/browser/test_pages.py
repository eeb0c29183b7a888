"""The HTML report in a real browser: it draws, answers to the mouse and the keyboard, and asks nobody for anything.

`open_page` checks after each test that there was no request and nothing on the console.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from comparisons_data import COMPARISONS, techniques
from diffs_data import DIFFS
from pages import OpenPage, report_html, staircase, until
from report_builder import buffer, report
from reports_data import REPORTS, many_buffers
from stacked_report import stacked
from transformer_report import transformer

from memprof.analysis.records.categories import Category
from memprof.reports.formats.html import FORMAT
from memprof.reports.options import RenderOptions
from memprof.reports.units import format_bytes

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
    page = open_page(report_html(REPORTS[name]()), width=width, color_scheme=color_scheme)
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
    page = open_page(report_html(staircase()))
    line = "getComputedStyle(document.querySelector('#timeline .byte-tick')).borderTopColor"
    light = page.evaluate(line)
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(line) != light


def test_buffers_are_searched_and_sorted(open_page: OpenPage) -> None:
    page = open_page(report_html(staircase()))
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


def test_equal_layers_are_one_row_that_opens_to_each_of_them(open_page: OpenPage) -> None:
    """The four layers of attention hold 2 MiB each at one line, and 1 MiB each at another one."""
    page = open_page(report_html(stacked()))
    rows = page.locator("#buffer-table tbody tr")
    cells = [row.locator("td").all_inner_texts()[:3] for row in rows.all()[:2]]
    assert [[text.strip() for text in row] for row in cells] == [
        ["8.00 MiB", "4", "f32[524288]"],
        ["4.00 MiB", "4", "f32[262144]"],
    ]
    assert "layers_*/attention" in rows.first.inner_text()
    rows.first.locator("button").click()
    details = page.locator("#buffer-table .details")
    assert "one of 4 alike, of 2.00 MiB each" in details.inner_text()
    details.get_by_role("link", name="layers_2/attention").first.click()
    assert details.count() == 1
    assert details.locator(".alike b").inner_text() == "layers_2/attention"


def test_advice_stands_once_and_its_code_is_copied(open_page: OpenPage) -> None:
    page = open_page(report_html(transformer()))
    first = page.locator(".advice").first
    what = first.locator(".what").inner_text()
    texts = page.locator("main section:not(#buffers-section)").all_inner_texts()
    assert sum(text.count(what) for text in texts) == 1
    assert not first.locator("pre").is_visible()
    first.locator("summary").click()
    code = first.locator("pre").inner_text()
    first.get_by_role("button", name="copy").click()
    assert page.evaluate("getSelection().toString()").strip() == code.strip()
    until(page, "['copied', 'selected'].includes(document.querySelector('.advice button').textContent)")


@pytest.mark.parametrize(("width", "highest"), [(1280, 4000), (390, 6000)])
def test_a_page_is_not_longer_than_what_it_has_to_say(width: int, highest: int, open_page: OpenPage) -> None:
    page = open_page(report_html(transformer()), width=width)
    assert page.evaluate("document.documentElement.scrollHeight") < highest
    clipped = (
        "[...document.querySelectorAll('.lane b, .positions span')].filter((e) => e.getBoundingClientRect().left < 0)"
    )
    assert page.evaluate(f"{clipped}.length") == 0


def test_a_row_opens_from_the_keyboard_and_says_why(open_page: OpenPage) -> None:
    page = open_page(report_html(staircase()))
    page.locator("#buffer-table tbody button").first.focus()
    page.keyboard.press("Enter")
    details = page.locator("#buffer-table .details").inner_text()
    for shown in ("4,194,304 bytes", "jit(step)/third/dot", "3,145,728 in the temp block", "made by hand for a test"):
        assert shown in details
    page.keyboard.press("Enter")
    assert page.locator("#buffer-table .details").count() == 0


def test_source_lines_are_text(open_page: OpenPage) -> None:
    made = report([buffer((4,), "f32", Category.ACTIVATIONS, op="step/add", source="model.py:2")])
    lines = {1: "a = 1", 2: "b = '<img src=x onerror=alert(1)>'", 3: "c = 3"}
    page = open_page(report_html(replace(made, source_lines={"model.py": lines})))
    page.locator("#buffer-table tbody button").first.click()
    assert page.locator("#buffer-table pre mark").inner_text().strip().endswith("b = '<img src=x onerror=alert(1)>'")
    assert page.locator("#buffer-table img").count() == 0


def test_hostile_names_are_shown_and_never_run(open_page: OpenPage) -> None:
    page = open_page(report_html(REPORTS["hostile_names"]()))
    assert page.locator("h1").inner_text().startswith("[bold]label[/bold] <script>alert('x')</script>")
    page.locator("#buffer-search").fill("<script>")
    page.locator("#buffer-table tbody button").first.click()
    assert "<script>alert('x')</script>" in page.locator("#buffer-table .details").inner_text()
    assert page.locator("#flame b").count() == 0


def test_tables_of_a_comparison_are_sorted_by_what_they_mean(open_page: OpenPage) -> None:
    page = open_page(FORMAT.render_comparison(techniques(), RenderOptions()))
    table = page.locator("section", has=page.get_by_role("heading", name="Configurations")).locator("table")
    table.get_by_role("button", name="footprint", exact=True).click()
    column = table.locator("tbody tr td:nth-child(2)").all_inner_texts()
    assert column == sorted(column, key=_bytes, reverse=True)
    table.get_by_role("button", name="footprint", exact=True).click()
    assert table.locator("tbody tr td:nth-child(2)").all_inner_texts() == column[::-1]


def test_without_javascript_everything_is_still_said(open_page: OpenPage) -> None:
    page = open_page(report_html(transformer()), scripts=False)
    text = page.locator("body").inner_text()
    for shown in ("11.1 GiB", "activations", "layers_{0..11}", "This picture needs JavaScript"):
        assert shown in text
    assert page.locator("figure svg path").count() >= 5


def test_the_page_writes_sizes_as_the_report_does(open_page: OpenPage) -> None:
    sizes = [0, 1, 1023, 1024, 1_048_063, 1_048_064, 10_234, 102_349, 2**30 - 1, 123_456_789_012, 2**53 - 1]
    made = report([buffer((max(size, 0),), "u8", Category.ACTIVATIONS, op=f"step/{size}") for size in sizes])
    page = open_page(report_html(made))
    page.locator("#buffer-more").click()
    shown = page.locator("#buffer-table tbody tr td:first-child").all_inner_texts()
    assert [text.strip() for text in shown] == [format_bytes(size) for size in sorted(sizes, reverse=True)]


def test_twenty_thousand_buffers_are_searched_at_once(open_page: OpenPage) -> None:
    page = open_page(report_html(many_buffers(20_000)))
    search = (
        "(() => { const start = performance.now(); const search = document.getElementById('buffer-search');"
        "search.value = 'part_7'; search.dispatchEvent(new Event('input'));"
        "return (performance.now() - start) / 1000; })()"
    )
    assert min(page.evaluate(search) for _ in range(5)) < 1  # other processes may get in between
    assert page.locator("#buffer-table tbody tr").count() == 10
    assert (
        page.locator("#buffer-count").inner_text().startswith("1,100 buffers")
    )  # part_7 and part_70 to part_79, times 100


@pytest.mark.parametrize("color_scheme", ["light", "dark"])
def test_everything_is_printed_on_white(color_scheme: str, open_page: OpenPage) -> None:
    page = open_page(report_html(transformer()), color_scheme=color_scheme)
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    for chart in ("#timeline .area", "#flame .box", "#map .area"):
        assert page.locator(chart).first.is_visible()
    assert page.locator(".controls:visible").count() == 0
    # A4 between margins of 12 mm: nothing is cut off.
    page.set_viewport_size({"width": 700, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") == 700


def test_twenty_thousand_buffers_open_with_every_chart(open_page: OpenPage) -> None:
    """In what time is measured by `benchmarks/render_html.py`."""
    page = open_page(report_html(many_buffers(20_000)))
    for chart in ("#timeline .area", "#flame .box", "#map .area"):
        assert page.locator(chart).first.is_visible()


def _bytes(text: str) -> float:
    number, unit = text.split()
    return float(number) * 1024.0 ** ["B", "KiB", "MiB", "GiB"].index(unit)
