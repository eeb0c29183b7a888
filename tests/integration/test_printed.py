"""README.md and docs/, run for real: their Python blocks, and the commands that do more than compile one more step.

Every command is run as printed by `unit/profiler_cli/test_printed_commands.py`, with captures made by hand.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from integration.command import Command
from printed import PAGES, ROOT, Printed, blocks, commands, is_run, name_of, write_scripts

import memprof as api
from memprof.api import profile_spec

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.with_one_jax

_TEST_FILE = "# test_memory.py\n"
_WRITTEN = ("# train.py\n", "# also in train.py\n", "# loop.py\n", _TEST_FILE)  # files, not blocks to run
# Commands of which only a real compile shows that they work; the others differ from these in names and options.
_COMPILED = (
    "memprof plan train.py:step_spec --target",
    "memprof serve-plan engine.py",
    "memprof advise train.py:step_spec --format json",
    "memprof check train.py:step_spec --against",
    "memprof run train.py:step_spec --target a100-40gb -o step.memprof",
    "memprof check step.memprof",
    "--set batch_size=64 -- --my-own-flag",
    "examples.plain_jax",
    " loop.py ",
)
_FIRST = "memprof run transformer --target h100-80gb"  # in the README it stands behind the installation


def _pages_with(language: str) -> list[Path]:
    return [page for page in PAGES if blocks(page, language)]


@pytest.fixture
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the scripts of the docs, which is the working folder, and where Python looks for modules."""
    write_scripts(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("train", None)


@pytest.mark.parametrize("page", _pages_with("python"), ids=name_of)
@pytest.mark.slow_cases
def test_the_python_blocks_of_a_page_run_in_order(page: Path, scripts: Path) -> None:
    if "import torch" in page.read_text(encoding="utf-8"):
        pytest.importorskip("torch", reason="PyTorch is not installed")
    found = [block for block in blocks(page, "python") if not block.text.startswith(_WRITTEN)]
    run = _in_notebook if any(block.text.startswith("%") for block in found) else _in_script
    run(found, scripts)


def _in_script(found: list[Printed], folder: Path) -> None:
    """Run blocks in one namespace, and profile each spec that they define."""
    names: dict[str, Any] = {}
    for block in found:
        path = folder / f"block_{block.line}.py"  # a file, so that lines have a source
        path.write_text(block.text, encoding="utf-8")
        exec(compile(block.text, path, "exec"), names)
        spec = names.pop("step_spec", None)
        if spec is not None:
            assert profile_spec(spec(), target="cpu").footprint_bytes > 0
        torch_spec = names.pop("torch_spec", None)
        if torch_spec is not None:
            assert api.profile_torch(torch_spec, target="a100-40gb").footprint_bytes > 0


def _in_notebook(found: list[Printed], folder: Path) -> None:
    """Run blocks as cells."""
    del folder
    interactive = pytest.importorskip("IPython.core.interactiveshell", reason="IPython is not installed")
    shell = interactive.InteractiveShell.instance(warn_venv=False)
    try:
        for block in found:
            shell.run_cell(block.text).raise_error()
    finally:
        interactive.InteractiveShell.clear_instance()


def test_the_tests_that_the_docs_print_pass(pytester: pytest.Pytester) -> None:
    write_scripts(pytester.path)
    (block,) = (each for page in PAGES for each in blocks(page, "python") if each.text.startswith(_TEST_FILE))
    (pytester.path / "test_memory.py").write_text(block.text, encoding="utf-8")
    plugin = () if pytester._request.config.pluginmanager.has_plugin("memprof") else ("-p", "memprof.pytest_plugin")
    done = pytester.runpytest_subprocess(*plugin, "--strict-markers", "test_memory.py")
    done.assert_outcomes(passed=2)


def _with(*parts: str) -> list[Printed]:
    """The commands with one of these parts, each once, in their order."""
    found = {each.text: each for page in PAGES for each in commands(page)}
    return [each for text, each in found.items() if is_run(each) and any(part in text for part in parts)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Command:
    """Commands in a folder with the scripts of the docs, one after the other."""
    made = Command.in_folder(tmp_path_factory.mktemp("printed"))
    write_scripts(made.folder)
    return made


def _run(command: Printed, memprof: Command) -> str:
    """Run a command as printed, and return its stdout."""
    words = shlex.split(command.text)
    environment = {}
    while "=" in words[0]:
        name, _, environment[name] = words.pop(0).partition("=")
    program = {"memprof": (sys.executable, "-m", "memprof"), "python": (sys.executable,)}[words[0]]
    ended = memprof(*words[1:], program=program, **environment)
    assert ended.returncode == 0, f"{command}\n{ended.stdout}\n{ended.stderr}"
    return ended.stdout


@pytest.mark.slow
def test_a_dump_is_written_and_imported_as_printed(memprof: Command) -> None:
    write_scripts(memprof.folder)
    written, *others = commands(ROOT / "docs" / "import.md")
    imports = [each for each in others if each.text.startswith("memprof import dump")]
    assert len(imports) == 4
    assert "loss 6.9" in _run(written, memprof)
    for command in imports:
        assert "train_step" in _run(command, memprof), command


@pytest.mark.parametrize("command", _with("memprof watch train.py", "memprof watch --target"), ids=str)
@pytest.mark.slow_cases
def test_a_script_is_watched_as_printed(command: Printed, folder: Command) -> None:
    assert "train_step" in _run(command, folder)


@pytest.mark.parametrize("command", _with(*_COMPILED), ids=str)
@pytest.mark.slow_cases
def test_a_users_step_is_compiled_as_printed(command: Printed, folder: Command) -> None:
    assert _run(command, folder).strip() or "--update" in command.text, command


def test_the_first_command_and_what_is_asked_of_its_capture(folder: Command) -> None:
    assert _FIRST in (ROOT / "README.md").read_text(encoding="utf-8")
    for command in (Printed("README.md", 1, _FIRST), *_with("memprof show transformer-gpt2-h100-80gb.memprof")):
        _run(command, folder)
    assert os.path.getsize(folder.folder / "report.html") > 100_000
