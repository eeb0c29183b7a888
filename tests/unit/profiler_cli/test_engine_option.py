"""What --engine and `export` say where an extra is missing, or where they do not apply."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from memprof.profiler_cli.command_line import run_and_exit


def _ended(
    arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> tuple[Any, str]:
    monkeypatch.setattr("sys.argv", ["memprof", *arguments])
    # Other tests of this process leave a script that stands still, and a command then ends the process.
    monkeypatch.delitem(sys.modules, "memprof.workloads.user.script", raising=False)
    with pytest.raises(SystemExit) as ended:
        run_and_exit()
    return ended.value.code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["run", "mlp", "--engine", "tensorrt"],
            "pip install 'jax-memprof[tensorrt]' (TensorRT for RTX is proprietary",
        ),
        (
            ["fit", "mlp", "--engine", "tensorrt"],
            "pip install 'jax-memprof[tensorrt]' (TensorRT for RTX is proprietary",
        ),
        (["compare", "mlp", "--engine", "tensorrt"], "pip install 'jax-memprof[tensorrt]'"),
        (["export", "mlp"], "ONNX is not installed: pip install 'jax-memprof[onnx]'"),
    ],
)
def test_a_missing_extra_is_named(
    arguments: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    find_spec = importlib.util.find_spec
    hidden = ("tensorrt", "onnx")  # targets need the plugins of JAX, which are found in the same way
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, package=None: None if name.startswith(hidden) else find_spec(name, package),
    )
    code, said = _ended(arguments, capsys, monkeypatch)
    assert (code, list(tmp_path.iterdir())) == (2, [])
    assert sentence in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "model.onnx"], "is an ONNX model, which XLA does not compile: give --engine tensorrt"),
        (["run", "none.onnx"], "there is no file none.onnx"),
        (["run", "model.onnx", "--preset", "tiny"], "--preset is for a JAX step"),
        (["run", "mlp", "--engine", "tensorrt", "--mesh", "2"], "--mesh applies to XLA, but TensorRT builds an engine"),
        (["run", "mlp", "--phase", "decode"], "phase expects one of training, inference"),
        (["run", "mlp", "--phase", "inference", "-t", "donate"], "Technique 'donate' does not apply to mlp"),
        (["run", "mlp", "--phase", "inference", "--set", "learning_rate=1"], "There is no field 'learning_rate'"),
    ],
)
def test_what_does_not_apply_has_a_sentence(
    arguments: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.onnx").write_bytes(b"")
    code, said = _ended(arguments, capsys, monkeypatch)
    assert code == 2
    assert sentence in said
