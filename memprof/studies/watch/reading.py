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
from memprof.sources.capture_file import decoded_without_program
from memprof.sources.dumps.dumps import programs_in
from memprof.sources.dumps.importing import import_program, sizes_of
from memprof.sources.jax.processes.handover import Handover
from memprof.sources.jax.processes.task import DUMP_FOLDER
from memprof.sources.jax.watching import records
from memprof.sources.jax.xla.plan import read_plan, with_plan
from memprof.studies.watch.job import Job, job_of
from memprof.studies.watch.programs import Compiled

WITHOUT_LIMIT_FILE = "without_limit.hlo.pb"  # beside the dump: the program compiled without a memory limit


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
    dump = compiled.folder / DUMP_FOLDER
    step = folder / records.STEP.format(compiled.seen.call)
    if compiled.call is not None and step.exists():
        handover = msgspec.msgpack.decode(step.read_bytes(), type=Handover)
        plan = read_plan(dump, compile_seconds=compiled.seen.seconds or 0.0)
        with suppress(FileNotFoundError):  # missing if the target is the device that the script ran on
            plan = replace(plan, proto_without_limit=(compiled.folder / WITHOUT_LIMIT_FILE).read_bytes())
        return with_plan(replace(handover, plan=plan).planned())
    (found,) = programs_in([dump])
    return import_program(found, roles={}, target=None)


def _compiled(folder: Path, seen: SeenCompile, calls: Mapping[str, SeenCall], place: Path) -> Compiled:
    sizes = None
    with suppress(MemprofError):  # the compile had not finished, or failed
        (found,) = programs_in([place / DUMP_FOLDER])
        sizes = sizes_of(found)
    is_followed = (folder / records.STEP.format(seen.call)).exists()
    return Compiled(
        seen=seen,
        call=calls.get(seen.call or ""),
        folder=place,
        roles=_roles(known_of(folder, seen)) if is_followed else {},
        footprint_bytes=None if sizes is None else sizes.footprint_bytes,
        live_peak_bytes=None if sizes is None else sizes.live_peak_bytes,
    )


def _roles(known: Capture) -> Mapping[Role, Mapping[str, int]]:
    """Return the number of arguments of each type in each role."""
    found: dict[Role, Counter[str]] = {}
    for leaf in known.arguments:
        found.setdefault(leaf.role, Counter())[array_type(leaf.dtype, leaf.shape)] += 1
    return found


def known_of(folder: Path, seen: SeenCompile) -> Capture:
    """Return the details of a call that were known before it was compiled."""
    step = (folder / records.STEP.format(seen.call)).read_bytes()
    return decoded_without_program(msgspec.msgpack.decode(step, type=Handover).lowered)
