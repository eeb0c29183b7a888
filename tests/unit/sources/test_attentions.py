"""Attentions for a fused kernel: what is recognised as one, with which mask, and that values and gradients stay."""

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
from memprof.sources.jax.checkpointing.attention_search import fused
from memprof.sources.jax.checkpointing.attentions import Attention

pytestmark = pytest.mark.usefixtures("quick_compiles")

_T = 24
_QUERY, _KEYS, _VALUE = (normal(n, (2, _T, 4, 8), jnp.bfloat16) for n in range(3))
_EARLIER = jnp.asarray(np.arange(_T)[:, None] >= np.arange(_T))
_LENGTHS = jnp.array([5, _T])


def _scores(query: Any, key: Any) -> Any:
    return jnp.einsum("bthd,bshd->bhts", query, key)


def _attended(probabilities: Any, value: Any) -> Any:
    return jnp.einsum("bhts,bshd->bthd", probabilities.astype(value.dtype), value)


def _tril(query: Any, key: Any, value: Any) -> Any:
    mask = jnp.tril(jnp.ones((_T, _T), bool))
    return _attended(jax.nn.softmax(jnp.where(mask, _scores(query, key) * 0.25, -1e9)), value)


def _without_mask(query: Any, key: Any, value: Any) -> Any:
    scores = _scores(query / 2, key).astype(jnp.float32) / jnp.sqrt(4)
    return _attended(jax.nn.softmax(scores), value)


def _padded(query: Any, key: Any, value: Any) -> Any:
    number = jnp.arange(_T)
    allowed = (number[:, None] >= number)[None, None] & (number < _LENGTHS[:, None])[:, None, None]
    return _attended(jax.nn.softmax(jnp.where(allowed, _scores(query, key), -jnp.inf)), value)


def _padded_by_numbers(query: Any, key: Any, value: Any) -> Any:
    """Masks of two shapes, which are broadcast where they are combined."""
    numbers = (jnp.arange(_T) < _LENGTHS[:, None]).astype(jnp.int32) + 0 * jnp.int32(jnp.mean(query))
    allowed = jnp.tril(jnp.ones((_T, _T), bool))[None, None] & numbers[:, None, None].astype(bool)
    return _attended(jax.nn.softmax(jnp.where(allowed, _scores(query, key), -1e9)), value)


def _with_distances(query: Any, key: Any, value: Any) -> Any:
    """A causal mask that is added, and a bias that depends on data."""
    number = jnp.arange(_T)
    hidden = jnp.where(number[:, None] >= number, 0.0, -1e9)
    slope = jnp.mean(query) * jnp.abs(number[:, None] - number)
    return _attended(jax.nn.softmax(_scores(query, key).astype(jnp.float32) + hidden + slope[None, None]), value)


def _window(query: Any, key: Any, value: Any) -> Any:
    number = jnp.arange(_T)
    hidden = (number[:, None] < number) | (number[:, None] - number > 4)
    return _attended(jax.nn.softmax(jnp.where(hidden, -1e9, _scores(query, key))), value)


def _of_jax(query: Any, key: Any, value: Any) -> Any:
    return jax.nn.dot_product_attention(query, key, value, is_causal=True)


def _of_flax(query: Any, key: Any, value: Any) -> Any:
    nn = pytest.importorskip("flax.linen")
    return nn.dot_product_attention(query, key, value, mask=nn.make_causal_mask(jnp.ones((2, _T))))


def _of_each_head(query: Any, key: Any, value: Any) -> Any:
    over_heads = jax.vmap(lambda q, k, v: jax.nn.softmax(q @ k.T / 2) @ v, in_axes=1, out_axes=1)
    return jax.vmap(over_heads)(query, key, value)


def _normalised_late(query: Any, key: Any, value: Any) -> Any:
    weights = jnp.exp(_scores(query, key))
    return _attended(weights, value) / weights.sum(-1).swapaxes(1, 2)[..., None]


def _in_a_checkpointed_scan(query: Any, key: Any, value: Any) -> Any:
    mask = jnp.tril(jnp.ones((_T, _T), bool))  # made outside of the scan

    def layer(x: Any, _: None) -> tuple[Any, None]:
        return x + _attended(jax.nn.softmax(jnp.where(mask, _scores(x, key) * 0.25, -1e9)), value), None

    # More layers multiply the rounding of bfloat16.
    return jax.lax.scan(jax.checkpoint(layer, prevent_cse=False), query, length=2)[0]


