"""Read a JAX op name: the phase of the step, and the scopes around the operation.

JAX names every operation by the transformations and scopes around it, for example
`jit(step)/while/body/transpose(jvp(Transformer))/layers_0/mlp/checkpoint/rematted_computation/up/dot_general`.
XLA joins the names of operations that it merges with `;`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import IntEnum
from functools import lru_cache

BARRIER = "optimization_barrier"  # the primitive, at the end of its op name


class Named(IntEnum):
    """The phases that an op name can show, as bits of a set."""

    NOTHING = 0  # no op name, or an argument's: the compiler inserted the instruction
    FORWARD = 1
    RECOMPUTE = 2
    BACKWARD = 4
    UNPHASED = 8  # an op name without a mark of differentiation: before, after or beside it


# `jvp(` marks the forward pass of a derivative, `transpose(` its backward pass (the transformation, as in
# `transpose(jvp(f))`; the primitive `transpose` has no parenthesis), `rematted_computation` recomputation by
# `jax.checkpoint`.
_MARK = re.compile(r"(?<![^/(])(?:(jvp)\(|(transpose)\(|rematted_computation(?=[/)]|$))")


# The scope in which checkpointed loops of Equinox (also Diffrax, Optimistix and Lineax) differentiate again.
_CHECKPOINTED_LOOP = "/checkpointed-bwd/"


@lru_cache(maxsize=1 << 14)
def named_phase(op_name: str) -> Named:
    """Return the phase that an op name alone shows.

    Of several joined names, the earliest phase counts: if XLA merges an operation of the backward pass with an equal
    one of the forward pass, it uses the value of the forward pass.
    """
    phase = min(map(_single_phase, op_name.split(";")))
    return Named.NOTHING if phase is Named.UNPHASED and "/" not in op_name else phase


def named_phases(op_names: Iterable[str]) -> dict[str, Named]:
    """Return the phase that each op name of a program shows.

    If a program differentiates a gradient in forward mode (`jax.jvp` of `jax.grad`, as in a Hessian-vector product), no
    operation transposes the outer `jvp`; the phases are those of the inner gradient.
    """
    phases = {op_name: named_phase(op_name) for op_name in op_names}
    nested = {op_name: signature for op_name in phases if (signature := _signature(op_name)).startswith("jvp ")}
    if nested:
        transposed = {signature for op_name in phases if (signature := _signature(op_name)).startswith("transpose ")}
        for op_name, signature in nested.items():
            if "transpose" in signature and not any(each.startswith(f"transpose {signature}") for each in transposed):
                phases[op_name] = named_phase(op_name.replace("jvp(", "vmap(", 1))
    return phases


def _single_phase(op_name: str) -> Named:
    """Use the outermost derivative: `jvp(vmap(transpose(jvp(f))))` is the forward pass of a loss on gradients."""
    around, is_checkpointed_loop, inside = op_name.rpartition(_CHECKPOINTED_LOOP)
    if is_checkpointed_loop and _single_phase(around) is Named.BACKWARD:
        return Named.RECOMPUTE if _single_phase(inside) is Named.FORWARD else Named.BACKWARD
    phase = Named.UNPHASED
    num_transposed = 0
    for mark in _MARK.finditer(op_name):
        if mark[1]:
            if phase is Named.UNPHASED:
                return Named.FORWARD
        elif mark[2]:
            phase = Named.BACKWARD
            num_transposed += 1
        elif op_name[mark.start() - 1 : mark.start()] != "(" or num_transposed == 1:
            return (
                Named.RECOMPUTE
            )  # otherwise of the inner gradient: `transpose(jvp(transpose(jvp(rematted_computation))))`
    return phase


@lru_cache(maxsize=1 << 14)
def _signature(op_name: str) -> str:
    """Return the derivatives around an operation, outermost first: `jvp transpose jvp `."""
    marks = _MARK.finditer(op_name.partition(";")[0])
    return "".join([f"{derivative} " for mark in marks if (derivative := mark[1] or mark[2])])


_TRANSFORMED = re.compile(r"^([A-Za-z_]\w*)\((.*)\)$")
_COMPILED = frozenset({"jit", "pjit"})
_COMPILED_APART = re.compile(r"^p?jit\(")
_SCOPE = re.compile(r"^[A-Za-z_]\w*$")
_CLASS = re.compile(r"^[A-Za-z_]\w*(?:\.[A-Za-z_]\w*){2,}$")


def scope_parts(op_name: str) -> tuple[str, ...]:
    """Return the scopes of an op name without JAX's transformations and the final primitive.

    `jit(step)/transpose(jvp(Net))/layers_0/up/dot_general` gives `("step", "Net", "layers_0", "up")`. Flax names a
    method other than `__call__` with a dot (`embedding.attend`): only the module counts.
    """
    return _scope_parts(around(op_name))


@lru_cache(maxsize=1 << 14)
def around(op_name: str) -> str:
    """Return an op name (the first of several) without its primitive: the part that determines its scopes.

    A program has a tenth as many of these as op names, so results about scopes are cached by them.
    """
    return op_name.partition(";")[0].rpartition("/")[0]


@lru_cache(maxsize=1 << 14)
def _scope_parts(scopes: str) -> tuple[str, ...]:
    return tuple([part for part, _ in _scopes(scopes)])


def plain_scopes(op_name: str) -> tuple[str, ...]:
    """Return the scopes of modules and users: no separately compiled functions, no structure of JAX."""
    return _plain_scopes(around(op_name))


@lru_cache(maxsize=1 << 14)
def _plain_scopes(scopes: str) -> tuple[str, ...]:
    return tuple([part for part, is_function in _scopes(scopes) if not is_function and not is_structure(part)])


def num_plain_scopes(op_name: str, num_scopes: int) -> int:
    """Return the number of plain scopes among the first scopes of an op name."""
    scopes = _scopes(around(op_name))[:num_scopes]
    return sum(not is_function and not is_structure(part) for part, is_function in scopes)


def scopes_and_functions(op_name: str) -> tuple[tuple[str, bool], ...]:
    """Return each of the `scope_parts`, and whether it names a function that JAX compiled separately."""
    return _scopes(around(op_name))


@lru_cache(maxsize=1 << 14)
def _scopes(scopes: str) -> tuple[tuple[str, bool], ...]:
    """Return each scope, and whether it names a function that JAX compiled separately."""
    return tuple([scope for scope in map(_scope, scopes.split("/")) if scope[0]])


@lru_cache(maxsize=1 << 14)
def _scope(part: str) -> tuple[str, bool]:
    is_function = False
    while match := _TRANSFORMED.match(part):
        is_function |= match.group(1) in _COMPILED
        part = match.group(2)
    # `embed.attend` is a method of a module; `eqx.nn.Linear` is a class and does not identify the instance.
    return "" if _CLASS.match(part) else part.partition(".")[0], is_function


def outer_plain_scopes(op_name: str) -> tuple[str, ...]:
    """Return the plain scopes around separately compiled functions, without einsum's subscripts.

    These are modules (of a framework, or without parameters: a dropout layer, a tied output layer) and the user's own
    `jax.named_scope`. Scopes inside a compiled function belong to a library.
    """
    return _outer_plain_scopes(around(op_name))


@lru_cache(maxsize=1 << 14)
def _outer_plain_scopes(scopes: str) -> tuple[str, ...]:
    found: list[str] = []
    parts = scopes.split("/")
    while parts and _COMPILED_APART.match(parts[0]):  # functions that hold the whole step
        parts = parts[1:]
    for part, is_function in map(_scope, parts):
        if is_function:
            break
        if _SCOPE.match(part) and not is_structure(part):
            found.append(part)
    return tuple(found)


# Scopes that JAX inserts between those of modules.
_STRUCTURE = frozenset(
    "while body body_pred cond checkpoint rematted_computation closed_call eval_jaxpr remat remat2 shard_map"
    " custom_jvp_call custom_vjp_call core_call".split()
)
_BRANCH = re.compile(r"^branch_\d+_fun$")


@lru_cache(maxsize=1 << 14)
def is_structure(scope: str) -> bool:
    """Whether a scope is JAX's own, for a loop, a branch (`cond/branch_1_fun`) or a checkpoint."""
    return scope in _STRUCTURE or _BRANCH.match(scope) is not None
