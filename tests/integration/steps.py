"""What the integration tests compile: a step by its names, compiled once in a session and shared by all tests."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from memprof.analysis.pipeline import analyze
from memprof.analysis.records.capture import Capture
from memprof.analysis.records.report import Report
from memprof.api import profile_spec
from memprof.workloads.build import build_step

GPUS = ("h100-80gb", "a100-40gb", "l4")
TARGETS = (*GPUS, "cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One configuration of a built-in workload, and the target that it is compiled for."""

    workload: str
    preset: str
    target: str
    overrides: tuple[str, ...] = ()
    techniques: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "-".join((self.workload, self.preset, *self.overrides, *self.techniques, self.target))

    @property
    def arguments(self) -> dict[str, Any]:
        """The keyword arguments of `memprof.workloads.build.build_step`."""
        return {
            "workload": self.workload,
            "preset": self.preset,
            "overrides": self.overrides,
            "techniques": self.techniques,
        }


class Compiler:
    """Compiles steps, each once, as the API does: lowered in this process, planned in a child that is never run."""

    def __init__(self) -> None:
        self._captures: dict[Step, Capture] = {}
        self._reports: dict[Step, Report] = {}

    def capture(self, step: Step) -> Capture:
        """The capture of a step."""
        if step not in self._captures:
            self._captures[step] = _compile(step)
        return self._captures[step]

    def report(self, step: Step) -> Report:
        """The report of a step."""
        if step not in self._reports:
            self._reports[step] = analyze(self.capture(step))
        return self._reports[step]


def _compile(step: Step) -> Capture:
    # JAX notes the stack of a trace in its program. A thread has none of the test's own, so the second test file that
    # compiles a step takes the first one's plan.
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(lambda: profile_spec(build_step(**step.arguments), target=step.target).capture).result()