def _in_a_scan_with_padding(query: Any, key: Any, value: Any) -> Any:
    """The scan reads a mask that is made outside of it, and not the parts of the mask."""
    mask = jnp.tril(jnp.ones((_T, _T), bool)) & (key[:, None, :, 0, 0] > -1)

    def layer(x: Any, _: None) -> tuple[Any, None]:
        scores = jnp.where(mask[:, None], _scores(x, key) * 0.25, -1e9)
        return x + _attended(jax.nn.softmax(scores), value), None

    return jax.lax.scan(layer, query, length=2)[0]


def _in_float32(query: Any, key: Any, value: Any) -> Any:
    query, key, value = (each.astype(jnp.float32) for each in (query, key, value))
    return _attended(jax.nn.softmax(_scores(query, key)), value)


def _grouped(query: Any, key: Any, value: Any) -> Any:
    scores = jnp.einsum("bqngd,bknd->bngqk", query.reshape(2, _T, 2, 2, 8), key[:, :, :2]).reshape(2, 4, _T, _T)
    probabilities = jax.nn.softmax(jnp.where(_EARLIER[None, None], scores, -1e9)).reshape(2, 2, 2, _T, _T)
    return jnp.einsum("bngqk,bknd->bqngd", probabilities, value[:, :, :2]).reshape(query.shape)


def _one_head_of_keys(query: Any, key: Any, value: Any) -> Any:
    scores = jnp.einsum("bqhd,bkd->bhqk", query, key[:, :, 0])
    return jnp.einsum("bhqk,bkd->bqhd", jax.nn.softmax(scores), value[:, :, 0])


def _differentiated(attend: Callable[..., Any], *args: Any) -> tuple[list[Attention], Any, Any]:
    """What was found; values and gradients before and after."""
    differentiated = jax.value_and_grad(
        lambda *args: jnp.sin(attend(*args).astype(jnp.float32)).sum(), tuple(range(len(args)))
    )
    before = jax.jit(differentiated)(*args)
    found: list[Attention] = []
    after = jax.jit(fused(differentiated, memprof.FusedAttention(implementation="xla"), found))(*args)
    return found, before, after


def _assert_close(before: Any, after: Any) -> None:
    for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        old, new = np.asarray(old, np.float32), np.asarray(new, np.float32)
        np.testing.assert_allclose(new, old, rtol=2**-6, atol=2**-5 * np.abs(old).max())


@pytest.mark.parametrize(
    ("attend", "options"),
    [
        (_tril, "scale=0.25, is_causal=True"),
        (_without_mask, "scale=0.5"),
        (_padded, "mask=mask, scale=1, is_causal=True"),
        (_padded_by_numbers, "mask=mask, scale=1, is_causal=True"),
        (_with_distances, "bias=bias, scale=1, is_causal=True"),
        (_window, "mask=mask, scale=1, is_causal=True"),
        pytest.param(_of_jax, "scale=0.353553, is_causal=True", marks=pytest.mark.with_each_jax),
        pytest.param(_of_flax, "scale=1, is_causal=True", marks=pytest.mark.with_each_jax),
        (_of_each_head, "scale=0.5"),
        (_normalised_late, "scale=1"),
        (_in_a_checkpointed_scan, "scale=0.25, is_causal=True"),
        (_in_a_scan_with_padding, "mask=mask, scale=0.25, is_causal=True"),
        (_in_float32, "scale=1"),
        (_grouped, "scale=1, is_causal=True"),
        (_one_head_of_keys, "scale=1"),
    ],
)
def test_an_attention_is_told_as_a_call_with_the_same_values(attend: Callable[..., Any], options: str) -> None:
    found, before, after = _differentiated(attend, _QUERY, _KEYS, _VALUE)
    assert [each.call for each in found] == [
        f'jax.nn.dot_product_attention(q, k, v, {options}, implementation="cudnn")'
    ]
    _assert_close(before, after)


