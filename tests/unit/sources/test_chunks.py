"""Losses and attentions in chunks: what is recognised as one, and that its values and gradients stay what they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.extend import core
from jax.sharding import AxisType, PartitionSpec
from random_arrays import normal

import memprof
from memprof.analysis.records.rewrites import InChunks
from memprof.sources.jax.checkpointing import chunks
from memprof.sources.jax.checkpointing.chunks import chunked
from memprof.sources.jax.checkpointing.regions import Kind, Region

pytestmark = pytest.mark.usefixtures("quick_compiles")

_CLASSES, _WIDTH = 100, 8
_HIDDEN = normal(0, (2, 21, _WIDTH))
_HEAD = jnp.asarray(0.1 * np.asarray(normal(1, (_WIDTH, _CLASSES))))
_LABELS = jnp.asarray(np.random.default_rng(0).integers(0, _CLASSES, (2, 21)), jnp.int32)
_QUERY, _KEYS, _VALUE = (normal(n, (2, 24, 3, 4)) for n in range(3))


def _integer_labels(x: Any, head: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(x @ head, _LABELS).mean()


def _one_hot_labels(x: Any, head: Any) -> Any:
    logits = x.reshape(-1, _WIDTH) @ head
    return -(jax.nn.one_hot(_LABELS.ravel(), _CLASSES) * jax.nn.log_softmax(logits)).mean()


def _logits_flattened(x: Any, head: Any) -> Any:
    logits = (x @ head).reshape(-1, _CLASSES)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, _LABELS.reshape(-1))
    return losses.reshape(_LABELS.shape).sum(1).mean()


def _taken_along_axis(x: Any, head: Any) -> Any:
    logits = 30 * jnp.tanh(jnp.einsum("btd,dv->btv", x, head) / 30) + jnp.zeros(_CLASSES)
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), _LABELS[..., None], -1).mean()


def _cut(x: Any, head: Any) -> Any:
    logits = (x @ head + jnp.arange(_CLASSES)).astype(jnp.float32)[:, :-1]
    return optax.softmax_cross_entropy_with_integer_labels(logits, _LABELS[:, 1:]).mean()


def _of_the_answer(x: Any, head: Any) -> Any:
    """Fewer than half of the tokens are the answer; the others are the prompt."""
    return optax.softmax_cross_entropy_with_integer_labels((x @ head)[:, 12:-1], _LABELS[:, 13:]).mean()


def _cut_along_two_axes(x: Any, head: Any) -> Any:
    """By a module of one token; every other token, and no classes that only fill up. Both slices are one."""
    logits = jax.vmap(jax.vmap(lambda token: head.T @ token))(x)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits[:, ::2, : _CLASSES - 2], _LABELS[:, ::2] % 90)
    return losses.mean() + 1e-4 * jnp.square(jax.nn.logsumexp(logits[:, ::2, : _CLASSES - 2], -1)).mean()


def _cut_and_flattened(x: Any, head: Any) -> Any:
    """As in PyTorch: the logits of all tokens but the last, in one axis, with labels to leave out."""
    logits, labels = (x @ head)[..., :-1, :].reshape(-1, _CLASSES), _LABELS[..., 1:].reshape(-1)
    weights = labels != 3
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.where(weights, labels, 0))
    return (losses * weights).sum() / weights.sum()


def _tokens_in_one_axis(x: Any, head: Any) -> Any:
    """The head's tokens are in one axis, and its logits in two."""
    logits = (x.reshape(-1, _WIDTH) @ head).reshape(*x.shape[:2], _CLASSES)
    return optax.softmax_cross_entropy_with_integer_labels(logits[:, 1:], _LABELS[:, 1:]).mean()


def _after_a_low_rank_product(x: Any, head: Any) -> Any:
    """A LoRA adapter before the head: its second product is large beside its first one."""
    return _integer_labels(x + (x @ head[:, :2]) @ head[:2, :_WIDTH], head)


def _after_an_attention(x: Any, head: Any) -> Any:
    """The context is larger than the weights of few tokens, so it could begin a region, too."""
    few = x[:, :3]
    weights = jax.nn.softmax(jnp.einsum("btd,bsd->bts", x, few))
    return _integer_labels(jnp.tanh(weights @ few), head)


