"""Compile the programs of a script for another target than the one that it ran on."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from memprof.analysis.records.capture import Capture
from memprof.analysis.records.watched import SeenCompile
from memprof.errors import MemprofError
from memprof.sources.jax.planning import planned_step
from memprof.sources.jax.processes.launch import plan_in_child
from memprof.sources.jax.processes.task import DUMP_FOLDER, PLAN_TASK_FILE, decoded_task
from memprof.sources.jax.watching import records
from memprof.sources.jax.xla.plan_cache import checked
from memprof.sources.jax.xla.portable_program import PlanTask, PortableProgram
from memprof.studies.watch.reading import WITHOUT_LIMIT_FILE, known_of


def compile_for_target(folder: Path, progress: Callable[[str], None]) -> list[MemprofError]:
    """Compile a script's recorded programs for another target, and store XLA's plans in place of the originals.

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
        dump = place / DUMP_FOLDER
        dump.mkdir()
        (dump / f"{seen.name}.gpu_after_optimizations.hlo.pb").write_bytes(capture.hlo_proto)
        (place / WITHOUT_LIMIT_FILE).write_bytes(capture.proto_without_limit)
        records.write(place / records.COMPILE, replace(seen, seconds=capture.timings.compile_seconds))
    return errors


def _compiled_for_target(folder: Path, seen: SeenCompile, place: Path) -> Capture:
    task, program = decoded_task((place / PLAN_TASK_FILE).read_bytes()), PortableProgram.read(place)
    assert isinstance(task, PlanTask)
    make = functools.partial(plan_in_child, program, task, progress=_silent)
    plan = functools.partial(planned_step, known_of(folder, seen), program, task, make, progress=_silent)
    return checked(plan(), plan).capture


def _silent(stage: str) -> None:
    """Ignore the stages of a single program."""
