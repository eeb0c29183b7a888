"""Shard arguments over a mesh axis along which they are replicated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
from jax.extend import core
from jax.sharding import Mesh, NamedSharding

from memprof.analysis.records.categories import Role
from memprof.sources.jax.own_attributes import own
from memprof.sources.jax.tracing.jitting import jit_step
from memprof.sources.jax.xla.xla_adapter import cudnn_of_absent_device
from memprof.studies.changes.arguments import changed_args
from memprof.studies.changes.change import Change, Step
from memprof.studies.changes.own_jit import has_shardings
from memprof.workloads.intents import Intent

_CODE = '''import jax
from jax.sharding import NamedSharding, PartitionSpec


def divided(leaf):
    """`leaf` divided over {axis}, along {which}."""
    spec = [*getattr(leaf.sharding, "spec", ()), *[None] * leaf.ndim][: leaf.ndim]
    for number, length in enumerate(leaf.shape{first}):
        if {condition}:
            spec[number] = {entry}
            break
    sharding = NamedSharding(mesh, PartitionSpec(*spec))
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
    return jax.device_put(leaf, sharding)


{name} = jax.tree.map(divided, {name})  # before the first call, and in a restored checkpoint
'''
_NAMES = {Role.PARAMS: "params", Role.OPTIMIZER_STATE: "opt_state", Role.BATCH: "batch"}


def divided_arguments(step: Step) -> Iterator[Change]:
    """Yield the step with the arguments of one role sharded, for each piece of advice to do so."""
    leaves = jax.tree.leaves(step.spec.args)
    shardings = [each for leaf in leaves if isinstance(each := own(leaf, "sharding"), NamedSharding)]
    if step.is_composed or not shardings or has_shardings(step.spec.fn):
        return
    for advice in step.advice:
        if advice.rule not in ("replicated_state", "undivided_batch"):
            continue
        if advice.rule == "replicated_state" and _is_manual(step):
            continue  # the second call would get whole state
        intent = advice.proposal.intent
        axis = intent.axes[-1]
        role = Role.BATCH if advice.rule == "undivided_batch" else Role(intent.names[0])
        code = _code(role, axis, int(shardings[0].mesh.shape[axis]), intent)
        args = _sharded_arguments(step, role, axis, code, shardings[0].mesh)
        if args is not None:
            yield Change.of_advice(advice, replace(step.spec, args=args), code=code)


def _is_manual(step: Step) -> bool:
    trace = own(jit_step(step.spec).fn, "trace")  # jits of frameworks have none
    if not callable(trace):
        return False
    with cudnn_of_absent_device(step.target):
        return _returns_shard_map_result(trace(*step.spec.args, **step.spec.kwargs).jaxpr.jaxpr)


def _returns_shard_map_result(jaxpr: core.Jaxpr) -> bool:
    """Whether a function returns a result of `shard_map`, whose `out_specs` say how it is divided."""
    made = {var: equation for equation in jaxpr.eqns for var in equation.outvars}
    returning = {id(made[var]): made[var] for var in jaxpr.outvars if isinstance(var, core.Var) and var in made}
    return any(
        each.primitive.name == "shard_map"
        or (each.primitive.name in ("jit", "pjit") and _returns_shard_map_result(each.params["jaxpr"].jaxpr))
        for each in returning.values()
    )


def _code(role: Role, axis: str, size: int, intent: Intent) -> str:
    is_batch = role is Role.BATCH
    axes = intent.axes[0] if len(intent.axes) == 1 else intent.axes
    return _CODE.format(
        axis=axis,
        which="its examples" if is_batch else "its first undivided axis with a suitable length",
        first="[:1]" if is_batch else "",
        condition=f"length % {size} == 0" if is_batch else f"spec[number] is None and length % {size} == 0",
        entry=repr(axes if is_batch else axis).replace("'", '"'),
        name=_NAMES[role],
    )


def _sharded_arguments(step: Step, role: Role, axis: str, code: str, mesh: Mesh | Any) -> tuple[Any, ...] | None:
    """Return the arguments as the code shards them."""
    names: dict[str, Any] = {"mesh": mesh, _NAMES[role]: ()}
    exec(compile(code, "<advice>", "exec"), names)
    return changed_args(
        step,
        lambda known, leaf: (
            names["divided"](jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=own(leaf, "sharding")))
            if known.role is role and axis not in (known.mesh_axes or ())
            else leaf
        ),
    )
