"""Run steps of built-in workloads on the device in plain JAX: the allocator's peak, and the time of a step.

Several processes compile at the same time, each in its own share of the card; then one after another runs its steps,
alone on the card.
"""

from __future__ import annotations

import json
import os
import pickle
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import IO, Any

import jax

from memprof.analysis.records.checkpoints import Checkpoints
from memprof.sources.jax.checkpointing.apply import with_checkpointed_blocks
from memprof.sources.jax.tracing.step import StepSpec
from memprof.workloads.build import build_step

_WARM_UP, _NUM_STEPS = 3, 10
_MAX_TOGETHER, _MAX_SHARE = 4, 0.88  # of processes; of the card
_SPARE, _MIN_SHARE = 1.3, 0.08  # a pool is this much larger than a footprint, and at least this share of the card


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceStep:
    """A step to run.

    Attributes:
        footprint_bytes: the predicted footprint, which decides the share of the card.
    """

    workload: str
    preset: str
    techniques: str
    footprint_bytes: int
    overrides: tuple[str, ...] = ()
    checkpoints: Checkpoints | None = None

    def spec(self) -> StepSpec:
        """Build the step, without its checkpoints."""
        return build_step(
            workload=self.workload, preset=self.preset, overrides=self.overrides, techniques=[self.techniques]
        )


def run_steps(steps: Sequence[DeviceStep], card_bytes: int) -> Iterator[dict[str, Any]]:
    """Yield what was measured, or the error, for each step in order."""
    shares = [min(max(_SPARE * step.footprint_bytes / card_bytes, _MIN_SHARE), _MAX_SHARE) for step in steps]
    first = 0
    while first < len(steps):
        end = first + 1
        while end < len(steps) and end - first < _MAX_TOGETHER and sum(shares[first : end + 1]) <= _MAX_SHARE:
            end += 1
        with ExitStack() as files:
            logs = [files.enter_context(TemporaryFile()) for _ in range(first, end)]
            processes = [_started(*each) for each in zip(steps[first:end], shares[first:end], logs, strict=True)]
            for process in processes:
                assert process.stdout is not None
                process.stdout.readline()  # it has compiled
            yield from map(_measured, processes, logs)
        first = end


def _started(step: DeviceStep, share: float, log: IO[bytes]) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.steps_on_device"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
        env={**os.environ, "XLA_CLIENT_MEM_FRACTION": f"{share:.3f}"},
    )  # fmt: skip
    assert process.stdin is not None
    pickle.dump(step, process.stdin)
    process.stdin.flush()
    return process


def _measured(process: subprocess.Popen[bytes], log: IO[bytes]) -> dict[str, Any]:
    output, _ = process.communicate(b"go\n")
    if process.returncode == 0:
        found: dict[str, Any] = json.loads(output.splitlines()[-1])
        return found
    log.seek(0)
    lines = log.read().decode(errors="replace").strip().splitlines() or ["no output"]
    return {"error": next((line for line in lines if "RESOURCE_EXHAUSTED" in line), lines[-1])[:400]}


def main() -> None:
    """Compile the step that comes on stdin, wait for a line, run the step, and print what was measured."""
    asked: DeviceStep = pickle.load(sys.stdin.buffer)
    device = jax.devices()[0]
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        spec = asked.spec()
        assert spec.feed is not None
        values = spec.feed.argument(0, 0), spec.feed.argument(1, 0)
    step = spec.fn if hasattr(spec.fn, "lower") else jax.jit(spec.fn, donate_argnums=spec.donate_argnums)
    if asked.checkpoints is not None:
        step = with_checkpointed_blocks(step, asked.checkpoints)
    state, batch = jax.device_put(values, device)
    compiled = step.lower(state, batch).compile(compiler_options=dict(spec.compiler_options) or None)
    before = device.memory_stats()
    print("compiled", flush=True)
    sys.stdin.buffer.readline()
    seconds = []
    for _ in range(_WARM_UP + _NUM_STEPS):
        started = time.perf_counter()
        state, _ = jax.block_until_ready(compiled(state, batch))
        seconds.append(time.perf_counter() - started)
    after, memory = device.memory_stats(), compiled.memory_analysis()
    print(json.dumps({
        "peak_bytes": after and after["peak_bytes_in_use"],
        "peak_before_steps_bytes": before and before["peak_bytes_in_use"],
        "footprint_bytes": memory.peak_memory_in_bytes,
        "host_temporary_bytes": memory.host_temp_size_in_bytes,
        "median_seconds": statistics.median(seconds[_WARM_UP:]),
        "fastest_seconds": min(seconds[_WARM_UP:]),
        "device": device.device_kind,
    }))  # fmt: skip


if __name__ == "__main__":
    main()
