"""Formats are found, not listed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from memprof.errors import MemprofError
from memprof.reports import formats as formats_package
from memprof.reports.format import format_named, formats


def test_formats_are_found_by_their_files() -> None:
    files = sorted(path.stem for path in Path(formats_package.__path__[0]).glob("[!_]*.py"))
    assert [found.name for found in formats()] == files
    assert {"html": ".html", "markdown": ".md", "terminal": ".txt"}.items() <= {
        found.name: found.suffix for found in formats()
    }.items()
    assert all(format_named(found.name) is found for found in formats())


def test_a_wrong_name_is_answered_with_the_right_ones() -> None:
    allowed = ", ".join(found.name for found in formats())
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
