"""The text of source lines that goes into a capture."""

from __future__ import annotations

import linecache
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import cast

import pytest
from added_up_step import added_up_step

from memprof.profiler_cli.kept_captures import KeptCaptures
from memprof.sources.capture_file import read_capture
from memprof.sources.jax.xla.source_lines import read_source_lines
from memprof.sources.jax.xla.toolchain import code_folders


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "model.py"
    path.write_text("".join(f"\tline_{number} = {number}  \n" for number in range(1, 10)))
    return str(path)


def test_lines_are_kept_with_those_around_them_and_once(model: str) -> None:
    found = read_source_lines([f"{model}:1", f"{model}:4", f"{model}:5", f"{model}:4"], sys.path)
    assert found == {model: {number: f"    line_{number} = {number}" for number in range(1, 8)}}


def test_a_file_of_an_installed_package_is_found_by_its_path_in_it(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(model).parent))
    assert list(read_source_lines(["model.py:9"], sys.path)["model.py"]) == [7, 8, 9]


def test_what_is_no_line_of_a_python_file_is_left_out(model: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("secret\n")
    sources = [f"{secret}:1", f"{tmp_path}:1", "no/such/file.py:1", f"{model}:x", f"{model}:90", "\0.py:1", "nothing"]
    assert read_source_lines([*sources, "", f"{model}:²", "<string>:1"], sys.path) == {}


def test_the_lines_of_a_cell_are_kept_by_the_name_that_ipython_gives_it(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = SimpleNamespace(format_code_name=lambda file: ("Cell", "In[3]") if file == model else None)
    ipython = SimpleNamespace(get_ipython=lambda: SimpleNamespace(compile=shell))
    monkeypatch.setitem(sys.modules, "IPython", cast("ModuleType", ipython))
    linecache.getlines(model)
    cells = code_folders().cells
    assert cells == {model: "Cell In[3]"}
    found = read_source_lines(["Cell In[3]:1", "Cell In[4]:1"], sys.path, cells)
    assert found == {"Cell In[3]": {number: f"    line_{number} = {number}" for number in range(1, 4)}}


@pytest.mark.parametrize("with_source", [True, False])
def test_a_folder_of_captures_is_kept_with_or_without_it(tmp_path: Path, with_source: bool) -> None:
    capture = replace(added_up_step().capture(), source_lines={"f.py": {1: "secret"}})
    KeptCaptures(tmp_path, with_source=with_source).keep(capture)
    (path,) = tmp_path.iterdir()
    assert bool(read_capture(path).source_lines) == with_source
