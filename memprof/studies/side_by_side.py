"""Compile a workload under several sets of techniques side by side: the library behind `memprof compare`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from memprof.analysis.comparison import FailedRow, ReportComparison, Verdict, compare, failure_reasons
from memprof.analysis.hlo.decoded import FreshCapture
from memprof.analysis.pipeline import analyze
from memprof.analysis.records.capture import Capture
from memprof.analysis.records.pool import PoolSettings
from memprof.analysis.records.report import Report
from memprof.errors import MemprofError, WorkloadError
from memprof.sources.jax.processes.launch import compile_all
from memprof.sources.jax.processes.task import Task
from memprof.sources.jax.targets.resolve import AskedTarget
from memprof.sources.jax.xla.portable_program import TO_THE_PLAN, CompileSettings
from memprof.studies.subject import Subject, request_digest
from memprof.workloads.composition import parse_techniques, verdicts
from memprof.workloads.torch.evidence import verdicts as torch_verdicts


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The rows to compare: a workload or the user's step, under several sets of techniques joined by `+`."""

    subject: Subject
    techniques: tuple[str, ...]

    def label(self, techniques: str) -> str:
        """Return the label of a row: `transformer bf16+scan`."""
        return f"{self.subject.label} {techniques}"

    def tasks(
        self, target: AskedTarget, *, num_steps: int = 0, settings: CompileSettings = TO_THE_PLAN
    ) -> tuple[tuple[Task, ...], tuple[FailedRow, ...]]:
        """Return the compile of each row, and the rows whose techniques lack a requirement.

        Raises:
            MemprofError: a name or a value is wrong, two rows are the same, or no row can be compiled.
        """
        for techniques in self.techniques:
            parse_techniques(techniques)
        tasks: list[Task] = []
        refused: list[FailedRow] = []
        refusal: MemprofError | None = None
        for techniques in self.techniques:
            label = self.label(techniques)
            try:
                task = self.subject.task(techniques, target=target, label=label, num_steps=num_steps, settings=settings)
            except MemprofError as error:
                refusal = refusal or error
                refused.append(FailedRow(label=label, reason=str(error)))
            else:
                tasks.append(task)
        if refusal is not None and not tasks:
            raise refusal
        repeated = sorted({row for row in self.techniques if self.techniques.count(row) > 1})
        if repeated:
            raise MemprofError(f"the row {repeated[0]} is repeated; the rows of a comparison must differ")
        return tuple(tasks), tuple(refused)

    def check_reference(self, reference: str | None) -> None:
        """Raise `MemprofError` if the reference row is not among these rows."""
        named = {name for row in self.techniques for name in (row, self.label(row))}
        if reference is not None and reference not in named:
            raise _no_row(reference, map(self.label, self.techniques))


class SideBySide:
    """The rows of a comparison, collected as they are done.

        table = SideBySide([task.label for task in tasks], sums_only=True)
        compile_rows(tasks, table, ...)
        table.comparison()

    With `sums_only`, a row is judged as soon as the reference row is known, and then keeps only its sums
    (`Report.sums`), so hundreds of rows take little memory.
    """

    def __init__(self, order: Sequence[str], *, reference: str | None = None, sums_only: bool = False) -> None:
        """Collect rows.

        Args:
            order: the labels of all rows, in the order of the comparison.
            reference: the label of the reference row, or only its techniques; None means the first row.
            sums_only: whether only the sums of each row are shown.
        """
        self.failures: list[FailedRow] = []
        self._order = {label: position for position, label in enumerate(order)}
        self._reference = reference
        self._sums_only = sums_only
        self._reports: list[Report] = []
        self._verdicts: dict[str, tuple[Verdict, ...]] = {}

    @property
    def reports(self) -> list[Report]:
        """The finished rows in their order."""
        return sorted(self._reports, key=lambda report: self._order[report.label])

    def add(self, report: Report) -> None:
        """Add a finished row."""
        self._reports.append(report)
        self._reduce()

    def fail(self, failure: FailedRow) -> None:
        """Add a row without a report."""
        self.failures.append(failure)
        self._reduce()

    def comparison(self, refused: Sequence[FailedRow] = ()) -> ReportComparison:
        """Compare the rows with the reference.

        Args:
            refused: failed rows that are not among those in the order; they come first.

        Raises:
            MemprofError: no row has the reference's label.
            WorkloadError: no row succeeded, or the reference row failed.
        """
        reports, failures = (
            self.reports,
            [*refused, *sorted(self.failures, key=lambda row: self._order.get(row.label, -1))],
        )
        if not reports:
            if len({failure.reason for failure in failures}) == 1:
                raise WorkloadError(f"every row failed: {failures[0].reason}")
            reasons = "\n".join(failure_reasons(failures))
            raise WorkloadError("every row failed, so there is nothing to compare", details=reasons)
        baseline = _reference(reports, failures, self._reference)
        verdicts = {row.label: _judge(row, baseline) for row in reports if row.label not in self._verdicts}
        return compare(reports, baseline=baseline.label, verdicts={**self._verdicts, **verdicts}, failures=failures)

    def _reduce(self) -> None:
        """Judge the rows if the reference is known, and keep only their sums."""
        reference = self._known_reference() if self._sums_only else None
        if reference is None:
            return
        for number, report in enumerate(self._reports):
            if report is not reference and report.label not in self._verdicts:
                self._verdicts[report.label] = _judge(report, reference)
                self._reports[number] = report.sums()

    def _known_reference(self) -> Report | None:
        if self._reference is not None:
            return next(
                (each for each in self._reports if self._reference in (each.label, techniques_label(each))), None
            )
        failed = {failure.label for failure in self.failures}
        first = next((label for label in self._order if label not in failed), None)
        return next((report for report in self._reports if report.label == first), None)


