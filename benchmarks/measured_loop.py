"""Whether measuring a step slows it down: memprof's loop beside a bare one, in one process, taking turns.

    python -m benchmarks.measured_loop [-o RESULT.json]

Both loops run the same executable on the same synthetic batches, wait for each step, and read its loss; the bare one
knows nothing of memprof. They take turns, a round each, so that whatever else the machine does hits both alike, and
which goes first alternates. Compared are the wall time of a round, per step, and the time that each loop reports for a
step; the ratio is the median of the ratios of all rounds, each to its neighbour, since a machine's speed changes from
minute to minute by more than the loops differ. Runs on the CPU, in a few minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import jax

from memprof.capture.compile import CompiledStep, compile_step
from memprof.capture.run import Arguments, timed_steps
from memprof.capture.step import StepSpec
from memprof.capture.targets.choose import ChosenTarget, choose_running_target
from memprof.capture.toolchain import toolchain
from memprof.workloads.build import build_step

# A preset, what of it is changed, and the number of rounds: about as many seconds for each.
CONFIGURATIONS: tuple[tuple[str, tuple[str, ...], int], ...] = (
    ("tiny", (), 1000),
    ("tiny", ("batch_size=8", "seq_len=128", "max_seq_len=128", "hidden_size=128", "num_heads=4"), 40),
)
STEPS_PER_ROUND = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round of a loop: its wall time per step, and the median of the times that it took of single steps."""

    wall_seconds: float
    step_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Both loops on one configuration: medians over the rounds of times, and of ratios, measured to bare."""

    overrides: tuple[str, ...]
    num_rounds: int
    bare_wall_milliseconds: float
    measured_wall_milliseconds: float
    wall_ratio: float
    bare_step_milliseconds: float
    measured_step_milliseconds: float
    step_ratio: float


def bare_loop(trainer: Any, executable: Callable[..., Any]) -> Callable[[int], Round]:
    """The loop that one writes without memprof."""
    state = trainer.init_state()

    def run(first: int) -> Round:
        nonlocal state
        seconds = []
        losses = []
        started = time.perf_counter()
        for number in range(first, first + STEPS_PER_ROUND):
            batch = jax.block_until_ready(jax.device_put(trainer.sample_batch(number)))
            step_started = time.perf_counter()
            state, metrics = executable(state, batch)
            jax.block_until_ready((state, metrics))
            seconds.append(time.perf_counter() - step_started)
            total, count = jax.device_get(metrics["loss"])
            losses.append(float(total) / float(count))
        wall_seconds = time.perf_counter() - started
        assert len(losses) == STEPS_PER_ROUND
        return Round(wall_seconds=wall_seconds / STEPS_PER_ROUND, step_seconds=median(seconds))

    return run


def measured_loop(spec: StepSpec, compiled: CompiledStep, target: ChosenTarget) -> Callable[[int], Round]:
    """Memprof's own."""
    arguments = Arguments(spec, compiled, target.device)
    assert spec.feed is not None
    loss = spec.feed.loss

    def run(first: int) -> Round:
        started = time.perf_counter()
        steps = list(timed_steps(compiled.executable, arguments, loss, range(first, first + STEPS_PER_ROUND)))
        wall_seconds = time.perf_counter() - started
        return Round(wall_seconds=wall_seconds / STEPS_PER_ROUND, step_seconds=median(step.seconds for step in steps))

    return run


def compare(preset: str, overrides: tuple[str, ...], num_rounds: int) -> Result:
    """Both loops on one configuration, taking turns."""
    target = choose_running_target("cpu")
    spec = build_step(workload="transformer", preset=preset, overrides=overrides)
    with tempfile.TemporaryDirectory() as folder:
        compiled = compile_step(spec, target, dump_folder=Path(folder), progress=lambda stage: None)
    bare_rounds = bare_loop(spec.fn.__self__, compiled.executable)  # the trainer whose step this is
    measured_rounds = measured_loop(spec, compiled, target)
    rounds: dict[str, list[Round]] = {"bare": [], "measured": []}
    for number in range(num_rounds + 1):
        loops = [("bare", bare_rounds), ("measured", measured_rounds)]
        for name, loop in loops if number % 2 else reversed(loops):
            result = loop(number * STEPS_PER_ROUND)
            if number:  # the first one warms up
                rounds[name].append(result)
    pairs = list(zip(rounds["bare"], rounds["measured"], strict=True))
    return Result(
        overrides=overrides,
        num_rounds=num_rounds,
        bare_wall_milliseconds=1000 * median(bare.wall_seconds for bare, _ in pairs),
        measured_wall_milliseconds=1000 * median(measured.wall_seconds for _, measured in pairs),
        wall_ratio=median(measured.wall_seconds / bare.wall_seconds for bare, measured in pairs),
        bare_step_milliseconds=1000 * median(bare.step_seconds for bare, _ in pairs),
        measured_step_milliseconds=1000 * median(measured.step_seconds for _, measured in pairs),
        step_ratio=median(measured.step_seconds / bare.step_seconds for bare, measured in pairs),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="also write the result as JSON")
    output = parser.parse_args().output

    results = []
    for preset, overrides, num_rounds in CONFIGURATIONS:
        result = compare(preset, overrides, num_rounds)
        results.append(result)
        print(f"transformer {preset} {' '.join(overrides)}".rstrip())
        for what in ("wall", "step"):
            bare, measured, ratio = (
                getattr(result, name)
                for name in (f"bare_{what}_milliseconds", f"measured_{what}_milliseconds", f"{what}_ratio")
            )
            print(f"  {what}: bare {bare:.3f} ms, measured {measured:.3f} ms, ratio {ratio:.4f}", flush=True)
    if output is not None:
        record = {
            "command": "python -m benchmarks.measured_loop",
            "steps_per_round": STEPS_PER_ROUND,
            "toolchain": asdict(toolchain(None)),
            "machine": {
                "architecture": platform.machine(),
                "system": sys.platform,
                "num_processors": os.cpu_count(),
                "load_average": os.getloadavg(),
            },
            "results": [asdict(result) for result in results],
        }
        output.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
