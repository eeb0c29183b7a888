"""Gradients accumulated over minibatches: equal to those of the whole batch, or refused with the reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.extend import core
from random_arrays import normal

import memprof
from memprof.analysis.records.rewrites import InMinibatches
from memprof.errors import MemprofError
from memprof.sources.jax.checkpointing.minibatches import in_minibatches
from memprof.sources.jax.checkpointing.pieces import Grouped, Piece

pytestmark = pytest.mark.usefixtures("quick_compiles")

_WIDTH, _EXAMPLES, _PARTS = 6, 8, 4
_KEY = jax.random.key(3)

PARAMS = {
    "first": normal(0, (_WIDTH, _WIDTH)),
    "last": normal(1, (_WIDTH, _WIDTH)),
    "bias": normal(2, (_WIDTH,)),
}
BATCH = {
    "x": normal(4, (_EXAMPLES, _WIDTH)),
    "y": normal(5, (_EXAMPLES, _WIDTH)),
    "weights": jnp.arange(1.0, 1 + _EXAMPLES),
    "labels": jnp.arange(_EXAMPLES) % _WIDTH,
}


def network(params: Any, x: Any) -> Any:
    return jax.nn.relu(x @ params["first"] + params["bias"]) @ params["last"]


def mean(params: Any, batch: Any) -> Any:
    return jnp.mean((network(params, batch["x"]) - batch["y"]) ** 2)


def total_with_decay(params: Any, batch: Any) -> Any:
    return jnp.sum((network(params, batch["x"]) - batch["y"]) ** 2) + 0.1 * optax.tree.norm(params)


def weighted(params: Any, batch: Any) -> Any:
    losses = optax.softmax_cross_entropy_with_integer_labels(network(params, batch["x"]), batch["labels"])
    return (losses * batch["weights"]).sum() / batch["weights"].sum()


def with_dropout(params: Any, batch: Any) -> Any:
    hidden = network(params, batch["x"])
    kept = jax.random.bernoulli(_KEY, 0.5, hidden.shape)
    return jnp.mean((jnp.where(kept, hidden, 0.0) - batch["y"]) ** 2)


def scanned_layers(params: Any, batch: Any) -> Any:
    def layer(carry: Any, weight: Any) -> Any:
        x, total = carry
        x = jax.checkpoint(lambda x: jnp.tanh(x @ weight))(x)
        return (x, total + (x**2).sum()), x.mean(-1)

    weights = jnp.stack([params["first"], params["last"]])
    (_, total), means = jax.lax.scan(layer, (batch["x"], 0.0), weights)
    return total + means.sum()


def long_chain(params: Any, batch: Any) -> Any:
    """Weights of the examples by way of many operations, each of which reads the one before it several times."""
    weights = jnp.broadcast_to(jnp.arange(1.0, 1 + _WIDTH) / _WIDTH, (_EXAMPLES, _WIDTH))
    for _ in range(150):
        weights = jnp.sin(weights) * weights + jnp.cos(weights)
    return jnp.mean(weights * (network(params, batch["x"]) - batch["y"]) ** 2)


def branches(params: Any, batch: Any) -> Any:
    def dense(x: Any) -> tuple[Any, Any]:
        hidden = network(params, x)
        return hidden, (hidden**2).sum()

    def cheap(x: Any) -> tuple[Any, Any]:
        return jnp.zeros_like(x), jnp.sum(params["bias"])

    hidden, penalty = jax.lax.cond(params["bias"][0] > -9.0, dense, cheap, batch["x"])
    _, other = jax.lax.switch(params["bias"].shape[0] - 5, [dense, cheap], hidden)
    return jnp.mean((hidden - batch["y"]) ** 2) + penalty + other


def linear_algebra(params: Any, batch: Any) -> Any:
    """A Gaussian process for each example."""
    points = batch["x"] @ params["first"]
    kernel = jnp.exp(-jnp.square(points[:, :, None] - points[:, None])) + 2 * jnp.eye(_WIDTH)
    factor = jnp.linalg.cholesky(kernel)
    solved = jax.scipy.linalg.solve_triangular(factor, batch["y"][..., None], lower=True)
    modes = jnp.abs(jnp.fft.fft(points @ params["last"])) ** 2
    return (solved**2).sum() + jnp.log(jnp.diagonal(factor, axis1=1, axis2=2)).sum() + modes.mean()


def over_time(params: Any, batch: Any) -> Any:
    def cell(hidden: Any, x: Any) -> Any:
        hidden = jnp.tanh(x @ params["first"] + hidden @ params["last"])
        return hidden, hidden

    sequence = jnp.broadcast_to(batch["x"], (3, _EXAMPLES, _WIDTH))
    _, outputs = jax.lax.scan(cell, jnp.zeros((_EXAMPLES, _WIDTH)), sequence)
    return jnp.mean((outputs.mean(0) - batch["y"]) ** 2)


def convolution(params: Any, batch: Any) -> Any:
    images = batch["x"].reshape(_EXAMPLES, _WIDTH, 1, 1) * jnp.ones((1, 1, 4, 2))
    kernel = params["first"][:4, :].reshape(2, 2, 2, 3)
    found = jax.lax.conv_general_dilated(images, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    pooled = jax.lax.reduce_window(found, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return jnp.pad(pooled, ((0, 0), (1, 0), (0, 0), (0, 0)))[:, ::-1].sum()


def looked_up(params: Any, batch: Any) -> Any:
    rows = params["first"][batch["labels"]]
    top, _ = jax.lax.top_k(rows, 2)
    left, _ = jnp.split(rows, 2, axis=1)
    return jnp.vdot(top.sum(-1), batch["weights"]) + jnp.sort(left, axis=-1).sum()


def own_entries(params: Any, batch: Any) -> Any:
    logits = network(params, batch["x"])
    rows, columns = jnp.arange(_EXAMPLES)[:, None], jnp.arange(2)
    left, _ = jnp.split(logits.reshape(_EXAMPLES, 2, _WIDTH // 2), 2, axis=1)
    return logits[jnp.arange(_EXAMPLES), batch["labels"]].sum() + (left[rows, 0, columns] ** 2).mean()


@jax.custom_vjp
def straight_through(x: Any, scale: Any) -> Any:
    return jnp.round(x * scale)


straight_through.defvjp(
    lambda x, scale: (straight_through(x, scale), (x, scale)),
    lambda kept, cotangent: (cotangent * kept[1], (cotangent * kept[0]).sum(0)),
)


def mapped(params: Any, batch: Any) -> Any:
    losses = jax.lax.map(lambda x: (network(params, x) ** 2).sum(), batch["x"])
    first, _ = jnp.stack([batch["x"], network(params, jnp.tile(batch["x"], (1, 2))[:, :_WIDTH])], axis=1).swapaxes(0, 1)
    return jnp.stack([losses.mean(), (losses * batch["weights"]).sum()]).sum() + (first * losses[:, None]).sum()


def written(params: Any, batch: Any) -> Any:
    return (network(params, batch["x"]).at[:, 1].set(2.0).at[:, 2:4].add(batch["y"][:, :2]) ** 2).mean()


def forces(params: Any, batch: Any) -> Any:
    """The gradient of each example's energy adds to the entries that the example looked up."""

    def energy(x: Any, neighbours: Any) -> Any:
        features = jnp.tanh(x.reshape(_WIDTH // 2, 2) @ params["first"][:2])
        return jnp.sum(jnp.sin(features[neighbours] * features) ** 2)

    neighbours = (batch["labels"][:, None] + jnp.arange(3)) % (_WIDTH // 2)
    return jnp.mean((jax.vmap(jax.grad(energy))(batch["x"], neighbours) - batch["y"]) ** 2)


@jax.custom_vjp
def reversed_gradient(x: Any) -> Any:
    return x


reversed_gradient.defvjp(lambda x: (x, None), lambda _, cotangent: (-0.5 * cotangent,))


def own_backward_pass(params: Any, batch: Any) -> Any:
    last = reversed_gradient(mean(params, batch)) + mean({**params, "last": reversed_gradient(params["last"])}, batch)
    return last + jnp.mean((straight_through(network(params, batch["x"]), params["bias"]) - batch["y"]) ** 2)


def samples_of_rays(params: Any, batch: Any) -> Any:
    """Sample along each ray by its own distribution, as a NeRF does: a search and lookups in the row of the ray."""

    def render(key: Any, ray: Any) -> Any:
        edges = jnp.sort(jax.random.uniform(key, (_WIDTH,)))
        weights = jax.lax.stop_gradient(jax.nn.softplus(network(params, ray)))
        total = jnp.cumsum(weights / weights.sum())
        places = jnp.clip(jnp.searchsorted(total, edges), 0, _WIDTH - 1)
        return network(params, edges[places] * ray + total[places])

    keys = jax.random.split(_KEY, _EXAMPLES)
    return jnp.mean((jax.vmap(render)(keys, batch["x"]) - batch["y"]) ** 2)


def preferences(params: Any, batch: Any) -> Any:
    """One call of the network for two arrays of the examples, as in direct preference optimization."""
    results = network(params, jnp.concatenate([batch["x"], batch["y"]]))
    kept = jax.random.bernoulli(_KEY, 0.5, results.shape)
    chosen, rejected = jnp.split(jnp.where(kept, results, 0.0).sum(-1), 2)
    return -jnp.mean(jax.nn.log_sigmoid(chosen - rejected) * batch["weights"])


def three_views(params: Any, batch: Any) -> Any:
    """Groups of rows that are concatenated twice, tiled, looked up, mapped over and taken apart by slices."""
    views = jnp.concatenate([jnp.concatenate([batch["x"], batch["y"]]), batch["x"] * batch["y"]][:1])
    views = jnp.concatenate([views, jnp.tile(batch["x"], (2, 1)) ** 2])
    logits = network(params, views)
    entries = logits[jnp.arange(4 * _EXAMPLES), jnp.tile(batch["labels"], 4)]
    own = jax.lax.map(lambda row: row @ params["first"], jnp.tanh(logits)).sum(-1) * entries
    first, rest = own[:_EXAMPLES], own[_EXAMPLES:]
    return jnp.mean(first * rest[_EXAMPLES : 2 * _EXAMPLES]) + jnp.mean((rest.reshape(3, -1).T - first[:, None]) ** 2)


def batch_of_times(params: Any, batch: Any) -> Any:
    """Times and examples are one axis for the network, as in `hk.BatchApply`, and two for a recurrence."""
    sequence = batch["x"] * jnp.arange(1.0, 4)[:, None, None]
    hidden = network(params, sequence.reshape(3 * _EXAMPLES, _WIDTH)).reshape(3, 2 * _EXAMPLES, _WIDTH // 2)
    pairs = jax.checkpoint(jnp.sin)(hidden).reshape(3, _EXAMPLES, 2, _WIDTH // 2)

    def turn(carry: Any, x: Any) -> Any:
        carry = jnp.tanh(carry + x.reshape(2 * _EXAMPLES, _WIDTH // 2))
        return carry, carry

    _, states = jax.lax.scan(turn, jnp.zeros((2 * _EXAMPLES, _WIDTH // 2)), pairs)
    return jnp.mean((states.reshape(3, _EXAMPLES, _WIDTH)[-1] - batch["y"]) ** 2) + states.sum() / 7


def scanned_pairs(params: Any, batch: Any) -> Any:
    """A scan over layers carries both groups, beside the rows of one of them."""

    def layer(both: Any, weight: Any) -> Any:
        both = straight_through(jax.nn.silu(both @ weight), params["bias"]) + jnp.concatenate([batch["x"], -batch["x"]])
        return both, both[_EXAMPLES:].sum(-1)

    both = jnp.concatenate([batch["x"], batch["y"]])
    both, of_layers = jax.lax.scan(layer, both, jnp.stack([params["first"], params["last"]]))
    return jnp.mean(both.reshape(2, _EXAMPLES, _WIDTH).prod(0) * of_layers.sum(0)[:, None])


DIVIDED = [
    mean,
    total_with_decay,
    weighted,
    with_dropout,
    scanned_layers,
    over_time,
    long_chain,
    branches,
    linear_algebra,
    convolution,
    looked_up,
    own_entries,
    own_backward_pass,
    mapped,
    written,
    forces,
    samples_of_rays,
    preferences,
    three_views,
    batch_of_times,
    scanned_pairs,
]


@pytest.mark.parametrize("loss", DIVIDED, ids=lambda loss: loss.__name__)
def test_accumulated_gradients_are_those_of_the_whole_batch(loss: Callable[..., Any]) -> None:
    _assert_accumulates(jax.value_and_grad(loss))


def test_what_a_loss_returns_beside_it_is_that_of_the_whole_batch() -> None:
    def loss(params: Any, batch: Any) -> Any:
        logits = network(params, batch["x"])
        value = optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"]).mean()
        right = logits.argmax(-1) == batch["labels"]
        more = {
            "logits": logits,  # rows
            "right": right.sum(),  # a sum of integers
            "accuracy": right.mean(),
            "perplexity": jnp.exp(value),  # not linear in a sum
            "norm": optax.tree.norm(params),  # no rows
            "largest": logits.max(),  # mixes rows
            "spread": logits.std(0) / right.sum(),
            "similar": logits @ logits.T,
            "steps": 3,
        }
        return value, more

    _assert_accumulates(jax.value_and_grad(loss, has_aux=True))


def batch_statistics(params: Any, batch: Any) -> Any:
    hidden = network(params, batch["x"])
    return jnp.mean(((hidden - hidden.mean(0)) - batch["y"]) ** 2)


def in_batch_negatives(params: Any, batch: Any) -> Any:
    hidden = network(params, batch["x"])
    return optax.softmax_cross_entropy_with_integer_labels(hidden @ hidden.T, batch["labels"]).mean()


def entries_of_another(params: Any, batch: Any) -> Any:
    return network(params, batch["x"])[_EXAMPLES - 1 - jnp.arange(_EXAMPLES), batch["labels"]].sum()


@jax.custom_vjp
def scaled_by_all(x: Any) -> Any:
    return x * 2.0


scaled_by_all.defvjp(lambda x: (scaled_by_all(x), x), lambda x, cotangent: (cotangent * x.max(),))


def backward_pass_of_all(params: Any, batch: Any) -> Any:
    return jnp.mean(scaled_by_all(network(params, batch["x"])))


def root(params: Any, batch: Any) -> Any:
    return jnp.sqrt(mean(params, batch))


def learned_weights(params: Any, batch: Any) -> Any:
    weights = jax.nn.sigmoid(network(params, batch["x"]).sum(-1))
    return (weights * batch["weights"]).sum() / weights.sum()


@jax.custom_vjp
def scaled_by_itself(total: Any) -> Any:
    return total


scaled_by_itself.defvjp(lambda total: (total, total), lambda total, cotangent: (cotangent * total,))


def backward_pass_of_the_sum(params: Any, batch: Any) -> Any:
    return scaled_by_itself(mean(params, batch))


def neighbours(params: Any, batch: Any) -> Any:
    """Each example is compared with the next one of its group."""
    both = network(params, jnp.concatenate([batch["x"], batch["y"]]))
    return jnp.mean(both.reshape(_EXAMPLES, 2, _WIDTH).prod(1))


def unequal_groups(params: Any, batch: Any) -> Any:
    both = network(params, jnp.concatenate([batch["x"], batch["y"]]))
    return jnp.mean(both[: _EXAMPLES + 2] ** 2)


def unknown(params: Any, batch: Any) -> Any:
    return jax.lax.approx_max_k(network(params, batch["x"]), 2)[0].mean()


def printing(params: Any, batch: Any) -> Any:
    loss = mean(params, batch)
    jax.debug.print("{}", loss)
    return loss


def tail(params: Any, batch: Any) -> Any:
    """Only the difference from the targets is divided, since the network reads what is made from all examples."""
    hidden = jnp.tanh(network(params, jnp.linalg.svd(batch["x"], full_matrices=False)[0]) @ jnp.ones((_WIDTH, 512)))
    return jnp.mean((hidden[:, :1] - batch["y"][:, :1]) ** 2)


def without_a_batch(params: Any, batch: Any) -> Any:
    return optax.tree.norm(params)


@pytest.mark.parametrize(
    ("loss", "reason"),
    [
        (batch_statistics, r"sub \(test_minibatches.py:\d+\) combines a sum over all rows with each row"),
        (in_batch_negatives, r"dot_general \(.*\) mixes the rows"),
        (entries_of_another, r"gather \(.*\) mixes the rows"),
        (backward_pass_of_all, "reduce_max mixes the rows"),
        (backward_pass_of_the_sum, r"the backward pass of custom_vjp_call \(.*\) mixes the rows"),
        (neighbours, r"reshape \(.*\) mixes the rows"),
        (unequal_groups, r"slice \(.*\) mixes the rows"),
        (unknown, r"approx_top_k \(.*\) is an operation that memprof cannot divide"),
        (printing, r"debug_\w+ \(test_minibatches.py:\d+\) has side effects"),
        (root, r"sqrt \(.*\) is not linear in a sum over the rows"),
        (learned_weights, r"div \(.*\) is not linear in a sum over the rows"),
        (tail, "only a small part of it is a sum over the examples"),
        (without_a_batch, "it reads no array with several examples, besides those that are differentiated"),
    ],
)
def test_a_loss_that_is_no_sum_over_the_examples_is_refused(loss: Callable[..., Any], reason: str) -> None:
    step = memprof.apply(InMinibatches(number=_PARTS))(jax.grad(loss))
    with pytest.raises(MemprofError, match=f"the loss cannot be divided into minibatches: {reason}"):
        step(PARAMS, BATCH)


def test_a_step_without_gradients_is_refused() -> None:
    with pytest.raises(MemprofError, match="the step differentiates nothing"):
        memprof.apply(InMinibatches(number=2))(mean)(PARAMS, BATCH)


def test_several_differentiated_results_are_refused() -> None:
    def step(params: Any, batch: Any) -> Any:
        results, pull = jax.vjp(lambda params: (mean(params, batch), weighted(params, batch)), params)
        return pull(results)

    with pytest.raises(MemprofError, match="the differentiated function returns more than a loss"):
        memprof.apply(InMinibatches(number=2))(step)(PARAMS, BATCH)


def test_several_differentiated_results_beside_others_are_refused() -> None:
    def step(params: Any, batch: Any) -> Any:
        two = lambda params: ((mean(params, batch), weighted(params, batch)), batch["x"])  # noqa: E731
        results, pull, _ = jax.vjp(two, params, has_aux=True)
        return pull(results)

    with pytest.raises(MemprofError, match="the differentiated function returns more than a loss"):
        memprof.apply(InMinibatches(number=2))(step)(PARAMS, BATCH)


def test_the_losses_that_can_be_divided_are_although_another_cannot() -> None:
    def step(params: Any, batch: Any) -> Any:
        return jax.grad(mean)(params, batch), jax.grad(batch_statistics)(params, batch)

    with in_minibatches(InMinibatches(number=2)) as losses:
        jax.make_jaxpr(step)(PARAMS, BATCH)
    assert [each.num_examples for each in losses] == [_EXAMPLES, None]
    _assert_accumulates(step)


@pytest.mark.parametrize("number", [1, 0, -2, 2.5, "4"])
def test_an_invalid_number_is_refused(number: Any) -> None:
    with pytest.raises(MemprofError, match=f"InMinibatches needs an integer of at least 2, not {number!r}"):
        InMinibatches(number=number)


def test_of_several_axes_the_one_of_most_work_is_divided() -> None:
    """The loss is also a sum over the 40 columns of the targets, which are larger than the inputs."""

    def step(params: Any, batch: Any) -> Any:
        def loss(params: Any) -> Any:
            return ((network(params, batch["x"]) @ batch["wide"] - batch["targets"]) ** 2).mean()

        return jax.grad(loss)(params)

    batch = {**BATCH, "wide": jnp.ones((_WIDTH, 40)), "targets": jnp.ones((_EXAMPLES, 40))}
    with in_minibatches(InMinibatches(number=2)) as losses:
        jax.make_jaxpr(step)(PARAMS, batch)
    assert [each.num_examples for each in losses] == [_EXAMPLES]


@pytest.mark.parametrize(("number", "loops"), [(4, {4}), (7, {4}), (100, {8}), (2, {2})])
def test_the_number_of_minibatches_divides_the_examples(number: int, loops: set[int]) -> None:
    traced = jax.make_jaxpr(memprof.apply(InMinibatches(number=number))(jax.grad(mean)))(PARAMS, BATCH)
    assert {each.params["length"] for each in _equations(traced.jaxpr) if each.primitive.name == "scan"} == loops


def test_no_activation_of_the_whole_batch_exists() -> None:
    traced = jax.make_jaxpr(memprof.apply(InMinibatches(number=4))(jax.grad(mean)))(PARAMS, BATCH)
    shapes = {var.aval.shape for each in _equations(traced.jaxpr) if each.primitive.name == "dot_general"
              for var in each.outvars}  # fmt: skip
    assert (2, _WIDTH) in shapes
    assert (_EXAMPLES, _WIDTH) not in shapes


def test_sums_of_16_bit_gradients_have_32_bits() -> None:
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), PARAMS)
    accumulated = memprof.apply(InMinibatches(number=4))(jax.grad(mean))
    traced = jax.make_jaxpr(accumulated)(params, BATCH)
    (loop,) = [each for each in traced.jaxpr.eqns if each.primitive.name == "scan"]
    assert {str(var.aval.dtype) for var in loop.outvars if var.aval.shape == (_WIDTH, _WIDTH)} == {"float32"}
    assert {str(aval.dtype) for aval in traced.out_avals} == {"bfloat16"}


@pytest.mark.parametrize(
    ("is_interleaved", "parts"),
    [
        # 6 rows of 2 entries each, in 3 parts
        (False, [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]),
        (True, [[0, 1, 6, 7], [2, 3, 8, 9], [4, 5, 10, 11]]),
    ],
)
@pytest.mark.parametrize("axis", [0, 1])
def test_the_parts_of_an_array_join_to_the_array(is_interleaved: bool, parts: list[list[int]], axis: int) -> None:
    array = jnp.moveaxis(jnp.arange(24).reshape(12, 2), 0, axis)

    def piece(index: int) -> Piece:
        return Piece(index=index, num_parts=3, num_rows=6, is_interleaved=is_interleaved)

    found = [piece(index).of_array(array, axis) for index in range(3)]
    for rows, part in zip(parts, found, strict=True):
        np.testing.assert_array_equal(part, jnp.take(array, jnp.array(rows), axis))
    np.testing.assert_array_equal(piece(0).joined(jnp.stack(found), axis), array)


@pytest.mark.parametrize(
    ("is_interleaved", "parts"),
    [
        # 2 groups of 4 rows each, in 2 parts
        (False, [[0, 1, 4, 5], [2, 3, 6, 7]]),
        (True, [[0, 2, 4, 6], [1, 3, 5, 7]]),
    ],
)
@pytest.mark.parametrize("axis", [0, 1])
def test_a_part_takes_its_rows_of_each_group(is_interleaved: bool, parts: list[list[int]], axis: int) -> None:
    array = jnp.moveaxis(jnp.arange(16).reshape(8, 2), 0, axis)
    found = []
    for index, rows in enumerate(parts):
        piece = Piece(index=index, num_parts=2, num_rows=4, is_interleaved=is_interleaved)
        found.append(piece.taken(array, None, Grouped(axis, 2)))
        np.testing.assert_array_equal(found[-1], jnp.take(array, jnp.array(rows), axis))
    np.testing.assert_array_equal(piece.joined(jnp.stack(found), Grouped(axis, 2)), array)


def _equations(jaxpr: core.Jaxpr) -> list[Any]:
    return [
        inner
        for each in jaxpr.eqns
        for inner in [each, *(one for part in core.jaxprs_in_params(each.params) for one in _equations(part))]
    ]


def _assert_accumulates(step: Callable[..., Any]) -> None:
    """Compare a step with accumulated gradients, over minibatches of both kinds, with the step itself."""
    steps = [step, *(memprof.apply(InMinibatches(number=_PARTS, interleaved=each))(step) for each in (False, True))]
    expected, *found = jax.jit(lambda *args: [each(*args) for each in steps])(PARAMS, BATCH)
    for each in found:
        assert jax.tree.structure(each) == jax.tree.structure(expected)
        for one, other in zip(jax.tree.leaves(each), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
