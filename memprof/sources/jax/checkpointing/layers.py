"""Find user functions to put checkpoints around: they make the blocks, or large parts, of a differentiated function.

JAX records the call stack of each equation. The layer of a block is the innermost function that makes nearly all of its
bytes. Another function that makes many bytes may be a better place, repeated or not.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import Any

from jax.extend import core

from memprof.sources.jax.checkpointing.blocks import (
    block_loops,
    differentiated_equations,
    find_repeated,
    is_loop,
    made_bytes,
)
from memprof.sources.jax.tracing import jit_adapter

_NEARLY_ALL = 0.9  # of the bytes of a block; an addition to its result may be outside the function
_LEAST_SHARE = 0.1  # of the bytes that are made; a checkpoint around a smaller part saves too little
# Frameworks that call the user's layers.
_FRAMEWORKS = ("flax", "equinox", "haiku", "keras", "penzai")
_OURS = Path(__file__).parents[3]

_Calls = tuple[tuple[str, str, int], ...]  # names, files and lines of functions, the outermost first


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A function of the user.

    Attributes:
        name: its qualified name: `Block.__call__`, `make_step.<locals>.block`.
        file, line: the place of its first equation.
        count: the number of its runs in a step.
        is_loop: whether it is the body of a scan.
        around: the functions around it that also make one block each, or one body of a scan, the innermost first.
        callers: name and file of each caller that accounts for nearly all of its bytes, if known.
        is_in_haiku: whether it runs within `hk.transform`, where it may make parameters.
    """

    name: str
    file: str
    line: int
    count: int
    is_loop: bool
    around: tuple[Layer, ...] = field(default=(), compare=False)
    callers: frozenset[tuple[str, str]] = field(default_factory=frozenset, compare=False)
    is_in_haiku: bool = field(default=False, compare=False)

    @property
    def key(self) -> tuple[str, str]:
        """Its name and file, which identify it."""
        return self.name, self.file

    @property
    def title(self) -> str:
        """Its name in a sentence: `Block`, `rbf`."""
        return self.name.rpartition("<locals>.")[2].removesuffix(".__call__")

    @property
    def from_outermost(self) -> tuple[Layer, ...]:
        """It and the functions around it, the outermost first: for a scan, this is the body itself."""
        return (*reversed(self.around), self)

    @property
    def place(self) -> str:
        """Its title, file and line; for the body of a scan, those of its outermost function."""
        layer = self.from_outermost[0] if self.is_loop else self
        return f"{layer.title} at {Path(layer.file).name}:{layer.line}"

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
        for each in block_loops(closed.jaxpr):
            inside = _with_calls(each.equation.params["jaxpr"].jaxpr)
            body = [(calls, made_bytes(inner.outvars)) for inner, calls in inside]
            around = [call[:2] for call in jit_adapter.calls_to(each.equation)]
            found.append(_layer(body, count=each.num_runs * each.length, around=around, is_loop=True))
    else:
        flags = differentiated_equations(closed.jaxpr)
        block = slice(repeated.start, repeated.start + repeated.length)
        equations = [
            (of_user(jit_adapter.calls_to(each)), made_bytes(each.outvars))
            for each, is_reached in zip(closed.jaxpr.eqns[block], flags[block], strict=True)
            if is_reached
        ]
        found.append(_layer(equations, count=repeated.count, around=[], is_loop=False))
    return _with_haiku([each for each in found if each is not None], closed) if None not in found else []


def large_functions(closed: core.ClosedJaxpr) -> list[Layer]:
    """Return the functions that make many bytes for the backward pass, largest first.

    A function whose bytes are nearly all made by one that it calls is left out, because a checkpoint around the inner
    one keeps more of what separates its calls.
    """
    sizes: Counter[tuple[str, str]] = Counter()
    inner: dict[tuple[str, str], Counter[tuple[str, str]]] = defaultdict(Counter)
    lines: dict[tuple[str, str], int] = {}
    bytes_by_calls = list(_bytes_by_calls(closed.jaxpr))
    for calls, size in bytes_by_calls:
        chain: list[tuple[str, str]] = []
        for name, file, line in calls:
            function = (name, file)
            if function in chain:  # it calls itself
                continue
            for caller in chain:
                inner[caller][function] += size
            chain.append(function)
            sizes[function] += size
            lines[function] = min(line, lines.get(function, line))
    total = sum(size for _, size in bytes_by_calls)

    def callers_of(function: tuple[str, str]) -> frozenset[tuple[str, str]]:
        least = _NEARLY_ALL * sizes[function]
        return frozenset(caller for caller, called in inner.items() if called[function] >= least)

    found = [
        Layer(name=name, file=file, line=lines[name, file], count=1, is_loop=False, callers=callers_of((name, file)))
        for (name, file), size in sizes.most_common()
        if size >= _LEAST_SHARE * total
        and not any(each >= _NEARLY_ALL * size for each in inner[name, file].values())
        and name.rpartition(".")[2].isidentifier()
    ]
    return _with_haiku(found, closed)


