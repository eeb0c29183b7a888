"""The operations of a block, from its jaxpr."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from memprof.analysis.records.capture import Speeds
from memprof.analysis.records.checkpoints import Block, Operation
from memprof.sources.jax.checkpointing.block_programs import BlockProgram
from memprof.sources.jax.checkpointing.blocks import made_bytes
from memprof.sources.jax.checkpointing.evaluation import as_function, without_calls
from memprof.sources.jax.checkpointing.policies import input_signature, signature_of
from memprof.sources.jax.tracing.flops import flops_of

_XLA_DTYPES = {"bfloat16": "bf16", "float16": "f16", "float32": "f32", "float64": "f64"}
_TENSOR_CORES = {"f32": "tf32"}
# The speeds of an H100, for targets with unknown speeds. Only their ratio matters.
_OPERATIONS_PER_SECOND, _BYTES_PER_SECOND = 4e14, 3e12
# XLA fuses elementwise operations into the kernels that read them, so their results are rarely written to memory.
_FUSED_COST = 0.1


def block_of(program: BlockProgram, speeds: Speeds | None, *, num_devices: int = 1, with_inputs: bool = False) -> Block:
    """Return the operations of a block.

    Args:
        speeds: the speeds of the target, or None if they are unknown.
        num_devices: number of devices that share the block's work; sizes and times are for one device.
        with_inputs: whether arrays that a scan carries into the block are listed first, as operations.
    """
    closed = program.closed

    def forward(*args: Any) -> Any:
        return jax.tree.leaves(jax.vjp(as_function(closed), *args)[1])

    traced = without_calls(jax.make_jaxpr(forward)(*closed.in_avals))
    carried = [traced.jaxpr.invars[place] for place in program.carried] if with_inputs and program.is_loop else []
    inputs = [var for var in carried if var.aval.shape and jnp.issubdtype(var.aval.dtype, jnp.inexact)]
    equations = [*inputs, *traced.jaxpr.eqns]
    maker = {var: number for number, var in enumerate(inputs)}
    maker.update((var, number) for number, each in enumerate(traced.jaxpr.eqns, len(inputs)) for var in each.outvars)
    read: list[list[int]] = [[] for _ in inputs]
    read += [
        sorted({maker[atom] for atom in each.invars if isinstance(atom, core.Var) and atom in maker})
        for each in traced.jaxpr.eqns
    ]
    needed = {maker[atom] for atom in traced.jaxpr.outvars if isinstance(atom, core.Var) and atom in maker}
    wanted = set(needed)
    for number in reversed(range(len(equations))):
        if number in wanted:
            wanted.update(read[number])
    place = {number: position for position, number in enumerate(sorted(wanted))}

    def operation_at(number: int) -> Operation:
        is_needed = number in needed
        if number < len(inputs):
            return _input(inputs[number], is_needed)
        return _operation(equations[number], tuple(place[each] for each in read[number]), is_needed, speeds)

    operations = tuple(
        replace(each, size_bytes=each.size_bytes // num_devices, seconds=each.seconds / num_devices)
        for each in map(operation_at, place)
    )
    carried_bytes = made_bytes([traced.jaxpr.invars[place] for place in program.carried])
    return Block(
        operations=operations,
        count=program.count,
        carried_bytes=carried_bytes // num_devices,
        inner_count=program.inner_count,
    )


def _input(var: core.Var, is_needed: bool) -> Operation:
    signature, size_bytes = input_signature(var.aval), made_bytes([var])
    return Operation(
        signature=signature, inputs=(), size_bytes=size_bytes, seconds=0.0, is_needed=is_needed, is_input=True
    )


def _operation(equation: Any, inputs: tuple[int, ...], is_needed: bool, speeds: Speeds | None) -> Operation:
    avals = [atom.aval for atom in equation.invars]
    size_bytes = made_bytes(equation.outvars)
    flops = flops_of(equation).total()
    return Operation(
        signature=signature_of(equation.primitive, avals, equation.params),
        inputs=inputs,
        size_bytes=size_bytes,
        seconds=flops / _peak(avals, speeds) if flops else _FUSED_COST * size_bytes / _bandwidth(speeds),
        is_needed=is_needed,
    )


def _peak(avals: list[Any], speeds: Speeds | None) -> float:
    peaks: Mapping[str, float] = {} if speeds is None else speeds.operations_per_second
    kind = _XLA_DTYPES.get(str(avals[0].dtype), "") if avals else ""
    return peaks.get(_TENSOR_CORES.get(kind, kind)) or peaks.get(kind) or _OPERATIONS_PER_SECOND


def _bandwidth(speeds: Speeds | None) -> float:
    return _BYTES_PER_SECOND if speeds is None else speeds.memory_bytes_per_second
