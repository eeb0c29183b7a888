"""Read a job, and the captures of its programs, from the work folder of a script."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import msgspec

from memprof.analysis.hlo.decoded import FreshCapture
from memprof.analysis.records.capture import Capture
from memprof.analysis.records.categories import Role
from memprof.analysis.records.live_buffer import array_type
from memprof.analysis.records.watched import SeenCall, SeenCompile
from memprof.errors import MemprofError
from memprof.sources.capture_file import read_capture
from memprof.sources.dumps.dumps import FoundProgram, programs_in
from memprof.sources.dumps.importing import import_program, sizes_of
from memprof.sources.jax.processes.handover import Handover
from memprof.sources.jax.processes.task import DUMP_FOLDER
from memprof.sources.jax.watching import records
from memprof.sources.jax.xla.plan import read_plan, with_plan
from memprof.studies.watch.job import Job, job_of
from memprof.studies.watch.programs import Compiled

CAPTURE_FILE = "for_target.memprof"  # in place of a dump: the program compiled for another target


def read_job(folder: Path, label: str, exit_code: int) -> Job:
    """Return the job that a script left in a work folder.

    Args:
        exit_code: exit code of the script; with 0 it had no error, whatever Python printed.
    """
    calls = records.read_calls(folder)
    compiled = [_compiled(folder, seen, calls, place) for seen, place in records.read_compiles(folder)]
    ending = records.read_ending(folder)
    if ending is not None and exit_code == 0:
        ending = replace(ending, error="", is_out_of_memory=False)
    return job_of(label, calls.values(), compiled, records.read_live(folder), ending)


def capture_of(compiled: Compiled, folder: Path) -> FreshCapture:
    """Return the capture of a program, with the details of its call or, without these, from the program alone.

    Raises:
        MemprofError: XLA left no plan of it.
    """
    if (compiled.folder / CAPTURE_FILE).exists():
        return FreshCapture(capture=replace(read_capture(compiled.folder / CAPTURE_FILE), file=None))
    dump = compiled.folder / DUMP_FOLDER
    if compiled.call is not None and _is_followed(folder, compiled.seen):
        plan = read_plan(dump, compile_seconds=compiled.seen.seconds or 0.0)
        return with_plan(replace(handover_of(folder, compiled.seen), plan=plan).planned())
    (found,) = programs_in([dump])
    return import_program(found, roles={}, target=None)


def _compiled(folder: Path, seen: SeenCompile, calls: Mapping[str, SeenCall], place: Path) -> Compiled:
    sizes = None
    with suppress(MemprofError):  # the compile had not finished, or failed
        sizes = sizes_of(_found(seen, place))
    return Compiled(
        seen=seen,
        call=calls.get(seen.call or ""),
        folder=place,
        roles=_roles(handover_of(folder, seen).step) if _is_followed(folder, seen) else {},
        footprint_bytes=None if sizes is None else sizes.footprint_bytes,
        live_peak_bytes=None if sizes is None else sizes.live_peak_bytes,
    )


def _found(seen: SeenCompile, place: Path) -> FoundProgram:
    """Return a program as XLA dumped it for the script's device, or as it was compiled for another target."""
    file = place / CAPTURE_FILE
    if not file.exists():
        (found,) = programs_in([place / DUMP_FOLDER])
        return found
    capture = read_capture(file)
    return FoundProgram(
        name=seen.name, file=file, written=0.0, hlo_proto=capture.hlo_proto, platform=capture.target.platform
    )


def _roles(known: Capture) -> Mapping[Role, Mapping[str, int]]:
    """Return the number of arguments of each type in each role."""
    found: dict[Role, Counter[str]] = {}
    for leaf in known.arguments:
        found.setdefault(leaf.role, Counter())[array_type(leaf.dtype, leaf.shape)] += 1
    return found


def _is_followed(folder: Path, seen: SeenCompile) -> bool:
    return (folder / records.STEP.format(seen.call)).exists()


def handover_of(folder: Path, seen: SeenCompile) -> Handover:
    """Return the details of a call that were known before it was compiled."""
    return msgspec.msgpack.decode((folder / records.STEP.format(seen.call)).read_bytes(), type=Handover)
