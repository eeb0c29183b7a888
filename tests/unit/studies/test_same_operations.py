"""Which changed steps are proved to have the operations of the original step, and which are not."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from memprof.sources.jax.checkpointing.apply import checkpointed
from memprof.sources.jax.targets.resolve import cpu
from memprof.sources.jax.tracing.step import StepSpec
from memprof.studies.changes.same_operations import Operations

_CPU = cpu("for a test")
_W = jax.ShapeDtypeStruct((3, 4, 4), jnp.float32)
_X = jax.ShapeDtypeStruct((2, 4), jnp.float32)
_KEY = jax.eval_shape(lambda: jax.random.key(0))
_ARGS = (_W, _X, _KEY)
Block = Callable[..., Any]
_TABLE = np.linspace(-1.0, 1.0, 4, dtype=np.float32)


def block(w: Any, x: Any, key: Any) -> Any:
    """Two uses of its input, a jit, a random mask, a constant array, and a gradient that is stopped."""
    keep = jax.random.bernoulli(key, 0.9, x.shape)
    hidden = jax.nn.gelu(x @ w + _TABLE) * jnp.where(keep, 1 / 0.9, 0.0)
    return x + hidden * jax.lax.stop_gradient(jnp.mean(jnp.abs(x)))


def training(block: Block, *, scale: float = 0.1, in_scan: bool = False) -> Callable[..., Any]:
    """Return a training step whose loss calls a block three times."""

    def loss(w: Any, x: Any, key: Any) -> Any:
        keys = jax.random.split(key, 3)
        if in_scan:
            x, _ = jax.lax.scan(lambda x, each: (block(each[0], x, each[1]), None), x, (w, keys))
        else:
            for number in range(3):
                x = block(w[number], x, keys[number])
        return jnp.sum(x**2)

    def step(w: Any, x: Any, key: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(w, x, key)
        return w - scale * gradient, value

    return step


def is_proved(
    before: Any, after: Any, args: tuple[Any, ...] = _ARGS, *, changed_args: Any = None, around: Any = nullcontext
) -> bool:
    """Whether a changed step is proved to have the operations of another one."""
    return Operations(StepSpec(before, args), _CPU).are_those_of(StepSpec(after, changed_args or args), around)


@pytest.mark.parametrize("in_scan", [False, True])
class TestCheckpoints:
    @pytest.mark.parametrize(
        "wrap",
        [
            jax.checkpoint,
            partial(jax.checkpoint, policy=jax.checkpoint_policies.dots_saveable),
            partial(jax.checkpoint, prevent_cse=False),
            lambda block: jax.jit(jax.checkpoint(block)),
            lambda block: jax.checkpoint(jax.checkpoint(block)),
            jax.jit,
            eqx.filter_checkpoint,
        ],
    )
    def test_a_checkpoint_around_a_block_is_proved(self, wrap: Callable[[Block], Block], in_scan: bool) -> None:
        assert is_proved(training(block, in_scan=in_scan), training(wrap(block), in_scan=in_scan))

    @pytest.mark.parametrize(
        "policy", [jax.checkpoint_policies.nothing_saveable, jax.checkpoint_policies.dots_saveable]
    )
    def test_the_checkpoints_of_a_plan_are_proved(self, policy: Any, in_scan: bool) -> None:
        step = training(block, in_scan=in_scan)
        assert is_proved(step, step, around=partial(checkpointed, policy))

    def test_a_checkpoint_around_the_whole_step_is_proved(self, in_scan: bool) -> None:
        step = training(block, in_scan=in_scan)
        assert is_proved(step, jax.checkpoint(step))

    @pytest.mark.parametrize(
        "other",
        [
            lambda w, x, key: block(w, x, key) * 1.0000001,
            lambda w, x, key: block(w, -x, key),
            lambda w, x, key: block(w, x, jax.random.fold_in(key, 0)),
            lambda w, x, key: block(w, x, jax.random.split(key)[0]),
            lambda w, x, key: x + jax.nn.gelu(x @ w + _TABLE),
            lambda w, x, key: block(w, x.astype(jnp.bfloat16).astype(jnp.float32), key),
        ],
    )
    def test_a_checkpoint_around_another_block_is_not_proved(self, other: Block, in_scan: bool) -> None:
        original = training(block, in_scan=in_scan)
        assert not is_proved(original, training(jax.checkpoint(other), in_scan=in_scan))


def _block_with(
    table: Any = _TABLE, rate: float = 0.9, stop: Any = jax.lax.stop_gradient, mean: Any = jnp.mean
) -> Block:
    def made(w: Any, x: Any, key: Any) -> Any:
        keep = jax.random.bernoulli(key, rate, x.shape)
        hidden = jax.nn.gelu(x @ w + table) * jnp.where(keep, 1 / 0.9, 0.0)
        return x + hidden * stop(mean(jnp.abs(x)))

    return made


class TestWhatMustDiffer:
    @pytest.mark.parametrize(
        "other",
        [
            _block_with(table=np.nextafter(_TABLE, 2, dtype=np.float32)),
            _block_with(rate=0.8),
            _block_with(stop=lambda x: x),
            _block_with(mean=jnp.max),
            _block_with(mean=lambda x: jnp.sum(x / x.size)),
            _block_with(mean=partial(jnp.mean, axis=0)),
        ],
    )
    def test_one_constant_literal_or_operation(self, other: Block) -> None:
        assert is_proved(training(block), training(jax.checkpoint(_block_with())))
        assert not is_proved(training(block), training(jax.checkpoint(other)))

    def test_outside_of_what_is_differentiated(self) -> None:
        assert not is_proved(training(block), training(jax.checkpoint(block), scale=0.2))

    def test_the_order_of_operations(self) -> None:
        def added(first: str) -> Callable[..., Any]:
            return lambda w, x, key: jnp.sum((w[0] + w[1]) + w[2] if first == "left" else w[0] + (w[1] + w[2]))

        assert is_proved(added("left"), jax.checkpoint(added("left")))
        assert not is_proved(added("left"), jax.checkpoint(added("right")))

    def test_the_order_of_results_and_of_arguments(self) -> None:
        assert not is_proved(lambda a, b: (a, b), lambda a, b: (b, a), (_X, _X))
        assert not is_proved(lambda a, b: a - b, lambda a, b: b - a, (_X, _X))
        assert not is_proved(lambda a, b: a @ b, lambda a, b: a @ a, (_W, _W))

    def test_zeros_of_two_signs(self) -> None:
        assert not is_proved(lambda x: x * 0.0, lambda x: x * -0.0, (_X,))
        assert not is_proved(lambda x: x * np.float32(0.0), lambda x: x * np.float32(-0.0), (_X,))

    def test_a_number_and_its_dtype(self) -> None:
        narrow = jax.ShapeDtypeStruct((2, 4), jnp.bfloat16)
        assert not is_proved(lambda x: x + 1, lambda x: x + 1, (_X,), changed_args=(narrow,))
        assert not is_proved(lambda x: x.sum(), lambda x: x.sum(dtype=jnp.bfloat16), (_X,))

    def test_a_branch_and_a_loop(self) -> None:
        def looping(turns: int) -> Callable[..., Any]:
            return lambda x: jax.lax.fori_loop(0, turns, lambda _, x: jnp.sin(x), x)

        def branching(other: Any) -> Callable[..., Any]:
            return lambda x: jax.lax.cond(x[0, 0] > 0, jnp.sin, other, x)

        assert is_proved(looping(3), jax.checkpoint(looping(3)), (_X,))
        assert not is_proved(looping(3), looping(4), (_X,))
        assert is_proved(branching(jnp.cos), jax.jit(branching(jax.checkpoint(jnp.cos))), (_X,))
        assert not is_proved(branching(jnp.cos), branching(jnp.sin), (_X,))

    def test_the_derivative_of_a_custom_rule(self) -> None:
        def squared(slope: float) -> Callable[..., Any]:
            @jax.custom_vjp
            def square(x: Any) -> Any:
                return x * x

            square.defvjp(lambda x: (x * x, x), lambda x, cotangent: (slope * x * cotangent,))
            return jax.grad(lambda x: square(x).sum())

        assert is_proved(squared(2.0), jax.checkpoint(squared(2.0)), (_X,))
        assert not is_proved(squared(2.0), squared(3.0), (_X,))


class TestSideEffects:
    def test_a_step_that_prints_is_not_proved(self) -> None:
        def printing(w: Any, x: Any, key: Any) -> Any:
            jax.debug.print("{}", x.sum())
            return block(w, x, key)

        assert not is_proved(training(printing), training(printing))
        assert not is_proved(training(printing), training(jax.checkpoint(printing)))
        assert not is_proved(training(printing, in_scan=True), training(jax.checkpoint(printing), in_scan=True))

    def test_callbacks_are_the_same_only_if_their_function_is(self) -> None:
        def calling(function: Callable[..., Any]) -> Callable[..., Any]:
            return lambda x: jax.pure_callback(function, x, x)

        assert not is_proved(calling(lambda x: x), calling(lambda x: -x), (_X,))

    def test_random_numbers_without_a_key_are_not_proved(self) -> None:
        def drawing(x: Any) -> Any:
            return x + jax.lax.rng_uniform(0.0, 1.0, (4,)) - jax.lax.rng_uniform(0.0, 1.0, (4,))

        assert not is_proved(drawing, drawing, (_X,))

    def test_a_reference_that_is_written_is_not_proved(self) -> None:
        def writing(x: Any) -> Any:
            box = jax.new_ref(x)
            box[...] = x + 1
            return box[...]

        assert not is_proved(writing, writing, (_X,))


class TestOtherChanges:
    def test_donation_is_proved(self) -> None:
        step = training(block)
        assert is_proved(jax.jit(step), jax.jit(step, donate_argnums=0))
        assert not is_proved(jax.jit(step), jax.jit(training(block, scale=0.2), donate_argnums=0))

    def test_arguments_in_another_order_are_known_by_their_leaves(self) -> None:
        weights, x = (
            {"a": _X, "b": jax.ShapeDtypeStruct((2, 4), jnp.float32)},
            jax.ShapeDtypeStruct((2, 4), jnp.float32),
        )

        def step(weights: Any, x: Any) -> Any:
            return weights["a"] - weights["b"] * x

        def regrouped(kept: Any, weights: Any) -> Any:
            return step(weights, *kept)

        def swapped(kept: Any, weights: Any) -> Any:
            return step({"a": weights["b"], "b": weights["a"]}, *kept)

        assert is_proved(step, regrouped, (weights, x), changed_args=((x,), weights))
        assert not is_proved(step, swapped, (weights, x), changed_args=((x,), weights))

    def test_a_leaf_in_two_places_shows_no_order(self) -> None:
        """Both arguments are one object, so nothing shows that the changed step has them in the same order."""

        def step(a: Any, b: Any) -> Any:
            return a - b

        def regrouped(kept: Any, a: Any) -> Any:
            return step(a, *kept)

        assert not is_proved(step, regrouped, (_X, _X), changed_args=((_X,), _X))

    def test_a_step_without_results_is_not_proved(self) -> None:
        assert not is_proved(lambda x: None, lambda x: None, (_X,))

    def test_names_of_values_are_operations(self) -> None:
        assert is_proved(lambda x: checkpoint_name(x, "a") + 1, lambda x: checkpoint_name(x, "a") + 1, (_X,))


class TestFrameworks:
    def test_linen(self) -> None:
        class Layer(nn.Module):
            @nn.compact
            def __call__(self, x: Any) -> Any:
                return x + nn.Dropout(0.1, deterministic=False)(nn.Dense(4)(nn.LayerNorm()(x)))

        def step_of(layer: Any) -> Callable[..., Any]:
            model = nn.Sequential([layer(), layer()])

            def loss(params: Any, x: Any, key: Any) -> Any:
                return jnp.sum(model.apply(params, x, rngs={"dropout": key}) ** 2)

            return jax.grad(loss)

        model = nn.Sequential([Layer(), Layer()])
        params = jax.eval_shape(lambda key: model.init({"params": key, "dropout": key}, jnp.ones((2, 4))), _KEY)
        original = Layer.__call__
        spec = StepSpec(step_of(Layer), (params, _X, _KEY))
        before = Operations(spec, _CPU)
        Layer.__call__ = nn.remat(original)  # type: ignore[method-assign]
        assert before.are_those_of(spec)

    def test_nnx(self) -> None:
        class Layer(nnx.Module):
            def __init__(self, rngs: nnx.Rngs) -> None:
                self.dense, self.norm = nnx.Linear(4, 4, rngs=rngs), nnx.BatchNorm(4, rngs=rngs)
                self.dropout = nnx.Dropout(0.1, rngs=rngs)

            def __call__(self, x: Any) -> Any:
                return x + self.dropout(self.norm(self.dense(x)))

        def step_of(call: Callable[..., Any]) -> Callable[..., Any]:
            def step(model: Any, x: Any) -> Any:
                return nnx.grad(lambda model: jnp.sum(call(model, x) ** 2))(model)

            return nnx.jit(step)

        model = nnx.eval_shape(lambda: Layer(nnx.Rngs(0)))
        assert is_proved(step_of(Layer.__call__), step_of(nnx.remat(Layer.__call__)), (model, _X))
        assert not is_proved(step_of(Layer.__call__), step_of(lambda model, x: model(x) * 2), (model, _X))

    def test_equinox(self) -> None:
        class Layer(eqx.Module):
            dense: eqx.nn.Linear

            def __call__(self, x: Any) -> Any:
                return x + jax.nn.relu(self.dense(x))

        def step_of(call: Callable[..., Any]) -> Callable[..., Any]:
            return eqx.filter_jit(
                lambda model, x: eqx.filter_grad(lambda model: jnp.sum(jax.vmap(partial(call, model))(x)))(model)
            )

        model = eqx.filter_eval_shape(lambda key: Layer(eqx.nn.Linear(4, 4, key=key)), _KEY)
        assert is_proved(
            step_of(lambda model, x: model(x)), step_of(eqx.filter_checkpoint(lambda model, x: model(x))), (model, _X)
        )
        assert not is_proved(step_of(lambda model, x: model(x)), step_of(lambda model, x: -model(x)), (model, _X))


def test_forces_within_a_loss() -> None:
    """The gradient of an energy in the loss, so that the checkpoint is differentiated twice."""

    def step_of(energy: Callable[..., Any]) -> Callable[..., Any]:
        def loss(w: Any, x: Any) -> Any:
            return jnp.sum(jax.grad(energy, 1)(w, x) ** 2)

        return jax.grad(loss)

    def energy(w: Any, x: Any) -> Any:
        return jnp.sum(jnp.tanh(x @ w[0]) @ w[1])

    assert is_proved(step_of(energy), step_of(jax.checkpoint(energy)), (_W, _X))
    assert not is_proved(step_of(energy), step_of(jax.checkpoint(lambda w, x: energy(w, x) * 2)), (_W, _X))


def test_jax_traces_calls_as_before_afterwards() -> None:
    Operations(StepSpec(training(jax.checkpoint(block)), _ARGS), _CPU)
    traced = str(jax.make_jaxpr(training(jax.jit(jax.checkpoint(block))))(*_ARGS))
    assert "checkpoint" in traced or "remat" in traced
    assert "jit[" in traced
