"""A plan is taken from the cache when all that determines it is the same, and is checked as a new one is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hlo import Step
from hlo_nodes import f32

from memprof.analysis.records.capture import Capture, CodeFolders, Target, Topology
from memprof.analysis.records.categories import Role
from memprof.errors import MemprofError
from memprof.sources.jax import planning
from memprof.sources.jax.planning import plan_key, planned_step
from memprof.sources.jax.targets.nvidia import tools
from memprof.sources.jax.targets.resolve import resolve
from memprof.sources.jax.xla import xla_adapter
from memprof.sources.jax.xla.plan import Plan
from memprof.sources.jax.xla.plan_cache import PlanCache, checked
from memprof.sources.jax.xla.portable_program import TO_THE_PLAN, CompileSettings, PlanTask
from memprof.sources.jax.xla.xla_adapter import PortableProgram

PROGRAM = PortableProgram(module=b"module", compile_options=b"options")
GPU, CPU = resolve("h100-80gb"), resolve("cpu")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MEMPROF_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("XLA_FLAGS", raising=False)


def key(program: PortableProgram = PROGRAM, target: Target = GPU, **asked: Any) -> str:
    return plan_key(program, target, asked)


def with_variable(name: str, value: str) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda monkeypatch: monkeypatch.setenv(name, value)


def with_function(module: Any, name: str, value: Any) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda monkeypatch: monkeypatch.setattr(module, name, lambda *_: value)


@pytest.mark.parametrize(
    "other",
    [
        lambda: key(replace(PROGRAM, module=b"another")),
        lambda: key(replace(PROGRAM, compile_options=b"others")),
        lambda: key(xla_gpu_enable_triton_gemm=False),
        lambda: key(target=replace(GPU, compiler_config=GPU.compiler_config + " ")),
        lambda: key(target=replace(GPU, topology=Topology(num_devices=8))),
        lambda: key(target=CPU),
    ],
    ids=["module", "compile options", "step's options", "device", "topology", "platform"],
)
def test_a_key_changes_with_what_is_compiled(other: Callable[[], str]) -> None:
    assert other() != key()


def test_an_option_is_another_one_with_another_value_or_type() -> None:
    assert len({key(level=0), key(level=1), key(level="1"), key(level=True), key(other=0)}) == 5
    assert key(one=1, two=2) == key(two=2, one=1)


@pytest.mark.parametrize("target", [GPU, CPU], ids=["gpu", "cpu"])
@pytest.mark.parametrize(
    "change",
    [
        with_variable("XLA_FLAGS", "--xla_cpu_enable_fast_math=true"),
        with_variable("TF_ENABLE_ONEDNN_OPTS", "0"),
        with_variable("NPROC", "3"),
        with_function(planning, "installed_version", "0.99.0"),
        with_function(xla_adapter, "cuda_plugin_version", "jax-cuda13-plugin 99"),
    ],
    ids=["XLA_FLAGS", "environment", "processors", "jaxlib", "plugin"],
)
def test_a_key_changes_with_what_compiles(
    monkeypatch: pytest.MonkeyPatch, target: Target, change: Callable[[pytest.MonkeyPatch], None]
) -> None:
    before = key(target=target)
    assert key(target=target) == before
    change(monkeypatch)
    assert key(target=target) != before


def test_the_host_counts_where_it_is_compiled_for_and_its_tools_where_not(monkeypatch: pytest.MonkeyPatch) -> None:
    before = key(target=CPU), key(target=GPU)
    with monkeypatch.context() as patch:
        patch.setattr(planning, "_host", lambda: ["another processor"])
        assert key(target=CPU) != before[0]
        assert key(target=GPU) == before[1]
    monkeypatch.setattr(tools, "find_ptxas", lambda: Path(__file__))
    assert key(target=CPU) == before[0]
    assert key(target=GPU) != before[1]


def test_a_file_of_flags_counts_by_its_content(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    flags = tmp_path / "flags"
    monkeypatch.setenv("XLA_FLAGS", str(flags))
    missing = key()
    flags.write_text("--xla_cpu_enable_fast_math=true")
    fast = key()
    flags.write_text("--xla_cpu_enable_fast_math=false")
    assert len({missing, fast, key()}) == 3


def test_neither_names_nor_logs_nor_allocators_count(monkeypatch: pytest.MonkeyPatch) -> None:
    before = key()
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "0")
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    assert key(target=replace(GPU, name="mine", reason="because", memory_bytes=1)) == before


def lowered_and_plan() -> tuple[Capture, Plan]:
    """A step as it is known before it is compiled, and the plan of it."""
    step = Step()
    x = step.argument("batch['x']", Role.BATCH, f32(4))
    step.result(step.op("y", "negate", f32(4), [x], "jit(step)/neg"))
    capture = replace(step.capture(), target=CPU, folders=CodeFolders())
    plan = Plan(hlo_proto=capture.hlo_proto, memory_report=b"", totals=None, compile_seconds=2.5)
    return replace(capture, hlo_proto=b""), plan


class Compiles:
    """Counts what is compiled."""

    def __init__(self) -> None:
        self.count = 0
        self._lowered, self.plan = lowered_and_plan()

    def capture(self, settings: CompileSettings = TO_THE_PLAN) -> Capture:
        task = PlanTask(xla_flags="", target=CPU, options={}, settings=settings)
        plan = partial(planned_step, self._lowered, PROGRAM, task, self._compile, progress=lambda stage: None)
        return checked(plan(), plan).capture

    def _compile(self) -> Plan:
        self.count += 1
        return self.plan


def test_the_second_time_the_plan_is_the_kept_one_with_the_time_of_its_compile() -> None:
    compiles = Compiles()
    first, second = compiles.capture(), compiles.capture()
    assert compiles.count == 1
    assert (first.timings.compile_seconds, first.timings.cached_compile_seconds) == (2.5, None)
    assert (second.timings.compile_seconds, second.timings.cached_compile_seconds) == (0.0, 2.5)
    assert second == replace(first, timings=second.timings)


@pytest.mark.parametrize("settings", [CompileSettings(use_cache=False), CompileSettings(complete=True)], ids=str)
def test_without_the_cache_nothing_is_kept_and_nothing_taken(settings: CompileSettings) -> None:
    compiles = Compiles()
    compiles.capture(settings)
    assert PlanCache.of_user().usage().num_plans == 0
    compiles.capture()
    compiles.capture(settings)
    assert compiles.count == 3


@pytest.mark.parametrize("damage", ["no proto", "another report"])
def test_a_kept_plan_is_checked_as_a_new_one_is_and_replaced(damage: str) -> None:
    compiles, cache, name = Compiles(), PlanCache.of_user(), plan_key(PROGRAM, CPU, {})
    damaged = replace(compiles.plan, hlo_proto=b"no proto")
    if damage == "another report":
        damaged = replace(compiles.plan, memory_report=bytes([0x0A, 2, 8, 77]))  # 77 bytes in memory space 0
    cache.keep(name, damaged)
    assert compiles.capture().timings.cached_compile_seconds is None
    assert compiles.count == 1
    assert cache.find(name) == replace(compiles.plan, is_cached=True)


def test_a_plan_that_is_cut_short_is_not_kept() -> None:
    compiles = Compiles()
    compiles.plan = replace(compiles.plan, hlo_proto=compiles.plan.hlo_proto[:-5])
    with pytest.raises(MemprofError):
        compiles.capture()
    assert PlanCache.of_user().usage().num_plans == 0
