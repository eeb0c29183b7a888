"""The options of a compile for a GPU that is not there, and the folder of kernels that compiles may share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from memprof.analysis.capture import Target
from memprof.capture import compile as compile_module
from memprof.capture import deviceless_options as module
from memprof.capture import xla_adapter
from memprof.capture.deviceless_options import deviceless_options
from memprof.errors import MemprofError

NO_AUTOTUNING = {"xla_gpu_autotune_level": "0"}
KERNELS = "xla_gpu_kernel_cache_file"
L4 = Target(name="l4", description="", platform="cuda", memory_bytes=1, compute_capability="8.9", reason="for the test")


@pytest.fixture
def dump(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    monkeypatch.setenv("MEMPROF_KERNEL_CACHE", "")
    monkeypatch.setattr(module, "installed_version", lambda package: "0.12.0.1")
    return tmp_path / "dump"


@pytest.fixture
def kernels(tmp_path: Path, dump: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MEMPROF_KERNEL_CACHE", str(tmp_path / "kernels"))
    return tmp_path / "kernels"


def compile_with(dump: Path, made: bytes, *, plugin: str = "cuda 1", target: Target = L4) -> bytes | None:
    """What a compile finds in its file of kernels, to which it adds those that it makes, as XLA does."""
    with deviceless_options(target, (), dump, plugin) as options:
        own = Path(options["xla_gpu_kernel_cache_file"])
        found = own.read_bytes() if own.exists() else None
        if made:
            own.write_bytes((found or b"") + made)
    own.unlink(missing_ok=True)
    return found


def test_without_a_folder_there_is_no_autotuning_and_that_is_all(dump: Path) -> None:
    with deviceless_options(L4, (), dump, "cuda 1") as options:
        assert options == NO_AUTOTUNING


def test_an_xla_that_does_not_tune_in_vain_is_left_as_it_is(dump: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "installed_version", lambda package: "0.11.2")
    with deviceless_options(L4, (), dump, "cuda 1") as options:
        assert options == {}


@pytest.mark.parametrize(
    ("said", "left"),
    [
        ("xla_gpu_kernel_cache_file", {*NO_AUTOTUNING}),
        ("xla_gpu_autotune_level", {KERNELS}),
        ("xla_gpu_load_autotune_results_from", {KERNELS}),
        ("xla_gpu_enable_triton_gemm", {*NO_AUTOTUNING, KERNELS}),
    ],
)
def test_what_xla_flags_or_the_step_say_wins(
    dump: Path, kernels: Path, monkeypatch: pytest.MonkeyPatch, said: str, left: set[str]
) -> None:
    with deviceless_options(L4, (said,), dump, "cuda 1") as options:
        assert options.keys() == left
    monkeypatch.setenv("XLA_FLAGS", f"--{said}=mine")
    with deviceless_options(L4, (), dump, "cuda 1") as options:
        assert options.keys() == left


def test_a_compile_finds_the_kernels_of_those_before(dump: Path, kernels: Path) -> None:
    assert [compile_with(dump, made) for made in (b"a", b"b", b"")] == [None, b"a", b"ab"]
    assert len(list(kernels.iterdir())) == 1


def test_two_at_a_time_find_whole_files_and_leave_one(dump: Path, kernels: Path) -> None:
    compile_with(dump, b"a")
    with deviceless_options(L4, (), dump, "cuda 1") as options:
        assert compile_with(dump.with_name("other"), b"bc") == b"a"
        assert Path(options["xla_gpu_kernel_cache_file"]).read_bytes() == b"a"
        Path(options["xla_gpu_kernel_cache_file"]).write_bytes(b"ad")
    assert compile_with(dump.with_name("third"), b"") == b"ad"
    assert len(list(kernels.iterdir())) == 1


def test_a_failed_compile_leaves_the_kernels_as_they_were(dump: Path, kernels: Path) -> None:
    compile_with(dump, b"a")
    with pytest.raises(ZeroDivisionError), deviceless_options(L4, (), dump, "cuda 1") as options:  # noqa: PT012
        Path(options["xla_gpu_kernel_cache_file"]).write_bytes(b"half a ker")
        raise ZeroDivisionError
    assert compile_with(dump.with_name("other"), b"") == b"a"


def test_kernels_are_those_of_one_compiler_and_one_kind_of_gpu(dump: Path, kernels: Path) -> None:
    compile_with(dump, b"a")
    assert compile_with(dump, b"", plugin="cuda 2") is None
    other = Target(name="h", description="", platform="cuda", memory_bytes=1, compute_capability="9.0", reason="")
    assert compile_with(dump, b"", target=other) is None


def test_too_many_kernels_are_begun_anew(dump: Path, kernels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_KERNEL_CACHE_BYTES", 2)
    assert [compile_with(dump, made) for made in (b"a", b"bc", b"d", b"")] == [None, b"a", None, b"d"]


class Lowered:
    """A program of an XLA that knows some options."""

    def __init__(self, *known: str) -> None:
        self.known = {*known, *xla_adapter.dump_options(Path("dump"))}
        self._lowering = SimpleNamespace(_compiler_options_kvs=())

    def compile(self, compiler_options: dict[str, Any]) -> dict[str, Any]:
        for name in compiler_options:
            if name not in self.known:
                raise RuntimeError(f"INVALID_ARGUMENT: No such compile option: '{name}'")
        return compiler_options


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Callable[[Lowered, dict[str, str]], dict[str, Any]]:
    """Compiles such a program with options of the step, and says with which ones XLA did it."""
    monkeypatch.setattr(xla_adapter, "is_lowered_for", lambda lowered, on_device: True)
    target: Any = SimpleNamespace(on_device=None)

    def compiled(lowered: Any, options: dict[str, str]) -> dict[str, Any]:
        found = compile_module._compile(lowered, target, options, NO_AUTOTUNING, Path("dump"))
        return {name: value for name, value in found.items() if not name.startswith("xla_dump")}

    return compiled


def test_an_option_of_ours_that_xla_has_not_is_left_out_and_one_of_a_step_is_told(
    compiled: Callable[..., dict[str, Any]],
) -> None:
    assert compiled(Lowered("other", *NO_AUTOTUNING), {"other": "1"}) == {"other": "1", **NO_AUTOTUNING}
    assert compiled(Lowered("other"), {"other": "1"}) == {"other": "1"}
    with pytest.raises(MemprofError, match="No such compile option: 'other'"):
        compiled(Lowered(), {"other": "1"})
