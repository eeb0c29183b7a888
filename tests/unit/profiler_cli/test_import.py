"""`memprof import -o`: a folder of captures, or the file of one."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_compiles import Commands

from tests.unit.capture.test_importing import GPU, proto_of, training_step

pytestmark = pytest.mark.with_one_jax


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Commands:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / GPU).write_bytes(proto_of(training_step()))
    return Commands(monkeypatch, capsys, folder)


def test_a_capture_is_written_to_the_file_that_is_named(commands: Commands) -> None:
    assert commands("import", ".", "-o", "x.memprof", keeps_files=True).code == 0
    assert (commands.folder / "x.memprof").is_file()
    again = commands("import", ".", "-o", "x.memprof")
    assert (again.code, "overwrite it with --force" in again.stderr) == (2, True)
    assert commands("import", ".", "-o", "x.memprof", "--force").code == 0


def test_several_captures_do_not_fit_into_one_file(commands: Commands) -> None:
    (commands.folder / GPU.replace("0001", "0002")).write_bytes(proto_of(training_step(names={"slow": "average"})))
    ended = commands("import", ".", "--largest", "2", "-o", "x.memprof")
    assert (ended.code, "name a folder" in ended.stderr) == (2, True)


def test_a_name_without_that_ending_is_a_folder(commands: Commands) -> None:
    assert commands("import", ".", "-o", "captures", keeps_files=True).code == 0
    assert [path.suffix for path in (commands.folder / "captures").iterdir()] == [".memprof"]
