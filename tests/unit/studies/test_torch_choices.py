"""What a step of PyTorch takes, before it is traced. Needs no PyTorch."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from memprof.errors import MemprofError
from memprof.sources.jax.targets.resolve import DEFAULT_GPU, resolve
from memprof.studies.torch_step import capture_of_step, step_maker, torch_target


def test_a_step_is_judged_for_a_gpu_that_need_not_be_there() -> None:
    assert torch_target(None) == replace(resolve(DEFAULT_GPU), reason="the default")
    assert torch_target("l4") == resolve("l4")
    assert torch_target("cpu").platform == "cpu"
    with pytest.raises(MemprofError, match="traced and not run here"):
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