def compile_rows(
    tasks: Sequence[Task],
    table: SideBySide,
    *,
    num_jobs: int,
    progress: Callable[[str, str], None],
    keep: Callable[[Capture], None],
    pool: PoolSettings | None = None,
) -> None:
    """Compile and analyse all rows.

    Args:
        tasks: see `Rows.tasks`.
        table: gets the rows.
        num_jobs: largest number of rows to compile at a time.
        progress: called with a row's label and its stage; the last stage is `done` or `failed`.
        keep: called with each capture as soon as it exists, so that no finished row is lost.
        pool: the settings of JAX's allocator to judge by; None means those of each capture.
    """
    for result in compile_all(tasks, num_jobs=num_jobs, progress=progress):
        label = result.task.label
        if result.fresh is None:
            table.fail(FailedRow(label=label, reason=_reason(result.error)))
            progress(label, "failed")
            continue
        capture = replace(result.fresh.capture, label=label, request=request_digest(result.task))
        keep(capture)
        table.add(analyze(capture, result.fresh.decoded, pool=pool, with_order=False))
        progress(label, "done")


class RowMaker(Protocol):
    """A row that XLA does not compile: an engine to build, or a PyTorch step to trace."""

    @property
    def label(self) -> str: ...

    def capture(self, *, progress: Callable[[str], None]) -> FreshCapture: ...


def make_rows(
    makers: Sequence[RowMaker],
    table: SideBySide,
    *,
    progress: Callable[[str, str], None],
    keep: Callable[[Capture], None],
) -> None:
    """Make and analyse rows, one after another, because an engine's builder uses all processors.

    Args:
        table: gets the rows.
        progress: called with a row's label and its stage.
        keep: called with each capture.
    """
    for maker in makers:
        try:
            capture = maker.capture(progress=partial(progress, maker.label)).capture
        except MemprofError as error:
            table.fail(FailedRow(label=maker.label, reason=str(error)))
            progress(maker.label, "failed")
            continue
        keep(capture)
        table.add(analyze(capture))
        progress(maker.label, "done")


def set_side_by_side(
    reports: Sequence[Report], failures: Sequence[FailedRow] = (), *, reference: str | None = None
) -> ReportComparison:
    """Compare reports with one of them (see `SideBySide`)."""
    table = SideBySide([report.label for report in reports], reference=reference)
    for report in reports:
        table.add(report)
    return table.comparison(failures)


def techniques_label(report: Report) -> str:
    """Return the techniques of a row, which name it among rows of its workload: `bf16+remat`, or `baseline`."""
    return "+".join(report.techniques) or "baseline"


def _reference(reports: Sequence[Report], failures: Sequence[FailedRow], reference: str | None) -> Report:
    if reference is None:
        return reports[0]
    for report in reports:
        if reference in (report.label, techniques_label(report)):
            return report
    for failure in failures:
        if failure.label == reference or failure.label.endswith(f" {reference}"):
            raise WorkloadError(f"the reference row {reference} failed: {failure.reason}")
    raise _no_row(reference, (report.label for report in reports))


def _no_row(reference: str, labels: Iterable[str]) -> MemprofError:
    return MemprofError(f"there is no row '{reference}' to compare with; the rows are {', '.join(labels)}")


def _judge(report: Report, reference: Report) -> tuple[Verdict, ...]:
    """Return the verdict on each technique; empty for techniques that this memprof version does not know."""
    contrast = None if report is reference else reference
    if report.program.traced is not None:
        return torch_verdicts(report, report.techniques, contrast)
    if not report.techniques or report.framework != "jax" or report.engine != "xla":
        return ()
    try:
        techniques = parse_techniques(*report.techniques)
    except MemprofError:
        return ()
    return verdicts(report, techniques, contrast)


def _reason(error: MemprofError | None) -> str:
    return str(error) if error else "no reason was given"
