"""Slices of TPUs held against arithmetic, and a GPT-2 that does not fit against the compiler's own number.

    python -m benchmarks.tpu_slices [-o RESULT.json] [--only TEXT]

A Transformer with FSDP over 8 chips of v5e (2x4), 16 of v5p (2x2x4) and 256 of v5e (16x16): what a device holds of
parameters and optimizer state, padding aside, must be its share of the bytes that the sizes give, to the byte; the
padding is a figure of its own. GPT-2 with a batch that is too large for a v5e: the footprint must be the number in
libtpu's message, to its two decimals. Needs the extra `tpu`; a minute in all on one core.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.large_models import LargeModel

SLICES = (("v5e", "2x4", 8), ("v5p", "2x2x4", 16), ("v5e", "16x16", 256))
TOO_LARGE = ["run", "transformer", "--preset", "gpt2", "-t", "bf16", "--set", "batch_size=64", "--target", "v5e"]
_MEMPROF = "from memprof.profiler_cli.main import main; main()"
_TOTAL = re.compile(r"\(([\d.]+)G\) exceeds available HBM")
_DOES_NOT_FIT = 4


def main() -> int:
    """Run each, compare, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--only", default="", help="a part of the command")
    arguments = parser.parse_args()
    rows = []
    for row in _rows(arguments.only):
        rows.append(row)
        print(json.dumps(row, indent=1), flush=True)
    if arguments.output:
        arguments.output.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    return 0 if all(row["equal"] for row in rows) else 1


def _rows(only: str) -> Iterator[dict[str, Any]]:
    for target, topology, num_devices in SLICES:
        model = LargeModel(
            label=topology, num_layers=4, width=4096, num_heads=32, mlp_width=16_384, num_devices=num_devices
        )
        command = [target if word == "h100-80gb" else word for word in model.command[1:]]
        command += ["--topology", topology]
        if only in " ".join(command):
            yield _slice(model, command)
    if only in " ".join(TOO_LARGE):
        yield _too_large()


def _slice(model: LargeModel, command: list[str]) -> dict[str, Any]:
    report = _run(command)
    expected = {name: model.expected_bytes[name] for name in ("params", "optimizer_state")}
    held = {name: _sums(report, name) for name in expected}
    return {
        "command": " ".join(["memprof", *command]),
        "jax": report["toolchain"]["jax"],
        "libtpu": report["toolchain"]["libtpu"],
        "num_hosts": report["mesh"]["num_hosts"],
        "expected_bytes": expected,
        "held_bytes": {name: size - padding for name, (size, padding) in held.items()},
        "padding_bytes": {name: padding for name, (_, padding) in held.items()},
        "unattributed_bytes": report["categories"]["unattributed"],
        "equal": all(held[name][0] - held[name][1] == size for name, size in expected.items()),
    }


def _sums(report: dict[str, Any], category: str) -> tuple[int, int]:
    buffers = [each for each in report["buffers"] if each["category"] == category]
    return sum(each["size_bytes"] for each in buffers), sum(each["padding_bytes"] for each in buffers)


def _too_large() -> dict[str, Any]:
    report = _run(TOO_LARGE, exit_code=_DOES_NOT_FIT)
    said = _TOTAL.search(report["refusal"])
    largest = report["buffers"][0]
    return {
        "command": " ".join(["memprof", *TOO_LARGE]),
        "jax": report["toolchain"]["jax"],
        "libtpu": report["toolchain"]["libtpu"],
        "refusal": report["refusal"],
        "footprint_bytes": report["footprint_bytes"],
        "footprint_gib": f"{report['footprint_bytes'] / 2**30:.2f}",
        "largest": {name: largest[name] for name in ("size_bytes", "shape", "dtype", "category", "op", "source")},
        "unattributed_bytes": report["categories"]["unattributed"],
        "equal": said is not None and said[1] == f"{report['footprint_bytes'] / 2**30:.2f}",
    }


def _run(command: list[str], *, exit_code: int = 0) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", _MEMPROF, *command, "--format", "json", "--no-save", "-q"],
        capture_output=True,
        text=True,
    )
    if done.returncode != exit_code:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-1000:]}")
    report: dict[str, Any] = json.loads(done.stdout)
    return report


if __name__ == "__main__":
    sys.exit(main())
