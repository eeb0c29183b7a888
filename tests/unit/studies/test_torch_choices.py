"""What a step of PyTorch takes, before it is traced. Needs no PyTorch."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from memprof.errors import MemprofError, WorkloadError
from memprof.profiler_cli.app import app
from memprof.sources.jax.targets.resolve import DEFAULT_GPU, resolve
from memprof.studies.torch_step import capture_of_step, step_maker, torch_target


def test_a_step_is_judged_for_a_gpu_that_need_not_be_there() -> None:
    assert torch_target(None) == replace(resolve(DEFAULT_GPU), reason="the default")
    assert torch_target("l4") == resolve("l4")
    assert torch_target("cpu").platform == "cpu"
    with pytest.raises(MemprofError, match="traced and do not run here"):
        torch_target("local")


@pytest.mark.parametrize(
    ("name", "preset", "techniques", "arguments", "sentence"),
    [
        ("train.py:step", "tiny", "", (), "--preset is for built-in workloads"),
        ("train.py:step", None, "bf16", (), "which techniques cannot change: leave out -t"),
        ("mlp", None, "", ("--fast",), "takes no arguments, but got --fast"),
        (
            "transformer",
            "tiny-llama",
            "",
            (),
            "has the blocks of GPT-2: leave num_kv_heads, gated_mlp, activation, norm",
        ),
    ],
)
def test_a_choice_that_the_step_does_not_take_is_refused(
    name: str, preset: str | None, techniques: str, arguments: tuple[str, ...], sentence: str
) -> None:
    with pytest.raises(MemprofError, match=sentence):
        step_maker(name, preset=preset, overrides=(), techniques=techniques, arguments=arguments)


def test_a_step_of_the_user_takes_arguments_and_parameters() -> None:
    assert callable(
        step_maker("mine.train:step", preset=None, overrides=("a=1",), techniques="", arguments=("--fast",))
    )


def test_a_missing_module_of_ours_is_not_taken_for_missing_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "memprof.sources.torch.trace_step", None)
    make = step_maker("mine.train:step", preset=None, overrides=(), techniques="", arguments=())
    with pytest.raises(ModuleNotFoundError, match="trace_step"):
        capture_of_step(make, torch_target("l4"))


@pytest.mark.parametrize("step", ["train.py", "train.py:torch_spec", "train.py:any_function"])
@pytest.mark.parametrize("command", ["advise", "plan", "trace", "export", "serve-plan"])
def test_commands_for_steps_of_jax_refuse_one_of_pytorch(
    command: str, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("import torch\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, [command, step])
    assert isinstance(result.exception, MemprofError)
    assert not isinstance(result.exception, WorkloadError)
    assert str(result.exception).startswith(
        f"{step} is written with PyTorch, and `memprof {command}` is for steps of JAX"
    )
