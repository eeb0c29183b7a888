"""What the bytes at the peak are drawn by in a flame graph: the calls that made them, their modules, their categories.

    paths = Paths(report)
    paths.of(buffer, Hierarchy.STACK)  # ("Block.__call__ (blocks.py)", "attend (heads.py)", "heads.py:79", "dot")

A stack has the user's own calls; of what libraries do beneath them it has one line, that which says most. Equal layers
are one module, as in the terminal.
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
Weighted = Sequence[tuple[Path, int]]  # with bytes

NO_MODULE = "(no module)"
NO_SOURCE = "(no source line)"
_ARGUMENTS = "(arguments of the step)"


class Hierarchy(StrEnum):
    """What the boxes of a flame graph are, from the root on."""

    STACK = "stack"
    MODULE = "module"
    CATEGORY = "category"


class Paths:
    """The places of a report's buffers in each hierarchy.

    Attributes:
        folder: that all source lines lie in, with its slash; names of files begin below it.
    """

    def __init__(self, report: Report) -> None:
        self._modules = folded_paths(report.modules)
        self.folder = common_folder(report.by_source)

    def of(self, buffer: LiveBuffer, hierarchy: Hierarchy) -> Path:
        """From the root to the operation, which is the last."""
        operation = buffer.op.rpartition("/")[2] or buffer.name or "(no name)"
        match hierarchy:
            case Hierarchy.STACK:
                return (*self.stack(buffer), operation)
            case Hierarchy.MODULE:
                return (*self.module(buffer.module), operation)
            case Hierarchy.CATEGORY:
                return (buffer.category.value, *self.module(buffer.module), operation)

    def stack(self, buffer: LiveBuffer) -> Path:
        """The calls, outermost first, then the line in the innermost, and the line of a library beneath it."""
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
        """A file as source lines name it: below the folder that all of them lie in, or from there."""
        if not self.folder or not file.startswith("/"):
            return shown_source(file)
        return posixpath.relpath(file, self.folder)

    def line_name(self, source: str) -> str:
        """`file.py:12` likewise."""
        if (shown := shown_source(source)) != source:
            return shown
        file, colon, line = source.rpartition(":")
        return f"{self.file_name(file)}{colon}{line}" if colon else source

    def module(self, path: str) -> Path:
        """A module where equal layers are one: `layers_{0..11}`, `mlp`."""
        folded = self._modules.get(path, path)
        return tuple(folded.split("/")) if folded else (NO_MODULE,)


def place(buffer: LiveBuffer) -> StackFrame | None:
    """The call whose line is the buffer's `source`; None where it has no source."""
    if not buffer.source:
        return None
    file, _, line = buffer.source.rpartition(":")
    found = (each for each in reversed(buffer.stack) if (each.file, str(each.line)) == (file, line))
    return next(found, None) or StackFrame(file, "", int(line), is_own=True)


def array_name(buffer: LiveBuffer) -> str:
    """What stands below the operation: `f32[8,1024], activations`."""
    return f"{array_type(buffer.dtype, buffer.shape)}, {buffer.category.value}"


def function_name(frame: StackFrame) -> str:
    """`evaluate.loss`; Python says `evaluate.<locals>.loss`."""
    return frame.function.replace(".<locals>", "")


def grouped(weighted: Weighted) -> list[tuple[str, Weighted]]:
    """What begins with the same name, by that name and without it, largest first; what has ended is left out."""
    groups: dict[str, list[tuple[Path, int]]] = {}
    for path, size_bytes in weighted:
        if path:
            groups.setdefault(path[0], []).append((path[1:], size_bytes))
    return sorted(groups.items(), key=lambda group: -total_bytes(group[1]))


def total_bytes(weighted: Weighted) -> int:
    """The bytes of all paths together."""
    return sum(size_bytes for _, size_bytes in weighted)
