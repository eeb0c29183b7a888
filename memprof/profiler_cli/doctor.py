"""`memprof doctor`: what this machine can do, tried for real."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memprof.errors import MemprofError, WorkloadError
from memprof.profiler_cli.console import say, stages, write_table

if TYPE_CHECKING:
    from memprof.analysis.records.capture import Target
    from memprof.capture.doctor import Finding

_MARKS = {True: "ok", False: "missing", None: "-"}


def doctor() -> None:
    """Report what this machine can do, with real compiles."""
    from memprof.capture.doctor import examine
    from memprof.capture.targets.resolve import CPU, DEFAULT_GPU, resolve
    from memprof.capture.targets.tpu import DEFAULT_TPU
    from memprof.capture.xla.deviceless import libtpu_version

    with stages("doctor") as stage:
        stage("looking at packages and devices")
        findings = [*examine()]
        for target in (CPU, DEFAULT_GPU, *((DEFAULT_TPU,) if libtpu_version() else ())):
            stage(f"compiling a small step for {target}")
            findings.append(_try_compile(resolve(target)))
    write_table(("", "what", "found"), [(_MARKS[each.ok], each.what, each.found) for each in findings])
    for advice in dict.fromkeys(each.advice for each in findings if each.ok is False and each.advice):
        say(f"to get what is missing: {advice}")


def _try_compile(target: Target) -> Finding:
    from memprof.capture.doctor import Finding
    from memprof.capture.processes.launch import compile_in_child
    from memprof.capture.xla.portable_program import CompileSettings
    from memprof.studies.subject import find_subject

    what = f"compile for {target.name}"
    # To the end: what generates and assembles code (ptxas) is a part of what may be missing. libtpu holds all of it.
    settings = CompileSettings(complete=target.platform != "tpu")
    task = find_subject("mlp", preset="tiny").task("", target=target, settings=settings)
    try:
        capture = compile_in_child(task, progress=lambda _: None)
    except WorkloadError as error:
        return Finding(what=what, ok=False, found="\n".join([str(error), *error.details.splitlines()[-1:]]))
    except MemprofError as error:
        return Finding(what=what, ok=False, found=str(error))
    return Finding(what=what, ok=True, found=f"works ({capture.timings.compile_seconds:.1f} s)")
