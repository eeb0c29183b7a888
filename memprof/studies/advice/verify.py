"""Advice put to the test: the techniques that it names, compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from memprof.analysis.pipeline import analyze
from memprof.analysis.records.capture import Target
from memprof.analysis.records.report import Report
from memprof.capture.processes.launch import compile_all
from memprof.capture.processes.task import Task
from memprof.capture.xla.portable_program import CompileSettings
from memprof.errors import MemprofError
from memprof.studies.advice.advice import Advice
from memprof.studies.subject import Subject


def tasks_for(
    subject: Subject,
    techniques: str,
    advice: Sequence[Advice],
    *,
    target: Target | None,
    settings: CompileSettings,
) -> tuple[list[Task], dict[str, str]]:
    """What to compile to put advice to the test, each technique beside those that are applied already.

    Returns:
        A task for each technique, labelled with it, and for those that cannot be applied the reason.
    """
    tasks: list[Task] = []
    refusals: dict[str, str] = {}
    for technique in dict.fromkeys(each.proposal.technique for each in advice):
        if technique is None:
            continue
        row = f"{techniques}+{technique}" if techniques else technique
        try:
            tasks.append(subject.task(row, target=target, label=technique, settings=settings))
        except MemprofError as error:
            refusals[technique] = str(error)
    return tasks, refusals


def verify(
    report: Report,
    advice: Sequence[Advice],
    tasks: Sequence[Task],
    refusals: dict[str, str],
    *,
    num_jobs: int,
    progress: Callable[[str, str], None],
) -> tuple[Advice, ...]:
    """Compile the tasks of `tasks_for`, and set the true saving beside the predicted one.

    Args:
        progress: called with a technique and the stage that it is at, at the end `done` or `failed`.
    """
    savings: dict[str, int] = {}
    refusals = dict(refusals)
    for result in compile_all(tasks, num_jobs=num_jobs, progress=progress):
        technique = result.task.label
        if result.capture is None:
            refusals[technique] = str(result.error)
        else:
            savings[technique] = _footprint(report) - _footprint(analyze(result.capture))
        progress(technique, "done" if technique in savings else "failed")
    return tuple(
        replace(
            each,
            true_saving_bytes=savings.get(each.proposal.technique or ""),
            refusal=refusals.get(each.proposal.technique or "", ""),
        )
        for each in advice
    )


def _footprint(report: Report) -> int:
    """The footprint without what XLA recomputes under memory pressure, which the predicted saving is a part of."""
    return report.unpressed.footprint_bytes
