"""Store the state of any optimizer in bfloat16."""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import jax
import jax.numpy as jnp

from memprof.analysis.records.capture import ArgumentLeaf
from memprof.analysis.records.categories import Role
from memprof.sources.jax.own_attributes import own
from memprof.sources.jax.tracing.jitting import framework_of
from memprof.sources.jax.tracing.rebinding import Bound, bound_places, pasted_anew
from memprof.sources.jax.tracing.step import StepSpec
from memprof.studies.changes.arguments import changed_args
from memprof.studies.changes.change import Change, Step
from memprof.workloads.intents import Aim, Intent

_CODE = '''import jax
import jax.numpy as jnp
import optax


def in_bfloat16(optimizer):
    """`optimizer`, with the float32 arrays of its state stored in bfloat16."""

    def cast(state, old, new):
        return jax.tree.map(lambda leaf: leaf.astype(new) if leaf.dtype == old and leaf.ndim else leaf, state)

    def init(params):
        return cast(optimizer.init(params), jnp.float32, jnp.bfloat16)

    def update(gradients, state, params=None, **more):
        state = cast(state, jnp.bfloat16, jnp.float32)
        updates, state = optax.with_extra_args_support(optimizer).update(gradients, state, params, **more)
        return updates, cast(state, jnp.float32, jnp.bfloat16)

    return optax.GradientTransformationExtraArgs(init, update)


# after the definition of {name}; make its state anew
{name} = in_bfloat16({name})
'''


def narrow_optimizer_states(step: Step) -> Iterator[Change]:
    """Yield the step with its state in half the bytes, if the state is float32 and the code names its optimizer."""
    beside_params = _paths_beside_params(step)
    wide = [leaf for leaf in step.report.arguments if _is_float32_state(leaf) and leaf.path not in beside_params]
    bound = _optimizer(step.spec) if wide and framework_of(step.spec) == "jax" else None
    args = None if bound is None else _narrow_args(step, {leaf.path for leaf in wide})
    if bound is None or args is None:
        return
    code = _CODE.replace("{name}", bound.name)
    yield Change(
        rule="narrow_optimizer_state",
        intent=Intent(aim=Aim.NARROW_OPTIMIZER_STATE),
        what="Store the optimizer's state in bfloat16",
        evidence=f"{sum(leaf.size_bytes for leaf in wide):,} bytes of it are float32",
        cost="8 bits of mantissa in the moments between updates; small updates of an average can be lost",
        code=code,
        spec=replace(step.spec, args=args),
        around=partial(pasted_anew, code, [bound]),
        keeps_numbers=False,
    )


def _is_float32_state(leaf: ArgumentLeaf) -> bool:
    return leaf.role is Role.OPTIMIZER_STATE and leaf.dtype == "float32" and bool(leaf.shape)


def _optimizer(spec: StepSpec) -> Bound | None:
    """Return the optax optimizer that a step's code names; None unless there is exactly one."""
    optax: Any = sys.modules.get("optax")
    function = inspect.unwrap(spec.fn)
    code = own(function, "__code__")
    if optax is None or code is None:
        return None
    cells = dict(zip(code.co_freevars, own(function, "__closure__") or (), strict=False))
    seen = {name: cell.cell_contents for name, cell in cells.items()}
    seen |= {name: function.__globals__[name] for name in _names(code) if name in function.__globals__}
    found = {name: value for name, value in seen.items() if isinstance(value, optax.GradientTransformation)}
    if len(found) != 1:
        return None
    ((name, value),) = found.items()
    return bound_places(name, value, globals_of=function)


def _names(code: types.CodeType) -> set[str]:
    inner = (each for each in code.co_consts if isinstance(each, types.CodeType))
    return {*code.co_names, *(name for each in inner for name in _names(each))}


def _paths_beside_params(step: Step) -> set[str]:
    """Return the paths of leaves that share an optax tuple with parameters, as lookahead's slow parameters do.

    The optimizer updates these but did not create them.
    """
    paths: set[str] = set()
    for number, value in enumerate(step.spec.args):
        leaves = iter([leaf for leaf in step.report.arguments if leaf.position == number])
        for node in jax.tree.leaves(value, is_leaf=_is_optax_tuple):
            known = list(islice(leaves, len(jax.tree.leaves(node))))
            if _is_optax_tuple(node) and any(leaf.role is Role.PARAMS for leaf in known):
                paths.update(leaf.path for leaf in known)
    return paths


def _is_optax_tuple(node: Any) -> bool:
    return isinstance(node, tuple) and type(node).__module__.partition(".")[0] == "optax"


def _narrow_args(step: Step, paths: set[str]) -> tuple[Any, ...] | None:
    return changed_args(
        step,
        lambda known, leaf: (
            jax.ShapeDtypeStruct(leaf.shape, jnp.bfloat16, sharding=own(leaf, "sharding"))
            if known.path in paths
            else leaf
        ),
    )
