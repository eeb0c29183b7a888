"""FLOPs of a traced step: its matrix products and convolutions, by scope.

FLOPs are counted in the jaxpr, before XLA rewrites the program into library calls that hide the sizes. A product of
[b, m, k] by [b, k, n] counts 2·b·m·k·n, as in the literature (Chowdhery et al. 2022, PaLM, appendix B). The body of a
`scan` is multiplied by its trip count; the body of a `while`, whose trip count is unknown, counts once. The sum covers
all devices of a mesh: the body of a `shard_map` is multiplied by the number of devices.
"""

from __future__ import annotations

from collections import Counter
from math import prod
from typing import Any

from jax.extend import core

from memprof.sources.jax.tracing.jit_adapter import all_equations

_BACKWARD, _RECOMPUTED = "transpose(", "rematted_computation"
_CUDNN_ATTENTION = "dot_product_attention_"  # the primitives of `jax.nn.dot_product_attention` (jax 0.10.2 to 0.12)


def count_flops(jaxpr: Any, *, scope: str = "") -> Counter[str]:
    """Count the FLOPs of a jaxpr and of all jaxprs inside it.

    Args:
        jaxpr: a `Jaxpr` or `ClosedJaxpr`.
        scope: the scopes around it, as JAX names them: `transpose(jvp(Transformer))/layers_0`.

    Returns:
        FLOPs by scope. They add up to the FLOPs of the whole step.
    """
    jaxpr = jaxpr.jaxpr if isinstance(jaxpr, core.ClosedJaxpr) else jaxpr
    return sum((flops_of(equation, scope=scope) for equation in jaxpr.eqns), Counter())


def flops_of(equation: Any, *, scope: str = "") -> Counter[str]:
    """Count the FLOPs of an equation in the same way."""
    inside = "/".join(part for part in (scope, str(equation.source_info.name_stack)) if part)
    inner = [count_flops(each, scope=inside) for each in core.jaxprs_in_params(equation.params)]
    if equation.primitive.name == "cond":  # only one branch runs: count the most expensive one
        return max(inner, key=Counter.total)
    times, flops = _times(equation), Counter({inside: _own_flops(equation)})
    for counted in inner:
        flops.update({name: number * times for name, number in counted.items()})
    return flops


def count_entries(jaxpr: Any) -> int:
    """Count the entries of all arrays that a jaxpr and all jaxprs inside it compute, with loops as in `count_flops`."""
    jaxpr = jaxpr.jaxpr if isinstance(jaxpr, core.ClosedJaxpr) else jaxpr
    return sum(
        sum(prod(getattr(var.aval, "shape", ())) for var in each.outvars)
        + _times(each) * sum(map(count_entries, core.jaxprs_in_params(each.params)))
        for each in jaxpr.eqns
    )


def has_backward_pass(jaxpr: core.ClosedJaxpr) -> bool:
    """Whether a jaxpr, or a jaxpr inside it, contains an operation from reverse-mode differentiation."""
    return any(_BACKWARD in str(each.source_info.name_stack) for each in all_equations(jaxpr.jaxpr))


def recomputed_flops(flops: Counter[str]) -> int:
    """Return the FLOPs that `jax.checkpoint` recomputes."""
    return sum(number for scope, number in flops.items() if _RECOMPUTED in scope)


def _times(equation: Any) -> int:
    """Return how often the jaxprs inside an equation run."""
    if equation.primitive.name == "scan":
        return int(equation.params["length"])
    if equation.primitive.name == "shard_map":  # inside, shapes are per device along these axes
        shape = equation.params["mesh"].shape
        return prod(shape[axis] for axis in equation.params["newly_manual_axes"])
    return 1


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
    if equation.primitive.name.startswith(_CUDNN_ATTENTION):
        return _attention_flops(equation)
    return 0


def _attention_flops(equation: Any) -> int:
    """Count the products in cuDNN's attention, which its jaxpr does not show.

    The forward pass has two: scores, and scores by values. The backward pass computes the scores again, and the
    gradients of scores, values, queries and keys (Dao et al. 2022, FlashAttention, algorithm 4).
    """
    query, key, value = (each.aval.shape for each in equation.invars[:3])
    num_keys = key[2] if equation.params["layout"] else key[1]  # [batch, heads, length, size]; 0: length before heads
    products = (3, 2) if "_bwd" in equation.primitive.name else (1, 1)
    of_scores = 2 * prod(query[:-1]) * num_keys
    return int(of_scores * (products[0] * query[-1] + products[1] * value[-1]))
