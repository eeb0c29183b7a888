"""The verdict beside the device: the largest batch that memprof says fits runs in JAX's own pool, and a larger one not.

    python -m benchmarks.validate_fit [--target h100-80gb] [--answers FOLDER] [-o RESULT.json]

`memprof fit` finds the largest batch of each row, without the device. Then that batch and the next one run on the
device, each in a process of its own that is plain JAX with its defaults: the pool is preallocated, and memprof measures
nothing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

import memprof
from benchmarks.plain_jax import run

_SUBJECT = ("transformer", "--preset", "gpt2")
_ROWS = ("donate", "bf16+donate", "bf16+donate+remat", "bf16+donate+chunked-loss=8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("rows", nargs="*", default=_ROWS)
    parser.add_argument("--target", default="h100-80gb")
    parser.add_argument(
        "--answers", type=Path, metavar="FOLDER", help="TECHNIQUES.json: answers that are there already"
    )
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the result as JSON")
    asked = parser.parse_args()
    result: dict[str, Any] = {
        "versions": {"jax": version("jax"), "memprof": memprof.__version__},
        "command": " ".join(["python", "-m", "benchmarks.validate_fit", *sys.argv[1:]]),
        "target": asked.target,
        "rows": [],
    }
    with ThreadPoolExecutor() as executor:
        answers = executor.map(lambda row: _answer(row, asked.target, asked.answers), asked.rows)
        for row, answer in zip(asked.rows, answers, strict=True):
            if isinstance(answer, str):
                result["rows"].append({"techniques": row, "note": answer})
                print(row, answer, flush=True)
                continue
            sizes = answer["value"], answer["next_value"]
            runs = {str(size): run(row, [f"batch_size={size}"], settings={}, from_cache=False) for size in sizes}
            result["rows"].append({"techniques": row, "answer": answer, "runs": runs})
            print(row, runs, flush=True)
            if asked.output:
                asked.output.write_text(json.dumps(result, indent=1) + "\n")


def _answer(row: str, target: str, folder: Path | None) -> dict[str, Any] | str:
    """Return the answer of `memprof fit`, or its message."""
    if folder is not None:
        return json.loads((folder / f"{row}.json").read_text())  # type: ignore[no-any-return]
    command = [sys.executable, "-m", "memprof", "fit", *_SUBJECT, "--target", target, "-t", row, "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return json.loads(done.stdout) if done.stdout else done.stderr[-500:]


if __name__ == "__main__":
    main()
