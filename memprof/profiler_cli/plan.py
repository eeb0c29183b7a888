"""`memprof plan`: a memory budget in, a checkpoint policy out."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from memprof.errors import Interrupted
from memprof.profiler_cli import options
from memprof.profiler_cli.console import ExitCode, say, stages, write
from memprof.profiler_cli.render import print_document, rendering

if TYPE_CHECKING:
    from memprof.sources.jax.targets.resolve import AskedTarget
    from memprof.studies.plan.allowed import Allowed
    from memprof.studies.plan.plan import CheckpointPlan
    from memprof.studies.subject import Subject

_Memory = Annotated[
    str | None,
    typer.Option("--memory", help="The memory budget, for example 30GiB; by default JAX's pool.", metavar="AMOUNT"),
]
_WithCurve = Annotated[
    bool,
    typer.Option("--curve", help="Also compile plans for other budgets, and JAX's built-in policies."),
]
_Allow = Annotated[
    str | None,
    typer.Option(
        "--allow",
        metavar="CHANGES",
        help="Changes to try before checkpoints, separated by commas: donate (the default), only-read-rows,"
        " accumulate, chunked-examples, chunked-loss, fused-attention, chunked-attention; or none.",
    ),
]
_Offload = Annotated[
    bool,
    typer.Option("--offload", help="Also move results of layers in a scan to host memory until the backward pass."),
]
_Techniques = Annotated[
    list[str],
    typer.Option(
        "-t",
        "--technique",
        "--techniques",
        metavar="NAME",
        autocompletion=options.complete_techniques,
        help="Techniques to apply first, joined with +: bf16+donate.",
    ),
]
_Output = Annotated[
    Path | None, typer.Option("-o", "--output", help="Write the code of the policy to a file.", metavar="FILE.py")
]


@options.with_groups
def plan(
    workload: options.Workload,
    arguments: options.ScriptArguments = [],  # noqa: B006 - Typer copies it
    *,
    memory: _Memory = None,
    with_curve: _WithCurve = False,
    allow: _Allow = None,
    offload: _Offload = False,
    technique: _Techniques = [],  # noqa: B006
    step: options.StepOptions,
    device: options.TargetOptions,
    output: _Output = None,
    force: options.Force = False,
    shown: options.ShownOptions,
) -> None:
    """Find a checkpoint policy for a memory budget.

    A step within the budget stays as it is. Otherwise memprof chooses the fastest policy within the budget, by roofline
    bounds. It compiles the unchanged step, then up to four versions with `jax.checkpoint` around its layers. The files
    of the step do not change. The exit code is 1 if no policy fits the budget.

        memprof plan train.py:step_spec --target a100-40gb --memory 30GiB

        memprof plan transformer -t bf16 --preset gpt2 --memory 8GiB -o policy.py
    """
    from memprof.amounts import parse_bytes

    budget_bytes = None if memory is None else parse_bytes(memory)  # before the imports below, which take seconds
    from memprof.files import IfTaken, check_writable, write_whole
    from memprof.reports.json.answers import plan_json
    from memprof.reports.views.plan import plan_document
    from memprof.studies.plan.allowed import parse_allowed

    show = rendering(shown.format, width=shown.width)
    show.check_shows_documents("a plan")
    if output is not None:
        check_writable(output, overwrite=force)
    so_far: list[CheckpointPlan] = []
    try:
        found = _found(
            step.subject(workload, arguments), "+".join(technique), device.resolved(), budget_bytes,
            with_curve=with_curve, allowed=None if allow is None else parse_allowed(allow), offload=offload,
            interrupted=so_far.append,
        )  # fmt: skip
    except Interrupted:
        for each in so_far:
            print_document(plan_document(each), plan_json(each), show)
            say("the search did not end; the same command begins where this one ended")
        raise
    print_document(plan_document(found), plan_json(found), show)
    if found.code and shown.format is None:
        write(f"\n{found.code}")
    if output is not None and found.code:
        taken = IfTaken.REPLACE if force else IfTaken.REFUSE
        write_whole(output, found.code.encode(), what="the policy", if_taken=taken)
    if found.best is None:
        raise typer.Exit(ExitCode.CHECK_FAILED)


def _found(
    subject: Subject,
    techniques: str,
    target: AskedTarget,
    budget_bytes: int | None,
    *,
    with_curve: bool,
    allowed: tuple[Allowed, ...] | None,
    offload: bool,
    interrupted: Callable[[CheckpointPlan], None],
) -> CheckpointPlan:
    """The plan, made in this process: what the user's code prints goes to stderr."""
    from memprof.errors import MemprofError
    from memprof.sources.jax.hints import as_workload_error
    from memprof.sources.jax.own_attributes import own
    from memprof.sources.jax.targets.choose import spare_devices
    from memprof.sources.jax.targets.mesh import target_of_step
    from memprof.studies.plan.allowed import Allowed
    from memprof.studies.plan.search import plan_step
    from memprof.workloads.train_step import Trainer

    task = subject.task(techniques, target=target)
    with stages(f"plan {subject.label}") as stage, contextlib.redirect_stdout(sys.stderr):
        stage("importing")
        spare_devices(task.target)
        spec = as_workload_error("could not be built", lambda: task.recipe.build(task.target))
        takes_techniques = subject.is_built_in or isinstance(own(spec.fn, "__self__"), Trainer)
        if allowed is None:
            allowed = () if takes_techniques else (Allowed.DONATE,)
        if allowed and takes_techniques:
            raise MemprofError(
                "--allow changes a step of your own; give a model's techniques with -t: -t donate+chunked-loss=8"
            )
        chosen = target_of_step(spec, task.target)
        found: CheckpointPlan = as_workload_error(
            f"could not be planned for {chosen.name}",
            lambda: plan_step(
                spec,
                chosen,
                budget_bytes=budget_bytes,
                with_curve=with_curve,
                allowed=allowed,
                offload=offload,
                progress=stage,
                interrupted=interrupted,
            ),
        )
        return found
