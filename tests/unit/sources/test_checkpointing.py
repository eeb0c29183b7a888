"""Checkpoints put into steps that nobody has touched: the blocks that are found, and gradients that stay equal."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx
from jax.extend import core
from random_arrays import normal

from memprof.analysis.records.checkpoints import LAYER_INPUT, Block, Checkpoints, Signature
from memprof.errors import MemprofError
from memprof.sources.jax.checkpointing.apply import checkpointed, with_checkpointed_blocks
from memprof.sources.jax.checkpointing.block_programs import blocks_of
from memprof.sources.jax.checkpointing.evaluation import without_calls, without_checkpoints
from memprof.sources.jax.checkpointing.layers import layers_of
from memprof.sources.jax.checkpointing.liveness import estimated_peaks
from memprof.sources.jax.checkpointing.operations import block_of
from memprof.sources.jax.checkpointing.policies import signature_of
from memprof.sources.jax.targets.resolve import resolve
from memprof.sources.jax.tracing.flops import count_flops, recomputed_flops
from memprof.sources.jax.tracing.jit_adapter import CHECKPOINTS, all_equations
from memprof.sources.jax.xla.xla_adapter import cudnn_of_absent_device
from memprof.studies.plan.code import code_of

_X = jnp.asarray(np.linspace(-1.0, 1.0, 8 * 16, dtype=np.float32).reshape(8, 16))
_WEIGHTS = [normal(number, (16, 16)) / 4 for number in range(6)]
_NOTHING_KEPT = Checkpoints(kept=frozenset())
Case = tuple[Callable[..., Any], tuple[Any, ...]]


def _layer(x: jax.Array, w: jax.Array) -> jax.Array:
    return x + jnp.sin(x @ w) * 2.0


def unrolled() -> Case:
    def loss(weights: list[jax.Array], x: jax.Array) -> jax.Array:
        for w in weights:
            x = _layer(x, w)
        return jnp.sum(x**2)

    return jax.value_and_grad(loss), (_WEIGHTS, _X)


def unrolled_and_jitted() -> Case:
    jitted = jax.jit(_layer)

    def loss(weights: list[jax.Array], x: jax.Array) -> tuple[jax.Array, jax.Array]:
        for w in weights:
            x = jitted(x, w)
        return jnp.sum(x**2), x

    return jax.jit(jax.grad(loss, has_aux=True)), (_WEIGHTS, _X)


def under_a_checkpoint() -> Case:
    def loss(weights: list[jax.Array], x: jax.Array) -> jax.Array:
        for w in weights:
            x = jax.checkpoint(_layer)(x, w)
        return jnp.sum(x**2)

    return jax.grad(loss), (_WEIGHTS, _X)


def scanned() -> Case:
    def loss(weights: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.sum(jax.lax.scan(lambda x, w: (_layer(x, w), None), x, weights)[0] ** 2)

    return jax.grad(loss), (jnp.stack(_WEIGHTS), _X)


def of_nnx() -> Case:
    class Net(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.layers = nnx.List([nnx.Linear(16, 16, rngs=rngs) for _ in range(6)])

        def __call__(self, x: jax.Array) -> jax.Array:
            for layer in self.layers:
                x = x + nnx.relu(layer(x))
            return x

    graph, state = nnx.split(Net(nnx.Rngs(0)))

    def step(state: Any, x: jax.Array) -> Any:
        return nnx.value_and_grad(lambda net, x: jnp.sum(net(x) ** 2))(nnx.merge(graph, state), x)

    return step, (state, _X)


def of_equinox() -> Case:
    layers = [eqx.nn.Linear(16, 16, key=key) for key in jax.random.split(jax.random.key(0), 6)]
    params, static = eqx.partition(layers, eqx.is_array)

    def step(params: Any, x: jax.Array) -> Any:
        def loss(params: Any) -> jax.Array:
            y = x
            for layer in eqx.combine(params, static):
                y = y + jnp.tanh(jax.vmap(layer)(y))
            return jnp.sum(y**2)

        return eqx.filter_grad(loss)(params)

    return step, (params, _X)


def of_linen_with_dropout() -> Case:
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            for _ in range(6):
                x = x + nn.Dropout(0.5, deterministic=False)(nn.relu(nn.Dense(16)(x)))
            return jnp.sum(x**2)

    net, key = Net(), jax.random.key(1)
    params = net.init({"params": key, "dropout": key}, _X)
    return jax.grad(lambda params, x, key: net.apply(params, x, rngs={"dropout": key})), (params, _X, key)


CASES = (unrolled, unrolled_and_jitted, under_a_checkpoint, scanned, of_nnx, of_equinox, of_linen_with_dropout)


@pytest.mark.with_each_jax
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_gradients_stay_equal_and_each_layer_is_a_block(case: Callable[[], Case]) -> None:
    step, args = case()
    expected = jax.jit(step)(*args)
    with checkpointed(_NOTHING_KEPT) as functions:
        found = jax.jit(step)(*args)
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    (function,) = functions
    assert [block.count for block in blocks_of(function)] in ([6], [5])  # the first may differ: nothing is before it


def test_a_policy_decides_what_is_computed_again() -> None:
    step, args = unrolled()

    def repeated(checkpoints: Checkpoints) -> int:
        with checkpointed(checkpoints):
            return recomputed_flops(count_flops(jax.make_jaxpr(step)(*args)))

    product = 2 * 8 * 16 * 16
    assert repeated(_NOTHING_KEPT) in (5 * product, 6 * product)
    with checkpointed(None) as functions:
        jax.make_jaxpr(step)(*args)
    operations = _block(functions[0]).operations
    kept = {each.signature for each in operations if each.signature.primitive == "dot_general"}
    assert kept
    assert repeated(Checkpoints(kept=frozenset(kept))) == 0


@pytest.mark.parametrize("implementation", ["xla", "cudnn"])
def test_the_products_in_an_attention_kernel_count(implementation: Any) -> None:
    """Two forward, computed again by the checkpoint, and four backward; the kernel has one more: the scores again."""
    query = jax.ShapeDtypeStruct((2, 128, 4, 64), jnp.bfloat16)

    def attended(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
        found = jax.nn.dot_product_attention(query, key, value, implementation=implementation)
        return jnp.sum(jnp.sin(found).astype(jnp.float32))  # the sine's gradient needs the result again

    with cudnn_of_absent_device(resolve("h100-80gb")):
        step = jax.grad(jax.checkpoint(attended), argnums=(0, 1, 2))
        flops = count_flops(jax.make_jaxpr(step)(query, query, query))
    product = 2 * 2 * 128 * 4 * 128 * 64
    assert recomputed_flops(flops) == 2 * product
    assert flops.total() == (2 + 2 + 4 + (implementation == "cudnn")) * product


@pytest.mark.parametrize("rest", [None, frozenset()], ids=["without a checkpoint", "with another"])
def test_the_last_blocks_may_keep_more(rest: frozenset[Signature] | None) -> None:
    step, args = unrolled()
    expected = jax.jit(step)(*args)
    with checkpointed(None) as functions:
        jax.make_jaxpr(step)(*args)
    (first,) = blocks_of(functions[0])
    with checkpointed(Checkpoints(kept=frozenset(), num_first=2, kept_by_rest=rest)):
        found = jax.jit(step)(*args)
        flops = recomputed_flops(count_flops(jax.make_jaxpr(step)(*args)))
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    assert flops == 2 * 8 * 16 * 16 * (2 if rest is None else first.count)


def test_the_operations_of_a_block() -> None:
    step, args = unrolled()
    with checkpointed(None) as functions:
        jax.make_jaxpr(step)(*args)
    operations = _block(functions[0]).operations
    by_name = {each.signature.primitive: each for each in operations}
    # sin(x @ w) is differentiated through cos(x @ w): the product is what it is made of
    assert by_name["cos"].is_needed
    assert [operations[number].signature.primitive for number in by_name["cos"].inputs] == ["dot_general"]
    assert by_name["cos"].size_bytes == 8 * 16 * 4
    assert by_name["dot_general"].signature.inputs == (((8, 16), "float32"), ((16, 16), "float32"))


def test_a_derivative_inside_what_is_differentiated_is_part_of_it() -> None:
    def penalty(w: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.sum(jax.grad(lambda x: jnp.sum(jnp.tanh(x @ w)))(x) ** 2)

    step, args = jax.grad(penalty), (_WEIGHTS[0], _X)
    expected = step(*args)
    with checkpointed(_NOTHING_KEPT) as functions:
        found = step(*args)
    np.testing.assert_array_equal(found, expected)
    assert len(functions) == 1


def test_a_changed_step_is_jitted_as_it_was() -> None:
    def step(weights: list[jax.Array], x: jax.Array, factor: int) -> Any:
        grads = jax.grad(lambda weights: jnp.sum(_layer(_layer(x, weights[0]), weights[1]) ** 2))(weights)
        return jax.tree.map(lambda w, g: w - factor * g, weights, grads)

    jitted = jax.jit(step, static_argnums=2, donate_argnums=0)
    expected = jitted(jax.tree.map(jnp.copy, _WEIGHTS), _X, 2)
    changed: Any = with_checkpointed_blocks(jitted, _NOTHING_KEPT)
    jax.tree.map(np.testing.assert_array_equal, changed(jax.tree.map(jnp.copy, _WEIGHTS), _X, 2), expected)
    assert "rematted_computation" in str(changed.lower(_WEIGHTS, _X, 2).as_text(debug_info=True))
    plain: Any = with_checkpointed_blocks(step, _NOTHING_KEPT)
    assert not hasattr(plain, "lower")


def test_what_is_no_array_comes_back_as_it_is() -> None:
    def loss(w: jax.Array) -> tuple[jax.Array, dict[str, object]]:
        return jnp.sum(jnp.sin(w)), {"name": "loss", "norm": jnp.sum(w**2)}

    with checkpointed(_NOTHING_KEPT):
        (value, aux), _ = jax.value_and_grad(loss, has_aux=True)(_X)
    assert (aux["name"], float(aux["norm"])) == ("loss", float(jnp.sum(_X**2)))
    assert float(value) == float(loss(_X)[0])


def test_jax_vjp_itself_is_followed_and_other_threads_are_not() -> None:
    with checkpointed(_NOTHING_KEPT) as functions:
        jax.vjp(jnp.sin, _X)
        with ThreadPoolExecutor(max_workers=1) as other:
            other.submit(jax.grad(lambda w: jnp.sum(w**2)), _X).result()
    assert len(functions) == 1
    jax.vjp(jnp.sin, _X)
    assert len(functions) == 1


def test_what_was_traced_before_is_traced_again_and_stays_known() -> None:
    traced = []

    @jax.jit
    def step(w: jax.Array) -> jax.Array:
        traced.append(None)
        return jax.grad(lambda w: jnp.sum(jnp.sin(w)))(w)

    step(_X)
    with checkpointed(_NOTHING_KEPT):
        step(_X)
    step(_X)
    assert len(traced) == 2


def test_the_jit_of_a_framework_is_refused() -> None:
    with pytest.raises(MemprofError, match="jitted by its framework"):
        with_checkpointed_blocks(nnx.jit(lambda x: x), _NOTHING_KEPT)


def test_a_signature_leaves_out_what_is_no_array() -> None:
    dot = jax.make_jaxpr(jnp.dot)(_X, _WEIGHTS[0]).eqns[-1]
    found = signature_of(dot.primitive, [atom.aval for atom in dot.invars], dot.params)
    assert found.dimension_numbers == "(((1,), (0,)), ((), ()))"


def _block(function: core.ClosedJaxpr) -> Block:
    (block,) = blocks_of(function)
    return block_of(block, None)


def test_devices_share_the_work_of_a_block() -> None:
    def scanned(x: Any, weights: Any) -> Any:
        return jax.lax.scan(lambda x, w: (jnp.sin(x @ w), None), x, weights)[0]

    (block,) = blocks_of(without_calls(jax.make_jaxpr(scanned)(_X, jnp.stack(_WEIGHTS))))
    whole, half = (block_of(block, None, num_devices=number).operations for number in (1, 2))
    assert [each.size_bytes for each in half] == [each.size_bytes // 2 for each in whole]
    assert [each.seconds for each in half] == [each.seconds / 2 for each in whole]


def test_the_arrays_that_a_scan_carries_come_before_the_operations() -> None:
    """The body reads the carried array in its product; a counter and a weight are no inputs to save."""

    def layer(carry: Any, w: Any) -> Any:
        number, x = carry
        return (number + 1, jnp.sin(x @ w)), None

    def scanned(x: Any, weights: Any) -> Any:
        return jax.lax.scan(layer, (0, x), weights)[0][1]

    (program,) = blocks_of(without_calls(jax.make_jaxpr(scanned)(_X, jnp.stack(_WEIGHTS))))
    block = block_of(program, None, with_inputs=True)
    assert [each.signature.primitive for each in block.operations] == [LAYER_INPUT, "dot_general", "cos"]
    first, product, cosine = block.operations
    assert (first.is_input, first.is_needed, first.size_bytes) == (True, True, _X.nbytes)  # the gradient of w reads it
    assert (product.inputs, cosine.inputs) == ((0,), (1,))
    assert not any(each.is_input for each in block_of(program, None).operations)


def test_the_jits_of_a_body_stay_unless_they_contain_checkpoints() -> None:
    """XLA lays out inlined jits differently from the user's code, in which they stay."""
    twice, sine = jax.jit(lambda x: 2.0 * x), jax.jit(jax.checkpoint(jax.lax.sin))
    found = without_checkpoints(jax.make_jaxpr(lambda x: jax.checkpoint(jax.lax.tanh)(sine(twice(x))))(_X))
    assert [each.primitive.name for each in found.jaxpr.eqns] == ["jit", "sin", "tanh"]

    def loss(weights: Any, x: Any) -> Any:
        return jnp.sum(jax.lax.scan(lambda x, w: (jnp.sin(twice(x @ w)), None), x, weights)[0])

    args = jnp.stack(_WEIGHTS), _X
    with checkpointed(_NOTHING_KEPT):
        traced = jax.make_jaxpr(jax.grad(loss))(*args)
        found_gradients = jax.jit(jax.grad(loss))(*args)
    np.testing.assert_allclose(found_gradients, jax.jit(jax.grad(loss))(*args), rtol=1e-6)
    loop = next(each for each in traced.jaxpr.eqns if each.primitive.name == "scan")
    assert "jit" in [each.primitive.name for each in all_equations(loop.params["jaxpr"].jaxpr)]