@pytest.mark.parametrize(
    ("attend", "options"),
    [
        (_tril, "scale=0.25, is_causal=True"),
        (_without_mask, "scale=0.5"),
        (_padded, "mask=mask, scale=1, is_causal=True"),
        (_with_distances, "bias=bias, scale=1, is_causal=True"),
    ],
)
def test_an_odd_number_of_tokens_is_padded(
    monkeypatch: pytest.MonkeyPatch, attend: Callable[..., Any], options: str
) -> None:
    """In training, cuDNN's kernel takes even lengths alone; the patches and the class token of a ViT are 197."""
    monkeypatch.setitem(globals(), "_T", 23)
    monkeypatch.setitem(globals(), "_LENGTHS", jnp.array([5, 23]))
    monkeypatch.setitem(globals(), "_EARLIER", _EARLIER[:23, :23])
    found, before, after = _differentiated(attend, *(each[:, :23] for each in (_QUERY, _KEYS, _VALUE)))
    call = f"jax.nn.dot_product_attention(q, k, v, {options}, key_value_seq_lengths=lengths"
    assert [each.call for each in found] == [f'{call}, implementation="cudnn"), with a token of padding']
    _assert_close(before, after)


def _dropped(query: Any, key: Any, value: Any) -> Any:
    probabilities = jax.nn.softmax(_scores(query, key))
    kept = jax.random.bernoulli(jax.random.key(0), 0.9, probabilities.shape)
    return _attended(probabilities * kept, value)


def _shown(query: Any, key: Any, value: Any) -> Any:
    probabilities = jax.nn.softmax(_scores(query, key))
    return _attended(probabilities, value) + probabilities.sum()


def _capped(query: Any, key: Any, value: Any) -> Any:
    return _attended(jax.nn.softmax(30 * jnp.tanh(_scores(query, key) / 30)), value)


def _over_queries(query: Any, key: Any, value: Any) -> Any:
    return _attended(jax.nn.softmax(_scores(query, key), axis=-2), value)


def _scaled_with_its_bias(query: Any, key: Any, value: Any) -> Any:
    bias = jnp.mean(query) * jnp.arange(_T)
    return _attended(jax.nn.softmax((_scores(query, key) + bias) / 4), value)


@pytest.mark.parametrize("attend", [_dropped, _shown, _capped, _over_queries, _scaled_with_its_bias])
def test_other_operations_are_no_such_attention(attend: Callable[..., Any]) -> None:
    found, before, after = _differentiated(attend, _QUERY, _KEYS, _VALUE)
    assert not found
    _assert_close(before, after)


def test_the_kernel_takes_16_bits_and_heads_of_its_widths() -> None:
    wide = (each.astype(jnp.float32) for each in (_QUERY, _KEYS, _VALUE))
    narrow = (each[..., :4] for each in (_QUERY, _KEYS, _VALUE))
    assert not _differentiated(_tril, *wide)[0]
    assert not _differentiated(_tril, *narrow)[0]


def test_a_mask_of_another_shape_than_a_triangle_is_no_causal_one() -> None:
    def shifted(query: Any, key: Any, value: Any) -> Any:
        mask = jnp.tril(jnp.ones((_T, _T), bool), k=1)
        return _attended(jax.nn.softmax(jnp.where(mask, _scores(query, key), -1e9)), value)

    (found,), before, after = _differentiated(shifted, _QUERY, _KEYS, _VALUE)
    assert not found.is_causal
    assert len(found.masks) == 1
    _assert_close(before, after)


def test_no_array_holds_the_probabilities_but_within_the_call() -> None:
    """The scores of the user's own product have shape (2, 4, 24, 24); JAX's have (2, 4, 1, 24, 24)."""

    def loss(*args: Any) -> Any:
        return _tril(*args).astype(jnp.float32).sum()

    assert (2, 4, _T, _T) in _shapes_of_products(jax.grad(loss))
    assert (2, 4, _T, _T) not in _shapes_of_products(_with_kernel(jax.grad(loss)))


def test_an_attention_without_gradients_is_computed_by_the_kernel() -> None:
    """As in inference, and in the passes of a step that only evaluate."""
    _assert_close(_tril(_QUERY, _KEYS, _VALUE), _with_kernel(_tril)(_QUERY, _KEYS, _VALUE))
    assert (2, 4, _T, _T) in _shapes_of_products(_tril)
    assert (2, 4, _T, _T) not in _shapes_of_products(_with_kernel(_tril))


def _with_kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    return fused(function, memprof.FusedAttention(implementation="xla"))


def _shapes_of_products(function: Callable[..., Any]) -> set[tuple[int, ...]]:
    pending = [jax.make_jaxpr(function)(_QUERY, _KEYS, _VALUE).jaxpr]
    found: set[tuple[int, ...]] = set()
    while pending:
        for equation in pending.pop().eqns:
            if equation.primitive.name == "dot_general":
                found.update(tuple(var.aval.shape) for var in equation.outvars)
            pending.extend(core.jaxprs_in_params(equation.params))
    return found
