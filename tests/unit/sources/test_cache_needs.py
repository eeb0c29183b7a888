"""What attention needs of a cache, in steps that say it in different ways: the last tokens, and each head once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from memprof.analysis.records.capture import ArgumentLeaf
from memprof.sources.jax.roles.arguments import argument_leaves, place_on
from memprof.sources.jax.targets.choose import devices_of
from memprof.sources.jax.targets.resolve import resolve
from memprof.sources.jax.tracing.jitting import jit_step, trace_step
from memprof.sources.jax.tracing.step import StepSpec

BATCH, LENGTH, HEADS, KV_HEADS, SIZE, WIDTH, WINDOW = 2, 24, 4, 2, 8, 32, 6
Mask = Callable[[Any, Any], Any]


def array(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


WEIGHTS = {"q": array(WIDTH, WIDTH), "k": array(WIDTH, KV_HEADS * SIZE), "out": array(WIDTH, WIDTH)}


def caches(fn: Callable[..., Any], *args: Any) -> list[ArgumentLeaf]:
    step = trace_step(jit_step(StepSpec(fn, args)), place_on(devices_of(resolve("cpu")), {}), frozenset(), 1)
    leaves, _ = argument_leaves(step, step.traced.lower(), {})
    return [leaf for leaf in leaves if leaf.role.value == "kv_cache"]


def attend(query: Any, keys: Any, masked: Callable[[Any], Any]) -> Any:
    """Attention of one token to keys that are values, too."""
    keys = jnp.repeat(keys, HEADS // keys.shape[2], axis=2)
    scores = masked(jnp.einsum("bhd,bthd->bht", query, keys))
    return jnp.einsum("bht,bthd->bhd", jax.nn.softmax(scores), keys).reshape(BATCH, WIDTH)


def decode(masked: Callable[[Any, Any, Any], Any]) -> list[ArgumentLeaf]:
    """The caches of a step whose scores `masked` gets with all positions and with that of the token."""

    def step(weights: Any, cache: Any, hidden: Any, position: Any) -> Any:
        new = (hidden @ weights["k"]).reshape(BATCH, 1, KV_HEADS, SIZE)
        cache = jax.lax.dynamic_update_slice(cache, new, (0, position, 0, 0))
        query = (hidden @ weights["q"]).reshape(BATCH, HEADS, SIZE)
        attended = attend(query, cache, lambda scores: masked(scores, jnp.arange(LENGTH), position))
        return hidden + attended @ weights["out"], cache

    cache, hidden = array(BATCH, LENGTH, KV_HEADS, SIZE), array(BATCH, WIDTH)
    return caches(step, WEIGHTS, cache, hidden, array(dtype=jnp.int32))


def hidden_by(mask: Mask) -> Callable[[Any, Any, Any], Any]:
    return lambda scores, i, position: jnp.where(mask(i, position), scores, -1e9)


WINDOWS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "after the first that is hidden": hidden_by(lambda i, p: (i <= p) & (i > p - WINDOW)),
    "from the first that is not": hidden_by(lambda i, p: jnp.logical_and(i >= p - (WINDOW - 1), i <= p)),
    "from there, or from the start": hidden_by(lambda i, p: (i >= jnp.maximum(p - WINDOW + 1, 0)) & (i <= p)),
    "by distance": hidden_by(lambda i, p: (i <= p) & (p - i < WINDOW)),
    "by the end of each one's reach": hidden_by(lambda i, p: (p < i + WINDOW) & (p >= i)),
    "a bias": lambda scores, i, p: scores + jnp.where((i <= p) & (p - i < WINDOW), 0.0, -1e9),
    "for each sequence": hidden_by(lambda i, p: ((i <= p) & (i > jnp.full((BATCH, 1), p) - WINDOW))[:, None]),
}


@pytest.mark.parametrize("masked", WINDOWS.values(), ids=WINDOWS)
def test_a_mask_of_a_window_says_how_many_tokens_attention_reads(masked: Callable[[Any, Any, Any], Any]) -> None:
    (cache,) = decode(masked)
    assert cache.window == (WINDOW, LENGTH)


WHOLE: dict[str, Callable[[Any, Any, Any], Any]] = {
    "no mask": lambda scores, i, p: scores,
    "what comes later": hidden_by(lambda i, p: i <= p),
    "up to the next token": hidden_by(lambda i, p: i < p + 1),
    "a chunk ahead": hidden_by(lambda i, p: i < p + WINDOW),
    "the first tokens, too": hidden_by(lambda i, p: (i <= p) & ((p - i < WINDOW) | (i < 4))),
    "slots of a ring": hidden_by(lambda i, p: (p - i) % LENGTH < WINDOW),
    "buckets of distances": lambda scores, i, p: scores + jnp.where(p - i < WINDOW, p - i, WINDOW) * 0.1,
    "longer than the cache": hidden_by(lambda i, p: (i <= p) & (i > p - 2 * LENGTH)),
    "one of two, by the layer": hidden_by(lambda i, p: jnp.where(p % 2 == 0, i <= p, p - i < WINDOW)),
}


@pytest.mark.parametrize("masked", WHOLE.values(), ids=WHOLE)
def test_other_masks_need_the_whole_cache(masked: Callable[[Any, Any, Any], Any]) -> None:
    (cache,) = decode(masked)
    assert cache.window == ()


def test_a_cache_that_one_attention_reads_whole_is_needed_whole() -> None:
    def step(weights: Any, cache: Any, hidden: Any, position: Any) -> Any:
        new = (hidden @ weights["k"]).reshape(BATCH, 1, KV_HEADS, SIZE)
        cache = jax.lax.dynamic_update_slice(cache, new, (0, position, 0, 0))
        for mask in (lambda i: position - i < WINDOW, lambda i: i <= position):
            query = (hidden @ weights["q"]).reshape(BATCH, HEADS, SIZE)
            attended = attend(query, cache, lambda scores, mask=mask: jnp.where(mask(jnp.arange(LENGTH)), scores, -1e9))
            hidden = hidden + attended @ weights["out"]
        return hidden, cache

    cache = array(BATCH, LENGTH, KV_HEADS, SIZE)
    (found,) = caches(step, WEIGHTS, cache, array(BATCH, WIDTH), array(dtype=jnp.int32))
    assert found.window == ()


def repeated(spread: Callable[[Any], Any], *shape: int, heads_first: bool = False) -> list[ArgumentLeaf]:
    """The caches of a step that stores what `spread` makes of one token's keys."""

    def step(weights: Any, cache: Any, hidden: Any, position: Any) -> Any:
        new = (hidden @ weights["k"]).reshape(BATCH, 1, KV_HEADS, SIZE)
        new = spread(jnp.swapaxes(new, 1, 2) if heads_first else new)
        start = (0, 0, position, 0) if heads_first else (0, position, 0, 0)
        cache = jax.lax.dynamic_update_slice(cache, new, start)
        keys = jnp.swapaxes(cache, 1, 2) if heads_first else cache
        query = (hidden @ weights["q"]).reshape(BATCH, HEADS, SIZE)
        attended = attend(query, keys, lambda scores: jnp.where(jnp.arange(LENGTH) <= position, scores, -1e9))
        return hidden + attended @ weights["out"], cache

    return caches(step, WEIGHTS, array(*shape), array(BATCH, WIDTH), array(dtype=jnp.int32))