def _with_more_results(x: Any, head: Any) -> Any:
    @jax.jit
    def logits_of(x: Any) -> Any:
        return x @ head

    logits, mask = logits_of(jax.checkpoint(jnp.sin)(x)), _LABELS > 3
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, _LABELS)
    is_right = jnp.argmax(logits, -1) == _LABELS
    return (losses * mask).sum() / mask.sum() + 1e-4 * jnp.square(jax.nn.logsumexp(logits, -1)).mean(), is_right.sum()


def _causal(query: Any, key: Any, value: Any) -> Any:
    logits = jnp.einsum("bthd,bshd->bhts", query, key)
    mask = jnp.tril(jnp.ones((24, 24), bool))
    return jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(jnp.where(mask, logits, -1e9)), value)


def _of_jax(query: Any, key: Any, value: Any) -> Any:
    return jax.nn.dot_product_attention(query, key, value, is_causal=True)


def _of_each_head(query: Any, key: Any, value: Any) -> Any:
    def attend(query: Any, key: Any, value: Any) -> Any:
        return jax.nn.softmax(query @ key.T / 2) @ value

    over_heads = jax.vmap(attend, in_axes=1, out_axes=1)
    return jax.vmap(over_heads)(query, key, value)


def _normalised_late(query: Any, key: Any, value: Any) -> Any:
    weights = jnp.exp(jnp.einsum("bthd,bshd->bhts", query, key))
    return jnp.einsum("bhts,bshd->bthd", weights, value) / weights.sum(-1).swapaxes(1, 2)[..., None]


def _in_a_checkpointed_scan(query: Any, key: Any, value: Any) -> Any:
    body = jax.checkpoint(lambda x, _: (x + _causal(x, key, value), None), prevent_cse=False)
    return jax.lax.scan(body, query, length=3)[0]


def _in_chunks(function: Callable[..., Any], *args: Any, has_aux: bool = False) -> tuple[list[Region], Any, Any]:
    """What was found; values and gradients before and after."""
    differentiated = jax.value_and_grad(function, tuple(range(len(args))), has_aux=has_aux)
    before = jax.jit(differentiated)(*args)
    found: list[Region] = []
    after = jax.jit(chunked(differentiated, InChunks(loss=4, attention=4), found))(*args)
    return found, before, after


def _assert_close(before: Any, after: Any) -> None:
    for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        np.testing.assert_allclose(new, old, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("loss", "num_rows"),
    [
        (_integer_labels, 21),
        (_one_hot_labels, 42),
        (_taken_along_axis, 21),
        (_logits_flattened, 2),
        (_cut, 20),
        (_of_the_answer, 8),
        (_cut_along_two_axes, 11),
        (_cut_and_flattened, 2),
        (_tokens_in_one_axis, 2),
        (_after_a_low_rank_product, 21),
        (_after_an_attention, 21),
    ],
)  # fmt: skip
def test_a_loss_of_logits_is_computed_in_chunks(loss: Callable[..., Any], num_rows: int) -> None:
    found, before, after = _in_chunks(loss, _HIDDEN, _HEAD)
    assert [(each.kind, each.num_rows) for each in found] == [(Kind.LOSS, num_rows)]
    _assert_close(before, after)


@pytest.mark.parametrize("loss", [_cut, _of_the_answer, _cut_along_two_axes, _cut_and_flattened, _tokens_in_one_axis])
def test_tokens_are_divided_although_an_operation_joins_them(loss: Callable[..., Any]) -> None:
    """10 chunks of 2 examples of at most 21 tokens have at most 3 tokens of both examples."""
    step = jax.value_and_grad(loss, (0, 1))
    changed = chunked(step, InChunks(loss=10))
    classes = {_CLASSES, _CLASSES - 2}
    sizes = [np.prod(shape) for shape in _shapes(changed) if classes.intersection(shape) and _WIDTH not in shape]
    assert max(sizes) <= 6 * _CLASSES
    _assert_close(jax.jit(step)(_HIDDEN, _HEAD), jax.jit(changed)(_HIDDEN, _HEAD))


