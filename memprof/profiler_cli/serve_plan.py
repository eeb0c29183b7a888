"""`memprof serve-plan`: what a server of several programs holds, and how many tokens of cache fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from memprof.errors import MemprofError
from memprof.profiler_cli import options
from memprof.profiler_cli.console import row_stages
from memprof.profiler_cli.render import print_document, rendering

if TYPE_CHECKING:
    from memprof.analysis.records.report import Report

_Server = Annotated[
    str,
    typer.Argument(
        help="Your server: FILE.py:NAME or package.module:NAME, where NAME is a memprof.ServingSpec, or a function that"
        " returns one.",
        metavar="SERVER",
    ),
]
_Set = Annotated[
    list[str],
    typer.Option(
        "--set", help="Set a parameter of the function; repeatable.", metavar="FIELD=VALUE",
        rich_help_panel=options.STEP_OPTIONS,
    ),
]  # fmt: skip


@options.with_groups
def serve_plan(
    server: _Server,
    arguments: options.ScriptArguments = [],  # noqa: B006 - Typer copies it
    *,
    overrides: _Set = [],  # noqa: B006
    compiling: options.CompileOptions,
    pool: options.Pool = None,
    output: options.ReportFile = None,
    force: options.Force = False,
    shown: options.ShownOptions,
) -> None:
    """Plan a server: the cached tokens that fit beside its programs.

    Every program is compiled, but not run. Weights and caches that they share count once; of the memory that
    each needs while it runs, only the largest counts.

        memprof serve-plan engine.py:engine_spec --target h100-80gb

        memprof serve-plan engine.py:engine_spec --target l4 --format json
    """
    from memprof.analysis.pipeline import analyze
    from memprof.reports.json.serving import serving_json
    from memprof.reports.views.serving import serving_document
    from memprof.sources.jax.processes.launch import compile_all, num_at_a_time
    from memprof.studies.serving import serving_plan
    from memprof.studies.subject import find_subject, program_task
    from memprof.workloads.user.reference import is_reference
    from memprof.workloads.user.serving_spec import cache_tokens, program_names

    show = rendering(shown.format, output=output, force=force, width=shown.width)
    show.check_shows_documents("the plan of a server")
    if not is_reference(server):
        raise MemprofError(
            f"{server} is not a server: name your memprof.ServingSpec, for example engine.py:engine_spec"
        )
    subject = find_subject(server, overrides=overrides, arguments=arguments)
    target, settings, judged_by = compiling.resolved(), compiling.settings(), options.chosen_pool(pool)
    task = subject.task("", target=target, settings=settings)

    def compiled(numbers: range, names: list[str]) -> list[Report]:
        tasks = [program_task(task, number, name) for number, name in zip(numbers, names, strict=True)]
        found = {}
        with row_stages(names) as progress:
            for result in compile_all(tasks, num_jobs=num_at_a_time(settings, target), progress=progress):
                if result.fresh is None:
                    assert result.error is not None
                    raise result.error
                found[result.task.label] = analyze(result.fresh.capture, result.fresh.decoded, pool=judged_by)
                progress(result.task.label, "done")
        return [found[name] for name in names]

    first = compiled(range(1), [subject.label])
    names = program_names(first[0].config)
    reports = first + (compiled(range(1, len(names)), list(names[1:])) if len(names) > 1 else [])
    plan = serving_plan(reports, label=subject.label, cache_tokens=cache_tokens(first[0].config))
    print_document(serving_document(plan), serving_json(plan), show)
