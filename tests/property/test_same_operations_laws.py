"""Laws of value numbers: checkpoints leave them as they are, and programs with equal numbers compute the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from memprof.sources.jax.tracing import jit_adapter
from memprof.sources.jax.tracing.value_numbers import ValueNumbers

Instruction = tuple[str, int]
_OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda x, y: x + y,
    "multiply": lambda x, y: x * y,
    "sine": lambda x, _: jnp.sin(x),
    "double": lambda x, _: x * 2.0,
    "triple": lambda x, _: x * 3.0,
    "stop": lambda x, y: x + jax.lax.stop_gradient(y),
}
# Each instruction reads the last value and an earlier one, so that all of them have a part in the result.
_PROGRAMS = st.lists(st.tuples(st.sampled_from([*_OPERATIONS]), st.integers(0, 3)), min_size=1, max_size=5)
_X = jax.ShapeDtypeStruct((3,), jnp.float32)
_FEW = settings(max_examples=25, deadline=None)


def _function(program: list[Instruction], wrapped: frozenset[int] = frozenset()) -> Callable[[Any], Any]:
    """Return the derivative of a program, with checkpoints around the instructions with these numbers."""

    def run(x: Any) -> Any:
        values = [x]
        for number, (name, back) in enumerate(program):
            operation = _OPERATIONS[name]
            if number in wrapped:
                operation = jax.checkpoint(operation)
            values.append(operation(values[-1], values[max(len(values) - 1 - back, 0)]))
        return values[-1].sum()

    return jax.value_and_grad(run)


def _numbers(numbers: ValueNumbers, function: Callable[[Any], Any]) -> tuple[int, ...]:
    with jit_adapter.calls_inlined():
        return numbers.of(jax.make_jaxpr(function)(_X), [0])


@_FEW
@given(_PROGRAMS, st.frozensets(st.integers(0, 4)))
def test_checkpoints_keep_the_numbers(program: list[Instruction], wrapped: frozenset[int]) -> None:
    numbers = ValueNumbers()
    assert _numbers(numbers, _function(program)) == _numbers(numbers, _function(program, wrapped))
    whole = jax.checkpoint(_function(program, wrapped))
    assert _numbers(numbers, _function(program)) == _numbers(numbers, whole)


@_FEW
@given(_PROGRAMS, st.data())
def test_another_operation_has_other_numbers(program: list[Instruction], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(program) - 1))
    name, back = program[place]
    other = "triple" if name == "double" else "double"
    changed = [*program[:place], (other, back), *program[place + 1 :]]
    numbers = ValueNumbers()
    assert _numbers(numbers, _function(program)) != _numbers(numbers, _function(changed, frozenset({place})))


@_FEW
@given(_PROGRAMS, _PROGRAMS)
def test_programs_with_equal_numbers_compute_the_same(first: list[Instruction], second: list[Instruction]) -> None:
    numbers = ValueNumbers()
    if _numbers(numbers, _function(first)) == _numbers(numbers, _function(second)):
        x = np.array([0.3, -1.7, 2.0], np.float32)
        for one, other in zip(*(_function(each)(x) for each in (first, second)), strict=True):
            np.testing.assert_array_equal(one, other)
