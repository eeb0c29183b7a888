"""How long eight rows of a comparison take: by finished compiles one after another, as `compare` does it, and again.

    python -m benchmarks.parallel_rows [-o RESULT.json]

The rows are the last eight of those that `memprof compare transformer` chooses itself: GPT-2 small on an H100. They are
compiled and analysed in child processes: one at a time and to the end; then as `memprof compare` does it, to XLA's plan
and as many at a time as it chooses; then once more, with the plans in the cache. The ratios are of the wall times.
Needs the `deviceless` extra; takes six to eight minutes on two processors that do nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

from memprof.analysis.records.report import Report
from memprof.sources.jax.processes.launch import default_num_jobs
from memprof.sources.jax.targets.resolve import resolve
from memprof.sources.jax.xla.portable_program import CompileSettings
from memprof.studies.side_by_side import Rows, SideBySide, compile_rows
from memprof.studies.subject import TEACHING_ROWS, find_subject

TARGET = "h100-80gb"
ROWS = Rows(
    subject=find_subject("transformer", preset="gpt2"),
    techniques=TEACHING_ROWS[-8:],
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """All rows in one way: the wall time, and the sum of what the rows' own compiles took."""

    what: str
    num_jobs: int
    wall_seconds: float
    compile_seconds: float


def measure(what: str, *, num_jobs: int, complete: bool = False) -> tuple[Measurement, Sequence[Report]]:
    started = time.perf_counter()
    tasks, _ = ROWS.tasks(resolve(TARGET), settings=CompileSettings(complete=complete))
    compared = SideBySide([task.label for task in tasks])
    compile_rows(tasks, compared, num_jobs=num_jobs, progress=lambda label, stage: None, keep=lambda capture: None)
    wall_seconds = time.perf_counter() - started
    if compared.failures:
        sys.exit("\n".join(f"{failure.label}: {failure.reason}" for failure in compared.failures))
    reports = compared.reports
    compile_seconds = sum(report.timings.compile_seconds for report in reports)
    print(f"{what:<24} {num_jobs:>4} {wall_seconds:>9.1f} {compile_seconds:>12.1f}", flush=True)
    return Measurement(
        what=what, num_jobs=num_jobs, wall_seconds=wall_seconds, compile_seconds=compile_seconds
    ), reports


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="also write the result as JSON")
    output = parser.parse_args().output

    print(f"{'':<24} {'jobs':>4} {'wall':>9} {'of compiles':>12}\n{'':<24} {'':>4} {'s':>9} {'s':>12}")
    num_jobs = default_num_jobs()
    with tempfile.TemporaryDirectory() as cache:
        os.environ["MEMPROF_CACHE_DIR"] = cache
        finished, reports = measure("finished, one by one", num_jobs=1, complete=True)
        planned, _ = measure("to the plan", num_jobs=num_jobs)
        again, _ = measure("again", num_jobs=num_jobs)
    ratios = {each.what: each.wall_seconds / finished.wall_seconds for each in (planned, again)}
    toolchain = asdict(reports[0].toolchain)
    shares = ", ".join(f"{what} {ratio:.2f}" for what, ratio in ratios.items())
    print(
        f"\nof the first: {shares}; {len(ROWS.techniques)} rows, {TARGET}, {os.cpu_count()} processors;"
        f" jax {toolchain['jax']}, python {toolchain['python']}"
    )
    if output is not None:
        result = {
            "command": "python -m benchmarks.parallel_rows",
            "date": date.today().isoformat(),
            "target": TARGET,
            "rows": ROWS.techniques,
            "toolchain": toolchain,
            "machine": {
                "architecture": platform.machine(),
                "system": sys.platform,
                "num_processors": os.cpu_count(),
            },
            "measurements": [asdict(each) for each in (finished, planned, again)],
            "ratios": ratios,
        }
        output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