@pytest.mark.parametrize("loss", [_integer_labels, _one_hot_labels, _cut_and_flattened, _tokens_in_one_axis])
def test_chunks_may_take_rows_at_equal_distances(loss: Callable[..., Any]) -> None:
    """With 4 chunks of 21 or 42 rows, some rows are left."""
    step = jax.value_and_grad(loss, (0, 1))
    changed = chunked(step, InChunks(loss=4, interleaved=True))
    consecutive = chunked(step, InChunks(loss=4))
    assert str(jax.make_jaxpr(changed)(_HIDDEN, _HEAD)) != str(jax.make_jaxpr(consecutive)(_HIDDEN, _HEAD))
    _assert_close(jax.jit(step)(_HIDDEN, _HEAD), jax.jit(changed)(_HIDDEN, _HEAD))


@pytest.mark.parametrize(("interleaved", "second"), [(False, [6, 7, 8, 9, 10, 11]), (True, [2, 3, 6, 7, 10, 11])])
def test_the_rows_of_a_chunk(interleaved: bool, second: list[int]) -> None:
    """Six rows of two entries in two chunks of three rows; a seventh row is left."""
    stack = chunks._Stack(num_parts=2, num_rows=3, interleaved=interleaved)
    array = jnp.arange(14)
    parts = stack.stacked(array, 0, 2)
    assert parts[1].tolist() == second
    assert stack.joined(parts, 0, [array[12:]]).tolist() == array.tolist()


def test_masks_accuracies_and_further_losses_stay_beside_it() -> None:
    found, before, after = _in_chunks(_with_more_results, _HIDDEN, _HEAD, has_aux=True)
    assert [each.kind for each in found] == [Kind.LOSS]
    _assert_close(before, after)


@pytest.mark.parametrize("attend", [_causal, _of_jax, _of_each_head, _normalised_late, _in_a_checkpointed_scan])
def test_an_attention_is_computed_in_blocks_of_queries(attend: Callable[..., Any]) -> None:
    found, before, after = _in_chunks(lambda *args: jnp.sin(attend(*args)).sum(), _QUERY, _KEYS, _VALUE)
    assert [(each.kind, each.num_rows) for each in found] == [(Kind.ATTENTION, 24)]
    _assert_close(before, after)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, head: jnp.sum(jax.nn.softmax(jax.nn.softmax(x.reshape(-1, 8) @ head, 0), 1) ** 2),  # rows are mixed
        lambda x, head: jnp.sum(jax.nn.gelu(x @ head) @ head.T),  # no softmax
        lambda x, head: jnp.sum(x @ head),
    ],
)
def test_what_mixes_rows_or_has_no_softmax_is_neither(function: Callable[..., Any]) -> None:
    found, before, after = _in_chunks(function, _HIDDEN, _HEAD)
    assert not found
    _assert_close(before, after)


def test_logits_that_are_a_result_stay_whole() -> None:
    def loss(x: Any, head: Any) -> Any:
        logits = x @ head
        return optax.softmax_cross_entropy_with_integer_labels(logits, _LABELS).mean(), logits

    found, before, after = _in_chunks(loss, _HIDDEN, _HEAD, has_aux=True)
    assert not found
    _assert_close(before, after)


def test_the_large_arrays_exist_for_a_chunk_alone() -> None:
    """Of 21 rows in 4 chunks there are 6 at a time; no array of the backward pass has all logits."""

    gradient = jax.grad(_integer_labels)
    assert (2, 21, _CLASSES) in _shapes(gradient)
    large = {shape for shape in _shapes(chunked(gradient, InChunks(loss=4))) if _CLASSES in shape and len(shape) == 3}
    assert large == {(2, 6, _CLASSES), (2, 3, _CLASSES)}


def _shapes(function: Callable[..., Any]) -> set[tuple[int, ...]]:
    """The shapes of all values that a function of hidden states and the head makes."""
    found: set[tuple[int, ...]] = set()
    pending = [jax.make_jaxpr(function)(_HIDDEN, _HEAD).jaxpr]
    while pending:
        for equation in pending.pop().eqns:
            found.update(tuple(var.aval.shape) for var in equation.outvars)
            pending.extend(core.jaxprs_in_params(equation.params))
    return found


