"""Functions with checkpoints around their blocks: repeated layers, or the bodies of scans."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name
from jax.extend import core

from memprof.analysis.records.checkpoints import LAYER_INPUT, Checkpoints, Signature, enough_for_groups
from memprof.sources.jax.checkpointing.block_programs import carried_inputs, equations_as_function
from memprof.sources.jax.checkpointing.blocks import (
    CALLS,
    Repeated,
    equations_in_calls,
    find_repeated,
    inner_loops,
    is_loop,
)
from memprof.sources.jax.checkpointing.evaluation import (
    Flat,
    Rule,
    as_function,
    bind,
    evaluated,
    inlined,
    value_of,
    without_calls,
    without_checkpoints,
)
from memprof.sources.jax.checkpointing.policies import Policy, input_signature, policy_of
from memprof.sources.jax.checkpointing.scan_in_groups import scan_in_groups
from memprof.sources.jax.tracing import jit_adapter


def with_checkpoints(closed: core.ClosedJaxpr, checkpoints: Checkpoints | Policy) -> Flat:
    """Return the same function with `jax.checkpoint` around each of its blocks.

    Args:
        checkpoints: the results that each block saves, or a policy for all blocks. Iterations of a scan are blocks; the
            function's own checkpoints outside of them stay.
    """
    inside = without_calls(closed)
    repeated = find_repeated(inside.jaxpr)
    if repeated is not None:
        return _with_checkpointed_layers(inside, repeated, checkpoints)

    rule = _on_loops(lambda loop, values: _run_loop(loop, values, checkpoints))
    return lambda *args: evaluated(closed, args, rule)


def _on_loops(run: Callable[[Any, list[Any]], list[Any]]) -> Rule:
    """Return a rule that runs scans in another way, also those within calls; other calls stay, such as checkpoints."""

    def rule(equation: Any, values: list[Any]) -> list[Any] | None:
        if is_loop(equation):
            return run(equation, values)
        has_loops = equation.primitive.name in CALLS and any(
            is_loop(each) for jaxpr in core.jaxprs_in_params(equation.params) for each in equations_in_calls(jaxpr)
        )
        return inlined(equation, values, rule) if has_loops else None

    return rule


def _policy_at(number: int, checkpoints: Checkpoints | Policy) -> Policy | None:
    """Return the policy of the block with this number; None if it has no checkpoint."""
    if not isinstance(checkpoints, Checkpoints):
        return checkpoints
    kept = checkpoints.kept_by(number)
    return None if kept is None else policy_of(kept, checkpoints.offloaded)


def _with_checkpointed_layers(closed: core.ClosedJaxpr, repeated: Repeated, checkpoints: Checkpoints | Policy) -> Flat:
    """Return a function with checkpoints around its repeated equations, alone or in groups."""
    jaxpr = closed.jaxpr
    number_at = {start: number for number, start in enumerate(repeated.starts())}
    size = checkpoints.group_size if isinstance(checkpoints, Checkpoints) else None
    num_in_group = 1 if size is None or not enough_for_groups(repeated.count, size) else size

    def evaluate(*args: Any) -> list[Any]:
        known: dict[Any, Any] = dict(zip(jaxpr.constvars, closed.consts, strict=True))
        known.update(zip(jaxpr.invars, args, strict=True))
        place = 0
        while place < len(jaxpr.eqns):
            policy = _policy_at(number_at[place], checkpoints) if place in number_at else None
            if policy is None:
                bind(jaxpr.eqns[place], known, jaxpr.eqns[place].params)
                place += 1
            else:
                num_at_once = min(num_in_group, repeated.count - number_at[place])
                place = _run_group(jaxpr, place, repeated, policy, known, num_at_once)
        return [value_of(atom, known) for atom in jaxpr.outvars]

    return evaluate


def _run_group(
    jaxpr: core.Jaxpr, start: int, repeated: Repeated, policy: Policy, known: dict[Any, Any], count: int
) -> int:
    """Evaluate some repetitions under a checkpoint each, and another one around them that saves only their inputs.

    Returns:
        The number of the equation after them.
    """
    if count == 1:
        return _run_layer(jaxpr, start, repeated, policy, known)
    stop = start + count * repeated.length
    _, inputs, outputs = equations_as_function(jaxpr, start, stop - start)

    def run(*args: Any) -> list[Any]:
        inner, place = dict(zip(inputs, args, strict=True)), start
        while place < stop:
            place = _run_layer(jaxpr, place, repeated, policy, inner)
        return [inner[var] for var in outputs]

    known.update(zip(outputs, jax.checkpoint(run)(*[known[var] for var in inputs]), strict=True))
    return stop


def _run_layer(jaxpr: core.Jaxpr, start: int, repeated: Repeated, policy: Policy, known: dict[Any, Any]) -> int:
    """Evaluate one repetition under a checkpoint. Return the number of the equation after it."""
    run, inputs, outputs = equations_as_function(jaxpr, start, repeated.length)
    results = jax.checkpoint(run, policy=policy)(*[known[var] for var in inputs])
    known.update(zip(outputs, results, strict=True))
    return start + repeated.length


def _run_loop(equation: Any, values: list[Any], checkpoints: Checkpoints | Policy) -> list[Any]:
    """Evaluate a scan with a checkpointed body."""
    policy = _policy_at(0, checkpoints)
    assert policy is not None  # no checkpoints are without one for the first blocks
    if not isinstance(checkpoints, Checkpoints):
        return _bound(equation, values, _checkpointed_body(equation, policy))
    size, num_first = checkpoints.group_size, checkpoints.num_first
    if checkpoints.offloaded or inner_loops(equation):
        params = _checkpointed_body(equation, policy, checkpoints.offloaded, as_group=size is not None)
        return _bound(equation, values, params)
    if size is not None:
        return _run_loop_in_groups(equation, values, policy, size)
    length = int(equation.params["length"])
    if num_first is not None and num_first < length:
        return _run_loop_in_two(equation, values, num_first, policy, _policy_at(num_first, checkpoints))
    return _bound(equation, values, _checkpointed_body(equation, policy))


def _bound(equation: Any, values: list[Any], params: dict[str, Any]) -> list[Any]:
    return list(jit_adapter.bound(equation, values, params))


def _run_loop_in_two(
    equation: Any, values: list[Any], num_first: int, policy: Policy, rest: Policy | None
) -> list[Any]:
    """Evaluate a scan in two parts: the last iterations have another policy, or no checkpoint."""
    params, length = equation.params, int(equation.params["length"])
    consts, carry, arrays = _scan_inputs(equation, values)
    is_reversed = params["reverse"]
    spans = (
        [(length - num_first, length), (0, length - num_first)]
        if is_reversed
        else [(0, num_first), (num_first, length)]
    )
    parts: list[list[Any]] = []
    for (start, stop), each in zip(spans, (policy, rest), strict=True):
        inner = params if each is None else _checkpointed_body(equation, each)
        rows = [jax.lax.slice_in_dim(array, start, stop) for array in arrays]
        results = _bound(equation, [*consts, *carry, *rows], {**inner, "length": stop - start})
        parts.append(results[len(carry) :])
        carry = results[: len(carry)]
    if is_reversed:
        parts.reverse()
    return [*carry, *(jax.lax.concatenate(each, 0) for each in zip(*parts, strict=True))]


def _run_loop_in_groups(equation: Any, values: list[Any], policy: Policy, size: int) -> list[Any]:
    """Evaluate a scan with a checkpointed body, with another checkpoint around each group of iterations."""
    params = _checkpointed_body(equation, policy)
    consts, carry, rows = _scan_inputs(equation, values)

    def body(carry: list[Any], row: list[Any]) -> tuple[list[Any], list[Any]]:
        results = as_function(params["jaxpr"])(*consts, *carry, *row)
        return results[: len(carry)], results[len(carry) :]

    options = {"length": int(params["length"]), "reverse": params["reverse"], "unroll": params["unroll"]}
    carry, stacked = scan_in_groups(body, carry, rows, size=size, **options)
    return [*carry, *stacked]


def _scan_inputs(equation: Any, values: list[Any]) -> tuple[list[Any], list[Any], list[Any]]:
    """Return the constants of a scan, its carry, and the arrays that it scans over."""
    num_consts, num_carried = jit_adapter.scan_layout(equation)
    end = num_consts + num_carried
    return values[:num_consts], values[num_consts:end], values[end:]


def _checkpointed_body(
    equation: Any, policy: Policy, offloaded: Collection[Signature] = frozenset(), *, as_group: bool = False
) -> dict[str, Any]:
    """Return the parameters of a scan with a checkpointed body. CSE cannot undo a checkpoint inside a scan.

    If the body consists of other scans, their bodies are checkpointed instead. The jits in a body stay: XLA would lay
    out an inlined body differently from the user's code under a checkpoint.

    Args:
        as_group: whether a body of other scans has another checkpoint around it, which saves only its inputs.
    """
    if inner_loops(equation):
        return _with_checkpointed_scans(equation, policy, offloaded, as_group=as_group)
    body = without_checkpoints(equation.params["jaxpr"])
    carried = carried_inputs(equation)

    def named(*args: Any) -> list[Any]:
        """Evaluate the body; name the inputs that are offloaded, so that the policy is asked about them."""
        inputs = [
            checkpoint_name(each, LAYER_INPUT) if place in carried and input_signature(each) in offloaded else each
            for place, each in enumerate(args)
        ]
        return as_function(body)(*inputs)

    checkpointed = jax.checkpoint(named, policy=policy, prevent_cse=False)
    return {**equation.params, "jaxpr": jax.make_jaxpr(checkpointed)(*body.in_avals)}


def _with_checkpointed_scans(
    equation: Any, policy: Policy, offloaded: Collection[Signature], *, as_group: bool
) -> dict[str, Any]:
    """Return the parameters of a scan with checkpoints around the bodies of the scans in its body."""
    body = without_checkpoints(equation.params["jaxpr"])

    def run_loop(inner: Any, values: list[Any]) -> list[Any]:
        return _bound(inner, values, _checkpointed_body(inner, policy, offloaded, as_group=as_group))

    def run(*args: Any) -> list[Any]:
        return evaluated(body, args, _on_loops(run_loop))

    changed = jax.checkpoint(run, prevent_cse=False) if as_group else run
    return {**equation.params, "jaxpr": jax.make_jaxpr(changed)(*body.in_avals)}
