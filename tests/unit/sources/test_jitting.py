"""Every way in which a user's function can come: jitted or not, with static, donated, unused and keyword arguments."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import pytest

from memprof.analysis.records.capture import ArgumentLeaf
from memprof.errors import MemprofError, WorkloadError
from memprof.sources.jax.roles.arguments import argument_leaves, place_on
from memprof.sources.jax.targets.choose import devices_of
from memprof.sources.jax.targets.resolve import resolve
from memprof.sources.jax.tracing.jitting import TracedStep, jit_step, trace_step
from memprof.sources.jax.tracing.step import StepSpec

X = jnp.ones((2, 3))


def leaves(spec: StepSpec) -> tuple[ArgumentLeaf, ...]:
    step = traced(spec)
    return argument_leaves(step, step.traced.lower(), spec.roles)[0]


def traced(spec: StepSpec) -> TracedStep:
    return trace_step(jit_step(spec), place_on(devices_of(resolve("cpu")), spec.memory_kinds), frozenset(), 1)


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
    args, kwargs = traced(StepSpec(lambda x, n: x * n, (X, 3))).abstract
    assert isinstance(args[0], jax.ShapeDtypeStruct)
    assert (args[1], kwargs) == (3, {})


class Trainer:
    @partial(jax.jit, static_argnums=0, donate_argnums=1)
    def jitted(self, w: Any, x: Any) -> Any:
        return w + x

    def plain(self, w: Any, x: Any) -> Any:
        return w + x


def test_bound_methods() -> None:
    expected = [("w", True, 0), ("x", False, 1)]
    assert facts(StepSpec(Trainer().jitted, (X, X))) == expected
    assert facts(StepSpec(Trainer().plain, (X, X), donate_argnums=(0,))) == expected


@pytest.mark.parametrize(
    ("fn", "sentence"),
    [
        ("a text", r"the step is 'a text' \(str\), but a function was expected"),
        (None, "the step is None, but a function was expected"),
        (Trainer, "the step is the class Trainer, but a function was expected"),
        (jax.pmap(lambda x: x), "mapped over devices with jax.pmap"),
        (jax.jit(lambda x: x).trace(X), "the step is traced already, but a function was expected"),
    ],
)
def test_what_is_no_step_gets_one_sentence(fn: Any, sentence: str) -> None:
    with pytest.raises(MemprofError, match=sentence):
        jit_step(StepSpec(fn, (X,)))


def test_a_step_without_arrays_gets_one_sentence() -> None:
    for spec in (StepSpec(lambda: 1.0, ()), StepSpec(lambda text: len(text), ("text",))):
        with pytest.raises(WorkloadError, match="no array among its arguments"):
            traced(spec)


def test_an_option_for_an_argument_that_is_not_there() -> None:
    with pytest.raises(MemprofError, match="donate_argnums names argument 7, but the step has 1 positional"):
        jit_step(StepSpec(lambda x: x, (X,), donate_argnums=(7,)))
    assert facts(StepSpec(lambda x, y: x + y, (X, X), donate_argnums=(-1,))) == [("x", False, 0), ("y", True, 1)]


class _AnswersEverything:
    """As `nnx.Rngs`, proxies and lazy modules do."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *args: Any) -> Any:
        return args[0] * 2


class _RefusesEverything(_AnswersEverything):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise RuntimeError(f"{name} is loaded when it is used")


@pytest.mark.parametrize("made", [_AnswersEverything, _RefusesEverything, mock.MagicMock])
def test_an_object_that_answers_to_every_attribute_is_taken_for_what_its_class_is(made: Callable[[], Any]) -> None:
    def step(weights: Any, settings: Any, x: Any) -> Any:
        return jax.tree.map(lambda w: w - 0.1, weights), x * 2

    spec = StepSpec(step, ({"w": jnp.ones(3)}, {"settings": made()}, jnp.ones(3)))
    assert traced(spec).paths == ("weights['w']", "x")


def test_a_step_that_answers_to_every_attribute_is_a_function_that_is_not_jitted() -> None:
    assert traced(StepSpec(_AnswersEverything(), (jnp.ones(3),), donate_argnums=(0,))).paths == ("args[0]",)