def _evaluated(x: Any, head: Any) -> Any:
    return _integer_labels(x, head)


def _evaluated_in_a_loop(x: Any, head: Any) -> Any:
    return jax.lax.map(lambda scale: _integer_labels(scale * x, head), jnp.arange(3.0)).sum()


def _evaluated_under_a_checkpoint(x: Any, head: Any) -> Any:
    return jax.checkpoint(jax.jit(_integer_labels))(x, head)


def _old_and_new_policy(x: Any, head: Any) -> Any:
    """The losses of the old policy are computed before the gradient, as in PPO and GRPO."""
    old = _integer_labels(x, head)
    return jax.grad(lambda new: (_integer_labels(x, new) - old) ** 2)(head)


def _minibatches(x: Any, head: Any) -> Any:
    """Each iteration of the loop evaluates, and differentiates."""

    def update(head: Any, scale: Any) -> Any:
        old = _integer_labels(scale * x, head)
        return head - jax.grad(lambda new: (_integer_labels(x, new) - old) ** 2)(head), old

    return jax.lax.scan(update, head, jnp.arange(3.0))


@pytest.mark.parametrize(
    ("step", "num_losses"),
    [
        (_evaluated, 1),
        (_evaluated_in_a_loop, 1),
        (_evaluated_under_a_checkpoint, 1),
        (_old_and_new_policy, 2),
        (_minibatches, 2),
    ],
)
def test_a_loss_without_gradients_is_computed_in_chunks(step: Callable[..., Any], num_losses: int) -> None:
    found: list[Region] = []
    changed = chunked(step, InChunks(loss=4), found)
    assert _CLASSES * 42 in {np.prod(shape) for shape in _shapes(step)}
    assert _CLASSES * 42 not in {np.prod(shape) for shape in _shapes(changed)}
    assert [each.kind for each in found] == [Kind.LOSS] * num_losses
    _assert_close(jax.jit(step)(_HIDDEN, _HEAD), jax.jit(changed)(_HIDDEN, _HEAD))


@pytest.mark.parametrize("is_trained", [False, True])
def test_the_parts_within_a_shard_map_are_computed_in_chunks(is_trained: bool) -> None:
    """Each device has its own examples; a mask of constants varies over the devices by its type alone."""
    mesh = jax.make_mesh((1,), ("d",), axis_types=(AxisType.Auto,))

    def of_shards(x: Any, head: Any) -> Any:
        query = x.reshape(2, 21, 2, 4)
        scores = jnp.where(jnp.tril(jnp.ones((21, 21), bool)), jnp.einsum("bthd,bshd->bhts", query, query), -1e9)
        attended = jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores), query).reshape(x.shape)
        return jax.lax.pmean(_integer_labels(attended, head), "d")

    specs = (PartitionSpec("d"), PartitionSpec())
    loss = jax.shard_map(of_shards, mesh=mesh, in_specs=specs, out_specs=PartitionSpec())
    step = jax.value_and_grad(loss, (0, 1)) if is_trained else loss
    found: list[Region] = []
    changed = chunked(step, InChunks(loss=4, attention=4), found)
    _assert_close(jax.jit(step)(_HIDDEN, _HEAD), jax.jit(changed)(_HIDDEN, _HEAD))
    assert {each.kind for each in found} == {Kind.LOSS, Kind.ATTENTION}


