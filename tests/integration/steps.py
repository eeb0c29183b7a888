"""What the integration tests compile: a step by its names, compiled once in a session and shared by all tests."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from memprof.analysis.capture import Capture
from memprof.analysis.pipeline import analyze
from memprof.analysis.report import Report
from memprof.capture.launch import compile_in_child

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
    def arguments(self) -> dict[str, object]:
        """The keyword arguments of `memprof.workloads.build.build_step`."""
        return {
            "workload": self.workload,
            "preset": self.preset,
            "overrides": self.overrides,
            "techniques": self.techniques,
        }


class Compiler:
    """Compiles steps, each once, as many at a time as there are cores: a compile keeps about one busy."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=max(2, os.cpu_count() or 1))
        self._captures: dict[Step, Future[Capture]] = {}
        self._reports: dict[Step, Report] = {}

    def start(self, steps: Iterable[Step]) -> None:
        """Begin with steps that are going to be asked for."""
        for step in steps:
            if step not in self._captures:
                self._captures[step] = self._pool.submit(_compile, step)

    def capture(self, step: Step) -> Capture:
        """The capture of a step."""
        self.start([step])
        return self._captures[step].result()

    def report(self, step: Step) -> Report:
        """The report of a step."""
        if step not in self._reports:
            self._reports[step] = analyze(self.capture(step))
        return self._reports[step]

    def close(self) -> None:
        """Wait for what is being compiled and drop the rest."""
        self._pool.shutdown(cancel_futures=True)


def _compile(step: Step) -> Capture:
    builder = "memprof.workloads.build:build_step"
    return compile_in_child(builder, step.arguments, target=step.target, progress=lambda stage: None)
