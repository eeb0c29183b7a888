"""A step of PyTorch that a command traces in this process, in place of a compile in a child process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from memprof.profiler_cli import options

if TYPE_CHECKING:
    from memprof.analysis.records.capture import Capture


def tracing(
    workload: str, step: options.StepOptions, techniques: str, arguments: list[str], target: str | None
) -> Callable[..., Capture]:
    """Check all choices; returns the function that traces the step, called with `progress`.

    Raises:
        MemprofError: a name or a value is wrong.
    """
    from memprof.studies.torch_step import capture_of_step, step_maker, torch_target

    make_spec = step_maker(
        workload, preset=step.preset, overrides=step.overrides, techniques=techniques, arguments=arguments
    )
    aim = torch_target(target)

    def trace(progress: Callable[[str], None]) -> Capture:
        progress("tracing")
        return capture_of_step(make_spec, aim)

    return trace
