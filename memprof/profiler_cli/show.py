"""`memprof show`: any view of a saved capture."""

from __future__ import annotations

from typing import Annotated

import typer

from memprof.profiler_cli import options
from memprof.profiler_cli.render import print_report, rendering
from memprof.reports.views.by import By


def show(
    capture: options.CaptureFile,
    by: Annotated[By | None, typer.Option("--by", help="One breakdown alone.")] = None,
    format: options.Format = "terminal",  # noqa: A002 - the option's name
    depth: options.Depth = None,
    top: options.Top = None,
    width: options.Width = None,
) -> None:
    """Show a capture again, from any side, without compiling. Needs neither JAX nor a device.

    memprof show transformer-h100-80gb.memprof --by module --depth 3
    """
    from memprof.analysis.pipeline import analyze
    from memprof.capture.capture_file import read_capture

    wanted = rendering(format, by=by, depth=depth, top=top, width=width)
    print_report(analyze(read_capture(capture)), wanted)
