"""`memprof doctor`: what this machine can do, tried for real."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memprof.errors import MemprofError, WorkloadError
from memprof.profiler_cli.console import say, stages, write_table

if TYPE_CHECKING:
    from memprof.analysis.records.capture import Target
    from memprof.sources.jax.targets.family import Finding

_MARKS = {True: "ok", False: "missing", None: "-"}


def doctor() -> None:
    """Report what this machine can do, with real compiles."""
    from memprof.sources.doctor import examine, example_targets

    with stages("doctor") as stage:
        stage("looking at packages and devices")
        findings = [*examine()]
        for target, is_complete in example_targets():
            stage(f"compiling a small step for {target.name}")
            findings.append(_try_compile(target, is_complete))
    write_table(("", "what", "found"), [(_MARKS[each.ok], each.what, each.found) for each in findings])
    for advice in dict.fromkeys(each.advice for each in findings if each.ok is False and each.advice):
        say(f"to get what is missing: {advice}")


def _try_compile(target: Target, is_complete: bool) -> Finding:
    from memprof.sources.jax.processes.launch import compile_in_child
    from memprof.sources.jax.targets.family import Finding
    from memprof.sources.jax.xla.portable_program import CompileSettings
    from memprof.studies.subject import find_subject

    what = f"compile for {target.name}"
    # To the end where other tools generate and assemble code (ptxas), which may be missing.
    settings = CompileSettings(complete=is_complete)
    task = find_subject("mlp", preset="tiny").task("", target=target, settings=settings)
    try:
        capture = compile_in_child(task, progress=lambda _: None).capture
    except WorkloadError as error:
        return Finding(what=what, ok=False, found="\n".join([str(error), *error.details.splitlines()[-1:]]))
    except MemprofError as error:
        return Finding(what=what, ok=False, found=str(error))
    return Finding(what=what, ok=True, found=f"works ({capture.timings.compile_seconds:.1f} s)")