def test_a_loss_of_divided_classes_is_computed_in_chunks() -> None:
    """Each device has the logits of its own classes; the maximum and the sum of all are collectives."""
    mesh = jax.make_mesh((1,), ("d",), axis_types=(AxisType.Auto,))

    def of_shards(x: Any, head: Any) -> Any:
        logits = x @ head
        largest = jax.lax.pmax(jax.lax.stop_gradient(logits).max(-1), "d")
        of_all = jax.lax.psum(jnp.exp(logits - largest[..., None]).sum(-1), "d")
        places = _LABELS - jax.lax.axis_index("d") * head.shape[1]
        is_own = (places >= 0) & (places < head.shape[1])
        own = jnp.take_along_axis(logits, jnp.clip(places, 0, head.shape[1] - 1)[..., None], -1)[..., 0]
        return (jnp.log(of_all) + largest - jax.lax.psum(jnp.where(is_own, own, 0), "d")).mean()

    specs = (PartitionSpec(), PartitionSpec(None, "d"))
    loss = jax.shard_map(of_shards, mesh=mesh, in_specs=specs, out_specs=PartitionSpec())
    step = jax.value_and_grad(loss, (0, 1))
    found: list[Region] = []
    changed = chunked(step, InChunks(loss=4), found)
    _assert_close(jax.jit(step)(_HIDDEN, _HEAD), jax.jit(changed)(_HIDDEN, _HEAD))
    assert [(each.kind, each.num_rows, each.has_collectives) for each in found] == [(Kind.LOSS, 21, True)]
    _assert_close(_integer_labels(_HIDDEN, _HEAD), changed(_HIDDEN, _HEAD)[0])


def test_blocks_of_queries_are_chosen_before_the_heads_that_share_keys() -> None:
    query, key = normal(0, (2, 40, 2, 3, 4)), normal(1, (2, 40, 2, 4))

    def attend(query: Any, key: Any) -> Any:
        weights = jax.nn.softmax(jnp.einsum("btkgd,bskd->bkgts", query, key))
        return jnp.einsum("bkgts,bskd->btkgd", weights, key)

    found: list[Region] = []
    changed = chunked(attend, InChunks(attention=4), found)
    _assert_close(attend(query, key), jax.jit(changed)(query, key))
    assert [(each.kind, each.num_rows) for each in found] == [(Kind.ATTENTION, 40)]


def test_a_loss_can_be_changed_before_its_gradient_is_taken() -> None:
    changed = chunked(_integer_labels, InChunks(loss=4))
    gradient, expected = jax.grad(changed, (0, 1)), jax.grad(_integer_labels, (0, 1))
    assert (2, 21, _CLASSES) in _shapes(expected)
    assert (2, 21, _CLASSES) not in _shapes(gradient)
    _assert_close(jax.jit(expected)(_HIDDEN, _HEAD), jax.jit(gradient)(_HIDDEN, _HEAD))
    several = jnp.stack([_HIDDEN, 2 * _HIDDEN])
    _assert_close(jax.vmap(_integer_labels, (0, None))(several, _HEAD), jax.vmap(changed, (0, None))(several, _HEAD))


def _logits(logits: Any) -> Any:
    return logits


def _at_a_temperature(logits: Any) -> Any:
    return jax.nn.softmax(logits / 2, axis=-1)


@jax.jit
def _by_hand(logits: Any) -> Any:
    weights = jnp.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def _labels(logits: Any) -> Any:
    return optax.smooth_labels(jax.nn.one_hot(_LABELS, _CLASSES), 0.1)


@pytest.mark.parametrize("targets_of", [_logits, _at_a_temperature, _by_hand, _labels])
def test_what_a_loss_closes_over_is_computed_in_its_chunks(targets_of: Callable[..., Any]) -> None:
    """The teacher's logits, and labels of all classes, are made outside of the gradient that reads them."""

    def distilled(x: Any, head: Any) -> Any:
        targets = targets_of(jnp.tanh(2 * x) @ (3 * head))

        def loss(head: Any) -> Any:
            teacher = jax.nn.softmax(targets) if targets_of is _logits else targets
            return -(teacher * jax.nn.log_softmax(x @ head)).sum(-1).mean()

        return jax.value_and_grad(loss)(head)

    found: list[Region] = []
    changed = jax.jit(chunked(distilled, InChunks(loss=4), found))
    _assert_close(jax.jit(distilled)(_HIDDEN, _HEAD), changed(_HIDDEN, _HEAD))
    assert [each.kind for each in found] == [Kind.LOSS]
    assert (2, 21, _CLASSES) not in {var.aval.shape for var, _ in found[0].inputs}


