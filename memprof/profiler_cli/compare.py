"""`memprof compare`: several configurations side by side, and what each technique saves and costs."""

from __future__ import annotations

import os
import shlex
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from memprof.errors import MemprofError
from memprof.files import as_argument
from memprof.profiler_cli import options
from memprof.profiler_cli.capture_names import file_name
from memprof.profiler_cli.console import row_stages
from memprof.profiler_cli.endings import CAPTURE_SUFFIX, is_capture, is_report
from memprof.profiler_cli.render import print_comparison, rendering
from memprof.reports.options import By, Order

if TYPE_CHECKING:
    from memprof.analysis.comparison import FailedRow, ReportComparison
    from memprof.analysis.records.pool import PoolSettings
    from memprof.sources.jax.processes.task import Task
    from memprof.studies.engine import EngineBuild
    from memprof.studies.subject import Subject
    from memprof.studies.torch_step import TorchTrace


class ComparedBy(StrEnum):
    """What the differences can be added up by: a buffer of one program has no counterpart in another."""

    CATEGORY = "category"
    MODULE = "module"
    SOURCE = "source"
    DTYPE = "dtype"
    PHASE = "phase"


def with_folders_opened(what: list[str]) -> list[str]:
    """The captures of each folder in its place, in the order of their names; a workload may be called like a folder.

    Raises:
        MemprofError: there is none in it.
    """
    from memprof.workloads.registry import workloads

    found: list[str] = []
    for name in what:
        if not os.path.isdir(name) or name in [workload.name for workload in workloads()]:
            found.append(name)
            continue
        inside = sorted(map(str, Path(name).glob(f"*{CAPTURE_SUFFIX}")))
        if not inside:
            raise MemprofError(f"the folder {name} holds no captures (*{CAPTURE_SUFFIX}); `memprof run` writes them")
        found += inside
    return found


_What = Annotated[
    list[str],
    typer.Argument(
        help="A workload, a step of your own (path/to/file.py:NAME), or captures (*.memprof, or a folder of them) "
        "to compare.",
        metavar="WORKLOAD|CAPTURE...",
        callback=with_folders_opened,
    ),
]
_Reference = Annotated[
    str | None, typer.Option("--reference", help="The reference row, by default the first.", metavar="LABEL")
]
_Output = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--output",
        help="Folder for the rows' captures, or instead of stdout a file for the report (r.html, r.json, ...).",
        metavar="FOLDER|FILE",
    ),
]
_By = Annotated[ComparedBy | None, typer.Option("--by", help="Break the differences down.")]
_Sort = Annotated[Order, typer.Option("--sort", help="Sort the rows by this, smallest first.")]


