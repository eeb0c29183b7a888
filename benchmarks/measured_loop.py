"""Whether measuring a step slows it down: memprof's loop beside a bare one, in one process, taking turns.

    python -m benchmarks.measured_loop [-o RESULT.json]

Both loops run the same executable on the same synthetic batches, wait for each step, and read its loss; the bare one
knows nothing of memprof. They take turns, a round each, in an order drawn anew each time, so that whatever else the
machine does hits both alike; and they begin again from new states, a block of rounds each, since where a state lies in
memory changes how fast its steps run. Compared are the wall time of a round, per step, and the time that each loop
reports for a step; the ratio is the median of the ratios of all rounds, each to its neighbour, since a machine's speed
changes from minute to minute by more than the loops differ. A second bare loop takes turns too: its ratio to the first
says how far from 1 the noise alone leads. Runs on the CPU, in a few minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import jax

from memprof.sources.jax.compile import CompiledStep, compile_step
from memprof.sources.jax.running.feeding import Arguments
from memprof.sources.jax.running.run import timed_steps
from memprof.sources.jax.targets.resolve import resolve
from memprof.sources.jax.tracing.step import Feed, StepSpec
from memprof.sources.jax.xla.toolchain import toolchain
from memprof.workloads.build import build_step
from memprof.workloads.train_step import STATE_ARGNUM

# A preset, what of it is changed, and the number of blocks and of rounds in each.
CONFIGURATIONS: tuple[tuple[str, tuple[str, ...], int, int], ...] = (
    ("tiny", (), 40, 25),
    ("tiny", ("batch_size=8", "seq_len=128", "max_seq_len=128", "hidden_size=128", "num_heads=4"), 10, 4),
)
STEPS_PER_ROUND = 20
BATCH_ARGNUM = 1
BARE, BARE_AGAIN, MEASURED = "bare", "bare again", "measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round of a loop: its wall time per step, and the median of the times that it took of single steps."""

    wall_seconds: float
    step_seconds: float


Loop = Callable[[int], Round]  # given the number of its first step


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One loop on one configuration: medians over the rounds of times, and of ratios to the bare loop's."""

    wall_milliseconds: float
    wall_ratio: float
    step_milliseconds: float
    step_ratio: float


def bare_loop(feed: Feed, executable: Callable[..., Any]) -> Loop:
    """The loop that one writes without memprof."""
    state = feed.argument(STATE_ARGNUM, 0)

    def run(first: int) -> Round:
        nonlocal state
        seconds = []
        losses = []
        started = time.perf_counter()
        for number in range(first, first + STEPS_PER_ROUND):
            batch = jax.block_until_ready(jax.device_put(feed.argument(BATCH_ARGNUM, number)))
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


def measured_loop(spec: StepSpec, compiled: CompiledStep) -> Loop:
    """Memprof's own."""
    arguments = Arguments(spec, compiled)
    assert spec.feed is not None
    loss = spec.feed.loss

    def run(first: int) -> Round:
        started = time.perf_counter()
        steps = list(timed_steps(compiled.executable, arguments, loss, range(first, first + STEPS_PER_ROUND)))
        wall_seconds = time.perf_counter() - started
        return Round(wall_seconds=wall_seconds / STEPS_PER_ROUND, step_seconds=median(step.seconds for step in steps))

    return run


def compare(preset: str, overrides: tuple[str, ...], num_blocks: int, rounds_per_block: int) -> dict[str, Result]:
    """All loops on one configuration, taking turns."""
    target = resolve("cpu")
    spec = build_step(workload="transformer", preset=preset, overrides=overrides)
    with tempfile.TemporaryDirectory() as folder:
        compiled = compile_step(spec, target, dump_folder=Path(folder), progress=lambda stage: None)
    assert spec.feed is not None
    feed = spec.feed
    begin: dict[str, Callable[[], Loop]] = {
        BARE: lambda: bare_loop(feed, compiled.executable),
        BARE_AGAIN: lambda: bare_loop(feed, compiled.executable),
        MEASURED: lambda: measured_loop(spec, compiled),
    }
    draw = random.Random(0)
    rounds: dict[str, list[Round]] = {name: [] for name in begin}
    for _ in range(num_blocks):
        loops = {name: begin[name]() for name in draw.sample(list(begin), len(begin))}
        for number in range(rounds_per_block + 1):
            for name in draw.sample(list(loops), len(loops)):
                result = loops[name](number * STEPS_PER_ROUND)
                if number:  # the first one warms up
                    rounds[name].append(result)
    return {name: _result(of_loop, rounds[BARE]) for name, of_loop in rounds.items()}


def _result(rounds: list[Round], bare: list[Round]) -> Result:
    pairs = list(zip(rounds, bare, strict=True))
    return Result(
        wall_milliseconds=1000 * median(each.wall_seconds for each in rounds),
        wall_ratio=median(each.wall_seconds / other.wall_seconds for each, other in pairs),
        step_milliseconds=1000 * median(each.step_seconds for each in rounds),
        step_ratio=median(each.step_seconds / other.step_seconds for each, other in pairs),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="also write the result as JSON")
    output = parser.parse_args().output

    results = []
    for preset, overrides, num_blocks, rounds_per_block in CONFIGURATIONS:
        loops = compare(preset, overrides, num_blocks, rounds_per_block)
        results.append(
            {
                "preset": preset,
                "overrides": overrides,
                "num_rounds": num_blocks * rounds_per_block,
                "loops": {name: asdict(loop) for name, loop in loops.items()},
            }
        )
        print(f"transformer {preset} {' '.join(overrides)}".rstrip())
        for name, loop in loops.items():
            print(
                f"  {name + ':':<12} wall {loop.wall_milliseconds:.3f} ms, ratio {loop.wall_ratio:.4f};"
                f" step {loop.step_milliseconds:.3f} ms, ratio {loop.step_ratio:.4f}",
                flush=True,
            )
    if output is not None:
        record = {
            "command": "python -m benchmarks.measured_loop",
            "steps_per_round": STEPS_PER_ROUND,
            "toolchain": asdict(toolchain(None, os.environ.get("XLA_FLAGS", ""), {})),
            "machine": {
                "architecture": platform.machine(),
                "system": sys.platform,
                "num_processors": os.cpu_count(),
                "load_average": os.getloadavg(),
            },
            "results": results,
        }
        output.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