@pytest.mark.parametrize(
    ("spread", "heads_first", "num_copies"),
    [
        (lambda new: jnp.repeat(new, 2, axis=2), False, 2),
        (lambda new: jnp.tile(new, (1, 1, 2, 1)), False, 2),
        (lambda new: jnp.repeat(new, 2, axis=2).astype(jnp.bfloat16).astype(jnp.float32), False, 2),
        (lambda new: jnp.repeat(new, 2, axis=1), True, 2),
        (lambda new: new, False, 1),
        (lambda new: jnp.concatenate([new, 2 * new], axis=2), False, 1),  # other heads
        (lambda new: jnp.repeat(new, 2, axis=2) * jnp.arange(4.0)[:, None], False, 1),  # each changed in its own way
    ],
    ids=["repeat", "tile", "repeat and cast", "heads before tokens", "once", "two kinds", "scaled apart"],
)
def test_heads_that_are_repeated_before_they_are_stored_are_counted(
    spread: Callable[[Any], Any], heads_first: bool, num_copies: int
) -> None:
    num_heads = jax.eval_shape(spread, array(BATCH, 2, 2, SIZE)).shape[1 if heads_first else 2]
    axes = (num_heads, LENGTH) if heads_first else (LENGTH, num_heads)
    (cache,) = repeated(spread, BATCH, *axes, SIZE, heads_first=heads_first)
    assert cache.num_copies == num_copies


def test_a_one_hot_write_repeats_no_heads() -> None:
    """The new keys are spread over all positions, and one of them is kept."""

    def step(weights: Any, cache: Any, hidden: Any, position: Any) -> Any:
        new = (hidden @ weights["k"]).reshape(BATCH, 1, KV_HEADS, SIZE)
        cache = jnp.where((jnp.arange(LENGTH) == position)[:, None, None], new, cache)
        query = (hidden @ weights["q"]).reshape(BATCH, HEADS, SIZE)
        attended = attend(query, cache, lambda scores: jnp.where(jnp.arange(LENGTH) <= position, scores, -1e9))
        return hidden + attended @ weights["out"], cache

    cache = array(BATCH, LENGTH, KV_HEADS, SIZE)
    (found,) = caches(step, WEIGHTS, cache, array(BATCH, WIDTH), array(dtype=jnp.int32))
    assert (found.num_copies, found.window) == (1, ())
