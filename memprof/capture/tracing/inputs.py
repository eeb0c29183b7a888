"""The files that the user's code was made of and read while it built a step, each with a digest of what was in it.

They are kept in the capture, so that a later command can tell whether the same code would make the same step again:

    inputs = watch_inputs()   # before the user's code is imported
    ...
    capture = replace(capture, inputs=inputs.digests())
    are_unchanged(capture.inputs)

What is installed is known by its version (see `row_key.py`), not by its files. Files that are read without Python, by a
library in C, are not seen.
"""

from __future__ import annotations

import hashlib
import os
import site
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from memprof.capture.xla import plan_cache

_PACKAGE = Path(__file__).parents[2]
_LARGE_BYTES = 64 * 1024**2
_MOST_FILES = 2000
_NEVER = ""  # a path that is never unchanged


class Inputs:
    """What has been read up to now."""

    def __init__(self) -> None:
        self._opened: set[str] = set()

    def hear(self, event: str, arguments: tuple[object, ...]) -> None:
        """An audit hook of Python's: which files are opened to be read."""
        if event != "open":
            return
        path, mode, flags = arguments
        reads = "r" in mode if isinstance(mode, str) else not (isinstance(flags, int) and flags & os.O_WRONLY)
        if isinstance(path, str) and reads:
            self._opened.add(os.path.abspath(path))

    def digests(self) -> dict[str, str]:
        """The digest of each file of the user's that was read or imported."""
        modules = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
        paths = {*self._opened, *(os.path.abspath(path) for path in modules if path)}
        others = tuple(f"{folder}{os.sep}" for folder in _folders_of_others())
        made = (".pyc", plan_cache.SUFFIX)
        own = [path for path in sorted(paths) if not path.startswith(others) and not path.endswith(made)]
        if len(own) > _MOST_FILES:
            return {_NEVER: ""}
        return {path: digest for path in own if (digest := _digest(path)) is not None}


def watch_inputs() -> Inputs:
    """Begin to listen. A process cannot stop it."""
    inputs = Inputs()
    sys.addaudithook(inputs.hear)
    return inputs


def are_unchanged(inputs: Mapping[str, str]) -> bool:
    """Whether all files are as they were. None at all says nothing, and so is no."""
    return bool(inputs) and _NEVER not in inputs and all(_digest(path) == digest for path, digest in inputs.items())


def digest_of_memprof() -> str:
    """Of this package itself, which a version does not tell while somebody works on it."""
    content = hashlib.sha256()
    for path in sorted(_PACKAGE.rglob("*.py")):
        content.update(f"{path.relative_to(_PACKAGE)}\0".encode())
        content.update(path.read_bytes())
    return content.hexdigest()


def _folders_of_others() -> set[str]:
    installed = [sys.prefix, sys.base_prefix, sys.exec_prefix, *site.getsitepackages(), site.getusersitepackages()]
    folders = [str(_PACKAGE), *installed, tempfile.gettempdir(), "/proc", "/sys", "/dev"]
    # `/usr` is the prefix of a system's own Python, but a user's folder may lie in `/`.
    return {os.path.abspath(folder) for folder in folders if folder} - {os.sep}


def _digest(path: str) -> str | None:
    """None where there is no file that can be read."""
    try:
        status = os.stat(path)
        if not os.path.isfile(path):
            return None
        if status.st_size > _LARGE_BYTES:
            return f"{status.st_size} bytes of {status.st_mtime_ns}"
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return None