def test_offloaded_results_move_to_the_host_and_back() -> None:
    """Of each layer, the carried array and the product wait in host memory; nothing else is saved."""

    def loss(weights: Any, x: Any) -> Any:
        return jnp.sum(jax.lax.scan(lambda x, w: (jnp.sin(x @ w), None), x, weights)[0])

    args = jnp.stack(_WEIGHTS), _X
    (program,) = blocks_of(without_calls(jax.make_jaxpr(loss)(*args)))
    moved = {each.signature for each in block_of(program, None, with_inputs=True).operations[:2]}
    with checkpointed(Checkpoints(kept=frozenset(), offloaded=frozenset(moved))):
        traced = jax.make_jaxpr(jax.grad(loss))(*args)
        found = jax.jit(jax.grad(loss))(*args)
    np.testing.assert_allclose(found, jax.jit(jax.grad(loss))(*args), rtol=1e-6)
    loops = [each for each in all_equations(traced.jaxpr) if each.primitive.name == "scan"]
    stacked = [var.aval for var in loops[0].outvars if var.aval.ndim == 3]
    assert [each.memory_space for each in stacked] == [jax.memory.Space.Host] * 2
    num_moves = [
        sum(each.primitive.name == "device_put" for each in all_equations(loop.params["jaxpr"].jaxpr)) for loop in loops
    ]
    assert num_moves == [2, 2]
    on_host, on_device = (min(estimated_peaks(each)) for each in (traced.jaxpr, _kept(loss, args, moved)))
    assert on_device - on_host == (2 * len(_WEIGHTS) - 1) * _X.nbytes  # a layer loads one of them


