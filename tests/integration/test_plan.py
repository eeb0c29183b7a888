"""XLA's plan is complete when we take it: what the compile does after it changes neither the plan nor its totals."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from integration.steps import Step

from memprof.errors import InternalError, MemprofError
from memprof.sources.jax import compile as module
from memprof.sources.jax.compile import compile_step
from memprof.sources.jax.targets.resolve import resolve
from memprof.sources.jax.xla.plan import compile_to_plan, decode_plan, read_plan, with_plan
from memprof.workloads.build import build_step

PLAN, REPORT = "module_0001.jit_step.gpu_after_optimizations{}", ("-memory-usage-report.pb", ".hlo.pb")
# Random generators take most of a compile, and nothing of a plan.
TRANSFORMER = partial(Step, workload="transformer", preset="tiny", overrides=("dropout_rate=0",))
PROGRAMS = (
    Step(workload="mlp", preset="tiny", target="cpu"),
    Step(workload="mlp", preset="tiny", target="h100-80gb", techniques=("bf16+donate",)),
    TRANSFORMER(target="l4", techniques=("scan+remat", "accum2")),
)
MORE_PROGRAMS = (
    TRANSFORMER(target="a100-40gb", techniques=("scan+offload-opt",)),
    TRANSFORMER(target="cpu", techniques=("donate+opt=adafactor",)),
)


@pytest.mark.parametrize(
    "step",
    [*(pytest.param(step, marks=pytest.mark.with_each_jax) for step in PROGRAMS), *MORE_PROGRAMS],
    ids=lambda step: "-".join((step.workload, *step.techniques, step.target)),
)
@pytest.mark.slow_cases
def test_the_plan_and_its_totals_are_those_of_the_finished_compile(
    step: Step, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished: list[Any] = []
    is_planned = threading.Event()

    def compile_and_keep(*arguments: Any) -> Any:
        compiled = compile_to_the_end(*arguments)
        assert is_planned.wait(60)  # the plan does not wait for the end of the compile
        finished.append(compiled)
        return compiled

    compile_to_the_end = module.xla_adapter.compile_portable
    monkeypatch.setattr(module.xla_adapter, "compile_portable", compile_and_keep)
    target = resolve(step.target)
    spec = build_step(**step.arguments)
    compiled = compile_step(spec, target, dump_folder=tmp_path, progress=lambda stage: None, stop_at_plan=True)
    is_planned.set()
    for thread in threading.enumerate():
        if thread.name == "compile":
            thread.join()
    capture = with_plan(compiled.planned).capture
    assert read_plan(tmp_path).hlo_proto == capture.hlo_proto
    totals = module._totals(finished[0], target)
    if totals.total_allocation_bytes is None:  # jaxlib 0.10.2
        totals = replace(totals, total_allocation_bytes=capture.compiler.total_allocation_bytes)
    assert capture.compiler == replace(totals, is_complete=False)
    assert compiled.executable is None


def test_a_plan_is_taken_when_both_files_are_closed_and_not_before(tmp_path: Path) -> None:
    may_close, may_end = threading.Event(), threading.Event()

    def compile_slowly() -> None:
        for ending in REPORT:
            with (tmp_path / PLAN.format(ending)).open("wb") as file:
                file.write(b"first half")
                file.flush()
                assert may_close.wait(10)
                file.write(b", second half")
        assert may_end.wait(10)

    waiting = threading.Thread(target=compile_to_plan, args=(compile_slowly, tmp_path))
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()
    may_close.set()
    waiting.join(10)
    assert not waiting.is_alive()
    assert [(tmp_path / PLAN.format(ending)).read_bytes() for ending in REPORT] == [b"first half, second half"] * 2
    may_end.set()


def test_a_compile_that_fails_before_its_plan_raises_and_after_it_does_not(tmp_path: Path) -> None:
    def fail() -> None:
        raise RuntimeError("no ptxas")

    def plan_and_fail() -> None:
        for ending in REPORT:
            (tmp_path / PLAN.format(ending)).write_bytes(b"whole")
        fail()

    with pytest.raises(RuntimeError, match="no ptxas"):
        compile_to_plan(fail, tmp_path)
    compile_to_plan(plan_and_fail, tmp_path)


def test_a_plan_that_says_otherwise_than_xlas_report_is_refused(tmp_path: Path) -> None:
    spec = build_step(workload="mlp", preset="tiny")
    compile_step(spec, resolve("cpu"), dump_folder=tmp_path, progress=lambda stage: None)
    (report,) = tmp_path.glob("*-memory-usage-report.pb")
    report.write_bytes(bytes([0x0A, 2, 8, 77]))  # 77 bytes in memory space 0
    with pytest.raises(InternalError, match=r"memory space 0 .* differs from the compiler's total \(77\)"):
        decode_plan(read_plan(tmp_path), "cpu")
    os.truncate(report, 3)
    with pytest.raises(MemprofError, match="cut short"):
        decode_plan(read_plan(tmp_path), "cpu")
