"""The cheapest techniques that fit, with captures by hand where children would compile: what is tried and told."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import pytest
from hlo import Step
from hlo_nodes import f32
from measurements import CPU_RUN

from memprof.analysis.hlo.decoded import FreshCapture
from memprof.analysis.records.capture import Capture
from memprof.analysis.records.categories import Role
from memprof.analysis.records.pool import Allocator, PoolSettings
from memprof.errors import MemprofError, WorkloadError
from memprof.sources.jax.processes.launch import CompileResult
from memprof.sources.jax.processes.task import CountingTask, Task
from memprof.sources.jax.targets.resolve import resolve
from memprof.studies.fit import techniques as fits
from memprof.studies.fit.budget import MemoryRequest
from memprof.studies.fit.cheapest import Cost
from memprof.studies.fit.results import TechniquesResult, TriedTechniques
from memprof.studies.fit.techniques import TechniquesRequest, Work, cheapest_first, fit_techniques
from memprof.studies.subject import find_subject

# Bytes of float32 that each technique takes off a step of 4,000.
_SAVINGS = {"donate": 400, "bf16": 800, "accum2": 1200, "accum4": 1600, "opt=adam8bit": 200}
# Half of the memory, in an allocator that needs no single piece: so the pool is known to the byte.
_POOL = PoolSettings(allocator=Allocator.VMM, mem_fraction=0.5)


def _capture(task: Task) -> Capture:
    step = Step()
    size_bytes = 4000 - sum(_SAVINGS.get(name, 0) for name in task.label.split("+"))
    w = step.argument("params['w']", Role.PARAMS, f32(2))
    step.argument("opt_state.mu", Role.OPTIMIZER_STATE, f32(4))
    x = step.argument("batch['x']", Role.BATCH, f32(4, (size_bytes - 32) // 16))
    step.result(step.op("out", "subtract", f32(2), [w, x], "jit(step)/op"))
    assert task.target is not None
    return replace(
        step.capture(),
        target=replace(task.target, speeds=None),  # no bound on the time: so the cost decides
        techniques=tuple(filter(None, task.label.split("+"))),
        config={"batch_size": 4},
        measured=replace(CPU_RUN, step_seconds=(_SECONDS.get(task.label, 1.0),)) if task.num_steps else None,
    )


_SECONDS = {"accum2": 3.0, "donate+accum2": 2.0}


class _Search:
    """One search with its compiles, in the order in which they were asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, memory: str, num_steps: int = 0, **failures: str) -> None:
        self.asked: list[tuple[tuple[str, ...], int, int]] = []
        self.said: list[str] = []
        self.kept: list[Capture] = []
        self.request = TechniquesRequest(
            subject=find_subject("mine.steps:loss", overrides=["depth=3"]),
            memory=MemoryRequest(target=resolve("l4"), memory=memory, reserve="0", pool=_POOL),
            num_steps=num_steps,
        )

        def compile_all(
            tasks: Sequence[Task], *, num_jobs: int, progress: Callable[[str, str], None]
        ) -> Iterator[CompileResult]:
            self.asked.append((tuple(task.label for task in tasks), num_jobs, tasks[0].num_steps))
            for task in tasks:
                progress(task.label, "compile")
                if reason := failures.get(task.label or "baseline"):
                    yield CompileResult(task=task, error=WorkloadError(reason))
                else:
                    yield CompileResult(task=task, fresh=FreshCapture(capture=_capture(task)))

        def count(task: CountingTask, *, progress: Callable[[str], None]) -> list[int | str]:
            progress("trace")
            known = (",".join(each.label for each in recipe.techniques) for recipe in task.recipes)
            return [0 if label in _SAVINGS else "it does not apply" for label in known]

        monkeypatch.setattr(fits, "compile_all", compile_all)
        monkeypatch.setattr(fits, "recomputed_in_child", count)
        self.result: TechniquesResult = fit_techniques(
            self.request, Work(num_jobs=2, progress=self.said.append, keep=self.kept.append)
        )


def _sizes(tried: Sequence[TriedTechniques]) -> Mapping[str, int | None]:
    return {each.name: each.footprint_bytes for each in tried}


def test_a_step_that_fits_to_the_byte_takes_one_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    found = _Search(monkeypatch, "8000B")
    result = found.result
    assert found.asked == [(("",), 2, 0)]
    assert found.said == ["without techniques; baseline: compile"]
    assert _sizes(result.ranked) == {"baseline": 4000}
    assert (result.others, result.num_combinations, result.num_inferred) == ((), 1, 0)
    assert (result.answer, result.num_compiled, result.changes) == (result.ranked[0], 1, ())
    assert result.command == "memprof run mine.steps:loss --target l4 --set depth=3"
    assert result.settings == "batch_size=4, depth=3"
    assert (result.memory_bytes, result.budget_bytes, result.reserve_bytes) == (8000, 4000, 4000)


