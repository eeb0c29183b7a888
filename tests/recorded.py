"""Text compared whole with what was recorded in `tests/golden/` and looked at.

Record again after a change that is meant, and read the difference:

    MEMPROF_RECORD=1 python -m pytest tests/golden
"""

from __future__ import annotations

import os
from pathlib import Path

_GOLDEN = Path(__file__).parent / "golden"
CHANGED: list[Path] = []  # recordings that this run has written


def check_recorded(text: str, recording: str | Path) -> None:
    """Compare `text` with the file `recording`, or write that file."""
    path = _GOLDEN / recording
    if os.environ.get("MEMPROF_RECORD") and not (path.exists() and path.read_text(encoding="utf-8") == text):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
        CHANGED.append(path)
    assert text == path.read_text(encoding="utf-8")
