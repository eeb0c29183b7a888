"""`memprof import -o`: a folder of captures, or the file of one; of programs, and of memory snapshots of PyTorch."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from made_compiles import Commands

from tests.unit.sources.test_importing import GPU, proto_of, training_step

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


def _snapshot(folder: Path, name: str = "snapshot.pickle") -> None:
    """One tensor of 3 MiB in a segment of 20 MiB, allocated by a line of a script."""
    frame = {"filename": "/home/me/train.py", "line": 7, "name": "<module>"}
    blocks = [
        {"size": 3 << 20, "requested_size": 3 << 20, "state": "active_allocated", "frames": [frame]},
        {"size": 17 << 20, "requested_size": 0, "state": "inactive", "frames": []},
    ]
    segment = {"address": 0, "total_size": 20 << 20, "device": 0, "blocks": blocks}
    events = [
        {"action": "segment_alloc", "addr": 0, "size": 20 << 20, "frames": []},
        {"action": "alloc", "addr": 0, "size": 3 << 20, "frames": [frame]},
    ]
    (folder / name).write_bytes(pickle.dumps({"segments": [segment], "device_traces": [events]}))


def test_a_memory_snapshot_becomes_a_capture(commands: Commands) -> None:
    _snapshot(commands.folder)
    imported = commands("import", "snapshot.pickle", "--target", "t4", keeps_files=True)
    assert imported.code == 0
    assert "train.py:7" in imported.stdout
    assert "20.0 MiB reserved" in imported.stdout
    shown = commands("show", "snapshot-torch-t4.memprof")
    assert (shown.code, "bytes[3145728]" in shown.stdout) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("snapshot.pickle", "."), "import either memory snapshots of PyTorch or compiled programs"),
        (("snapshot.pickle", "--role", "a=params"), "--program, --largest and --role apply to compiled programs"),
        (("snapshot.pickle", "other.pkl", "-o", "x.memprof"), "and 2 snapshots are imported: name a folder"),
        (("missing.pickle",), "there is no file missing.pickle"),
        (("weights.pkl",), "weights.pkl is not a PyTorch memory snapshot"),
    ],
)
def test_what_does_not_go_with_a_memory_snapshot(commands: Commands, arguments: tuple[str, ...], sentence: str) -> None:
    _snapshot(commands.folder)
    _snapshot(commands.folder, "other.pkl")
    (commands.folder / "weights.pkl").write_bytes(pickle.dumps({"weights": [1.0]}))
    ended = commands("import", *arguments)
    assert (ended.code, sentence in ended.stderr) == (2, True), ended.stderr
