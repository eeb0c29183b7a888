"""The values at a step's optimization barriers, found in the jaxpr.

XLA schedules the operations before it removes the barriers. With jax 0.10.2 the scheduled program still names the
barriers. With jax 0.12.0.1 it does not, so a capture stores the op name and the source lines of each value at a
barrier.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from jax._src import source_info_util
from jax.extend import core

_BARRIER = "optimization_barrier"


def fenced_values(jaxpr: core.ClosedJaxpr) -> Mapping[str, tuple[str, ...]]:
    """Return the values at the barriers of a jaxpr and of the jaxprs inside it.

    Returns:
        All source lines in the tracebacks of the operations that made them, by the end of the op name:
        `{"jvp(Net)/tanh": ("/home/me/model.py:12", "/home/me/train.py:40")}`.
    """
    lines: dict[str, set[str]] = defaultdict(set)
    for name, line in _fenced(jaxpr.jaxpr):
        lines[name].add(line)
    return {name: tuple(sorted(found)) for name, found in sorted(lines.items())}


def _fenced(jaxpr: core.Jaxpr) -> Iterator[tuple[str, str]]:
    makers = _makers(jaxpr)
    for equation in jaxpr.eqns:
        if equation.primitive.name == _BARRIER:
            for made in (makers[id(operand)] for operand in equation.invars if id(operand) in makers):
                name = "/".join(part for part in (str(made[0].source_info.name_stack), made[0].primitive.name) if part)
                for each in made:
                    for frame in source_info_util.user_frames(each.source_info.traceback):
                        yield name, f"{frame.file_name}:{frame.start_line}"
        for inner in core.jaxprs_in_params(equation.params):
            yield from _fenced(inner)


def _makers(jaxpr: core.Jaxpr) -> dict[int, tuple[Any, ...]]:
    """Return the equation that makes each value, and the nested jits around it, by the identity of the value."""
    makers: dict[int, tuple[Any, ...]] = {}
    for equation in jaxpr.eqns:
        if equation.primitive.name == "jit":
            (inner,) = core.jaxprs_in_params(equation.params)
            inside = _makers(inner)
            made = [(*inside.get(id(result), ()), equation) for result in inner.outvars]
        else:
            made = [(equation,)] * len(equation.outvars)
        makers.update(zip(map(id, equation.outvars), made, strict=True))
    return makers
