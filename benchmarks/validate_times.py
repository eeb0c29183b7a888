"""Roofline bounds beside step times that a device measures.

    python -m benchmarks.validate_times BOUNDS.json [--bounds-only] [-o RESULT.json] [ROW ...]

The rows are those of `benchmarks.validate`. Their footprints and bounds are computed without the device, and kept in
BOUNDS.json; if that file exists, its rows are run. A measured time is the median of ten steps, alone on the card.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from scipy.stats import spearmanr  # type: ignore[import-untyped]

from benchmarks.record import write_record
from benchmarks.steps_on_device import DeviceStep, run_steps
from benchmarks.validate import ON_A_GPU, Configuration
from memprof.analysis.pipeline import analyze
from memprof.errors import MemprofError
from memprof.sources.jax.processes.launch import compile_all, default_num_jobs
from memprof.sources.jax.targets.resolve import resolve


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bounds", type=Path, metavar="BOUNDS.json")
    labels = [each.label for each in ON_A_GPU]
    parser.add_argument(
        "labels", nargs="*", default=labels, metavar="ROW", help="rows by their label; all if none is given"
    )
    parser.add_argument("--bounds-only", action="store_true", help="compute the bounds, and run nothing")
    parser.add_argument("--target", default="h100-80gb", help="the catalogue's GPU")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the result as JSON")
    asked = parser.parse_args()
    if unknown := set(asked.labels).difference(labels):
        parser.error(f"no row is named {', '.join(sorted(unknown))}")
    chosen = {each.label: each for each in ON_A_GPU if each.label in asked.labels}
    if not asked.bounds.exists():
        asked.bounds.write_text(json.dumps(bounds(list(chosen.values()), asked.target), indent=1) + "\n")
    if asked.bounds_only:
        return
    predicted = {row["label"]: row for row in json.loads(asked.bounds.read_text()) if row["label"] in chosen}
    steps = [
        DeviceStep(
            workload=each.workload, preset=each.preset, overrides=each.overrides, techniques=each.techniques,
            footprint_bytes=predicted[each.label]["footprint_bytes"],
        )
        for each in (chosen[label] for label in predicted)
    ]  # fmt: skip
    memory_bytes = resolve(asked.target).memory_bytes
    assert memory_bytes is not None
    rows: list[dict[str, Any]] = []
    for found, measured in zip(predicted.values(), run_steps(steps, memory_bytes), strict=True):
        rows.append({**found, "measured": measured})
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
        write_record(asked.output, rows, target=asked.target)
    print(markdown(rows), end="")


def bounds(configurations: Sequence[Configuration], target: str) -> list[dict[str, Any]]:
    """Return the footprint and the bound of each step, compiled without the device."""
    rows: dict[str, dict[str, Any]] = {}
    tasks = [each.task(target) for each in configurations]
    for result in compile_all(tasks, num_jobs=default_num_jobs(), progress=lambda label, stage: None):
        if result.fresh is None:
            raise MemprofError(f"{result.task.label}: {result.error}")
        report = analyze(result.fresh.capture, result.fresh.decoded)
        rows[result.task.label] = {
            "label": result.task.label,
            "footprint_bytes": report.footprint_bytes,
            "at_least_seconds": None if report.roofline is None else report.roofline.at_least_seconds,
        }
        print(rows[result.task.label], file=sys.stderr, flush=True)
    return [rows[each.label] for each in configurations]


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """Return the rows as a table."""
    lines = ["| step | at least | measured | ratio |", "|---|---:|---:|---:|"]
    pairs = []
    for row in rows:
        least, measured = row["at_least_seconds"], row["measured"].get("median_seconds")
        if least is None or measured is None:
            lines.append(f"| {row['label']} | - | - | {row['measured'].get('error', 'no bound')} |")
            continue
        pairs.append((least, measured))
        lines.append(f"| {row['label']} | {1e3 * least:.1f} ms | {1e3 * measured:.1f} ms | {measured / least:.2f} |")
    if len(pairs) > 1:
        ratios = [measured / least for least, measured in pairs]
        rank = spearmanr(*zip(*pairs, strict=True)).statistic
        lines += [
            "",
            f"Ratio: median {median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}; rank correlation {rank:.2f}.",
        ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
