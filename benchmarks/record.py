"""The file of a benchmark's result: versions, the command, and the rows so far."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import memprof


def write_record(path: Path | None, rows: Sequence[Mapping[str, Any]], *, package: str = "jax", **facts: str) -> None:
    """Write a result as JSON; nothing without a path.

    Args:
        package: the package whose version matters beside memprof's.
        facts: what else the file says, such as the target.
    """
    if path is None:
        return
    name = Path(sys.argv[0]).stem
    result = {
        "versions": {package: version(package), "memprof": memprof.__version__},
        "command": shlex.join(["python", "-m", f"benchmarks.{name}", *sys.argv[1:]]),
        **facts,
        "rows": rows,
    }
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
