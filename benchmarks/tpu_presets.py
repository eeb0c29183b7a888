"""Every preset of the MLP and the Transformer on v5e, v5p, v6e and tpu7x: exact, and explained to the last 0.1%.

    python -m benchmarks.tpu_presets [-o RESULT.json] [--only TEXT] [--complete]

Each row is one `memprof run` as a whole process, with an empty cache of plans. memprof ends with an error unless the
bytes of each memory space equal XLA's own report of them, so each row that is printed passed that check. `--complete`
compiles to the end, and sets the live peak beside the compiler's. Unrolled presets of more than two layers run with
two: their layers are alike, and tens of them take minutes. A program that does not fit is a row like any other.

Needs the extra `tpu`; 3 to 10 processor seconds for a row, 5 to 60 with `--complete`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TARGETS = ("v5e", "v5p", "v6e", "tpu7x")
WHOLE = {"mlp": ("tiny", "base"), "transformer": ("tiny", "tiny-moe", "tiny-llama")}
TWO_LAYERS = ("gpt2", "bert-large", "uva", "moe", "gemma-2b", "llama-1b", "llama-8b", "llama-70b")
MAX_UNATTRIBUTED = 0.001
_MEMPROF = "from memprof.profiler_cli.main import main; main()"
_DOES_NOT_FIT = 4


def commands() -> Iterator[list[str]]:
    """What a user types."""
    for target in TARGETS:
        for workload, presets in WHOLE.items():
            for preset in presets:
                yield ["run", workload, "--preset", preset, "--target", target]
        for preset in TWO_LAYERS:
            yield ["run", "transformer", "--preset", preset, "--set", "num_layers=2", "--target", target]


def main() -> int:
    """Run each row, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--only", default="", help="a part of the command")
    parser.add_argument("--complete", action="store_true")
    arguments = parser.parse_args()
    print(f"{'command':72} {'footprint':>15} {'live peak':>15} {'unattributed':>12} answer", flush=True)
    rows = []
    for command in commands():
        if arguments.only in " ".join(command):
            rows.append(_row([*command, *(["--complete"] if arguments.complete else [])]))
            print(_line(rows[-1]), flush=True)
    if arguments.output:
        arguments.output.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    return 0 if all(row["is_good"] for row in rows) else 1


def _row(command: list[str]) -> dict[str, Any]:
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", _MEMPROF, *command, "--format", "json", "--no-save", "-q"],
            env={**os.environ, "MEMPROF_CACHE_DIR": folder},
            capture_output=True,
            text=True,
        )
    row: dict[str, Any] = {"command": " ".join(["memprof", *command]), "exit_code": done.returncode, "is_good": False}
    if done.returncode not in (0, _DOES_NOT_FIT) or not done.stdout:
        return {**row, "error": done.stderr[-500:]}
    report = json.loads(done.stdout)
    compiler, footprint = report["compiler"], report["footprint_bytes"]
    unattributed = report["categories"]["unattributed"]
    adds_up = sum(report["categories"].values()) == footprint == report["memory_spaces"]["hbm"]
    return {
        **row,
        "jax": report["toolchain"]["jax"],
        "libtpu": report["toolchain"]["libtpu"],
        "footprint_bytes": footprint,
        "live_peak_bytes": report["live_peak_bytes"],
        "padding_bytes": report["padding_bytes"],
        "memory_spaces": report["memory_spaces"],
        "unattributed_bytes": unattributed,
        "answer": report["verdict"]["answer"],
        "refusal": report["refusal"],
        # Of a compile to the end the compiler's own; of a plan what it comes to (see `plan_totals`).
        "compiler": compiler,
        "seconds": round(time.perf_counter() - started, 1),
        "is_good": adds_up and unattributed <= MAX_UNATTRIBUTED * footprint,
    }


def _line(row: dict[str, Any]) -> str:
    if "error" in row:
        return f"{row['command']:72} {row['exit_code']} {row['error'][-200:]}"
    sizes = f"{row['footprint_bytes']:15,} {row['live_peak_bytes']:15,} {row['unattributed_bytes']:12,}"
    peak = row["compiler"]["peak_memory_bytes"]
    told = f" compiler's peak {peak:,}" if row["compiler"]["is_complete"] and peak is not None else ""
    return f"{row['command']:72} {sizes} {row['answer']}{told}"


if __name__ == "__main__":
    sys.exit(main())
