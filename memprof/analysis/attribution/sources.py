"""The source of an operation: the line of the user's own code, the library's line beneath it, and the stack.

The user's own code is all code in the working folder or the script's folder, and all code that is not installed, that
is, neither in a `site-packages` folder nor in the standard library. A list of library names would never be complete.

Most lines of a library are not informative (`named_axes.py` maps every operation of a penzai model over its axes). The
most informative line is the innermost one before the library's shared helpers.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

from memprof.analysis.hlo.program import Frame, Instruction, Program
from memprof.analysis.records.capture import CodeFolders
from memprof.analysis.records.live_buffer import StackFrame

_INSTALLED = re.compile(r".*[/\\](?:site|dist)-packages[/\\](.*)")
_STANDARD_LIBRARY = re.compile(r"[/\\]lib[/\\]python3\.\d+[/\\](?!(?:site|dist)-packages)")
# JAX's lines show how an operation is made, not which operation it is.
_JAX = re.compile(r"^(?:jax|jaxlib)[/\\]")
# Code without a file, typed by the user. Libraries generate code under other names in angle brackets (`<string>`).
_TYPED = re.compile(r"^<(?:stdin|ipython-input|cell)")
# memprof's own machinery, which calls the step. Its workloads count as user code.
_MACHINERY = re.compile(
    r"[/\\]memprof[/\\](?:capture|sources|profiler_cli|analysis|workloads[/\\]user)[/\\]|[/\\]memprof[/\\]api\.py$"
)
_WORKLOAD = re.compile(r"[/\\]memprof[/\\]workloads[/\\]")
# A library line that at least this many other library lines call is a shared helper.
_CALLED_FROM_EVERYWHERE = 3
_DEEPEST = 100  # calls kept per stack; recursive code has more, but they add little


class _Kind(Enum):
    """The owner of a frame's code."""

    USER = "user"
    LIBRARY = "library"
    JAX = "jax"
    NOBODY = "nobody"  # the standard library, and code that a library generated
    MEMPROF = "memprof"


@dataclass(frozen=True, slots=True)
class SourcePlace:
    """The source of an operation. Each line is `file.py:12` or empty.

    Attributes:
        user: the innermost line of the user's own code; if the program shows none, a line of a library.
        library: the most informative line of a library that this line calls; empty if it calls JAX directly.
        stack: the step's calls, outermost first, without the callers of the step.
    """

    user: str
    library: str
    stack: tuple[StackFrame, ...] = field(default=(), compare=False)


class Sources:
    """Looks up source lines, with a cache by stack trace."""

    def __init__(self, program: Program, folders: CodeFolders | None = None) -> None:
        """Args: folders: the folders of the user's code at the time of the capture; None if not recorded."""
        self._program = program
        self._folders = folders or CodeFolders()
        self._kinds: dict[str, _Kind] = {}
        self._cache: dict[int, SourcePlace] = {}
        self._callers = self._library_callers()

    def lines(self, instruction: Instruction) -> SourcePlace:
        """Return the user's line, and the library's line beneath it.

        A file of an installed package is shown by its path in the package (`flax/linen/linear.py`), a notebook cell by
        its name (`Cell In[3]`), any other file by its full path.
        """
        key = instruction.stack_frame_id
        if key == 0:
            return self._find(self._program.stack(instruction))
        if key not in self._cache:
            self._cache[key] = self._find(self._program.stack(instruction))
        return self._cache[key]

    def _find(self, stack: Sequence[Frame]) -> SourcePlace:
        """Args: stack: innermost frame first."""
        of_step = [(frame, self._kind(frame.file)) for frame in self._of_step(stack)]
        calls = tuple(
            StackFrame(self._shown_file(frame), frame.function, frame.line, kind is _Kind.USER)
            for frame, kind in reversed(of_step[:_DEEPEST])
        )
        beneath: list[Frame] = []
        for frame, kind in of_step:
            if kind is _Kind.USER:
                return SourcePlace(self._line(frame), self._library_line(beneath[::-1]), calls)
            if kind is _Kind.LIBRARY:
                beneath.append(frame)
        frames = beneath or stack
        return SourcePlace(self._line(frames[0]) if frames else "", "", calls)

    def _of_step(self, stack: Sequence[Frame]) -> Iterator[Frame]:
        """Yield the frames of the step, without its callers."""
        for place, frame in enumerate(stack):
            if self._kind(frame.file) is _Kind.MEMPROF and place:
                return
            yield frame

    def _library_line(self, frames: Sequence[Frame]) -> str:
        """Return the innermost line that is not a shared helper. Args: frames: library frames, outermost first."""
        line = ""
        for frame in frames:
            if line and len(self._callers[frame.file, frame.line]) >= _CALLED_FROM_EVERYWHERE:
                break
            line = self._line(frame)
        return line

    def _library_callers(self) -> dict[tuple[str, int], set[tuple[str, int]]]:
        """Return the library lines that call each library line."""
        callers: dict[tuple[str, int], set[tuple[str, int]]] = defaultdict(set)
        for frame, parent in self._program.frames:
            if 0 < parent <= len(self._program.frames):
                caller = self._program.frames[parent - 1][0]
                if self._kind(frame.file) is self._kind(caller.file) is _Kind.LIBRARY:
                    callers[frame.file, frame.line].add((caller.file, caller.line))
        return callers

    def _line(self, frame: Frame) -> str:
        return f"{self._shown_file(frame)}:{frame.line}"

    def _shown_file(self, frame: Frame) -> str:
        installed = _INSTALLED.match(frame.file)
        return installed.group(1) if installed else self._folders.cells.get(frame.file, frame.file)

    def _kind(self, file: str) -> _Kind:
        if file not in self._kinds:
            self._kinds[file] = _kind_of(file, self._folders)
        return self._kinds[file]


def call_of(file: str, function: str, line: int) -> StackFrame:
    """Return the frame of a call that is known by its names alone, with its file as reports show it."""
    installed = _INSTALLED.match(file)
    is_own = _kind_of(file, CodeFolders()) is _Kind.USER
    return StackFrame(installed.group(1) if installed else file, function, line, is_own)


def _kind_of(file: str, folders: CodeFolders) -> _Kind:
    if file.startswith("<"):
        return _Kind.USER if _TYPED.match(file) else _Kind.NOBODY
    if _MACHINERY.search(file):
        return _Kind.MEMPROF
    if _WORKLOAD.search(file):
        return _Kind.USER
    installed = _INSTALLED.match(file)
    if any(_lies_in(file, folder) and not _INSTALLED.match(file[len(folder) :]) for folder in folders.user):
        return _Kind.USER
    if installed:
        return _Kind.JAX if _JAX.match(installed.group(1)) else _Kind.LIBRARY
    if _STANDARD_LIBRARY.search(file) or any(_lies_in(file, folder) for folder in folders.standard_library):
        return _Kind.NOBODY
    return _Kind.USER


def _lies_in(file: str, folder: str) -> bool:
    return file.startswith(folder) and file[len(folder) : len(folder) + 1] in ("/", "\\")
