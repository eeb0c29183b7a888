"""`memprof show`: any view of a saved capture, and what changed since another one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from memprof.errors import MemprofError
from memprof.files import as_argument
from memprof.profiler_cli import options
from memprof.profiler_cli.capture_names import capture_or_latest, stem
from memprof.profiler_cli.console import say
from memprof.profiler_cli.endings import is_capture
from memprof.profiler_cli.memory_profiles import memory_profile_in, print_profile, print_profile_diff
from memprof.profiler_cli.option_table import XPROF
from memprof.profiler_cli.render import print_diff, print_document, print_report, rendering
from memprof.reports.options import By, editor_link


@options.with_groups
def show(
    capture: options.CaptureFile = None,
    *,
    diff: Annotated[
        Path | None,
        typer.Option(
            "--diff", help="An earlier capture: show the buffers that grew or shrank since.", metavar="CAPTURE"
        ),
    ] = None,
    why: Annotated[
        str | None,
        typer.Option(
            "--why",
            help="Explain why a buffer is live at the peak: its HLO name, or a name from a report (an op name, "
            "source line, module or shape), or part of one.",
            metavar="NAME",
        ),
    ] = None,
    pool: options.Pool = None,
    by: Annotated[By | None, typer.Option("--by", help="Show only this breakdown.")] = None,
    output: options.ReportFile = None,
    force: options.Force = False,
    full: options.Full = False,
    verbose: options.Verbose = False,
    depth: options.Depth = None,
    top: options.Top = None,
    source: options.Source = True,
    editor: options.Editor = None,
    shown: options.ShownOptions,
) -> None:
    """Show a saved capture, by any key, without compiling.

    Needs neither JAX nor a device.

        memprof show --by module --depth 3

        memprof show transformer-gpt2-h100-80gb.memprof -o report.html

        memprof show after.memprof --diff before.memprof

        memprof show transformer-gpt2-h100-80gb.memprof --why model.py:40

    It also shows memory profiles of JAX (jax.profiler.save_device_memory_profile); two of them show what leaked:

        memprof show after.prof --diff before.prof

    With --format xprof the capture becomes a session of a log directory, for the memory viewer and the graph viewer of
    XProf and of TensorBoard's profile plugin:

        memprof show transformer-gpt2-h100-80gb.memprof --format xprof -o logs
    """
    from memprof.analysis.comparison import diff as compare_buffers
    from memprof.analysis.pipeline import analyze, analyze_peak
    from memprof.reports.json.why import why_json
    from memprof.reports.views.why import why_document
    from memprof.sources.capture_file import read_capture
    from memprof.sources.jax.running.xprof_log import check_log_folder, write_compiled_session

    capture = capture_or_latest(capture)
    if shown.format == XPROF:
        if output is None:
            raise MemprofError("--format xprof writes a log directory: name it with -o")
        check_log_folder(output)
        saved = read_capture(capture)
        if saved.engine is not None:
            raise MemprofError(f"{capture} holds an engine, but --format xprof applies to XLA's programs")
        session = write_compiled_session(saved, output, name=stem(saved))
        say(f"session written to {session}; open it with: tensorboard --host 127.0.0.1 --logdir {as_argument(output)}")
        return
    wanted = rendering(
        shown.format,
        output=output,
        force=force,
        full=full or verbose or why is not None or by is not None or diff is not None,
        verbose=verbose,
        by=by,
        depth=depth,
        top=top,
        width=shown.width,
        source=source,
        editor=editor_link(editor),
    )
    profile = None if is_capture(capture.name) else memory_profile_in([capture])
    if profile is not None:
        if diff is None:
            print_profile(profile, (), wanted)
        else:
            print_profile_diff(diff, profile, wanted)
        return
    judged_by = options.chosen_pool(pool)
    if why is not None:
        wanted.check_shows_documents("why a buffer is live")
        report, reasons = analyze_peak(read_capture(capture), why, pool=judged_by)
        print_document(why_document(report, reasons, top=wanted.options.top), why_json(report, reasons), wanted)
        return
    report = analyze(read_capture(capture), pool=judged_by)
    if diff is None:
        print_report(report, wanted.of_capture(capture))
        return
    earlier = analyze(read_capture(diff), pool=judged_by)
    if earlier.label == report.label:
        names = (diff.stem, capture.stem) if diff.stem != capture.stem else ("before", "after")
        earlier, report = (
            replace(each, label=f"{each.label} ({name})") for each, name in zip((earlier, report), names, strict=True)
        )
    print_diff(compare_buffers(earlier, report), wanted)
