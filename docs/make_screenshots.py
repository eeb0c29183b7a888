"""Makes the pictures of the README and of the documentation, from one capture.

    memprof run transformer --preset gpt2 --target h100-80gb -o gpt2.memprof
    python docs/make_screenshots.py gpt2.memprof

Needs Chromium and the extra `test` (playwright). The terminal's picture is what a terminal with 100 columns and all
colours shows; the pages are as a browser shows them.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright
from rich.console import Console
from rich.text import Text

from memprof.analysis.pipeline import analyze
from memprof.analysis.report import Report
from memprof.capture.capture_file import read_capture
from memprof.reports.format import format_named
from memprof.reports.options import RenderOptions

_IMAGES = Path(__file__).parent / "images"
_COLUMNS = 100
_TERMINAL_PAGE = """<!DOCTYPE html><html><head><meta charset="utf-8"><style>{stylesheet}
body {{ margin: 0; background: #15171a; color: #e6e8eb; }}
pre {{ margin: 0; padding: 16px 20px; font: 14px/1.22 "DejaVu Sans Mono", monospace; width: max-content; }}
</style></head><body><pre>{code}</pre></body></html>"""


def terminal_html(report: Report, capture: str) -> str:
    """What `memprof show CAPTURE` prints, as a page that shows it in its colours."""
    options = RenderOptions(
        width=_COLUMNS, color="truecolor", first_screen=True, with_configuration=False, capture=capture
    )
    text = format_named("terminal").render_report(report, options)
    assert isinstance(text, str)
    console = Console(record=True, width=_COLUMNS + 1, file=open("/dev/null", "w"))  # noqa: SIM115 - it goes nowhere
    console.print(Text.from_ansi(text.rstrip()))
    return console.export_html(code_format=_TERMINAL_PAGE, inline_styles=False)


def take(browser: Browser, html: str | bytes, name: str, *, width: int, height: int | None, dark: bool) -> None:
    """Take a picture of a page, of its first `height` pixels or (None) of all of it."""
    assert isinstance(html, str)
    page = browser.new_page(
        viewport={"width": width, "height": height or 800}, color_scheme="dark" if dark else "light"
    )
    page.set_content(html)
    if page.locator("#flame").count():
        page.wait_for_selector("html[data-ready]", state="attached")
    page.wait_for_timeout(500)
    if height is None:
        page.locator("pre").screenshot(path=_IMAGES / name)
    else:
        page.screenshot(path=_IMAGES / name)
    page.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("capture", type=Path)
    path = parser.parse_args().capture
    report = analyze(read_capture(path))
    page = format_named("html").render_report(report, RenderOptions(source=False))
    _IMAGES.mkdir(exist_ok=True)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        take(browser, terminal_html(report, path.name), "terminal.png", width=1000, height=None, dark=True)
        take(browser, page, "report.png", width=1280, height=1460, dark=False)
        take(browser, page, "report-phone.png", width=390, height=1400, dark=True)
        browser.close()


if __name__ == "__main__":
    main()