@options.with_groups
def compare(
    what: _What,
    *,
    step: options.StepOptions,
    technique: options.Rows = [],  # noqa: B006 - Typer copies it
    compiling: options.CompileOptions,
    reference: _Reference = None,
    framework: options.Frameworks = [],  # noqa: B006
    engine: options.Engines = [],  # noqa: B006
    steps: options.Steps = None,
    pool: options.HiddenPool = None,
    jobs: options.Jobs = None,
    output: _Output = None,
    force: options.HiddenForce = False,
    save: options.Save = True,
    by: _By = None,
    sort: _Sort = Order.GIVEN,
    verbose: options.HiddenVerbose = False,
    depth: options.HiddenDepth = None,
    source: options.Source = True,
    shown: options.ShownOptions,
) -> None:
    """Compare what techniques save and cost, side by side.

    memprof compare transformer --target l4 -t baseline -t bf16 -t bf16+remat
    memprof compare before.memprof after.memprof
    memprof compare compare-transformer-gpt2 --sort footprint
    """
    from memprof.profiler_cli.kept_captures import kept_captures
    from memprof.sources.jax.processes.launch import num_at_a_time
    from memprof.studies.engine import of_model
    from memprof.studies.export import as_inference
    from memprof.studies.side_by_side import Rows, SideBySide, compile_rows, make_rows, techniques_label
    from memprof.studies.subject import request_digest
    from memprof.workloads.user.reference import is_reference

    folder, report_file = (None, output) if is_report(output) else (output, None)
    show = rendering(
        shown.format,
        output=report_file,
        force=force,
        verbose=verbose,
        by=By(by) if by else None,
        order=sort,
        depth=depth,
        width=shown.width,
    )
    if all(map(is_capture, what)):
        print_comparison(_of_captures([Path(name) for name in what], reference, options.chosen_pool(pool)), show)
        return
    name, *arguments = what
    if arguments and not is_reference(name):
        raise MemprofError(f"compare takes one workload or several captures, not {', '.join(what)}; rows go after -t")
    judged_by = options.chosen_pool(pool)
    subject, settings, preset = step.subject(name, arguments), compiling.settings(), step.preset or ""
    is_of_jax = options.FrameworkName.JAX in framework or not framework
    traces = _traces(subject, technique, compiling) if options.FrameworkName.TORCH in framework else []
    builds = _builds(subject, technique, compiling) if options.EngineName.TENSORRT in engine else []
    not_of_xla: list[EngineBuild | TorchTrace] = [*builds, *traces]
    for row in not_of_xla:
        row.check()
    if builds:
        subject = as_inference(subject)
        technique = [each for each in technique or ["baseline"] if of_model(each) == each]
    tasks: tuple[Task, ...] = ()
    refused: tuple[FailedRow, ...] = ()
    aim = None
    if is_of_jax:
        aim = compiling.resolved(runs=bool(steps)) or (builds[0].target if builds else None)
    if is_of_jax and (not builds or options.EngineName.XLA in engine):
        subject.check_changeable(technique)
        rows = Rows(subject=subject, techniques=tuple(technique) or subject.teaching_rows())
        tasks, refused = rows.tasks(aim, num_steps=steps or 0, settings=settings)
        if not builds:
            rows.check_reference(reference)
    # Steps that are timed want the device for themselves.
    num_jobs = jobs or (1 if steps else num_at_a_time(settings, aim))
    requests = {*map(request_digest, tasks), *(row.digest for row in not_of_xla)}
    with kept_captures(
        folder,
        file_name("compare", *((subject.label, preset) if is_of_jax else (name, preset, options.FrameworkName.TORCH))),
        save=save,
        with_source=source,
        is_of_it=lambda capture: capture.request in requests,
    ) as kept:
        labels = [*(task.label for task in tasks), *(row.label for row in not_of_xla)]
        table = SideBySide(labels, reference=reference, sums_only=show.format.compares_sums)
        with row_stages(labels) as progress:
            compile_rows(tasks, table, num_jobs=num_jobs, progress=progress, keep=kept.keep, pool=judged_by)
            make_rows(not_of_xla, table, progress=progress, keep=kept.keep)
        again = f"memprof compare {as_argument(kept.folder or Path())}"
        if table.reports:  # the first of them, for a folder has an order of its own
            again += f" --reference {shlex.quote(reference or techniques_label(table.reports[0]))}"
        kept.say_where(f"; compare them again with: {again}")
    print_comparison(table.comparison(refused), show)


def _builds(subject: Subject, rows: list[str], compiling: options.CompileOptions) -> list[EngineBuild]:
    """The engines of the rows."""
    from memprof.studies.engine import TENSORRT, EngineBuild, engine_target
    from memprof.studies.subject import is_model_file

    target = engine_target(compiling.target)
    return [
        EngineBuild(
            subject=subject,
            techniques=each,
            target=target,
            label=f"{subject.label} {each or 'baseline'} ({TENSORRT})",
            timeout_seconds=compiling.timeout,
        )
        for each in rows or ["" if is_model_file(subject.name) else "baseline"]
    ]


def _traces(subject: Subject, rows: list[str], compiling: options.CompileOptions) -> list[TorchTrace]:
    """The rows as steps of PyTorch."""
    from memprof.studies.torch_step import FRAMEWORK, TorchTrace, torch_target

    target = torch_target(compiling.target, compiling.mesh)
    return [
        TorchTrace(
            subject=subject,
            techniques=each,
            target=target,
            label=" ".join(filter(None, (subject.name, each, f"({FRAMEWORK})"))),
        )
        for each in rows or ["baseline" if subject.is_built_in else ""]
    ]


def _of_captures(paths: list[Path], reference: str | None, pool: PoolSettings | None) -> ReportComparison:
    """Compare saved captures; where two have one label, the name of the file tells them apart."""
    from memprof.analysis.pipeline import analyze
    from memprof.sources.capture_file import read_capture
    from memprof.studies.side_by_side import set_side_by_side

    captures = [read_capture(path) for path in paths]
    labels = [capture.label for capture in captures]
    reports = [
        analyze(
            capture if labels.count(capture.label) == 1 else replace(capture, label=f"{capture.label} ({path.stem})"),
            pool=pool,
        )
        for capture, path in zip(captures, paths, strict=True)
    ]
    return set_side_by_side(reports, reference=reference)
