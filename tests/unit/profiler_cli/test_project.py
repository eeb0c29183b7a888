"""The defaults of a project, from its pyproject.toml."""

from __future__ import annotations

from pathlib import Path

import pytest

from memprof.errors import MemprofError
from memprof.profiler_cli.project import project_defaults

pytestmark = pytest.mark.with_one_jax


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file, two folders above the one that commands run in."""
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    path = tmp_path / "pyproject.toml"
    path.write_text('[tool.memprof]\ntarget = "L4"\nmemory = "20GiB"\nreserve = "4%"\nformat = "markdown"\n')
    return path


def test_a_command_gets_the_defaults_that_it_has_options_for(table: Path) -> None:
    everything = {"target": "L4", "memory": "20GiB", "reserve": "4%", "format": "markdown"}
    assert project_defaults("fit", {}) == everything
    assert project_defaults("run", {}) == {"target": "L4", "format": "markdown"}
    assert project_defaults("show", {}) == {"format": "markdown"}
    assert project_defaults("doctor", {}) == {}


def test_a_default_yields_to_the_command_line(table: Path) -> None:
    assert project_defaults("run", {"target": "cpu", "output": "r.html"}) == {}
    assert project_defaults("run", {"steps": "3"}) == {"format": "markdown"}  # what runs, runs here
    assert project_defaults("fit", {"target": "h200"}) == {"reserve": "4%", "format": "markdown"}


def test_a_nearer_file_without_the_table_is_passed_over(table: Path) -> None:
    (table.parent / "a" / "pyproject.toml").write_text("[tool.ruff]\nline-length = 120\n")
    (table.parent / "a" / "b" / "pyproject.toml").write_text("this is no TOML")
    assert project_defaults("show", {}) == {"format": "markdown"}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('targt = "l4"', "There is no key of .tool.memprof. 'targt' .did you mean 'target'.."),
        ("memory = 20", "memory of .tool.memprof. is 20, but a string was expected, as on --memory"),
        ('target = "H100"', "target of .tool.memprof.: 'H100' matches several targets"),
        ('memory = "much"', "memory of .tool.memprof.: "),
        ('reserve = "some"', "reserve of .tool.memprof.: "),
        ('format = "docx"', "format of .tool.memprof.: There is no format 'docx'"),
        ("target = ", "is not valid TOML, so .tool.memprof. cannot be read"),
    ],
)
def test_what_is_wrong_is_said_with_the_file(table: Path, text: str, sentence: str) -> None:
    table.write_text(f"[tool.memprof]\n{text}\n")
    with pytest.raises(MemprofError, match=f"^{table}.* ?{sentence}"):
        project_defaults("fit", {})
