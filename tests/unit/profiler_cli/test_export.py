"""The files of an exported model: whole or not there, and never in the place of others."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from made_compiles import Commands, made_capture

from memprof.analysis.records.exported import Exported, ExportedModel
from memprof.sources.jax.processes import launch

EXPORTED = Exported(model=ExportedModel(num_nodes=3, num_inputs=1, num_outputs=2, weight_bytes=2048), agreement=None)
WHOLE = {"m.onnx": "all of m.onnx", "m.onnx.data": "all of m.onnx.data"}
EXPORT = ("export", "mlp", "--preset", "tiny", "-o", "m.onnx")


@pytest.fixture
def memprof(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Commands:
    """Commands of which `export` makes a model with its large weights beside it."""
    made = tmp_path / "made"
    folder = tmp_path / "here"
    made.mkdir()
    folder.mkdir()

    @contextmanager
    def exported_in_child(*_: Any, **__: Any) -> Iterator[tuple[Any, Exported, tuple[Path, ...]]]:
        for name in ("m.onnx", "m.onnx.data"):
            (made / name).write_text(f"all of {name}")
        yield made_capture(), EXPORTED, (made / "m.onnx", made / "m.onnx.data")

    monkeypatch.setattr(launch, "exported_in_child", exported_in_child)
    return Commands(monkeypatch, capsys, folder)


def test_a_model_is_written_with_its_weights(memprof: Commands) -> None:
    ended = memprof(*EXPORT)
    assert (ended.code, ended.stdout) == (0, "")
    assert "model written to m.onnx: 3 nodes, 1 inputs, 2 outputs" in ended.stderr
    assert ended.files == WHOLE


@pytest.mark.parametrize("name", ["m.onnx", "m.onnx.data"])
def test_what_is_there_is_kept_unless_force_is_given(memprof: Commands, name: str) -> None:
    (memprof.folder / name).write_text("mine")
    ended = memprof(*EXPORT)
    assert ended.code == 2
    assert f"{name} exists already" in ended.stderr
    assert ended.files == {name: "mine"}
    ended = memprof(*EXPORT, "--force")
    assert (ended.code, ended.files) == (0, WHOLE)


def test_on_a_full_disk_there_is_no_model(memprof: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    sync = os.fsync

    def full_after_one(descriptor: int) -> None:
        written.append(descriptor)
        if len(written) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", full_after_one)
    ended = memprof(*EXPORT)
    assert ended.code == 2
    assert ended.stderr.endswith("memprof: the model cannot be written to m.onnx: No space left on device.\n")
    assert set(ended.files) == {"m.onnx.data"}
