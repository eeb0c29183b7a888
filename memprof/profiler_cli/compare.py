"""`memprof compare`: several configurations side by side, and what each technique saves and costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from memprof.analysis.capture import Capture
from memprof.analysis.comparison import Comparison
from memprof.analysis.pipeline import analyze
from memprof.capture.capture_file import read_capture, write_capture
from memprof.capture.parallel import default_num_jobs
from memprof.capture.targets.resolve import deviceless_target
from memprof.errors import MemprofError
from memprof.profiler_cli import options
from memprof.profiler_cli.capture_names import free_path, stem
from memprof.profiler_cli.console import row_stages, say
from memprof.profiler_cli.render import print_comparison, rendering
from memprof.reports.views.by import By
from memprof.reports.views.compare.rows import Order
from memprof.workloads.side_by_side import Rows, check_rows, compile_rows, set_side_by_side, teaching_rows


class ComparedBy(StrEnum):
    """What the differences can be added up by: a buffer of one program has no counterpart in another."""

    CATEGORY = "category"
    MODULE = "module"
    SOURCE = "source"
    DTYPE = "dtype"
    PHASE = "phase"


def compare(
    what: Annotated[
        list[str],
        typer.Argument(help="A workload, or captures (*.memprof) to set side by side.", metavar="WORKLOAD|CAPTURE..."),
    ],
    preset: options.Preset = None,
    overrides: options.Overrides = [],  # noqa: B006 - Typer copies it
    technique: options.Rows = [],  # noqa: B006
    reference: Annotated[
        str | None, typer.Option("--reference", help="The row to compare with, by default the first.", metavar="LABEL")
    ] = None,
    target: options.Target = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", min=1, help="Compiles at a time, by default as cores and memory allow.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Folder for the rows' captures.", metavar="FOLDER")
    ] = None,
    save: Annotated[bool, typer.Option("--save/--no-save", help="Whether to write the rows' captures.")] = True,
    by: Annotated[ComparedBy | None, typer.Option("--by", help="Where the differences come from.")] = None,
    sort: Annotated[Order, typer.Option("--sort", help="The order of the rows.")] = Order.GIVEN,
    depth: options.Depth = None,
    format: options.Format = "terminal",  # noqa: A002 - the option's name
    width: options.Width = None,
) -> None:
    """Set several configurations side by side: what each technique saves, what it costs, and whether it works.

    memprof compare transformer --target a100-40gb -t baseline -t bf16 -t bf16+remat
    memprof compare before.memprof after.memprof
    """
    show = rendering(format, by=By(by) if by else None, order=sort, depth=depth, width=width)
    if all(name.endswith(".memprof") for name in what):
        comparison = _of_captures([Path(name) for name in what], reference)
    elif len(what) > 1:
        raise MemprofError(f"compare takes one workload or several captures, not {', '.join(what)}; rows go after -t")
    else:
        rows = _rows(what[0], preset, overrides, technique)
        folder = (
            (output or free_path(Path("-".join(["compare", what[0], *([preset] if preset else [])])))) if save else None
        )
        comparison = _of_rows(rows, reference, target, jobs, folder)
    print_comparison(comparison, show)


def _rows(workload: str, preset: str | None, overrides: list[str], techniques: list[str]) -> Rows:
    named = tuple(techniques) or teaching_rows(workload, preset=preset, overrides=overrides)
    rows = Rows(workload=workload, preset=preset, overrides=tuple(overrides), techniques=named)
    check_rows(rows)
    return rows


def _of_rows(
    rows: Rows, reference: str | None, target: str | None, jobs: int | None, folder: Path | None
) -> Comparison:
    if target is not None:
        deviceless_target(target)
    keep = _keep_in(folder) if folder else lambda capture: None
    with row_stages([rows.label(row) for row in rows.techniques]) as progress:
        reports, failures = compile_rows(
            rows, target=target, num_jobs=jobs or default_num_jobs(), progress=progress, keep=keep
        )
    if folder and reports:
        say(f"captures written to {folder}; compare them again with: memprof compare {folder}/*.memprof")
    return set_side_by_side(reports, failures, reference=reference)


def _keep_in(folder: Path) -> Callable[[Capture], None]:
    """Write each capture as soon as it is there: what is finished survives whatever comes after it."""

    def keep(capture: Capture) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise MemprofError(f"The folder {folder} cannot be made: {error.strerror or error}") from error
        write_capture(capture, free_path(folder / f"{stem(capture)}.memprof"))

    return keep


def _of_captures(paths: list[Path], reference: str | None) -> Comparison:
    """Compare saved captures; where two have one label, the name of the file tells them apart."""
    captures = [read_capture(path) for path in paths]
    labels = [capture.label for capture in captures]
    reports = [
        analyze(
            capture if labels.count(capture.label) == 1 else replace(capture, label=f"{capture.label} ({path.stem})")
        )
        for capture, path in zip(captures, paths, strict=True)
    ]
    return set_side_by_side(reports, reference=reference)
