"""Programs of other people: predictions beside what plain JAX takes on the device.

    python -m benchmarks.validate_programs [-o RESULT.json] [--markdown RESULT.md] [--jobs 6] [PROGRAM ...]

A PROGRAM is one of `tests/libraries/judged`; one whose library is missing is a row that says so. Columns:

    deviceless    footprint predicted without the device, for the catalogue's GPU of the same kind
    compiled      footprint of the program compiled on the device
    measured      peak of XLA's allocator in a process of plain JAX (see `benchmarks.plain_jax`)

Errors are (predicted - measured) / measured; the difference is measured minus compiled. Several run at a time, each in
its own share of the card.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import memprof
from benchmarks.checkpoint_plans import JUDGED
from benchmarks.plain_jax import run
from benchmarks.record import write_record
from benchmarks.validate import accuracy, error_percent
from memprof.reports.units import format_bytes, format_signed_bytes

_PREDICTIONS = "deviceless", "compiled"
_SECONDS = 200.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("programs", nargs="*", default=sorted(path.stem for path in JUDGED.glob("*.py")))
    parser.add_argument("--target", default="h100-80gb", help="the catalogue's GPU")
    parser.add_argument("--jobs", type=int, default=6)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the result as JSON")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the result as a table")
    asked = parser.parse_args()
    share = {"XLA_CLIENT_MEM_FRACTION": f"{0.75 / asked.jobs:.3f}"}
    rows: list[dict[str, Any]] = []

    def row_of(name: str) -> dict[str, Any]:
        return {
            "program": name,
            "measured": run(name, settings=share, from_cache=True),
            "compiled": _predicted(name, "local", share),
            "deviceless": _predicted(name, asked.target, share),
        }

    with ThreadPoolExecutor(asked.jobs) as executor:
        for row in executor.map(row_of, asked.programs):
            rows.append(row)
            print(row["program"], file=sys.stderr, flush=True)
            write_record(asked.output, rows, target=asked.target)
            if asked.markdown:
                asked.markdown.write_text(markdown(rows))
    print(markdown(rows), end="")


def _predicted(name: str, target: str, settings: Mapping[str, str]) -> dict[str, Any]:
    """Return the footprint that `memprof.profile` predicts, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        code = (
            "import sys, memprof; from benchmarks.checkpoint_plans import spec_of;"
            "found = memprof.profile(spec_of(sys.argv[1]), target=sys.argv[2]); found.save(sys.argv[3])"
        )
        path = Path(folder, "it.memprof")
        try:
            done = subprocess.run(
                [sys.executable, "-c", code, name, target, str(path)],
                capture_output=True, text=True, check=False, timeout=_SECONDS, env={**os.environ, **settings},
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return {"error": f"not done after {_SECONDS:g} s"}
        if done.returncode:
            return {"error": (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1][:400]}
        report = memprof.load(path).report
        return {"footprint_bytes": report.footprint_bytes, "live_peak_bytes": report.live_peak_bytes}


def _error_percent(row: Mapping[str, Any], kind: str) -> float | None:
    return error_percent(row[kind].get("footprint_bytes"), _measured_bytes(row))


def _measured_bytes(row: Mapping[str, Any]) -> int | None:
    return row["measured"].get("after", {}).get("peak_bytes_in_use")  # type: ignore[no-any-return]


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows as a table."""
    lines = [
        f"| program | {' | '.join(_PREDICTIONS)} | measured | deviceless error | compiled error | difference | note |",
        "|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    for row in rows:
        measured = _measured_bytes(row)
        compiled = row["compiled"].get("footprint_bytes")
        errors = [_error_percent(row, kind) for kind in _PREDICTIONS]
        cells = [
            row["program"],
            *(
                "-" if size is None else format_bytes(size)
                for size in (*(row[kind].get("footprint_bytes") for kind in _PREDICTIONS), measured)
            ),
            *("-" if error is None else f"{error:+.2f}%" for error in errors),
            "-" if measured is None or compiled is None else format_signed_bytes(measured - compiled),
            "; ".join(row[kind]["error"] for kind in (*_PREDICTIONS, "measured") if "error" in row[kind]),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", *(accuracy(kind, (_error_percent(row, kind) for row in rows)) for kind in _PREDICTIONS)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
