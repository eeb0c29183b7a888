"""The modules of operations without scopes, from the functions in their stack traces.

Frameworks that write no scopes (Flax NNX, Equinox, plain functions) still call one function inside another. A function
belongs to the common path of all modules whose parameters it reads, directly or in its calls:

    loss ─▶ GPT.__call__ ─▶ Block.__call__ ─▶ Linear.__call__       reads `blocks/0/up`, `blocks/1/up`, ...
                                           ─▶ LayerNorm.__call__    reads `blocks/0/norm`, `blocks/1/norm`, ...

So `Block.__call__` belongs to `blocks/*`, and `loss`, which reads all parameters, belongs to the root. A loop calls the
same line for each of its blocks; the data flow identifies the block.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

from memprof.analysis.attribution.module_paths import Keys
from memprof.analysis.hlo.program import Program

_Call = tuple[int, str, str]  # a function, and the frame that calls it

# JAX's frames show how an operation is made, not its module.
_JAX = re.compile(r"[/\\](?:site|dist)-packages[/\\]jax(?:lib)?[/\\]")
_NUMBER = re.compile(r"\d+$")


class SourceModules:
    """See the module's docstring."""

    def __init__(self, program: Program, read: Iterable[tuple[int, str]]) -> None:
        """Args: read: the stack frame of each operation that reads parameters, with their module."""
        self._frames = program.frames
        self._modules: dict[_Call, set[Keys]] = defaultdict(set)
        self._called: dict[_Call, set[_Call]] = defaultdict(set)
        self._all: set[Keys] = set()
        for frame, module in set(read):
            keys = tuple(module.split("/")) if module else ()
            self._all.add(keys)
            inner: _Call | None = None
            for call in self._calls(frame):
                self._modules[call].add(keys)
                if inner is not None and not _JAX.search(inner[1]):
                    self._called[call].add(inner)
                inner = call
        self._patterns: dict[int, Keys | None] = {}

    def pattern(self, frame: int) -> Keys | None:
        """Return the module path of the innermost function that reads parameters; None if there is no such function.

        A part of the path that differs between blocks ends in `*`.
        """
        if frame not in self._patterns:
            call = next((call for call in self._calls(frame) if call in self._modules), None)
            self._patterns[frame] = None if call is None else self._find_pattern(call)
        return self._patterns[frame]

    def _calls(self, frame: int) -> Iterable[_Call]:
        """Yield the functions of a stack trace, innermost first."""
        for _ in self._frames:
            if not 0 < frame <= len(self._frames):
                return
            found, parent = self._frames[frame - 1]
            yield parent, found.file, found.function
            frame = parent

    def _find_pattern(self, call: _Call) -> Keys:
        modules = self._modules[call]
        if modules == self._all and any(self._modules[inner] == modules for inner in self._called[call]):
            return ()  # it contains the whole model, as a loss or a step does
        pattern: Keys = ()
        for parts in zip(*modules, strict=False):
            distinct = set(parts)
            stems = {_NUMBER.sub("*", part) for part in distinct}
            if len(stems) > 1:
                break
            pattern = (*pattern, stems.pop() if len(distinct) > 1 else parts[0])
        return pattern


def instance(pattern: Keys, modules: Iterable[str]) -> str | None:
    """Return the first of the modules that matches a pattern, cut to the pattern's depth; None if no module matches."""
    if not any(part.endswith("*") for part in pattern):
        return "/".join(pattern)
    for module in modules:
        keys = tuple(module.split("/"))[: len(pattern)]
        if len(keys) == len(pattern) and all(map(_fits, pattern, keys)):
            return "/".join(keys)
    return None


def _fits(pattern: str, part: str) -> bool:
    return part == pattern or (pattern.endswith("*") and _NUMBER.sub("*", part) == pattern)
