"""Every way in which a user's function can come: jitted or not, with static, donated, unused and keyword arguments."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from memprof.analysis.capture import ArgumentLeaf
from memprof.capture.arguments import abstract_arguments, argument_leaves
from memprof.capture.jitting import jit_step
from memprof.capture.step import StepSpec
from memprof.capture.targets.choose import choose_target
from memprof.errors import MemprofError

X = jnp.ones((2, 3))


def leaves(spec: StepSpec) -> tuple[ArgumentLeaf, ...]:
    step = jit_step(spec)
    abstract = abstract_arguments(step, choose_target("cpu"), spec.memory_kinds)
    traced = abstract.fn.trace(*abstract.args, **abstract.kwargs)
    return argument_leaves(step, traced, traced.lower(), spec.roles)[0]


def facts(spec: StepSpec) -> list[tuple[str, bool, int | None]]:
    return [(leaf.path, leaf.donated, leaf.parameter_number) for leaf in leaves(spec)]


def step(state: Any, times: Any, *rest: Any, flag: bool = False, by: Any = 1.0) -> Any:
    return state["a"] * times * by + (rest[0] if flag else 0), state["b"]


STATE = {"a": X, "b": X, "unused": X}


def test_a_plain_function_with_static_and_donated_arguments() -> None:
    spec = StepSpec(step, (STATE, 2, X), donate_argnums=(0,), static_argnums=(1,))
    assert facts(spec) == [
        ("state['a']", True, 0),
        ("state['b']", True, 1),
        ("state['unused']", True, None),
        ("rest[0]", False, None),
    ]


def test_a_jitted_function_keeps_its_own_options() -> None:
    jitted = jax.jit(step, static_argnums=(1,), static_argnames=("flag",), donate_argnames=("state",))
    spec = StepSpec(jitted, (STATE, 2, X), kwargs={"flag": True, "by": jnp.float32(2)})
    assert facts(spec) == [
        ("state['a']", True, 0),
        ("state['b']", True, 1),
        ("state['unused']", True, None),
        ("rest[0]", False, 2),
        ("by", False, 3),
    ]


def test_options_for_a_function_that_is_jitted_already_are_refused() -> None:
    with pytest.raises(MemprofError, match="jitted already"):
        jit_step(StepSpec(jax.jit(step), (STATE, 2), donate_argnums=(0,)))


def test_a_partial_function_and_one_of_a_library() -> None:
    assert [path for path, *_ in facts(StepSpec(partial(step, by=2.0), (STATE, 2.0)))][-1] == "times"
    assert len(facts(StepSpec(jnp.add, (X, X)))) == 2


def test_whatever_is_no_array_is_static_by_itself() -> None:
    def apply(model: dict[str, Any], x: Any) -> Any:
        return model["activation"](x @ model["kernel"]) if model["name"] == "dense" else x

    model = {"kernel": jnp.ones((3, 3)), "activation": jax.nn.relu, "name": "dense"}
    spec = StepSpec(apply, (model, X), donate_argnums=(1,))
    assert facts(spec) == [("model['kernel']", False, 0), ("x", True, 1)]


@pytest.mark.parametrize(
    ("array", "dtype", "size"),
    [
        (jax.ShapeDtypeStruct((5, 3), jnp.int4), "int4", 8),  # packed: 15 times 4 bits
        (jax.ShapeDtypeStruct((4,), jnp.float8_e4m3fn), "float8_e4m3fn", 4),
        (jax.ShapeDtypeStruct((4,), jnp.bool_), "bool", 4),
        (jax.ShapeDtypeStruct((4,), jnp.complex64), "complex64", 32),
        (jax.random.key(0), "key<fry>", 8),
        (jax.ShapeDtypeStruct((4,), "float64"), "float32", 16),  # as `jax.jit` takes it where 64-bit types are off
    ],
)
def test_sizes_of_uncommon_dtypes(array: Any, dtype: str, size: int) -> None:
    (leaf,) = leaves(StepSpec(lambda x: x, (array,)))
    assert (leaf.dtype, leaf.size_bytes) == (dtype, size)


def test_arrays_are_taken_for_their_shapes_alone() -> None:
    step = jit_step(StepSpec(lambda x, n: x * n, (X, 3)))
    abstract = abstract_arguments(step, choose_target("cpu"), {})
    assert isinstance(abstract.args[0], jax.ShapeDtypeStruct)
    assert abstract.args[1] == 3
