"""Compile the programs of a script for another target than the one that it ran on."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from memprof.analysis.records.capture import Capture
from memprof.analysis.records.watched import SeenCompile
from memprof.errors import MemprofError
from memprof.sources.capture_file import write_capture
from memprof.sources.jax.planning import planned_step
from memprof.sources.jax.processes.launch import plan_in_child
from memprof.sources.jax.processes.task import PLAN_TASK_FILE, decoded_task
from memprof.sources.jax.watching import records
from memprof.sources.jax.xla.plan import PlannedStep
from memprof.sources.jax.xla.plan_cache import checked
from memprof.sources.jax.xla.portable_program import PlanTask, PortableProgram
from memprof.studies.watch.reading import CAPTURE_FILE, handover_of


def compile_for_target(folder: Path, progress: Callable[[str], None]) -> list[MemprofError]:
    """Compile a script's recorded programs for another target, and store their captures beside them.

    Args:
        progress: called with the name of each program.

    Returns:
        The errors of programs that cannot be compiled.
    """
    errors = []
    for seen, place in records.read_compiles(folder):
        progress(seen.name)
        try:
            capture = _compiled_for_target(folder, seen, place)
        except MemprofError as error:
            errors.append(error)
            records.write(place / records.COMPILE, replace(seen, failed=str(error)))
            continue
        write_capture(capture, place / CAPTURE_FILE)
        records.write(place / records.COMPILE, replace(seen, seconds=capture.timings.compile_seconds))
    return errors


def _compiled_for_target(folder: Path, seen: SeenCompile, place: Path) -> Capture:
    task, program = decoded_task((place / PLAN_TASK_FILE).read_bytes()), PortableProgram.read(place)
    assert isinstance(task, PlanTask)
    handover, make = handover_of(folder, seen), functools.partial(plan_in_child, program, task, progress=_silent)

    def plan() -> PlannedStep:
        step = planned_step(handover.step, program, task, make, progress=_silent)
        return replace(handover, plan=step.plan, cache_key=step.cache_key).planned()

    return checked(plan(), plan).capture


def _silent(stage: str) -> None:
    """Ignore the stages of a single program."""
