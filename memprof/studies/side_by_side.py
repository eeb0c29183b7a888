"""Compile a workload under several sets of techniques side by side: the library behind `memprof compare`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from memprof.analysis.comparison import FailedRow, ReportComparison, Verdict, compare, failure_reasons
from memprof.analysis.pipeline import analyze
from memprof.analysis.records.capture import Capture, Target
from memprof.analysis.records.pool import PoolSettings
from memprof.analysis.records.report import Report
from memprof.errors import MemprofError, WorkloadError
from memprof.sources.jax.processes.launch import compile_all
from memprof.sources.jax.processes.task import Task
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
        self, target: Target | None, *, num_steps: int = 0, settings: CompileSettings = TO_THE_PLAN
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
            raise MemprofError(
                f"the row {repeated[0]} is there more than once; each row of a comparison must be another"
            )
        return tuple(tasks), tuple(refused)

    def check_reference(self, reference: str | None) -> None:
        """Raise `MemprofError` if the reference row is not among these rows."""
        named = {name for row in self.techniques for name in (row, self.label(row))}
        if reference is not None and reference not in named:
            raise _no_row(reference, map(self.label, self.techniques))


def compile_rows(
    tasks: Sequence[Task],
    *,
    num_jobs: int,
    progress: Callable[[str, str], None],
    keep: Callable[[Capture], None],
    pool: PoolSettings | None = None,
) -> tuple[list[Report], list[FailedRow]]:
    """Compile and analyse all rows.

    Args:
        tasks: see `Rows.tasks`.
        num_jobs: largest number of rows to compile at a time.
        progress: called with a row's label and its stage; the last stage is `done` or `failed`.
        keep: called with each capture as soon as it exists, so that no finished row is lost.
        pool: the settings of JAX's allocator to judge by; None means those of each capture.

    Returns:
        The reports in the order of the rows, and the rows that failed.
    """
    reports: dict[str, Report] = {}
    failures: dict[str, FailedRow] = {}
    for result in compile_all(tasks, num_jobs=num_jobs, progress=progress):
        label = result.task.label
        if result.capture is None:
            failures[label] = FailedRow(label=label, reason=_reason(result.error))
        else:
            capture = replace(result.capture, label=label, request=request_digest(result.task))
            keep(capture)
            reports[label] = analyze(capture, pool=pool, with_order=False)
        progress(label, "done" if label in reports else "failed")
    order = [task.label for task in tasks]
    return (
        [reports[label] for label in order if label in reports],
        [failures[label] for label in order if label in failures],
    )


def set_side_by_side(
    reports: Sequence[Report], failures: Sequence[FailedRow] = (), *, reference: str | None = None
) -> ReportComparison:
    """Compare reports with one of them.

    Args:
        reference: the label of the reference row, or only its techniques; None means the first row.

    Raises:
        MemprofError: no row has that label.
        WorkloadError: there is no row to compare with.
    """
    if not reports:
        if len({failure.reason for failure in failures}) == 1:
            raise WorkloadError(f"every row failed: {failures[0].reason}")
        reasons = "\n".join(failure_reasons(failures))
        raise WorkloadError("every row failed, so there is nothing to compare", details=reasons)
    baseline = _reference(reports, failures, reference)
    return compare(
        reports,
        baseline=baseline.label,
        verdicts={report.label: _judge(report, baseline) for report in reports},
        failures=failures,
    )


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
