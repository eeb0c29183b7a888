"""Captures of a command that makes several: each is written as soon as it is there."""

from __future__ import annotations

from pathlib import Path

from memprof.analysis.capture import Capture
from memprof.capture.capture_file import write_capture
from memprof.files import IfTaken, make_folder
from memprof.profiler_cli.capture_names import file_name, stem


def keep_in(folder: Path, capture: Capture, *, detail: str = "") -> None:
    """Write a capture into a folder, which is made when it is needed: what is finished survives whatever comes after.

    Args:
        detail: what tells this capture from the others of its name.

    Raises:
        MemprofError: the folder cannot be made, or the capture not be written.
    """
    make_folder(folder)
    name = file_name(stem(capture), detail)
    write_capture(capture, folder / f"{name}.memprof", if_taken=IfTaken.NUMBER)
