"""Names of the capture files that commands write when the user gives none. They never overwrite anything."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

from memprof.analysis.capture import Capture


def stem(capture: Capture, *, with_target: bool = True) -> str:
    """A name that tells what was compiled: `transformer-gpt2-bf16+donate-h100-80gb`."""
    return file_name(
        capture.workload,
        str(capture.config.get("preset", "")),
        "+".join(capture.techniques),
        capture.target.name if with_target else "",
    )


def file_name(*parts: str) -> str:
    """The parts that are not empty, joined, with nothing in them that a file's name cannot have."""
    return re.sub(r"[^\w.+=-]+", "-", "-".join(part for part in parts if part))


def free_path(path: Path) -> Path:
    """`path`, or with a number before its suffix where that exists."""
    numbered = (path.with_name(f"{path.stem}-{number}{path.suffix}") for number in itertools.count(2))
    return next(candidate for candidate in itertools.chain([path], numbered) if not candidate.exists())
