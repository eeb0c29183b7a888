"""`memprof watch`: run a training script as it is, and say what it compiles and what is on the device."""

from __future__ import annotations

import os
import re
import shlex
import signal
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from memprof.errors import MemprofError
from memprof.files import IfTaken, as_argument, check_folder_writable, make_folder
from memprof.profiler_cli import options
from memprof.profiler_cli.capture_names import file_name, stem
from memprof.profiler_cli.console import ExitCode, say, say_error, stages
from memprof.profiler_cli.endings import is_report
from memprof.profiler_cli.render import Rendering, print_document, print_report, rendering

if TYPE_CHECKING:
    from memprof.analysis.records.capture import Capture
    from memprof.analysis.records.pool import PoolSettings
    from memprof.analysis.records.report import Report
    from memprof.sources.jax.watching.process import StopAfter
    from memprof.studies.explain.explanation import Explanation
    from memprof.studies.watch.job import Job

_SECONDS = {"s": 1, "m": 60, "h": 3600}
_MAX_OF_JAX = 5  # the last operations of JAX itself, one of which may have run when memory was out
_SIGNALLED = 128  # a shell's exit code for a process that a signal has killed is this much more
_Script = Annotated[str, typer.Argument(help="A script, as after `python`.", metavar="SCRIPT")]
_Arguments = Annotated[list[str], typer.Argument(help="The arguments of the script, in sys.argv.", metavar="ARGS")]
_Module = Annotated[bool, typer.Option("-m", help="SCRIPT is the name of a module, as after `python -m`.")]
_StopAfter = Annotated[
    str | None,
    typer.Option(
        "--stop-after",
        help="End the script after this many of its own programs (3) or this time (90s, 5m); with --target after "
        "the first training step.",
        metavar="N|TIME",
    ),
]
_FailIfNotFits = Annotated[
    bool,
    typer.Option(
        "--fail-if-not-fits",
        help="Exit with 1 if the largest program does not fit JAX's default pool, or if the script compiled no "
        "program.",
    ),
]
_Keep = Annotated[
    int, typer.Option("--keep", min=0, max=options.MOST, help="The number of programs to capture, the largest first.")
]
_Output = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--output",
        help="Folder for captures, or instead of stdout a file for the table (r.html, r.json, ...).",
        metavar="FOLDER|FILE",
    ),
]


@options.with_groups
def watch(
    script: _Script,
    arguments: _Arguments = [],  # noqa: B006 - Typer copies it
    module: _Module = False,
    target: options.Target = None,
    stop_after: _StopAfter = None,
    pool: options.Pool = None,
    fail_if_not_fits: _FailIfNotFits = False,
    keep: _Keep = 3,
    output: _Output = None,
    force: options.Force = False,
    top: options.HiddenTop = None,
    *,
    shown: options.ShownOptions,
) -> None:
    """Run a training script and account for all its programs.

    The script runs as after `python`, and ends with its own exit code. At its end, also after Ctrl-C or out of
    memory, a table lists every program that it compiled, by footprint.

        memprof watch train.py --batch-size 64

        memprof watch --target h100-80gb -m my_project.train --config large

    A script that trains with PyTorch is traced on shapes alone, as if the target were present, until its second step is
    done.
    """
    if os.name == "nt":
        raise MemprofError("memprof watch needs Linux or macOS, where one process can watch another")
    from memprof.analysis.records.capture import Target
    from memprof.sources.jax.processes.work_folder import work_folder
    from memprof.sources.jax.targets.resolve import resolve_asked
    from memprof.sources.jax.watching.process import Script, end_by_signal, roomy_folder, run_script
    from memprof.sources.jax.watching.shared_page import read_faults
    from memprof.studies.watch.reading import read_job
    from memprof.workloads.user.frameworks import file_of, trains_with_torch

    folder, report_file = (None, output) if is_report(output) else (output, None)
    is_of_torch = trains_with_torch(file_of(script) if module else Path(script))
    show = rendering(shown.format, output=report_file, force=force, full=not is_of_torch, width=shown.width, top=top)
    show.check_shows_documents("a watched script")
    if is_of_torch:
        if stop_after is not None or pool is not None:
            option = "--pool" if stop_after is None else "--stop-after"
            raise MemprofError(
                f"{option} applies to JAX scripts; a PyTorch script is traced until its second step is done: leave "
                "it out"
            )
        fits = _trace(script, arguments, target, show, folder, is_module=module, keep=keep)
        raise typer.Exit(ExitCode.CHECK_FAILED if fail_if_not_fits and not fits else ExitCode.FINE)
    aim, stop, judged_by = resolve_asked(target), _stop_after(stop_after), options.chosen_pool(pool)
    aim = aim if isinstance(aim, Target) and aim.is_deviceless else None
    folder = folder or Path(file_name("watch", script.rpartition(".")[2] if module else Path(script).stem))
    if keep:
        check_folder_writable(folder)
    run = Script(name=script, is_module=module, arguments=tuple(arguments))
    with work_folder(roomy_folder()) as work:
        ended = run_script(run, work, target=aim, stop_after=stop)
        code = ended.exit_code
        exit_code = ExitCode.FINE if ended.by_memprof else code if code >= 0 else _SIGNALLED - code
        _leave_deleted_folder()
        fits = False
        try:
            if aim is not None:
                _compile(work, run.label, aim.name)
            job = read_job(work, run.label, exit_code)
            captures = _captures(job, work, keep)
            explanation = _explanation(job, captures, work, judged_by)
            report = _report(job, work, judged_by)
            fits = report is not None and report.verdict.fits is True
            _print(job, explanation, report, exit_code, show, with_advice=aim is not None)
            _write(captures, folder)
            if aim is not None and report is not None and not module:
                words = ["memprof", "advise", script, "--target", aim.name, *(["--", *arguments] if arguments else [])]
                say(f"to compile changes of its training step: {shlex.join(words)}")
        except (MemprofError, OSError) as error:  # of the report; the exit code is the script's
            say_error(str(error))
        if code == -signal.SIGKILL and not ended.by_memprof:
            say("the script was killed (SIGKILL), probably because the machine ran out of memory")
        for fault in read_faults(work):
            say(f"not recorded: {fault}")
    if code < 0 and not ended.by_memprof:
        end_by_signal(-code)
    raise typer.Exit(exit_code or (ExitCode.CHECK_FAILED if fail_if_not_fits and not fits else ExitCode.FINE))


