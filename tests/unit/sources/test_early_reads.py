"""Reads of few rows of a product, moved to its operand: the same values and gradients, without the product."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend import core
from random_arrays import normal

import memprof
from memprof.sources.jax.checkpointing.early_reads import LateRead
from memprof.sources.jax.checkpointing.parts import with_only_read_rows
from memprof.sources.jax.tracing import jit_adapter

pytestmark = pytest.mark.usefixtures("quick_compiles")

_PROMPTS, _TOKENS, _WIDTH, _CLASSES = 4, 64, 8, 48
_LOGITS = _PROMPTS * _TOKENS * _CLASSES
_HIDDEN, _HEAD, _BIAS = normal(0, (_PROMPTS, _TOKENS, _WIDTH)), normal(1, (_WIDTH, _CLASSES)), normal(2, (_CLASSES,))
_LAST = jnp.array([3, 63, 0, 20], jnp.int32)


def _capped(x: Any, head: Any) -> Any:
    return 30 * jnp.tanh((x @ head + _BIAS).astype(jnp.float32) / 30)


def _of_each_token(x: Any, head: Any) -> Any:
    """By a module of one token, so the head comes first."""
    return jax.vmap(jax.vmap(lambda token: head.T @ token + _BIAS))(x)


def _transposed(x: Any, head: Any) -> Any:
    return jnp.einsum("btd,dv->vbt", x, head).transpose(1, 2, 0)


# Each with the share of the logits that it reads.
_READS: dict[str, tuple[Callable[[Any, Any], Any], float]] = {
    "the last": (lambda logits, last: logits[:, -1], 1 / 64),
    "twice the same": (lambda logits, last: (logits[:, -1].argmax(-1), logits[:, -1]), 1 / 64),
    "every 16th": (lambda logits, last: logits[:, ::16], 4 / 64),
    "one by index": (lambda logits, last: logits[jnp.arange(_PROMPTS), last], 1 / 64),
    "along the tokens": (lambda logits, last: jnp.take_along_axis(logits, last[:, None, None], axis=1), 1 / 64),
    "none, which is nan": (lambda logits, last: jnp.take_along_axis(logits, last[:, None, None] + 1, axis=1), 1 / 64),
    "none, clipped": (
        lambda logits, last: jnp.take_along_axis(logits, last[:, None, None] + 40, axis=1, mode="clip"),
        1 / 64,
    ),
    "three from a place on": (lambda logits, last: jax.lax.dynamic_slice_in_dim(logits, last[3], 3, 1), 3 / 64),
    "three before the first": (lambda logits, last: jax.lax.dynamic_slice_in_dim(logits, -500 * last[0], 3, 1), 3 / 64),
    "by a module of one prompt": (lambda logits, last: jax.vmap(lambda one, place: one[place])(logits, last), 1 / 64),
    "windows of each prompt": (
        lambda logits, last: jax.vmap(lambda one, place: jax.lax.dynamic_slice_in_dim(one, place, 4))(logits, last),
        4 / 64,
    ),
    "the same of all prompts": (lambda logits, last: logits[:, jnp.array([5, 0])], 2 / 64),
    "of one prompt": (lambda logits, last: logits[2, last[0]], 1 / 256),
    "four of each, in another order": (
        lambda logits, last: logits[jnp.arange(_PROMPTS)[:, None], last[:, None] - jnp.arange(4)],
        4 / 64,
    ),
}
of_every_read = pytest.mark.parametrize("read", _READS)


@of_every_read
@pytest.mark.parametrize("head", [_capped, _of_each_token, _transposed])
def test_few_rows_are_read_of_the_operand(head: Callable[[Any, Any], Any], read: str) -> None:
    of_logits, share = _READS[read]

    def step(x: Any, weights: Any, last: Any) -> Any:
        return of_logits(head(x, weights), last)

    found: list[LateRead] = []
    traced = jax.make_jaxpr(with_only_read_rows(step, found))(_HIDDEN, _HEAD, _LAST)
    (late,) = found
    assert late.unread_bytes == round((1 - share) * 4 * _LOGITS)
    assert _largest(traced) < _LOGITS / 4
    changed: Any = memprof.apply(memprof.OnlyReadRows())(jax.jit(step))
    _assert_close(changed(_HIDDEN, _HEAD, _LAST), step(_HIDDEN, _HEAD, _LAST))


@of_every_read
def test_gradients_stay_the_same(read: str) -> None:
    def step(x: Any, weights: Any, last: Any) -> Any:
        def loss(x: Any, weights: Any) -> Any:
            (*_, found) = jax.tree.leaves(_READS[read][0](_capped(x, weights), last))
            return jnp.square(jnp.nan_to_num(found)).sum()

        return jax.grad(loss, (0, 1))(x, weights)

    changed: Any = memprof.apply(memprof.OnlyReadRows())(step)
    assert _largest(jax.make_jaxpr(changed)(_HIDDEN, _HEAD, _LAST)) < _LOGITS / 4
    _assert_close(changed(_HIDDEN, _HEAD, _LAST), step(_HIDDEN, _HEAD, _LAST))


@pytest.mark.parametrize(
    "of_logits",
    [
        lambda logits, last: logits[:, :-1],
        lambda logits, last: (logits[:, -1], logits[:, 0]),
        lambda logits, last: (logits[:, -1], logits),
        lambda logits, last: (logits[:, -1], logits.sum(1)),
        lambda logits, last: jax.nn.softmax(logits, 1)[:, -1],
        lambda logits, last: jnp.cumsum(logits, 1)[:, -1],
        lambda logits, last: jnp.take_along_axis(logits, jnp.argmax(logits, 1)[:, None], 1),
        lambda logits, last: logits[jnp.arange(_PROMPTS)[:, None], (last[:, None] + jnp.arange(40)) % _TOKENS],
    ],
    ids=["many", "different ones", "result", "others", "mixed", "summed up", "from the logits", "more than half"],
)
def test_other_products_are_computed_whole(of_logits: Callable[[Any, Any], Any]) -> None:
    def step(x: Any, weights: Any, last: Any) -> Any:
        return of_logits(_capped(x, weights), last)

    found: list[LateRead] = []
    traced = jax.make_jaxpr(with_only_read_rows(step, found))(_HIDDEN, _HEAD, _LAST)
    assert not found
    assert _largest(traced) == _LOGITS


def _largest(closed: core.ClosedJaxpr) -> int:
    """The number of entries of the largest array that is made."""
    return max(var.aval.size for each in jit_adapter.all_equations(closed.jaxpr) for var in each.outvars)


def _assert_close(found: Any, expected: Any) -> None:
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    for each, other in pairs:
        assert each.shape == other.shape
        assert np.allclose(each, other, rtol=1e-5, atol=1e-5, equal_nan=True)
