"""Re-evaluation of jaxprs: without calls, with the names of their operations, and with checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.ad_checkpoint import Offloadable, checkpoint_name
from jax.extend import core

from memprof.analysis.records.checkpoints import LAYER_INPUT, Checkpoints, Signature
from memprof.sources.jax.checkpointing.blocks import (
    CALLS,
    Repeated,
    block_loops,
    equations_in_calls,
    find_repeated,
    inner_loops,
    is_loop,
)
from memprof.sources.jax.checkpointing.scan_in_groups import scan_in_groups
from memprof.sources.jax.tracing import jit_adapter

Flat = Callable[..., list[Any]]
Policy = Callable[..., Any]
_TO_HOST = Offloadable(src="device", dst="pinned_host")


def without_calls(closed: core.ClosedJaxpr) -> core.ClosedJaxpr:
    """Return the same function with its jits and checkpoints inlined.

    A call with shardings for its arguments or results stays.
    """
    return jax.make_jaxpr(lambda *args: evaluated(closed, args, _inlined))(*closed.in_avals)


def without_jits(closed: core.ClosedJaxpr) -> core.ClosedJaxpr:
    """Return the same function with its jits inlined; its checkpoints stay."""

    def rule(equation: Any, values: list[Any]) -> list[Any] | None:
        return None if equation.primitive.name in jit_adapter.CHECKPOINTS else _inlined(equation, values, rule)

    return jax.make_jaxpr(lambda *args: evaluated(closed, args, rule))(*closed.in_avals)


def without_checkpoints(closed: core.ClosedJaxpr) -> core.ClosedJaxpr:
    """Return the same function with its checkpoints, and the jits that contain some, inlined; other jits stay."""

    def rule(equation: Any, values: list[Any]) -> list[Any] | None:
        has_checkpoints = equation.primitive.name in jit_adapter.CHECKPOINTS or any(
            each.primitive.name in jit_adapter.CHECKPOINTS
            for inner in core.jaxprs_in_params(equation.params)
            for each in jit_adapter.all_equations(inner)
        )
        return _inlined(equation, values, rule) if has_checkpoints else None

    return jax.make_jaxpr(lambda *args: evaluated(closed, args, rule))(*closed.in_avals)


def without_rules(closed: core.ClosedJaxpr) -> core.ClosedJaxpr:
    """Return the same function with its jits inlined, and without custom derivatives."""

    def rule(equation: Any, values: list[Any]) -> list[Any] | None:
        if equation.primitive.name in ("custom_jvp_call", "custom_vjp_call"):
            return evaluated(equation.params["call_jaxpr"], values, rule)
        return None if equation.primitive.name in jit_adapter.CHECKPOINTS else _inlined(equation, values, rule)

    return jax.make_jaxpr(lambda *args: evaluated(closed, args, rule))(*closed.in_avals)


def as_function(closed: core.ClosedJaxpr) -> Flat:
    """Return a jaxpr as a function from arrays to a list of arrays."""
    return lambda *args: evaluated(closed, args, _no_rewrite)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockProgram:
    """A block of a function.

    Attributes:
        count: the number of its runs.
        carried: the positions of the inputs that are results of the run before: the carry of a scan, or what the layer
            before returns.
        is_loop: whether it is the body of a scan.
        inner_count: for a scan within another scan, the number of iterations in one run of it; otherwise None.
    """

    closed: core.ClosedJaxpr
    count: int
    carried: Sequence[int] = ()
    is_loop: bool = False
    inner_count: int | None = None


def blocks_of(closed: core.ClosedJaxpr) -> list[BlockProgram]:
    """Return the different blocks of a function without calls."""
    repeated = find_repeated(closed.jaxpr)
    if repeated is None:
        return [
            BlockProgram(
                closed=without_calls(each.equation.params["jaxpr"]),
                count=each.num_runs * each.length,
                carried=carried_inputs(each.equation),
                is_loop=True,
                inner_count=each.length if each.num_runs > 1 else None,
            )
            for each in block_loops(closed.jaxpr)
        ]
    run, inputs, _ = _block(closed.jaxpr, repeated.start, repeated.length)
    avals = [jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in inputs]
    passed_on = _passed_on(closed.jaxpr, repeated)
    carried = [place for place, var in enumerate(inputs) if var in passed_on]
    return [BlockProgram(closed=jax.make_jaxpr(run)(*avals), count=repeated.count, carried=carried)]


def _passed_on(jaxpr: core.Jaxpr, repeated: Repeated) -> set[Any]:
    """Return the variables in whose place the second repetition reads results of the first one."""
    if repeated.count == 1:
        return set()
    first, second = (jaxpr.eqns[start : start + repeated.length] for start in repeated.starts()[:2])
    made = {var for each in first for var in each.outvars}
    return {
        before
        for one, next_one in zip(first, second, strict=True)
        for before, after in zip(one.invars, next_one.invars, strict=True)
        if isinstance(before, core.Var) and isinstance(after, core.Var) and after in made
    }


def with_checkpoints(closed: core.ClosedJaxpr, checkpoints: Checkpoints | Policy) -> Flat:
    """Return the same function with `jax.checkpoint` around each of its blocks.

    Args:
        closed: a jaxpr without calls.
        checkpoints: the results that each block saves, or a policy for all blocks. Iterations of a scan are blocks.
    """
    jaxpr, repeated = closed.jaxpr, find_repeated(closed.jaxpr)
    number_at = {} if repeated is None else {start: number for number, start in enumerate(repeated.starts())}

    def policy_at(number: int) -> Policy | None:
        if not isinstance(checkpoints, Checkpoints):
            return checkpoints
        kept = checkpoints.kept_by(number)
        return None if kept is None else policy_of(kept, checkpoints.offloaded)

    in_loops = policy_at(0)
    assert in_loops is not None
    offloaded = checkpoints.offloaded if isinstance(checkpoints, Checkpoints) else frozenset()
    num_in_group = 1
    if isinstance(checkpoints, Checkpoints) and checkpoints.group_size is not None and repeated is not None:
        num_in_group = checkpoints.group_size if repeated.count >= 2 * checkpoints.group_size else 1

    def evaluate(*args: Any) -> list[Any]:
        known: dict[Any, Any] = dict(zip(jaxpr.constvars, closed.consts, strict=True))
        known.update(zip(jaxpr.invars, args, strict=True))
        place = 0
        while place < len(jaxpr.eqns):
            policy = policy_at(number_at[place]) if place in number_at else None
            if repeated is not None and policy is not None:
                num_at_once = min(num_in_group, repeated.count - number_at[place])
                place = _run_group(jaxpr, place, repeated, policy, known, num_at_once)
                continue
            equation = jaxpr.eqns[place]
            if repeated is None and is_loop(equation):
                num_first, size, rest = None, None, None
                if isinstance(checkpoints, Checkpoints):
                    num_first, size = checkpoints.num_first, checkpoints.group_size
                    rest = policy_at(int(equation.params["length"]))
                if offloaded or inner_loops(equation):
                    params = _checkpointed_loop(equation, in_loops, offloaded, has_groups=size is not None)
                    bind(equation, known, params)
                elif size is not None:
                    _run_loop_in_groups(equation, known, in_loops, size)
                else:
                    _run_loop(equation, known, in_loops, num_first, rest)
            else:
                bind(equation, known, equation.params)
            place += 1
        return [value_of(atom, known) for atom in jaxpr.outvars]

    return evaluate


def signature_of(primitive: Any, avals: Collection[Any], params: Mapping[str, Any]) -> Signature:
    """Return the signature by which a checkpoint policy distinguishes an operation of a block.

    JAX asks a policy for each operation of a checkpointed function whether its results are saved for the backward pass.
    It passes the primitive, the inputs' shapes and dtypes, and the parameters. Operations that agree in these are saved
    together.
    """
    inputs = tuple((tuple(aval.shape), str(aval.dtype)) for aval in avals if hasattr(aval, "dtype"))
    is_input = primitive.name == "name" and params["name"] == LAYER_INPUT
    return Signature(LAYER_INPUT if is_input else primitive.name, inputs, str(params.get("dimension_numbers")))


def input_signature(value: Any) -> Signature:
    """Return the signature of a value that a scan carries into its body, by its shape and dtype."""
    return Signature(LAYER_INPUT, ((tuple(value.shape), str(value.dtype)),), "None")


def policy_of(kept: Collection[Signature], offloaded: Collection[Signature] = ()) -> Policy:
    """Return the policy for `jax.checkpoint` that saves the results of some operations, or moves them to the host."""
    saved, moved = frozenset(kept), frozenset(offloaded)

    def policy(primitive: Any, *avals: Any, **params: Any) -> Any:
        signature = signature_of(primitive, avals, params)
        return _TO_HOST if signature in moved else signature in saved

    return policy


def _run_block(jaxpr: core.Jaxpr, start: int, repeated: Repeated, policy: Policy, known: dict[Any, Any]) -> int:
    """Evaluate one repetition under a checkpoint. Return the number of the equation after it."""
    run, inputs, outputs = _block(jaxpr, start, repeated.length)
    results = jax.checkpoint(run, policy=policy)(*[known[var] for var in inputs])
    known.update(zip(outputs, results, strict=True))
    return start + repeated.length


def _run_group(
    jaxpr: core.Jaxpr, start: int, repeated: Repeated, policy: Policy, known: dict[Any, Any], count: int
) -> int:
    """Evaluate some repetitions under a checkpoint each, and another one around them that saves only their inputs."""
    if count == 1:
        return _run_block(jaxpr, start, repeated, policy, known)
    stop = start + count * repeated.length
    _, inputs, outputs = _block(jaxpr, start, stop - start)

    def run(*args: Any) -> list[Any]:
        inner, place = dict(zip(inputs, args, strict=True)), start
        while place < stop:
            place = _run_block(jaxpr, place, repeated, policy, inner)
        return [inner[var] for var in outputs]

    known.update(zip(outputs, jax.checkpoint(run)(*[known[var] for var in inputs]), strict=True))
    return stop


def _run_loop(equation: Any, known: dict[Any, Any], policy: Policy, num_first: int | None, rest: Policy | None) -> None:
    """Evaluate a scan with a checkpointed body, in two parts if its last iterations have another policy, or none."""
    params = equation.params
    length = int(params["length"])
    if num_first is None or num_first >= length:
        bind(equation, known, _checkpointed_loop(equation, policy))
        return
    consts, carry, arrays = _scan_inputs(equation, known)
    is_reversed = params["reverse"]
    spans = (
        [(length - num_first, length), (0, length - num_first)]
        if is_reversed
        else [(0, num_first), (num_first, length)]
    )
    parts: list[list[Any]] = []
    for (start, stop), each in zip(spans, (policy, rest), strict=True):
        inner = params if each is None else _checkpointed_loop(equation, each)
        rows = [jax.lax.slice_in_dim(array, start, stop) for array in arrays]
        with jit_adapter.name_of(equation):
            results = jit_adapter.bound(equation, [*consts, *carry, *rows], {**inner, "length": stop - start})
        parts.append(results[len(carry) :])
        carry = results[: len(carry)]
    if is_reversed:
        parts.reverse()
    stacked = [jax.lax.concatenate(each, 0) for each in zip(*parts, strict=True)]
    known.update(zip(equation.outvars, [*carry, *stacked], strict=True))


def _scan_inputs(equation: Any, known: dict[Any, Any]) -> tuple[list[Any], list[Any], list[Any]]:
    """Return the constants of a scan, its carry, and the arrays that it scans over."""
    num_consts, num_carried = jit_adapter.scan_layout(equation)
    values = [value_of(atom, known) for atom in equation.invars]
    end = num_consts + num_carried
    return values[:num_consts], values[num_consts:end], values[end:]


def _run_loop_in_groups(equation: Any, known: dict[Any, Any], policy: Policy, size: int) -> None:
    """Evaluate a scan with a checkpointed body, with another checkpoint around each group of iterations."""
    params = _checkpointed_loop(equation, policy)
    consts, carry, rows = _scan_inputs(equation, known)

    def body(carry: list[Any], row: list[Any]) -> tuple[list[Any], list[Any]]:
        results = as_function(params["jaxpr"])(*consts, *carry, *row)
        return results[: len(carry)], results[len(carry) :]

    options = {"length": int(params["length"]), "reverse": params["reverse"], "unroll": params["unroll"]}
    with jit_adapter.name_of(equation):
        carry, stacked = scan_in_groups(body, carry, rows, size=size, **options)
    known.update(zip(equation.outvars, [*carry, *stacked], strict=True))


def _checkpointed_loop(
    equation: Any, policy: Policy, offloaded: Collection[Signature] = frozenset(), *, has_groups: bool = False
) -> dict[str, Any]:
    """Return the parameters of a scan with a checkpointed body. CSE cannot undo a checkpoint inside a scan.

    If the body consists of other scans, their bodies are checkpointed instead. The jits in a body stay: XLA would lay
    out an inlined body differently from the user's code under a checkpoint.

    Args:
        has_groups: whether a body of other scans has another checkpoint around it, which saves only its inputs.
    """
    if inner_loops(equation):
        return _with_checkpointed_scans(equation, policy, offloaded, has_groups=has_groups)
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
    equation: Any, policy: Policy, offloaded: Collection[Signature], *, has_groups: bool
) -> dict[str, Any]:
    """Return the parameters of a scan with checkpoints around the bodies of the scans in its body."""
    body = without_checkpoints(equation.params["jaxpr"])

    def rule(inner: Any, values: list[Any]) -> list[Any] | None:
        if is_loop(inner):
            params = _checkpointed_loop(inner, policy, offloaded, has_groups=has_groups)
            return list(jit_adapter.bound(inner, values, params))
        has_loops = inner.primitive.name in CALLS and any(
            is_loop(each) for jaxpr in core.jaxprs_in_params(inner.params) for each in equations_in_calls(jaxpr)
        )
        return _inlined(inner, values, rule) if has_loops else None

    def run(*args: Any) -> list[Any]:
        return evaluated(body, args, rule)

    changed = jax.checkpoint(run, prevent_cse=False) if has_groups else run
    return {**equation.params, "jaxpr": jax.make_jaxpr(changed)(*body.in_avals)}


def carried_inputs(equation: Any) -> range:
    """Return the positions of the carried inputs of a scan's body."""
    num_consts, num_carried = jit_adapter.scan_layout(equation)
    return range(num_consts, num_consts + num_carried)