def _trace(
    script: str,
    arguments: list[str],
    target: str | None,
    show: Rendering,
    folder: Path | None,
    *,
    is_module: bool,
    keep: int,
) -> bool:
    """Trace the step of a script that trains with PyTorch, and print its report; returns whether the step fits."""
    from memprof.analysis.pipeline import analyze
    from memprof.studies.torch_step import capture_of_script, torch_target

    aim = torch_target(target)
    folder = folder or Path(file_name("watch", script.rpartition(".")[2] if is_module else Path(script).stem))
    if keep:
        check_folder_writable(folder)
    with stages(f"{script} for {aim.name}") as stage:
        stage("tracing")
        capture = capture_of_script(script, arguments, aim, is_module=is_module)
        stage("analysing")
        report = analyze(capture)
    print_report(report, show)
    if keep:
        _write([capture], folder)
    return report.verdict.fits is True


def _compile(work: Path, label: str, target: str) -> None:
    from memprof.studies.watch.for_target import compile_for_target  # JAX is imported when the script has ended

    with stages(f"{label} for {target}") as stage:
        for error in compile_for_target(work, stage):
            say(f"left out: {error}")


def _leave_deleted_folder() -> None:
    """Go on in a new folder if the script has deleted the working folder."""
    try:
        os.getcwd()
    except FileNotFoundError:
        folder = tempfile.mkdtemp(prefix="watched-")
        os.chdir(folder)
        say(f"the working folder was deleted; relative paths below are in {folder}")


def _stop_after(text: str | None) -> StopAfter:
    """When to end the script, by what the user wrote: `3`, `90s`, `5m`.

    Raises:
        MemprofError: it is neither a number nor a time.
    """
    from memprof.sources.jax.watching.process import StopAfter

    if text is None:
        return StopAfter()
    found = re.fullmatch(r"([0-9]{1,7})([smh]?)", text.strip())
    if found is None or int(found[1]) == 0:
        raise MemprofError(f"--stop-after {text} is neither a number of programs nor a duration: write 3, 90s or 5m")
    if not found[2]:
        return StopAfter(num_programs=int(found[1]))
    return StopAfter(seconds=float(int(found[1]) * _SECONDS[found[2]]))


def _captures(job: Job, work: Path, keep: int) -> list[Capture]:
    """The captures of the programs that take most, the largest first."""
    from memprof.studies.watch.reading import capture_of

    largest = [program.largest for program in job.programs if program.largest.footprint_bytes is not None]
    return [capture_of(each, work).capture for each in largest[:keep]]


def _report(job: Job, work: Path, pool: PoolSettings | None) -> Report | None:
    """The report of the largest program; None if XLA has left no plan of it."""
    from memprof.analysis.pipeline import analyze
    from memprof.studies.watch.reading import capture_of

    if not job.programs or job.programs[0].largest.footprint_bytes is None:
        return None
    fresh = capture_of(job.programs[0].largest, work)
    return analyze(fresh.capture, fresh.decoded, pool=pool)


def _explanation(job: Job, captures: Sequence[Capture], work: Path, pool: PoolSettings | None) -> Explanation | None:
    """Why memory ran out, by the error that the script ended with; None where it did not."""
    from memprof.analysis.pipeline import analyze
    from memprof.studies.explain.explanation import explain
    from memprof.studies.explain.log import read_log
    from memprof.studies.watch.reading import capture_of

    if job.ending is None or not job.ending.is_out_of_memory:
        return None
    of_jax = [capture_of(each, work).capture for each in job.of_jax[-_MAX_OF_JAX:] if each.footprint_bytes is not None]
    return explain(read_log(job.ending.error), [analyze(each, pool=pool) for each in (*captures, *of_jax)])


def _print(
    job: Job,
    explanation: Explanation | None,
    report: Report | None,
    exit_code: int,
    show: Rendering,
    *,
    with_advice: bool,
) -> None:
    from memprof.reports.document import Document
    from memprof.reports.json.runs import explanation_json, job_json
    from memprof.reports.views.explain import explanation_document, sentences
    from memprof.reports.views.job import job_document
    from memprof.studies.advice.known import known_advice

    advice = known_advice(report) if report is not None and with_advice else ()
    document, explained = job_document(job, top=show.options.top, report=report, advice=advice), None
    if explanation is not None:
        more = explanation_document(explanation, top=show.options.top)
        document = Document(blocks=(*document.blocks, *more.blocks))
        explained = explanation_json(explanation, sentences(explanation))
    record = job_json(job, exit_code=exit_code, explanation=explained, report=report, advice=advice)
    print_document(document, record, show)


def _write(captures: Sequence[Capture], folder: Path) -> None:
    from memprof.sources.capture_file import write_capture

    if not captures:
        return
    make_folder(folder)
    paths = [write_capture(each, folder / f"{stem(each)}.memprof", if_taken=IfTaken.NUMBER) for each in captures]
    for path in paths:
        say(f"capture written to {path}; show it with: memprof show {as_argument(path)}")
