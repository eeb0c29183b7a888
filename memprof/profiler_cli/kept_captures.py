"""Captures of a command that makes several: each is written as soon as it is there."""

from __future__ import annotations

from pathlib import Path

from memprof.analysis.capture import Capture
from memprof.capture.capture_file import write_capture
from memprof.errors import MemprofError
from memprof.profiler_cli.capture_names import free_path, stem


def keep_in(folder: Path, capture: Capture, *, detail: str = "") -> None:
    """Write a capture into a folder, which is made when it is needed: what is finished survives whatever comes after.

    Args:
        detail: what tells this capture from the others of its name.

    Raises:
        MemprofError: the folder cannot be made, or the capture not be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MemprofError(f"The folder {folder} cannot be made: {error.strerror or error}") from error
    name = "-".join(part for part in (stem(capture), detail) if part)
    write_capture(capture, free_path(folder / f"{name}.memprof"))