def test_the_cheapest_techniques_are_found_and_every_compile_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    found = _Search(monkeypatch, "7999B")
    result = found.result
    assert result.answer is not None
    assert result.answer.label == "donate"  # it costs no effort
    assert result.answer.cost == Cost()
    assert (result.answer.footprint_bytes, result.answer.needed_bytes) == (3600, 3600)
    assert result.command == "memprof run mine.steps:loss --target l4 -t donate --set depth=3"
    assert [change.technique for change in result.changes] == ["donate"]
    tried = _sizes((*result.ranked, *result.others))
    assert tried["baseline"] == 4000
    assert all(
        size == 4000 - sum(_SAVINGS[name] for name in label.split("+"))
        for label, size in tried.items()
        if label != "baseline"
    )
    assert [len(capture.techniques) for capture in found.kept].count(0) == 1
    assert len(found.kept) == result.num_compiled == len(tried)
    assert all(found.request.is_of_it(capture) for capture in found.kept)
    assert not found.request.is_of_it(replace(found.kept[0], techniques=("bf16",)))
    assert not found.request.is_of_it(replace(found.kept[0], techniques=("no-such-technique",)))
    assert all(num_jobs == 2 and len(labels) <= 2 for labels, num_jobs, _ in found.asked)
    assert found.said[1] == "counting recomputed FLOPs: trace"
    # All but the baseline, which is too large and should hold more than any of them.
    left = f"{result.num_combinations - 1} of {result.num_combinations} combinations left"
    assert found.said[2] == f"1 compiled, {left}; {found.asked[1][0][0]}: compile"
    assert result.left_out["remat"] == "it does not apply"


def test_the_fastest_of_the_cheapest_is_the_answer_if_steps_are_run(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = _Search(monkeypatch, "5600B").result
    found = _Search(monkeypatch, "5600B", num_steps=3)
    labels, num_jobs, num_steps = found.asked[-1]
    assert (num_jobs, num_steps) == (1, 3)  # steps that are timed have the device for themselves
    assert labels == tuple(each.label for each in plain.ranked[:3])
    assert found.said[-1] == f"running; {labels[-1]}: compile"
    timed = {each.label: each.step_seconds for each in found.result.ranked}
    assert timed == {
        each.label: _SECONDS.get(each.label, 1.0) if each.label in labels else None for each in plain.ranked
    }
    order = [each.step_seconds or 9.0 for each in found.result.ranked]
    assert order == sorted(order)
    assert all(each.step_seconds is None for each in plain.ranked)


def test_where_nothing_fits_there_is_no_answer_and_the_smallest_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    result = _Search(monkeypatch, "1000B").result
    assert (result.answer, result.ranked, result.command, result.changes) == (None, (), "", ())
    assert result.smallest.footprint_bytes == min(size or 0 for size in _sizes(result.others).values())
    assert result.verdict == result.smallest.verdict


def test_a_combination_that_fails_stands_in_the_table_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    result = _Search(monkeypatch, "7999B", donate="out of luck").result
    (failed,) = [each for each in result.others if each.label == "donate"]
    assert (failed.footprint_bytes, failed.needed_bytes, failed.problem) == (None, None, "out of luck")
    assert (failed.host_bytes, failed.seconds, failed.step_seconds) == (0, 0.0, None)
    assert not failed.fits(10**9)
    assert result.answer is not None
    assert result.answer.label != "donate"
    with pytest.raises(MemprofError, match=r"^no step$"):
        _Search(monkeypatch, "7999B", baseline="no step")


def _tried(name: str, size_bytes: int, seconds: float | None = None, **cost: int) -> TriedTechniques:
    return TriedTechniques(techniques=(name,), cost=Cost(**cost), footprint_bytes=size_bytes, at_least_seconds=seconds)


def test_the_least_time_decides_if_all_have_one_and_the_cost_otherwise() -> None:
    slow, fast = _tried("slow", 10, 2.0), _tried("fast", 30, 1.0, effort=1)
    host = _tried("host", 5, 0.5, moves_to_host=True)
    other = _tried("other", 5, 0.1, changes_training=True)
    assert cheapest_first([other, host, slow, fast]) == [fast, slow, host, other]
    unknown = replace(fast, at_least_seconds=None)
    assert cheapest_first([unknown, other, host, slow]) == [slow, unknown, host, other]
    smaller = _tried("smaller", 9, 2.0)
    assert cheapest_first([slow, smaller]) == [smaller, slow]
