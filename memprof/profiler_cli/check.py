"""`memprof check`: limits and a baseline as an exit code, for CI."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from memprof.errors import MemprofError
from memprof.profiler_cli import options
from memprof.profiler_cli.console import ExitCode, say, stages
from memprof.profiler_cli.endings import is_capture
from memprof.profiler_cli.render import print_document, rendering

_What = Annotated[
    str,
    typer.Argument(help="A workload, a step of your own (FILE.py:NAME), or a capture.", metavar="WORKLOAD|CAPTURE"),
]
_Maximum = Annotated[str | None, typer.Option("--max", help="The maximum footprint: 30GiB.", metavar="AMOUNT")]
_Fits = Annotated[
    str | None,
    typer.Option("--fits", help="The step must fit JAX's memory pool on this GPU.", metavar="TARGET"),
]
_Against = Annotated[
    Path | None,
    typer.Option("--against", help="A baseline that --update wrote, or a capture.", metavar="FILE"),
]
_FailOn = Annotated[
    list[str],
    typer.Option(
        "--fail-on",
        help="The allowed growth over the baseline: footprint:+2%, activations:+64MiB; repeatable. By default the "
        "footprint must not grow.",
        metavar="WHAT:+GROWTH",
    ),
]
_RequireEffect = Annotated[
    bool, typer.Option("--require-effect", help="Fail if a technique has no effect in the program.")
]
_Update = Annotated[bool, typer.Option("--update", help="Write the baseline again instead of checking.")]
_Force = Annotated[
    bool, typer.Option("--force", hidden=True, help="Let --update replace a file that is not a memprof baseline.")
]


@options.with_groups
def check(
    what: _What,
    arguments: options.ScriptArguments = [],  # noqa: B006 - Typer copies it
    *,
    maximum: _Maximum = None,
    fits: _Fits = None,
    against: _Against = None,
    fail_on: _FailOn = [],  # noqa: B006
    require_effect: _RequireEffect = False,
    update: _Update = False,
    force: _Force = False,
    step: options.StepOptions,
    technique: options.Techniques = [],  # noqa: B006
    framework: options.HiddenFramework = options.FrameworkName.JAX,
    compiling: options.CompileOptions,
    pool: options.HiddenPool = None,
    top: options.HiddenTop = None,
    shown: options.ShownOptions,
) -> None:
    """Check a step's memory against limits and a baseline, for CI.

    Exits with 0 if every limit holds, and with 1 if one is exceeded; a table then shows what grew.

    memprof check train.py:step_spec --max 30GiB --target a100-40gb
    memprof check train.py:step --against base.json --fail-on footprint:+2%
    memprof check train.py:step_spec --against baseline.json --update
    """
    from memprof.analysis.hlo.decoded import FreshCapture
    from memprof.reports.json.answers import check_json
    from memprof.reports.views.check import check_document
    from memprof.sources.capture_file import read_capture
    from memprof.sources.jax.processes.launch import compile_in_child
    from memprof.sources.jax.targets.resolve import resolve_asked
    from memprof.studies.check.gate import check_capture, check_replaceable, limits_of, target_of, update_baseline

    show = rendering(shown.format, width=shown.width, top=top)
    show.check_shows_documents("a check")
    asked = compiling.target if update else compiling.target or fits
    make = None
    if framework is options.FrameworkName.TORCH:
        from memprof.studies.torch_step import TorchTrace, torch_target

        trace = TorchTrace(
            subject=step.subject(what, arguments),
            techniques="+".join(technique),
            target=torch_target(asked, compiling.mesh),
        )
        trace.check()
        make = trace.capture
    aim = resolve_asked(
        asked, mesh=compiling.mesh, hosts=compiling.hosts, chips=compiling.topology, slices=compiling.slices
    )

    def capture_now() -> FreshCapture:
        if is_capture(what):
            return FreshCapture(capture=read_capture(Path(what)))
        if make is not None:
            with stages(f"check {what}") as stage:
                return make(progress=stage)
        subject = step.subject(what, arguments)
        task = subject.task("+".join(technique), target=aim, settings=compiling.settings())
        with stages(f"check {subject.label}") as stage:
            return compile_in_child(task, progress=stage)

    if update:
        if against is None:
            raise MemprofError("--update writes a baseline: name its file with --against")
        check_replaceable(against, force=force)
        fresh = capture_now()
        check_replaceable(against, force=force)  # a compile takes long enough for another file to come there
        update_baseline(fresh.capture, against, fresh.decoded)
        say(f"baseline written to {against}")
        return
    limits = limits_of(
        maximum=maximum,
        fits=fits,
        against=against,
        fail_on=fail_on,
        require_effect=require_effect,
        pool=options.chosen_pool(pool),
    )
    if aim is None and limits.baseline is not None and not is_capture(what):
        aim = target_of(limits.baseline)
    fresh = capture_now()
    result = check_capture(fresh.capture, limits, fresh.decoded)
    print_document(check_document(result, top=show.options.top), check_json(result), show)
    if not result.passed:
        raise typer.Exit(ExitCode.CHECK_FAILED)