def _kept(loss: Any, args: Any, kept: set[Signature]) -> Any:
    with checkpointed(Checkpoints(kept=frozenset(kept))):
        return jax.make_jaxpr(jax.grad(loss))(*args).jaxpr


def _masked(x: jax.Array, w: jax.Array) -> jax.Array:
    """Half of its bytes are made by a jit of JAX under `vmap`."""
    return jax.vmap(lambda row: jnp.where(row > 0, row, 0.5))(x) @ w


def test_the_layer_of_what_a_traced_jit_makes_is_the_function_that_calls_it() -> None:
    """JAX notes for what a jit that it has traced before makes the calls within the jit alone (jax 0.12)."""

    def loss(weights: list[jax.Array], x: jax.Array) -> jax.Array:
        for w in weights:
            x = _masked(x, w)
        return jnp.sum(x**2)

    jax.make_jaxpr(jax.grad(loss))(_WEIGHTS, _X)
    with checkpointed(None) as functions:
        jax.make_jaxpr(jax.grad(loss))(_WEIGHTS, _X)
    (layer,) = layers_of(functions[0])
    assert (layer.name, layer.count) == ("_masked", len(_WEIGHTS))


def test_the_body_of_a_scan_is_found_if_another_function_has_traced_its_jits_before() -> None:
    """As for dropout in a model: its random numbers are made by jits that the initialization has traced."""

    @jax.jit
    def noise(x: jax.Array) -> jax.Array:
        return jnp.sin(jnp.cos(jnp.sin(x)))

    def body(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
        return x + noise(x @ w), None

    def initialized(x: jax.Array) -> jax.Array:
        return noise(x)

    def loss(weights: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.sum(jax.lax.scan(body, x, weights)[0])

    weights = jnp.stack([jnp.eye(_X.shape[1])] * 3)
    jax.make_jaxpr(initialized)(_X)
    with checkpointed(None) as functions:
        jax.make_jaxpr(jax.grad(loss))(weights, _X)
    (layer,) = layers_of(functions[0])
    assert (layer.own_name, layer.count, layer.is_loop) == ("body", 3, True)


def _rollout(weights: jax.Array, x: jax.Array) -> jax.Array:
    """Three observations, with four steps between them: the scan of the steps is within that of the observations."""

    def substep(x: jax.Array, _: None) -> tuple[jax.Array, None]:
        return jnp.sin(x @ weights), None

    @jax.jit
    def between(x: jax.Array) -> jax.Array:
        return jax.lax.scan(substep, x, None, length=4)[0]

    def observed(x: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        x = between(x)
        return x, jnp.sum(x)

    return jnp.sum(jax.lax.scan(observed, x, None, length=3)[1])


@pytest.mark.parametrize("group_size", [None, 4], ids=["without groups", "with groups"])
def test_the_body_of_a_scan_within_a_scan_is_the_block(group_size: int | None) -> None:
    """The carries of all 12 steps are kept, or with groups those of 3 observations and of the 4 steps of one."""
    step, args = jax.grad(_rollout), (_WEIGHTS[0], _X)
    with checkpointed(None) as functions:
        jax.make_jaxpr(step)(*args)
    (block,) = blocks_of(functions[0])
    assert (block.count, block.inner_count) == (12, 4)
    assert [(each.name, each.count) for each in layers_of(functions[0])] == [("_rollout.<locals>.substep", 12)]
    with checkpointed(Checkpoints(kept=frozenset(), group_size=group_size)):
        traced = jax.make_jaxpr(step)(*args)
        found = jax.jit(lambda *args: step(*args))(*args)
    np.testing.assert_allclose(found, jax.jit(step)(*args), rtol=1e-5)
    stacked = {var.aval.shape for each in traced.jaxpr.eqns for var in each.outvars if var.aval.shape[-2:] == (8, 16)}
    assert ((3, 4, 8, 16) in stacked) == (group_size is None)
    product = 2 * 8 * 16 * 16
    flops = recomputed_flops(count_flops(traced))
    assert flops == 12 * product * (1 if group_size is None else 2)


@pytest.mark.parametrize(
    ("group_size", "num_outer", "num_recomputed"),
    [(None, 0, 6), (2, 3, 6 + 3), (3, 2, 6 + 4), (4, 0, 6)],  # six layers are too few for groups of four
)
def test_layers_in_groups_have_another_checkpoint_around_each_group(
    group_size: int | None, num_outer: int, num_recomputed: int
) -> None:
    """Each of the six layers is computed once more, and with groups another time, but for the last one of a group."""
    step, args = unrolled()
    with checkpointed(None) as functions:
        jax.make_jaxpr(step)(*args)
    (block,) = blocks_of(functions[0])
    assert (block.count, [block.closed.in_avals[place].shape for place in block.carried]) == (6, [(8, 16)])
    with checkpointed(Checkpoints(kept=frozenset(), group_size=group_size)):
        traced = jax.make_jaxpr(step)(*args)
        found = jax.jit(lambda *args: step(*args))(*args)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5), found, jax.jit(step)(*args))
    checkpoints = [each.params["jaxpr"] for each in traced.jaxpr.eqns if each.primitive.name in CHECKPOINTS]
    within = [any(inner.primitive.name in CHECKPOINTS for inner in each.eqns) for each in checkpoints]
    assert sum(within) == num_outer
    assert recomputed_flops(count_flops(traced)) == num_recomputed * 2 * 8 * 16 * 16


def test_layers_that_are_left_over_are_a_smaller_group() -> None:
    """Five layers in groups of two: the estimated peak is that of the pasted function."""
    weights = _WEIGHTS[:5]

    def loss(weights: list[jax.Array], x: jax.Array) -> jax.Array:
        for w in weights:
            x = _layer(x, w)
        return jnp.sum(x**2)

    checkpoints = Checkpoints(kept=frozenset(), group_size=2)
    exec(code_of(checkpoints, is_loop=False), pasted := dict[str, Any]())

    def by_hand(weights: list[jax.Array], x: jax.Array) -> jax.Array:
        return jnp.sum(pasted["layers_in_groups"]([lambda x, w=w: _layer(x, w) for w in weights], x) ** 2)

    with checkpointed(checkpoints):
        traced = jax.make_jaxpr(jax.grad(loss))(weights, _X)
        found = jax.grad(loss)(weights, _X)
    assert estimated_peaks(traced.jaxpr) == estimated_peaks(jax.make_jaxpr(jax.grad(by_hand))(weights, _X).jaxpr)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5), found, jax.grad(by_hand)(weights, _X))


