"""The options of a compile for a GPU that is not there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from memprof.errors import MemprofError
from memprof.sources.jax.targets.families import our_options
from memprof.sources.jax.targets.nvidia import options as module
from memprof.sources.jax.targets.nvidia.options import options_for_gpu
from memprof.sources.jax.xla.options import with_options

NO_AUTOTUNING = {"xla_gpu_autotune_level": "0"}
ONE_THREAD = {"xla_gpu_force_compilation_parallelism": "1"}


@pytest.fixture(autouse=True)
def newest_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    monkeypatch.setattr(module, "installed_version", lambda package: "0.12.0.1")


def options(*asked: str) -> dict[str, str]:
    """Those of a compile to the end."""
    return options_for_gpu(asked, to_the_plan=False)


def test_there_is_no_autotuning_and_that_is_all() -> None:
    assert options() == NO_AUTOTUNING


def test_one_thread_makes_a_plan_unless_somebody_says_how_many(monkeypatch: pytest.MonkeyPatch) -> None:
    assert options_for_gpu((), to_the_plan=True) == NO_AUTOTUNING | ONE_THREAD
    assert options_for_gpu(tuple(ONE_THREAD), to_the_plan=True) == NO_AUTOTUNING
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_force_compilation_parallelism=4")
    assert options_for_gpu((), to_the_plan=True) == NO_AUTOTUNING


def test_an_xla_that_does_not_tune_in_vain_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "installed_version", lambda package: "0.11.2")
    assert options() == {}


@pytest.mark.parametrize(
    ("said", "left"),
    [
        ("xla_gpu_autotune_level", {}),
        ("xla_gpu_load_autotune_results_from", {}),
        ("xla_gpu_enable_triton_gemm", NO_AUTOTUNING),
    ],
)
def test_what_xla_flags_or_the_step_say_wins(monkeypatch: pytest.MonkeyPatch, said: str, left: dict[str, str]) -> None:
    assert options(said) == left
    monkeypatch.setenv("XLA_FLAGS", f"--{said}=mine")
    assert options() == left


class Xla:
    """An XLA that knows some options, and gives back those that it compiled with."""

    def __init__(self, *known: str) -> None:
        self.known = known

    def compile(self, options: dict[str, str]) -> dict[str, str]:
        for name in options:
            if name not in self.known:
                raise RuntimeError(f"INVALID_ARGUMENT: No such compile option: '{name}'")
        return options


def compiled(xla: Xla, asked: dict[str, str], *, is_deviceless: bool = True) -> dict[str, str]:
    target: Any = SimpleNamespace(is_deviceless=is_deviceless, platform="cuda")
    ours = our_options(target, asked, to_the_plan=False)
    found: dict[str, str] = with_options(lambda given: xla.compile({**given, **asked}), ours, asked)
    return found


def test_an_option_of_ours_that_xla_has_not_is_left_out_and_one_of_a_step_is_an_error() -> None:
    assert compiled(Xla("other", *NO_AUTOTUNING), {"other": "1"}) == {"other": "1", **NO_AUTOTUNING}
    assert compiled(Xla("other", *NO_AUTOTUNING), {"other": "1"}, is_deviceless=False) == {"other": "1"}
    assert compiled(Xla("other"), {"other": "1"}) == {"other": "1"}
    with pytest.raises(MemprofError, match="No such compile option: 'other'"):
        compiled(Xla(), {"other": "1"})
