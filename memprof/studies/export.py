"""Export a subject's step as a model for other engines."""

from __future__ import annotations

from dataclasses import replace

from memprof.sources.jax.processes.task import Task
from memprof.sources.jax.targets.resolve import CPU, resolve
from memprof.sources.jax.xla.portable_program import TO_THE_PLAN, CompileSettings
from memprof.studies.subject import Subject
from memprof.workloads import registry
from memprof.workloads.workload import INFERENCE


def as_inference(subject: Subject) -> Subject:
    """Return a subject in its phase `inference`, if it is a workload that trains by default."""
    if not subject.is_built_in or subject.sets("phase") or registry.workload(subject.name).build is None:
        return subject
    return subject.with_override("phase", INFERENCE)


def export_task(
    subject: Subject,
    techniques: str,
    *,
    file_name: str,
    verifies: bool = False,
    settings: CompileSettings = TO_THE_PLAN,
) -> Task:
    """Return the export task of a subject with techniques, traced on the CPU.

    Raises:
        MemprofError: see `Subject.task`.
    """
    task = as_inference(subject).task(techniques, target=resolve(CPU), settings=settings)
    return replace(task, exports=file_name, verifies=verifies)
