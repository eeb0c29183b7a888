"""The hierarchies of flame graphs of the peak: Python stacks, modules and categories.

    paths = Paths(report)
    paths.of(buffer, Hierarchy.STACK)  # ("Block.__call__ (blocks.py)", "attend (heads.py)", "heads.py:79", "dot")

A stack contains the user's own calls and, below them, the single most informative library line. Equal layers are one
module, as in the terminal.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from enum import StrEnum

from memprof.analysis.records.categories import Phase
from memprof.analysis.records.live_buffer import LiveBuffer, StackFrame, array_type, shown_source
from memprof.analysis.records.report import Report
from memprof.reports.views.cells import common_folder
from memprof.reports.views.layers import folded_paths

Path = tuple[str, ...]
Weighted = Sequence[tuple[Path, int]]  # paths with their bytes

NO_MODULE = "(no module)"
NO_SOURCE = "(no source line)"
_ARGUMENTS = "(arguments of the step)"


class Hierarchy(StrEnum):
    """The meaning of the boxes of a flame graph, from the root."""

    STACK = "stack"
    MODULE = "module"
    CATEGORY = "category"


class Paths:
    """The paths of a report's buffers in each hierarchy.

    Attributes:
        folder: the folder that contains all source lines, with its slash; file names are relative to it.
    """

    def __init__(self, report: Report) -> None:
        self._modules = folded_paths(report.modules)
        self.folder = common_folder(report.by_source)

    def of(self, buffer: LiveBuffer, hierarchy: Hierarchy) -> Path:
        """Return the path of a buffer, from the root to its operation."""
        operation = buffer.op.rpartition("/")[2] or buffer.name or "(no name)"
        match hierarchy:
            case Hierarchy.STACK:
                return (*self.stack(buffer), operation)
            case Hierarchy.MODULE:
                return (*self.module(buffer.module), operation)
            case Hierarchy.CATEGORY:
                return (buffer.category.value, *self.module(buffer.module), operation)

    def stack(self, buffer: LiveBuffer) -> Path:
        """Return the calls, outermost first, then the line in the innermost call, and the library line below it."""
        frame = place(buffer)
        if frame is None:
            return (_ARGUMENTS if buffer.phase is Phase.ARGUMENT else NO_SOURCE,)
        calls = [each for each in buffer.stack if each.is_own] or buffer.stack
        names = (
            f"{function} ({shown_source(posixpath.basename(each.file))})"
            for each in calls
            if (function := function_name(each))
        )
        line = shown_source(f"{posixpath.basename(frame.file)}:{frame.line}")
        return (*names, line, *([buffer.library] if buffer.library else []))

    def file_name(self, file: str) -> str:
        """Return the displayed name of a file: its path relative to the folder that contains all source lines."""
        if not self.folder or not file.startswith("/"):
            return shown_source(file)
        return posixpath.relpath(file, self.folder)

    def line_name(self, source: str) -> str:
        """Return the displayed name of a source line (`file.py:12`)."""
        if (shown := shown_source(source)) != source:
            return shown
        file, colon, line = source.rpartition(":")
        return f"{self.file_name(file)}{colon}{line}" if colon else source

    def module(self, path: str) -> Path:
        """Return the path of a module with equal layers folded: `layers_{0..11}`, `mlp`."""
        folded = self._modules.get(path, path)
        return tuple(folded.split("/")) if folded else (NO_MODULE,)


def place(buffer: LiveBuffer) -> StackFrame | None:
    """Return the call whose line is the buffer's `source`; None if it has no source."""
    if not buffer.source:
        return None
    file, _, line = buffer.source.rpartition(":")
    found = (each for each in reversed(buffer.stack) if (each.file, str(each.line)) == (file, line))
    return next(found, None) or StackFrame(file, "", int(line), is_own=True)


def array_name(buffer: LiveBuffer) -> str:
    """Return the name of the box below the operation: `f32[8,1024], activations`."""
    return f"{array_type(buffer.dtype, buffer.shape)}, {buffer.category.value}"


def function_name(frame: StackFrame) -> str:
    """Return the short name of a function: `evaluate.loss` for Python's `evaluate.<locals>.loss`."""
    return frame.function.replace(".<locals>", "")


def grouped(weighted: Weighted) -> list[tuple[str, Weighted]]:
    """Group paths by their first name, largest first.

    Returns:
        For each first name, the rest of its paths. Empty paths are omitted.
    """
    groups: dict[str, list[tuple[Path, int]]] = {}
    for path, size_bytes in weighted:
        if path:
            groups.setdefault(path[0], []).append((path[1:], size_bytes))
    return sorted(groups.items(), key=lambda group: -total_bytes(group[1]))


def total_bytes(weighted: Weighted) -> int:
    """Sum the bytes of all paths."""
    return sum(size_bytes for _, size_bytes in weighted)
