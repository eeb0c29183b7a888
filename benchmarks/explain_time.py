"""Time of `memprof explain`'s reader on hostile logs of growing size: it must be linear.

Each row is one kind of text, repeated to 10 kB, 100 kB, 1 MB and 10 MB behind a real message.

    python -m benchmarks.explain_time --output benchmarks/results/explain_time.json
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from itertools import count
from pathlib import Path

from memprof.studies.explain.log import read_log

_MESSAGE = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 77 bytes.\n"
_SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
_KINDS = {
    "blank lines": "\n",
    "spaces": " ",
    "tabs": "\t",
    "digits": "7",
    "opened brackets": "[111",
    "reservations on one line": "Attempting to reserve 1.0G at the bottom of memory ",
    "listed buffers": "  Buffer {}:\n\tSize: 1.0G\n\tShape: f32[4]\n\t====\n",
    "messages": _MESSAGE,
    "quotes": 'op_name="\\"',
    "chunks": "12 Chunks of size 34 totalling\n",
    "stars": "] ****",
    "lines about memory": "memory of step 12: 33 GiB\n",
    "other lines": "step 12, loss 0.33, 22 it/s\n",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    output = parser.parse_args().output
    seconds = {kind: [_seconds(unit, size) for size in _SIZES] for kind, unit in _KINDS.items()}
    for kind, row in seconds.items():
        print(f"{kind:26}", *(f"{each:8.3f}" for each in row))
    if output:
        result = {"python": platform.python_version(), "sizes_bytes": _SIZES, "processor_seconds": seconds}
        output.write_text(json.dumps(result, indent=1) + "\n")


def _seconds(unit: str, size: int) -> float:
    number = count()
    log = _MESSAGE
    repeats = size // len(unit)
    log += "".join(unit.format(next(number)) for _ in range(repeats)) if "{}" in unit else unit * repeats
    began = time.process_time()
    read_log(log)
    return round(time.process_time() - began, 4)


if __name__ == "__main__":
    main()
