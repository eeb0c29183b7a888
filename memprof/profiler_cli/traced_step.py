"""A step of PyTorch that a command traces in this process, in place of a compile in a child process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from memprof.profiler_cli import options

if TYPE_CHECKING:
    from memprof.analysis.hlo.decoded import FreshCapture


def tracing(
    workload: str, step: options.StepOptions, techniques: str, arguments: list[str], target: str | None
) -> Callable[..., FreshCapture]:
    """Check all choices; returns the function that traces the step, called with `progress`.

    Raises:
        MemprofError: a name or a value is wrong.
    """
    from memprof.studies.torch_step import TorchTrace, torch_target

    traced = TorchTrace(subject=step.subject(workload, arguments), techniques=techniques, target=torch_target(target))
    traced.check()
    return traced.capture
