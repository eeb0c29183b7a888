"""Formats are found, not listed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from memprof.errors import MemprofError
from memprof.reports.format import format_named, formats


def test_formats_are_found_by_their_files() -> None:
    assert [(found.name, found.suffix) for found in formats()] == [
        ("csv", ".csv"),
        ("html", ".html"),
        ("json", ".json"),
        ("markdown", ".md"),
        ("pdf", ".pdf"),
        ("perfetto", ".perfetto.json"),
        ("png", ".png"),
        ("pprof", ".pb.gz"),
        ("speedscope", ".speedscope.json"),
        ("svg", ".svg"),
        ("terminal", ".txt"),
    ]
    assert all(format_named(found.name) is found for found in formats())


def test_a_wrong_name_is_answered_with_the_right_ones() -> None:
    allowed = "csv, html, json, markdown, pdf, perfetto, png, pprof, speedscope, svg, terminal"
    with pytest.raises(MemprofError, match=rf"^There is no format 'docx'\. Use one of: {allowed}\.$"):
        format_named("docx")


def test_reports_need_neither_jax_nor_typer() -> None:
    program = (
        "import sys, memprof.reports.format as format; format.formats(); "
        "print([name for name in ('jax', 'typer', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_only_the_terminal_format_imports_rich() -> None:
    program = (
        "import sys, memprof.reports.formats.csv, memprof.reports.formats.json, memprof.reports.formats.markdown; "
        "print('rich' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
