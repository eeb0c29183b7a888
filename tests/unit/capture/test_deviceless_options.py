"""The options of a compile for a GPU that is not there, and the folder of kernels that compiles may share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from memprof.analysis.capture import TargetInfo
from memprof.capture import compile as compile_module
from memprof.capture import deviceless_options as module
from memprof.capture import xla_adapter
from memprof.capture.deviceless_options import deviceless_options
from memprof.errors import MemprofError

OURS = {"xla_gpu_kernel_cache_file": "kernels"}
L4 = TargetInfo(
    name="l4", description="", platform="cuda", memory_bytes=1, compute_capability="8.9", reason="for the test"
)


@pytest.fixture
def dump(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    monkeypatch.setenv("MEMPROF_KERNEL_CACHE", "")
    return tmp_path / "dump"


@pytest.fixture
def kernels(tmp_path: Path, dump: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MEMPROF_KERNEL_CACHE", str(tmp_path / "kernels"))
    return tmp_path / "kernels"


def compile_with(dump: Path, made: bytes, *, plugin: str = "cuda 1", target: TargetInfo = L4) -> bytes | None:
    """What a compile finds in its file of kernels, to which it adds those that it makes, as XLA does."""
    with deviceless_options(target, dump, plugin) as options:
        own = Path(options["xla_gpu_kernel_cache_file"])
        found = own.read_bytes() if own.exists() else None
        if made:
            own.write_bytes((found or b"") + made)
    own.unlink(missing_ok=True)
    return found


def test_without_a_folder_nothing_is_set(dump: Path) -> None:
    with deviceless_options(L4, dump, "cuda 1") as options:
        assert options == {}


def test_what_xla_flags_say_wins(dump: Path, kernels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_kernel_cache_file=mine")
    with deviceless_options(L4, dump, "cuda 1") as options:
        assert options == {}


def test_a_compile_finds_the_kernels_of_those_before(dump: Path, kernels: Path) -> None:
    assert [compile_with(dump, made) for made in (b"a", b"b", b"")] == [None, b"a", b"ab"]
    assert len(list(kernels.iterdir())) == 1


def test_two_at_a_time_find_whole_files_and_leave_one(dump: Path, kernels: Path) -> None:
    compile_with(dump, b"a")
    with deviceless_options(L4, dump, "cuda 1") as options:
        assert compile_with(dump.with_name("other"), b"bc") == b"a"
        assert Path(options["xla_gpu_kernel_cache_file"]).read_bytes() == b"a"
        Path(options["xla_gpu_kernel_cache_file"]).write_bytes(b"ad")
    assert compile_with(dump.with_name("third"), b"") == b"ad"
    assert len(list(kernels.iterdir())) == 1


def test_a_failed_compile_leaves_the_kernels_as_they_were(dump: Path, kernels: Path) -> None:
    compile_with(dump, b"a")
    with pytest.raises(ZeroDivisionError), deviceless_options(L4, dump, "cuda 1") as options:  # noqa: PT012
        Path(options["xla_gpu_kernel_cache_file"]).write_bytes(b"half a ker")
        raise ZeroDivisionError
    assert compile_with(dump.with_name("other"), b"") == b"a"


def test_kernels_are_those_of_one_compiler_and_one_kind_of_gpu(dump: Path, kernels: Path) -> None:
    compile_with(dump, b"a")
    assert compile_with(dump, b"", plugin="cuda 2") is None
    other = TargetInfo(name="h", description="", platform="cuda", memory_bytes=1, compute_capability="9.0", reason="")
    assert compile_with(dump, b"", target=other) is None


def test_too_many_kernels_are_begun_anew(dump: Path, kernels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_KERNEL_CACHE_BYTES", 2)
    assert [compile_with(dump, made) for made in (b"a", b"bc", b"d", b"")] == [None, b"a", None, b"d"]


class Lowered:
    """A program of an XLA that knows some options, lowered from a function that was jitted with others."""

    def __init__(self, *known: str, jitted_with: tuple[str, ...] = ()) -> None:
        self.known = {*known, *xla_adapter.dump_options(Path("dump"))}
        self._lowering = SimpleNamespace(_compiler_options_kvs=tuple((name, "1") for name in jitted_with))

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
        found = compile_module._compile(lowered, target, options, OURS, Path("dump"))
        return {name: value for name, value in found.items() if not name.startswith("xla_dump")}

    return compiled


def test_the_option_of_a_step_or_of_its_jit_wins(compiled: Callable[..., dict[str, Any]]) -> None:
    (name,) = OURS
    assert compiled(Lowered(name), {}) == OURS
    assert compiled(Lowered(name), {name: "3"}) == {name: "3"}
    assert compiled(Lowered(name, jitted_with=(name,)), {}) == {}


def test_an_option_of_ours_that_xla_has_not_is_left_out_and_one_of_a_step_is_told(
    compiled: Callable[..., dict[str, Any]],
) -> None:
    assert compiled(Lowered("other"), {"other": "1"}) == {"other": "1"}
    with pytest.raises(MemprofError, match="No such compile option: 'other'"):
        compiled(Lowered(), {"other": "1"})
