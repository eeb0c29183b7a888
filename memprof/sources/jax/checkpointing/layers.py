"""The user's functions to put checkpoints around: the functions that make the blocks of a differentiated function.

JAX records for each equation the calls that led to it. The layer of a block is the innermost function that makes nearly
all of its bytes.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from jax.extend import core

from memprof.sources.jax.checkpointing.blocks import find_repeated, is_loop, made_bytes
from memprof.sources.jax.tracing import jit_adapter

_NEARLY_ALL = 0.9  # of the bytes of a block; an addition to its result may lie outside the function
# Frameworks that call the user's layers.
_FRAMEWORKS = ("flax", "equinox", "haiku", "keras", "penzai")
_OURS = Path(__file__).parents[3]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A function of the user.

    Attributes:
        name: its qualified name: `Block.__call__`, `make_step.<locals>.block`.
        file, line: the place of its first equation.
        count: the number of its runs in a step.
        is_loop: it is the body of a scan.
    """

    name: str
    file: str
    line: int
    count: int
    is_loop: bool

    @property
    def own_name(self) -> str:
        """Its name in the code around it."""
        return self.name.rpartition(".")[2]

    @property
    def is_local(self) -> bool:
        """Whether it is defined within a function."""
        return self.name.rpartition(".")[0].endswith("<locals>")


def layers_of(closed: core.ClosedJaxpr) -> list[Layer]:
    """Return the functions that make the blocks of a function without calls.

    Returns:
        The layers; empty if a block is not made by a single named function.
    """
    repeated = find_repeated(closed.jaxpr)
    found: list[Layer | None] = []
    if repeated is None:
        for each in filter(is_loop, closed.jaxpr.eqns):
            body = list(jit_adapter.all_equations(each.params["jaxpr"].jaxpr))
            around = [call[:2] for call in jit_adapter.calls_to(each)]
            found.append(_layer(body, count=int(each.params["length"]), around=around, is_loop=True))
    else:
        equations = closed.jaxpr.eqns[repeated.start : repeated.start + repeated.length]
        found.append(_layer(equations, count=repeated.count, around=[], is_loop=False))
    named = [each for each in found if each is not None and each.own_name.isidentifier()]
    return named if len(named) == len(found) else []


@contextmanager
def calls_counted() -> Iterator[Counter[tuple[str, str]]]:
    """Count the calls of each function in this thread, by its qualified name and its file."""
    calls: Counter[tuple[str, str]] = Counter()
    before = sys.getprofile()

    def count(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            code = frame.f_code
            calls[getattr(code, "co_qualname", code.co_name), code.co_filename] += 1

    sys.setprofile(count)
    try:
        yield calls
    finally:
        sys.setprofile(before)


def _layer(equations: Sequence[Any], *, count: int, around: Sequence[tuple[str, str]], is_loop: bool) -> Layer | None:
    """Return the innermost function that makes nearly all bytes of some equations.

    Args:
        around: the functions that call a loop; they are not its body.
    """
    chains = [(of_user(jit_adapter.calls_to(each)), made_bytes(each.outvars)) for each in equations]
    total, depth, found = sum(size for _, size in chains), 0, None
    while True:
        sizes: Counter[tuple[str, str]] = Counter()
        for calls, size in chains:
            if len(calls) > depth:
                sizes[calls[depth][:2]] += size
        if not sizes or sizes.most_common(1)[0][1] < _NEARLY_ALL * total:
            break
        ((function, _),) = sizes.most_common(1)
        chains = [(calls, size) for calls, size in chains if len(calls) > depth and calls[depth][:2] == function]
        if function not in around:
            found = Layer(
                name=function[0],
                file=function[1],
                line=min(calls[depth][2] for calls, _ in chains),
                count=count,
                is_loop=is_loop,
            )
        depth += 1
    return found


def of_user(calls: Sequence[tuple[str, str, int]]) -> tuple[tuple[str, str, int], ...]:
    """Return the calls of functions that belong to no framework."""
    return tuple(each for each in calls if not _is_of_framework(each[1]))


def _is_of_framework(file: str) -> bool:
    path = Path(file)
    if path.is_relative_to(_OURS):
        return True
    start = max((n for n, part in enumerate(path.parts) if part in ("site-packages", "dist-packages")), default=None)
    return start is not None and path.parts[start + 1] in _FRAMEWORKS
