"""Floating-point operations of a traced step: its matrix products and convolutions.

Counted in the jaxpr, before XLA rewrites the program into library calls whose sizes are no longer visible. A product of
[b, m, k] by [b, k, n] counts 2·b·m·k·n, as everywhere in the literature (Chowdhery et al. 2022, PaLM, appendix B). A
`scan` counts its body as often as it runs; a `while` of unknown length counts it once.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from jax.extend import core


@dataclass(frozen=True, slots=True, kw_only=True)
class Flops:
    """Operations of one step; `recomputed` is the part of `total` that `jax.checkpoint` evaluates again."""

    total: int = 0
    recomputed: int = 0

    def __add__(self, other: Flops) -> Flops:
        return Flops(total=self.total + other.total, recomputed=self.recomputed + other.recomputed)

    def __mul__(self, times: int) -> Flops:
        return Flops(total=self.total * times, recomputed=self.recomputed * times)


def count_flops(jaxpr: Any, *, is_recomputed: bool = False) -> Flops:
    """Count the operations of a jaxpr and of all jaxprs inside it.

    Args:
        jaxpr: a `Jaxpr` or `ClosedJaxpr`.
        is_recomputed: whether it lies inside what `jax.checkpoint` evaluates again.
    """
    jaxpr = jaxpr.jaxpr if isinstance(jaxpr, core.ClosedJaxpr) else jaxpr
    total = Flops()
    for equation in jaxpr.eqns:
        recomputed = is_recomputed or "rematted_computation" in str(equation.source_info.name_stack)
        own = _own_flops(equation)
        if own:
            total += Flops(total=own, recomputed=own if recomputed else 0)
        inner = [count_flops(inner, is_recomputed=recomputed) for inner in _inner_jaxprs(equation)]
        if equation.primitive.name == "cond":  # one branch runs: the most expensive counts
            total += max(inner, key=lambda flops: flops.total)
        else:
            times = equation.params["length"] if equation.primitive.name == "scan" else 1
            for flops in inner:
                total += flops * times
    return total


def _own_flops(equation: Any) -> int:
    if equation.primitive.name == "dot_general":
        ((contracted, _), _) = equation.params["dimension_numbers"]
        lhs = equation.invars[0].aval.shape
        return int(2 * prod(equation.outvars[0].aval.shape) * prod(lhs[axis] for axis in contracted))
    if equation.primitive.name == "conv_general_dilated":
        kernel = equation.invars[1].aval.shape
        output_feature_axis = equation.params["dimension_numbers"].rhs_spec[0]
        # Each output element sums over the kernel's window and its input features (already divided by the groups).
        return int(2 * prod(equation.outvars[0].aval.shape) * prod(kernel) // kernel[output_feature_axis])
    return 0


def _inner_jaxprs(equation: Any) -> list[Any]:
    inner = []
    for value in equation.params.values():
        for item in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(item, (core.Jaxpr, core.ClosedJaxpr)):
                inner.append(item)
    return inner
