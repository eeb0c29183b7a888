"""The line of the user's own code that an operation comes from."""

from __future__ import annotations

import re

from memprof.analysis.program import Frame, Instruction, Program

# Frames of these are machinery, wherever they are installed. Whatever else is installed may be the user's model.
_LIBRARIES = frozenset(
    "jax jaxlib flax optax haiku equinox chex numpy jaxtyping orbax diffrax optimistix lineax einops distrax".split()
)
_INSTALLED = re.compile(r".*[/\\](?:site|dist)-packages[/\\](.*)")
_STANDARD_LIBRARY = re.compile(r"[/\\]lib[/\\]python3\.\d+[/\\](?!(?:site|dist)-packages)")
# memprof's own machinery around the user's function; its workloads are models like anybody's.
_MACHINERY = re.compile(r"[/\\]memprof[/\\](?:capture|profiler_cli|analysis|workloads[/\\]user)[/\\]")


class Sources:
    """Looks up source lines, keeping what it found per stack trace."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._cache: dict[int, str] = {}

    def line(self, instruction: Instruction) -> str:
        """`file.py:12`, the innermost frame outside libraries; empty where the program does not tell.

        Where every frame is a library's, the innermost of them. A file of an installed package is given by its path in
        the package (`memprof/workloads/models/mlp.py`), any other by its full path.
        """
        key = instruction.stack_frame_id
        if key == 0:
            return self._find(instruction)
        if key not in self._cache:
            self._cache[key] = self._find(instruction)
        return self._cache[key]

    def _find(self, instruction: Instruction) -> str:
        stack = self._program.stack(instruction)
        if not stack:
            return ""
        frame = next((frame for frame in stack if not _is_library(frame)), stack[0])
        installed = _INSTALLED.match(frame.file)
        return f"{installed.group(1) if installed else frame.file}:{frame.line}"


def _is_library(frame: Frame) -> bool:
    if frame.file.startswith("<") or _STANDARD_LIBRARY.search(frame.file) or _MACHINERY.search(frame.file):
        return True
    installed = _INSTALLED.match(frame.file)
    return installed is not None and re.split(r"[/\\]", installed.group(1))[0] in _LIBRARIES