def test_cut_logits_of_a_teacher_are_computed_in_chunks_of_tokens() -> None:
    """The last token has no label, so the logits of all tokens but one are compared."""

    def distilled(x: Any, head: Any) -> Any:
        teacher = x @ (3 * head)

        def loss(head: Any) -> Any:
            logits = (x @ head)[:, :-1].astype(jnp.float32)
            targets = jax.nn.log_softmax(teacher[:, :-1].astype(jnp.float32) / 2)
            return -(jnp.exp(targets) * (targets - jax.nn.log_softmax(logits / 2))).sum(-1).mean()

        return jax.grad(loss)(head)

    found: list[Region] = []
    changed = chunked(distilled, InChunks(loss=2), found)
    _assert_close(jax.jit(distilled)(_HIDDEN, _HEAD), jax.jit(changed)(_HIDDEN, _HEAD))
    # logits of student and teacher, of 2 examples and 20 tokens, in float32
    assert [(each.num_rows, each.large_bytes) for each in found] == [(20, 2 * 2 * 20 * _CLASSES * 4)]
    assert _CLASSES not in {var.aval.shape[-1] for var, _ in found[0].inputs if var.aval.ndim == 3}


def test_what_is_also_read_outside_of_the_loss_stays_there() -> None:
    def distilled(x: Any, head: Any) -> Any:
        teacher = x @ (3 * head)
        loss = lambda head: -(jax.nn.softmax(teacher) * jax.nn.log_softmax(x @ head)).sum(-1).mean()  # noqa: E731
        return jax.grad(loss)(head), teacher

    changed = chunked(distilled, InChunks(loss=4))
    assert (2, 21, _CLASSES) in _shapes(changed)
    _assert_close(jax.jit(distilled)(_HIDDEN, _HEAD), jax.jit(changed)(_HIDDEN, _HEAD))


def test_random_numbers_and_networks_stay_outside_of_the_loss() -> None:
    """Only the ends of the functions around a loss move into it."""

    def distilled(x: Any, head: Any) -> Any:
        noise = jax.random.normal(jax.random.key(0), (2, 21, _CLASSES))
        teacher, _ = jax.lax.scan(lambda x, _: (jnp.sin(x @ (3 * head) @ head.T), None), x, length=2)
        targets = teacher @ head
        loss = lambda head: ((jax.nn.softmax(targets) + noise) * jax.nn.log_softmax(x @ head)).sum()  # noqa: E731
        return jax.grad(loss)(head)

    found: list[Region] = []
    changed = chunked(distilled, InChunks(loss=4), found)
    _assert_close(jax.jit(distilled)(_HIDDEN, _HEAD), jax.jit(changed)(_HIDDEN, _HEAD))
    shapes = [var.aval.shape for var, _ in found[0].inputs]
    assert shapes.count((2, 21, _CLASSES)) == 1  # the noise
    assert shapes.count((2, 21, _WIDTH)) == 2


def test_a_softmax_of_the_teacher_makes_it_a_loss() -> None:
    """The student's logits are multiplied by it."""

    def distilled(x: Any, head: Any) -> Any:
        teacher = jax.nn.softmax(2 * x @ head)
        return jax.grad(lambda head: (x @ head * teacher).sum())(head)

    found: list[Region] = []
    changed = chunked(distilled, InChunks(loss=4), found)
    _assert_close(distilled(_HIDDEN, _HEAD), jax.jit(changed)(_HIDDEN, _HEAD))
    assert [each.kind for each in found] == [Kind.LOSS]


def test_a_step_keeps_its_jit() -> None:
    step = jax.jit(lambda state, scale, x: (state - scale * jax.grad(_integer_labels, 1)(x, state), x),
                   donate_argnames="state", static_argnums=1)  # fmt: skip
    changed = memprof.apply(memprof.InChunks(loss=4))(step)
    _assert_close(step(jnp.array(_HEAD), 0.1, _HIDDEN), changed(jnp.array(_HEAD), 0.1, _HIDDEN))
    assert [leaf.donated for leaf in jax.tree.leaves(changed.lower(_HEAD, 0.1, _HIDDEN).args_info)] == [True, False]
