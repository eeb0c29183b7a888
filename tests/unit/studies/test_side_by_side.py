"""Rows of a comparison, with captures by hand where children would compile."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import permutations

import pytest
from added_up_step import added_up_step
from made_compiles import made_capture

from memprof.analysis.comparison import FailedRow
from memprof.analysis.hlo.decoded import FreshCapture, decode_capture
from memprof.analysis.hlo.program import Program
from memprof.analysis.pipeline import analyze
from memprof.analysis.records.capture import Capture
from memprof.analysis.records.report import Report
from memprof.errors import MemprofError, WorkloadError
from memprof.sources.jax.processes.launch import CompileResult
from memprof.sources.jax.processes.task import Task
from memprof.sources.jax.targets.resolve import resolve
from memprof.studies import side_by_side
from memprof.studies.side_by_side import Rows, SideBySide, compile_rows, set_side_by_side, techniques_label
from memprof.studies.subject import find_subject, request_digest


def _results(failing: str) -> Callable[..., Iterator[CompileResult]]:
    """Rows that are done in the opposite order, of which one fails."""

    def compile_all(
        tasks: Sequence[Task], *, num_jobs: int, progress: Callable[[str, str], None]
    ) -> Iterator[CompileResult]:
        for task in reversed(tasks):
            progress(task.label, f"compile, {num_jobs} at a time")
            if failing in task.label:
                yield CompileResult(task=task, error=WorkloadError("out of luck"))
            else:
                techniques = tuple(filter(None, task.label.split(" ")[-1].split("+")))
                capture = replace(added_up_step().capture(), techniques=techniques)
                yield CompileResult(task=task, fresh=FreshCapture(capture=capture))

    return compile_all


def test_rows_keep_their_order_and_what_fails_has_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side, "compile_all", _results("donate"))
    rows = Rows(subject=find_subject("mlp", preset="tiny"), techniques=("baseline", "bf16", "donate"))
    tasks, _ = rows.tasks(resolve("l4"), num_steps=2)
    assert [(task.label, task.num_steps) for task in tasks] == [
        ("mlp baseline", 2),
        ("mlp bf16", 2),
        ("mlp donate", 2),
    ]
    kept: list[Capture] = []
    said: list[tuple[str, str]] = []
    table = SideBySide([task.label for task in tasks])
    compile_rows(tasks, table, num_jobs=3, progress=lambda label, stage: said.append((label, stage)), keep=kept.append)
    assert [report.label for report in table.reports] == ["mlp baseline", "mlp bf16"]
    assert all(report.schedule is None and report.reasons == () for report in table.reports)
    assert table.failures == [FailedRow(label="mlp donate", reason="out of luck")]
    assert [(each.label, each.request) for each in kept] == [
        (task.label, request_digest(task)) for task in (tasks[1], tasks[0])
    ]
    assert said == [
        ("mlp donate", "compile, 3 at a time"), ("mlp donate", "failed"),
        ("mlp bf16", "compile, 3 at a time"), ("mlp bf16", "done"),
        ("mlp baseline", "compile, 3 at a time"), ("mlp baseline", "done"),
    ]  # fmt: skip


def test_a_row_that_lacks_something_has_its_reason_and_the_others_go_on() -> None:
    subject = find_subject("transformer", preset="tiny")
    tasks, refused = Rows(subject=subject, techniques=("baseline", "flash", "flash+bf16")).tasks(resolve("l4"))
    assert [task.label for task in tasks] == ["transformer baseline", "transformer flash+bf16"]
    assert [row.label for row in refused] == ["transformer flash"]
    assert "add bf16 or fp16" in refused[0].reason
    with pytest.raises(MemprofError, match="add bf16 or fp16"):
        Rows(subject=subject, techniques=("flash",)).tasks(resolve("l4"))
    with pytest.raises(MemprofError, match="no technique 'flahs'"):
        Rows(subject=subject, techniques=("baseline", "flahs")).tasks(resolve("l4"))


def test_a_row_that_stands_twice_and_a_reference_that_is_none_are_refused() -> None:
    rows = Rows(subject=find_subject("mlp", preset="tiny"), techniques=("bf16", "donate", "bf16"))
    with pytest.raises(MemprofError, match="the row bf16 is repeated"):
        rows.tasks(None)
    for known in (None, "donate", "mlp donate"):
        rows.check_reference(known)
    with pytest.raises(MemprofError, match="no row 'remat' to compare with; the rows are mlp bf16, mlp donate, mlp bf"):
        rows.check_reference("remat")


def _report(label: str, *techniques: str) -> Report:
    return replace(analyze(added_up_step().capture()), label=label, techniques=techniques)


def test_the_reference_is_the_first_row_or_the_one_that_is_named() -> None:
    reports = [_report("mlp baseline"), _report("mlp bf16", "bf16"), _report("mlp ours", "no-such-technique")]
    failures = [FailedRow(label="mlp donate", reason="out of luck")]
    assert [techniques_label(report) for report in reports] == ["baseline", "bf16", "no-such-technique"]
    for reference, label in ((None, "mlp baseline"), ("bf16", "mlp bf16"), ("mlp ours", "mlp ours")):
        found = set_side_by_side(reports, failures, reference=reference)
        assert found.baseline == label
        assert [bool(effect.evidence) for effect in found.effects] == [False, True, False]
    for reference in ("donate", "mlp donate"):
        with pytest.raises(WorkloadError, match=f"the reference row {reference} failed: out of luck"):
            set_side_by_side(reports, failures, reference=reference)
    with pytest.raises(
        MemprofError, match="there is no row 'nate' to compare with; the rows are mlp baseline, mlp bf16"
    ):
        set_side_by_side(reports, failures, reference="nate")
    traced = [reports[0], replace(reports[1], framework="torch")]
    assert [bool(effect.evidence) for effect in set_side_by_side(traced).effects] == [False, False]


def test_where_every_row_failed_a_reason_that_is_the_same_is_told_once() -> None:
    same = [FailedRow(label="a", reason="no memory"), FailedRow(label="b", reason="no memory")]
    with pytest.raises(WorkloadError, match=r"^every row failed: no memory$"):
        set_side_by_side([], same)
    with pytest.raises(WorkloadError, match=r"^every row failed, so there is nothing to compare$") as caught:
        set_side_by_side([], [*same, FailedRow(label="c", reason="no step")])
    assert "c" in caught.value.details
    assert "no step" in caught.value.details


def _labels(order: Sequence[int]) -> list[str]:
    return [("mlp baseline", "mlp bf16", "mlp donate+bf16")[number] for number in order]


@pytest.mark.parametrize("reference", [None, "bf16", "mlp donate+bf16"])
@pytest.mark.parametrize("arrival", list(permutations(range(3))), ids=str)
def test_rows_that_keep_only_their_sums_are_judged_as_whole_rows_are(
    arrival: tuple[int, ...], reference: str | None
) -> None:
    labels = _labels(range(3))
    reports = {label: _report(label, *label.split(" ")[1].replace("baseline", "").split("+")) for label in labels}
    reports = {label: replace(each, techniques=tuple(filter(None, each.techniques))) for label, each in reports.items()}
    expected = set_side_by_side(list(reports.values()), reference=reference)
    table = SideBySide(labels, reference=reference, sums_only=True)
    for label in _labels(arrival):
        table.add(reports[label])
    found = table.comparison()
    assert found == replace(
        expected, rows=tuple(row if row.label == found.baseline else row.sums() for row in expected.rows)
    )
    assert [bool(row.buffers) for row in found.rows] == [row.label == found.baseline for row in found.rows]


def test_a_first_row_that_failed_is_not_waited_for() -> None:
    table = SideBySide(_labels(range(3)), sums_only=True)
    table.add(_report("mlp donate+bf16", "donate", "bf16"))
    table.add(_report("mlp bf16", "bf16"))
    assert all(report.buffers for report in table.reports)  # the reference may still be the baseline
    table.fail(FailedRow(label="mlp baseline", reason="out of luck"))
    assert [bool(report.buffers) for report in table.reports] == [True, False]
    assert table.comparison().baseline == "mlp bf16"


def test_a_row_lets_its_program_go_and_adds_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    num_programs: list[int] = []
    rows = Rows(subject=find_subject("mlp", preset="tiny"), techniques=("baseline",))
    (task,), _ = rows.tasks(resolve("l4"))
    tasks = [replace(task, label=f"row {number}") for number in range(30)]
    capture = made_capture(num_layers=48)

    def compile_all(tasks: Sequence[Task], **_: object) -> Iterator[CompileResult]:
        for each in tasks:
            yield CompileResult(task=each, fresh=FreshCapture(capture=capture, decoded=decode_capture(capture)))

    def living(label: str, stage: str) -> None:
        if label in ("row 10", "row 29"):
            gc.collect()
            num_programs.append(sum(type(each) is Program for each in gc.get_objects()))
            memory.append(tracemalloc.get_traced_memory()[0])

    monkeypatch.setattr(side_by_side, "compile_all", compile_all)
    table, memory = SideBySide([each.label for each in tasks], sums_only=True), [0]
    tracemalloc.start()
    compile_rows(tasks, table, num_jobs=1, progress=living, keep=lambda capture: None)
    tracemalloc.stop()
    assert num_programs[0] == num_programs[1]
    assert (memory[2] - memory[1]) / 19 < 64 << 10  # the module tree: whole reports take 139 KiB
