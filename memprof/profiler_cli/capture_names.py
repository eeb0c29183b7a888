"""Names of the files and folders that commands write when the user gives none."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING

from memprof.errors import MemprofError
from memprof.profiler_cli.endings import CAPTURE_SUFFIX

if TYPE_CHECKING:
    from memprof.analysis.records.capture import Capture

_LONGEST_BYTES = 180  # a name may have 255, and a detail, a number and a suffix come after it


def stem(capture: Capture, *, with_target: bool = True) -> str:
    """A name that tells what was compiled: `transformer-gpt2-bf16+donate-h100-80gb`, of a mesh `...-8x-h100-80gb`."""
    count = capture.target.topology.num_devices
    return file_name(
        capture.workload,
        "" if capture.trace is None else capture.trace.framework,
        str(capture.config.get("preset", "")),
        "+".join(capture.techniques),
        f"{count}x" if count > 1 else "",
        capture.target.name if with_target else "",
    )


def capture_or_latest(path: Path | None) -> Path:
    """The capture that the user named, otherwise the latest in this folder.

    Raises:
        MemprofError: this folder holds no capture.
    """
    if path is not None:
        return path
    found = [each for each in Path().glob(f"*{CAPTURE_SUFFIX}") if each.is_file()]
    if not found:
        raise MemprofError(
            f"this folder holds no capture (*{CAPTURE_SUFFIX}); `memprof run` writes one, or name another"
        )
    return max(found, key=lambda each: each.stat().st_mtime_ns)


def file_name(*parts: str) -> str:
    """The parts that are not empty, joined, with nothing in them that a file's name cannot have, and not too long."""
    name = re.sub(r"[^\w.+=-]+", "-", "-".join(part for part in parts if part))
    content = name.encode(errors="replace")
    if len(content) <= _LONGEST_BYTES:
        return name
    # What is cut off still tells names apart.
    digest = hashlib.sha256(content).hexdigest()[:8]
    return f"{content[: _LONGEST_BYTES - 9].decode(errors='ignore')}-{digest}"
