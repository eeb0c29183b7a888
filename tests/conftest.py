"""What holds for all tests."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest
from browser import open_browser
from hypothesis import HealthCheck, settings
from quick_plans import QUICK_PLAN_FLAGS
from recorded import CHANGED
from simple_kernels import SIMPLE_KERNELS

# JAX itself must not look for a GPU: steps are run on the CPU here, and once JAX has tried CUDA and failed, it cannot
# compile for a GPU that is not there in the same process. Set before anything imports jax.
os.environ["JAX_PLATFORMS"] = "cpu"
# PyTorch's threads wait for each other in busy loops: for steps as small as these, that is half of the processor time.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Commands do not inherit this, so they are tested with all of XLA's passes.
os.environ.setdefault("XLA_FLAGS", QUICK_PLAN_FLAGS)
# Programs that several tests compile to their plan are compiled once, whichever process of the tests they run in; the
# user's own cache is never looked at.
_CACHE = "cache-of-tests-"
if _CACHE not in os.environ.get("MEMPROF_CACHE_DIR", ""):
    _cache = tempfile.TemporaryDirectory(prefix=_CACHE)  # gone with this process
    os.environ["MEMPROF_CACHE_DIR"] = _cache.name
# An example may take as long as it likes: on busy processors any may have to wait for longer than the 200 ms that
# Hypothesis gives it.
settings.register_profile("without clocks", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("without clocks")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that choose among the cases of tests."""
    parser.addoption(
        "--first-cases",
        action="store_true",
        help="of each parametrized test, run only its first case and those marked with_each_jax",
    )
    parser.addoption("--slow", action="store_true", help="run also the tests marked slow and slow_cases")


@pytest.hookimpl(trylast=True)  # so that `-m` comes first
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect cases if the options say so."""
    first = {*{item.nodeid.partition("[")[0]: item for item in reversed(items)}.values()}

    def is_selected(item: pytest.Item) -> bool:
        is_first, marks = item in first, {mark.name for mark in item.iter_markers()}
        is_slow = "slow" in marks or ("slow_cases" in marks and not is_first)
        is_chosen = is_first or "with_each_jax" in marks or not config.getoption("first_cases")
        return is_chosen and (not is_slow or config.getoption("slow"))

    selected = [item for item in items if is_selected(item)]
    config.hook.pytest_deselected(items=[*{*items}.difference(selected)])
    items[:] = selected


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the recordings that this run has written."""
    if CHANGED:
        terminalreporter.section(f"recordings changed: {len(CHANGED)}")
        terminalreporter.write_line(" ".join(sorted(path.name for path in CHANGED)))


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium as the machine has it. There can be one Playwright in a process at a time, so all tests share it."""
    with open_browser() as opened:
        yield opened


@pytest.fixture
def no_cached_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """All is compiled: for what happens while it is."""
    monkeypatch.setenv("MEMPROF_CACHE_SIZE", "0")


@pytest.fixture(scope="module")
def quick_compiles() -> Iterator[None]:
    """The CPU's compiler without what takes most of its time: where numbers are looked at, not plans or speed."""
    import jax
    from jax._src import compiler

    options_of_a_compile = compiler.get_compile_options

    def of_simple_kernels(*arguments: Any, env_options_overrides: dict[str, Any] | None = None, **others: Any) -> Any:
        overrides = {**SIMPLE_KERNELS, **(env_options_overrides or {})}
        return options_of_a_compile(*arguments, env_options_overrides=overrides, **others)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "get_compile_options", of_simple_kernels)
        jax.config.update("jax_disable_most_optimizations", True)
        yield
        jax.config.update("jax_disable_most_optimizations", False)
