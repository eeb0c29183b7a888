"""Takes pictures of every screen: those of the README and of the documentation, or all of them, to look at.

    memprof run transformer --preset gpt2 --target h100-80gb -o gpt2.memprof
    memprof compare transformer --preset gpt2 --target h100-80gb -t baseline -t bf16 -t bf16+remat -o rows
    python docs/screens.py gpt2.memprof rows                    # docs/images/
    python docs/screens.py gpt2.memprof rows --all screens/     # every command at 80, 100 and 160 columns and without
                                                                # colour; pages at 1280 and 390 pixels, light and dark

Needs Chromium, the extra `test` (playwright), and pillow. A terminal's picture is what the command prints where there
are so many columns and all colours, on a dark screen; of 80x24, what is left on a terminal of that size.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright
from rich.console import Console
from rich.text import Text

_IMAGES = Path(__file__).parent / "images"
_COLORS = 128  # of a picture: enough for text and areas of one colour each
_TERMINAL_PAGE = """<!DOCTYPE html><html><head><meta charset="utf-8"><style>{stylesheet}
body {{ margin: 0; background: #15171a; color: #e6e8eb; }}
pre {{ margin: 0; padding: 16px 20px; font: 14px/1.22 "DejaVu Sans Mono", monospace; width: max-content; }}
</style></head><body><pre>{code}</pre></body></html>"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shot:
    """A picture.

    Attributes:
        name: of its file.
        command: what `memprof` is given; an HTML page is what it writes with `-o`.
        width: columns of a terminal, or pixels of a page.
        height: lines or pixels; None: all of it.
        is_dark: of a page.
        has_color: of a terminal.
    """

    name: str
    command: tuple[str, ...]
    width: int
    height: int | None = None
    is_page: bool = False
    is_dark: bool = False
    has_color: bool = True


def documentation(capture: str, rows: str) -> Iterator[Shot]:
    """The pictures that the README and the documentation show."""
    yield Shot(name="terminal", command=("show", capture), width=100)
    yield Shot(name="compare", command=("compare", rows, "--sort", "footprint"), width=100)
    yield Shot(name="report", command=("show", capture), width=1280, height=900, is_page=True)
    yield Shot(name="report-phone", command=("show", capture), width=390, height=844, is_page=True, is_dark=True)


def everything(capture: str, rows: str) -> Iterator[Shot]:
    """Every screen, at every size."""
    commands = {
        "first": ("show", capture),
        "full": ("show", capture, "-v"),
        **{f"by-{by}": ("show", capture, "--by", by) for by in ("category", "module", "source", "stack", "buffer")},
        "advise": ("advise", capture),
        "compare": ("compare", rows),
        "compare-by-module": ("compare", rows, "--by", "module"),
        "targets": ("list", "targets"),
        "help": ("run", "--help"),
    }
    for name, command in commands.items():
        for columns in (80, 100, 160):
            yield Shot(name=f"{name}-{columns}", command=command, width=columns)
        yield Shot(name=f"{name}-80x24", command=command, width=80, height=24)
        yield Shot(name=f"{name}-80-plain", command=command, width=80, has_color=False)
    for name, command in {"page": commands["first"], "page-compare": commands["compare"]}.items():
        for width, height in ((1280, 900), (390, 844)):
            for is_dark in (False, True):
                size = f"{width}-{'dark' if is_dark else 'light'}"
                yield Shot(
                    name=f"{name}-{size}", command=command, width=width, height=height, is_page=True, is_dark=is_dark
                )
                yield Shot(name=f"{name}-{size}-whole", command=command, width=width, is_page=True, is_dark=is_dark)


def take(browser: Browser, shot: Shot, folder: Path) -> None:
    """Run the command and take its picture."""
    page = browser.new_page(
        viewport={"width": shot.width if shot.is_page else 1600, "height": shot.height or 800 if shot.is_page else 800},
        color_scheme="dark" if shot.is_dark else "light",
    )
    page.set_content(_printed(shot, "--format", "html") if shot.is_page else _on_a_terminal(shot))
    if page.locator("#flame").count():
        page.wait_for_selector("html[data-ready]", state="attached")
    page.wait_for_timeout(500)
    png = page.screenshot(full_page=shot.height is None) if shot.is_page else page.locator("pre").screenshot()
    page.close()
    picture = Image.open(BytesIO(png)).convert("RGB").quantize(_COLORS, dither=Image.Dither.NONE)
    picture.save(folder / f"{shot.name}.png", optimize=True)


def _on_a_terminal(shot: Shot) -> str:
    lines = _printed(shot).rstrip().splitlines()
    text = "\n".join(lines[1 - shot.height :] if shot.height else lines)  # a terminal's last line is the next prompt
    console = Console(record=True, width=shot.width + 1, file=open(os.devnull, "w"))  # noqa: SIM115 - it goes nowhere
    console.print(Text.from_ansi(text))
    return console.export_html(code_format=_TERMINAL_PAGE, inline_styles=False)


def _printed(shot: Shot, *options: str) -> str:
    color = {"FORCE_COLOR": "1", "COLORTERM": "truecolor", "TERM": "xterm-256color"}
    environment = os.environ | {"COLUMNS": str(shot.width)} | (color if shot.has_color else {"NO_COLOR": "1"})
    command = [sys.executable, "-m", "memprof", *shot.command, *options]
    return subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("capture")
    parser.add_argument("rows", help="the folder of captures that `memprof compare` wrote")
    parser.add_argument("--all", type=Path, metavar="FOLDER", help="take pictures of every screen, into a folder")
    parser.add_argument("--only", default="", metavar="NAME", help="those whose names begin so")
    asked = parser.parse_args()
    folder = asked.all or _IMAGES
    folder.mkdir(exist_ok=True, parents=True)
    shots = everything(asked.capture, asked.rows) if asked.all else documentation(asked.capture, asked.rows)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for shot in shots:
            if shot.name.startswith(asked.only):
                take(browser, shot, folder)
        browser.close()


if __name__ == "__main__":
    main()
