"""The memory of this process while it compares many configurations of one step.

    python -m benchmarks.many_rows [-o RESULT.json] [--rows 200] [--workload transformer --preset tiny --target cpu]

The rows have ten batch sizes in turn, so nearly all plans come from the cache. Measured twice: as for a table, which
shows sums of each row, and as for JSON, which shows all buffers. Takes about a second a row.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import sys
import tempfile
import tracemalloc
from dataclasses import asdict, dataclass
from os import environ
from pathlib import Path

from memprof.analysis.hlo.program import Program
from memprof.sources.jax.processes.launch import default_num_jobs
from memprof.sources.jax.targets.resolve import resolve
from memprof.studies.side_by_side import SideBySide, compile_rows
from memprof.studies.subject import find_subject
from memprof.version import __version__

NUM_BATCH_SIZES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Python's memory after a share of the rows.

    Attributes:
        num_rows: the rows that are done.
        kept_bytes: what is allocated then, without garbage.
        num_programs: the decoded programs among it.
    """

    num_rows: int
    kept_bytes: int
    num_programs: int


def measure(arguments: argparse.Namespace, *, sums_only: bool) -> list[Measurement]:
    subjects = [
        find_subject(arguments.workload, preset=arguments.preset, overrides=[f"batch_size={number + 1}"])
        for number in range(NUM_BATCH_SIZES)
    ]
    target = resolve(arguments.target)
    tasks = [
        subjects[number % NUM_BATCH_SIZES].task("", target=target, label=f"row {number}")
        for number in range(arguments.rows)
    ]
    table = SideBySide([task.label for task in tasks], sums_only=sums_only)
    found: list[Measurement] = []

    def look(label: str, stage: str) -> None:
        if stage == "failed":
            sys.exit(table.failures[-1].reason)
        num_rows = len(table.reports)
        if stage == "done" and num_rows % max(1, arguments.rows // 8) == 0:
            gc.collect()
            num_programs = sum(type(each) is Program for each in gc.get_objects())
            kept_bytes, _ = tracemalloc.get_traced_memory()
            found.append(Measurement(num_rows=num_rows, kept_bytes=kept_bytes, num_programs=num_programs))
            print(f"{num_rows:>6} rows {kept_bytes / 2**20:>8.1f} MiB  {num_programs} programs", flush=True)

    compile_rows(tasks, table, num_jobs=default_num_jobs(), progress=look, keep=lambda capture: None)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="also write the result as JSON")
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--workload", default="transformer")
    parser.add_argument("--preset", default="tiny")
    parser.add_argument("--target", default="cpu")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        environ["MEMPROF_CACHE_DIR"] = cache
        tracemalloc.start()
        measured = {}
        for name, sums_only in (("table", True), ("json", False)):
            print(f"as for {name}:")
            found = measure(arguments, sums_only=sums_only)
            growth = (found[-1].kept_bytes - found[1].kept_bytes) // (found[-1].num_rows - found[1].num_rows)
            print(f"  {growth / 1024:.1f} KiB a row")
            measured[name] = {"bytes_per_row": growth, "measurements": [asdict(each) for each in found]}
    if arguments.output is not None:
        result = {
            "command": "python -m benchmarks.many_rows",
            **{name: getattr(arguments, name) for name in ("rows", "workload", "preset", "target")},
            "memprof": __version__,
            "python": platform.python_version(),
            **measured,
        }
        arguments.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