def _block(jaxpr: core.Jaxpr, start: int, length: int) -> tuple[Flat, list[Any], list[Any]]:
    """Return some equations as a function, the variables that it reads, and its results that are read later."""
    equations = jaxpr.eqns[start : start + length]
    made = {var for each in equations for var in each.outvars}
    read = [atom for each in equations for atom in each.invars if isinstance(atom, core.Var)]
    inputs = list(dict.fromkeys(var for var in read if var not in made))
    after = {atom for each in jaxpr.eqns[start + length :] for atom in each.invars if isinstance(atom, core.Var)}
    after.update(atom for atom in jaxpr.outvars if isinstance(atom, core.Var))
    outputs = [var for each in equations for var in each.outvars if var in after]

    def run(*args: Any) -> list[Any]:
        known = dict(zip(inputs, args, strict=True))
        for equation in equations:
            bind(equation, known, equation.params)
        return [known[var] for var in outputs]

    return run, inputs, outputs


_Rule = Callable[[Any, list[Any]], list[Any] | None]


def _no_rewrite(equation: Any, values: list[Any]) -> None:
    """Leave calls unchanged."""


def _inlined(equation: Any, values: list[Any], rule: _Rule | None = None) -> list[Any] | None:
    """Inline a call, and evaluate its equations by a rule. Return None if the equation is not such a call."""
    name = CALLS.get(equation.primitive.name)
    if name is None or not jit_adapter.has_no_shardings(equation.params):
        return None
    inner = equation.params[name]
    closed = inner if isinstance(inner, core.ClosedJaxpr) else core.ClosedJaxpr(inner, ())
    return evaluated(closed, values, rule or _inlined)


def evaluated(closed: core.ClosedJaxpr, args: Sequence[Any], rule: _Rule) -> list[Any]:
    """Evaluate a jaxpr, each equation by a rule. If the rule returns None, the equation stays unchanged."""
    jaxpr = closed.jaxpr
    known: dict[Any, Any] = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    known.update(zip(jaxpr.invars, args, strict=True))
    for equation in jaxpr.eqns:
        values = [value_of(atom, known) for atom in equation.invars]
        with jit_adapter.name_of(equation):
            results = rule(equation, values)
        if results is None:
            bind(equation, known, equation.params)
        else:
            known.update(zip(equation.outvars, results, strict=True))
    return [value_of(atom, known) for atom in jaxpr.outvars]


def bind(equation: Any, known: dict[Any, Any], params: dict[str, Any]) -> None:
    """Evaluate an equation with other parameters, and store its results in `known`."""
    values = [value_of(atom, known) for atom in equation.invars]
    with jit_adapter.name_of(equation):
        results = jit_adapter.bound(equation, values, params)
    known.update(zip(equation.outvars, results, strict=True))


def value_of(atom: Any, known: dict[Any, Any]) -> Any:
    """Return the value of an equation's input."""
    return atom.val if isinstance(atom, core.Literal) else known[atom]