def test_the_iterations_of_a_scan_count_beside_the_layers_before_it() -> None:
    """The layers make 6 arrays, and the scan 40, of which only the last one leaves it."""

    def loss(weights: list[jax.Array], x: jax.Array) -> jax.Array:
        for w in weights:
            x = _layer(x, w)
        return jnp.sum(jax.lax.scan(lambda y, _: (jnp.sin(y * x), None), x, None, length=40)[0])

    with checkpointed(None) as functions:
        jax.make_jaxpr(jax.grad(loss))(_WEIGHTS, _X)
    assert [(each.is_loop, each.count) for each in blocks_of(functions[0])] == [(True, 40)]


def test_a_scan_beside_larger_operations_leaves_its_body_one_block() -> None:
    """The inner scan makes 4 arrays of 8 by 16, and the body beside it an array of 8 by 1024."""

    def observed(x: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        x = jax.lax.scan(lambda x, _: (jnp.sin(x), None), x, None, length=4)[0]
        return x, jnp.sum(jnp.sin(x @ jnp.ones((16, 1024))))

    step = jax.grad(lambda x: jnp.sum(jax.lax.scan(observed, x, None, length=3)[1]))
    with checkpointed(None) as functions:
        jax.make_jaxpr(step)(_X)
    (block,) = blocks_of(functions[0])
    assert (block.count, block.inner_count) == (3, None)