def _with_haiku(layers: Sequence[Layer], closed: core.ClosedJaxpr) -> list[Layer]:
    """Return the layers of a function, and for each whether it runs within `hk.transform`."""
    inside: set[tuple[str, str]] = set()
    if "haiku" in sys.modules:
        for equation in jit_adapter.all_equations(closed.jaxpr):
            calls = jit_adapter.calls_to(equation)
            first = next((number for number, call in enumerate(calls) if _framework_of(call[1]) == "haiku"), len(calls))
            inside.update(call[:2] for call in calls[first:])

    def marked(layer: Layer) -> Layer:
        return replace(layer, around=tuple(map(marked, layer.around)), is_in_haiku=layer.key in inside)

    return [*map(marked, layers)]


def _bytes_by_calls(jaxpr: core.Jaxpr) -> Iterator[tuple[_Calls, int]]:
    """Yield the user's call stack of each differentiated equation, including those in scans, and its bytes."""
    for equation, is_reached in zip(jaxpr.eqns, differentiated_equations(jaxpr), strict=True):
        if is_reached and is_loop(equation):
            inside = _with_calls(equation.params["jaxpr"].jaxpr)
            yield from ((calls, int(equation.params["length"]) * made_bytes(each.outvars)) for each, calls in inside)
        elif is_reached:
            yield of_user(jit_adapter.calls_to(equation)), made_bytes(equation.outvars)


def _with_calls(jaxpr: core.Jaxpr, around: _Calls = ()) -> Iterator[tuple[Any, _Calls]]:
    """Yield the equations of a jaxpr and of all jaxprs inside it, with the user's call stack of each.

    JAX records the calls from the function that it traces, which it may trace once for several callers. So an equation
    within a jit, a checkpoint or a scan has the call stack of that one, and then its own.

    Args:
        around: the call stack of the jaxpr.
    """
    for equation in jaxpr.eqns:
        own = of_user(jit_adapter.calls_to(equation))
        calls = own if own[: len(around)] == around else around + own
        yield equation, calls
        for inner in core.jaxprs_in_params(equation.params):
            yield from _with_calls(inner, calls)


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


def _layer(
    chains: Sequence[tuple[_Calls, int]], *, count: int, around: Sequence[tuple[str, str]], is_loop: bool
) -> Layer | None:
    """Return the innermost function that makes nearly all bytes of some equations; None if it has no name.

    Args:
        chains: the user's call stack of each equation, and the bytes that it makes.
        around: the functions that call a loop; they are not its body.
    """
    total, depth = sum(size for _, size in chains), 0
    found: list[Layer] = []
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
            line = min(calls[depth][2] for calls, _ in chains)
            found.append(Layer(name=function[0], file=function[1], line=line, count=count, is_loop=is_loop))
        depth += 1
    named = [each for each in reversed(found) if each.own_name.isidentifier()]
    return replace(named[0], around=tuple(named[1:])) if named and named[0] is found[-1] else None


def of_user(calls: _Calls) -> _Calls:
    """Return a call stack without frames of frameworks and memprof."""
    return tuple(each for each in calls if not _is_of_framework(each[1]))


@lru_cache
def _is_of_framework(file: str) -> bool:
    return Path(file).is_relative_to(_OURS) or _framework_of(file) in _FRAMEWORKS


@lru_cache
def _framework_of(file: str) -> str:
    """Return the installed package that a file belongs to; empty if it is not installed."""
    parts = Path(file).parts
    start = max((n for n, part in enumerate(parts) if part in ("site-packages", "dist-packages")), default=None)
    return "" if start is None else parts[start + 1]
