"""The gallery: live pages of real programs. A command that compiles them, and an mkdocs hook that makes their pages.

    python docs/gallery.py [NAME...]

runs the commands of the table in `docs/gallery/index.md`, from the project's folder, and keeps their captures in
`build/gallery/`. `mkdocs build` makes a page of each capture that it finds there, in the format of today, and lets the
names in the table lead to them. So a build of the documentation compiles nothing, and without captures there is the
table alone.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memprof.analysis.pipeline import analyze
from memprof.reports.format import format_named
from memprof.reports.options import RenderOptions
from memprof.sources.capture_file import read_capture

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

PROJECT = Path(__file__).parents[1]
CAPTURES = PROJECT / "build" / "gallery"
_INDEX = "gallery/index.md"
_ROW = re.compile(r"^\| (\w+) \| .* \| `memprof (run .*)` \|$", re.MULTILINE)


def commands() -> dict[str, str]:
    """The arguments of memprof for each program of the table, by the program's name."""
    return dict(_ROW.findall((PROJECT / "docs" / _INDEX).read_text(encoding="utf-8")))


def compile_programs(names: list[str]) -> None:
    """Write a capture of each of the programs; of all where none is named."""
    CAPTURES.mkdir(parents=True, exist_ok=True)
    for name in names or commands():
        output = ["-o", str(_capture(name)), "--force"]
        line = [sys.executable, "-m", "memprof", *shlex.split(commands()[name]), *output]
        subprocess.run(line, cwd=PROJECT, check=True, stdout=subprocess.DEVNULL)


def page(capture: Path) -> str:
    """The live page of a capture."""
    html = format_named("html").render_report(analyze(read_capture(capture)), RenderOptions())
    assert isinstance(html, str)
    return html


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Make the pages of the captures that are there."""
    from mkdocs.structure.files import File  # the command does without mkdocs

    for name in commands():
        if _capture(name).exists():
            files.append(File.generated(config, f"gallery/{name}.html", content=page(_capture(name))))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let the names of the table lead to the pages that are there."""
    if page.file.src_uri != _INDEX:
        return markdown
    return _ROW.sub(lambda row: _linked(row) if _capture(row[1]).exists() else row[0], markdown)


def _linked(row: re.Match[str]) -> str:
    return row[0].replace(f"| {row[1]} |", f"| [{row[1]}]({row[1]}.html) |", 1)


def _capture(name: str) -> Path:
    return CAPTURES / f"{name}.memprof"


if __name__ == "__main__":
    compile_programs(sys.argv[1:])
