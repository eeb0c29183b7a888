"""Checkpoint plans beside a device: their footprints, and the time that they add to a step.

    python -m benchmarks.validate_plans PLANS.pickle [--plan-only] [-o RESULT.json]

Plans are made without the device, and kept in PLANS.pickle; if that file exists, its plans are run. Each compile of a
plan is a row:

    footprint     of the plan, compiled without the device
    measured      peak of XLA's allocator over the steps, in a process of plain JAX
    at least      the roofline bound of the compiled step
    step          median time of a step
"""

from __future__ import annotations

import argparse
import json
import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import memprof
from benchmarks.checkpoint_plans import SIZES
from benchmarks.record import write_record
from benchmarks.steps_on_device import DeviceStep, run_steps
from memprof.sources.jax.targets.resolve import resolve
from memprof.studies.plan.plan import PlanPoint
from memprof.studies.plan.search import plan_step

_STEPS = {
    "gpt2": DeviceStep(workload="transformer", preset="gpt2", techniques="bf16+donate", footprint_bytes=0),
    "32 layers": DeviceStep(
        workload="transformer", preset="tiny", overrides=("num_layers=32", *SIZES[1:]), techniques="bf16+scan+donate",
        footprint_bytes=0,
    ),
}  # fmt: skip
_OFFLOADED = {"32 layers": ("7.4GiB", "7.2GiB")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plans", type=Path, metavar="PLANS.pickle")
    parser.add_argument("--plan-only", action="store_true", help="make the plans, and run nothing")
    parser.add_argument("--target", default="h100-80gb", help="the catalogue's GPU")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the result as JSON")
    asked = parser.parse_args()
    if not asked.plans.exists():
        asked.plans.write_bytes(pickle.dumps(list(_points(asked.target))))
    if asked.plan_only:
        return
    points: list[tuple[str, PlanPoint]] = pickle.loads(asked.plans.read_bytes())
    steps = [
        replace(_STEPS[name], footprint_bytes=point.footprint_bytes, checkpoints=point.checkpoints)
        for name, point in points
    ]
    rows: list[dict[str, Any]] = []
    memory_bytes = resolve(asked.target).memory_bytes
    assert memory_bytes is not None
    for (name, point), measured in zip(points, run_steps(steps, memory_bytes), strict=True):
        rows.append(_row_of(name, point, measured))
        print(json.dumps(rows[-1]), flush=True)
        write_record(asked.output, rows, target=asked.target)


def _points(target: str) -> Iterator[tuple[str, PlanPoint]]:
    """Yield every compile of the plans, with the name of its step."""
    for name, step in _STEPS.items():
        found = plan_step(step.spec(), resolve(target), budget_bytes=1, with_curve=True, progress=print)
        yield from ((name, point) for point in found.points)
        for memory in _OFFLOADED.get(name, ()):
            found = memprof.plan(step.spec(), memory=memory, offload=True, target=target)
            yield from ((name, point) for point in found.points if point.is_offloading)


def _row_of(name: str, point: PlanPoint, measured: dict[str, Any]) -> dict[str, Any]:
    return {
        "step": name,
        "plan": point.name,
        "offloads": point.is_offloading,
        "footprint_bytes": point.footprint_bytes,
        "recomputed_flops": point.recomputed_flops,
        "repeated_seconds": point.repeated_seconds,
        "waiting_seconds": point.waiting_seconds,
        "host_bytes": point.host_bytes,
        "kept_bytes": point.kept_bytes,
        "at_least_seconds": point.at_least_seconds,
        "measured": measured,
    }


if __name__ == "__main__":
    main()
