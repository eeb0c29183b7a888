"""Attentions and arrays that can be cut, told from real programs by their data flow; and what only looks like them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from planted import attend, followed

from memprof import StepSpec
from memprof.analysis.pipeline import analyze
from memprof.analysis.records.report import Report
from memprof.sources.jax.compile import compile_step
from memprof.sources.jax.targets.resolve import resolve
from memprof.sources.jax.xla.plan import with_plan
from memprof.studies.advice.advise import advise

_T, _D = 128, 16  # positions, or examples; features


def _compiled(loss: Callable[..., Any], params: Any, *batch: Any) -> Report:
    def step(params: Any, *batch: Any) -> Any:
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params, *batch))

    shapes = jax.tree.map(lambda shape: jax.ShapeDtypeStruct(shape, jnp.float32), (params, *batch), is_leaf=_is_shape)
    spec = StepSpec(step, shapes, donate_argnums=(0,), roles={"params": "params", "batch": "batch"})
    with tempfile.TemporaryDirectory() as folder:
        target = resolve("cpu")
        return analyze(
            with_plan(compile_step(spec, target, dump_folder=Path(folder), progress=lambda _: None).planned).capture
        )


def _is_shape(tree: Any) -> bool:
    return isinstance(tree, tuple) and all(isinstance(length, int) for length in tree)


def _rules(report: Report) -> set[str]:
    return {advice.rule for advice in advise(report)}


def _causal(params: Any, x: Any) -> Any:
    q, k, v = (x @ params[name] for name in ("q", "k", "v"))
    scores = jnp.einsum("btd,bsd->bts", q, k) / 4
    scores = jnp.where(jnp.tril(jnp.ones((_T, _T), bool)), scores, -1e9)
    return jnp.tanh((jax.nn.softmax(scores) @ v) @ params["out"]).mean()


def _heads(params: Any, x: Any) -> Any:
    q, k, v = ((x @ params[name])[:, :, None, :] for name in ("q", "k", "v"))
    return jnp.tanh(attend(q, k, v)[:, :, 0] @ params["out"]).mean()


_ATTENTION = dict.fromkeys(("q", "k", "v", "out"), (_D, _D))


@pytest.mark.parametrize("loss", [_causal, _heads])
def test_attention_is_found(loss: Callable[..., Any]) -> None:
    report = _compiled(loss, _ATTENTION, (2, _T, _D))
    found = [buffer for buffer in report.temp_buffers if buffer.is_of_attention]
    assert {buffer.shape[-2:] for buffer in found} == {(_T, _T)}
    assert "flash_attention" in _rules(report)


def _contrastive(params: Any, x: Any) -> Any:
    """A softmax over all pairs, which nothing is multiplied with in the forward pass."""
    left, right = jnp.tanh(x @ params["q"]), jnp.tanh(x @ params["k"])
    return -jnp.diagonal(jax.nn.log_softmax(left @ right.T)).mean()


def _weight_samples(params: Any, x: Any) -> Any:
    """Square samples of weights, normalised and multiplied, from no product of two values."""
    samples = jnp.exp(params["mean"] + x[:, None, None] * jnp.ones((_T, _T)))
    weights = samples / samples.sum(axis=-1, keepdims=True)
    return jnp.tanh(weights @ jnp.tanh(weights)).mean()


def _masked_weights(params: Any, x: Any) -> Any:
    """Square products, masked and multiplied again, without a softmax."""
    scores = jnp.einsum("btd,bsd->bts", x @ params["q"], x @ params["k"])
    weights = jnp.where(jnp.tril(jnp.ones((_T, _T), bool)), jnp.tanh(scores), 0)
    return jnp.tanh(weights @ (x @ params["v"])).mean()


def _time_by_hidden(params: Any, x: Any) -> Any:
    """As many features as positions."""
    for name in ("a", "b"):
        x = jax.nn.softmax(x @ params[name])
    return jnp.tanh(x).mean()


def _memory(params: Any, x: Any) -> Any:
    """Keys and values are parameters: no kernel of attention is for that."""
    return jnp.tanh(jax.nn.softmax(x @ params["a"]) @ params["b"]).mean()


_SQUARE = {"a": (_T, _T), "b": (_T, _T)}


@pytest.mark.parametrize(
    ("loss", "params", "x"),
    [
        (_contrastive, _ATTENTION, (_T, _D)),
        (_weight_samples, {"mean": (_T, _T)}, (2,)),
        (_masked_weights, _ATTENTION, (2, _T, _D)),
        (_time_by_hidden, _SQUARE, (2, _T, _T)),
        (_memory, _SQUARE, (2, _T, _T)),
    ],
)
def test_what_only_looks_like_attention_is_none(loss: Callable[..., Any], params: Any, x: Any) -> None:
    report = _compiled(loss, params, x)
    assert not any(buffer.is_of_attention for buffer in report.temp_buffers)
    assert "flash_attention" not in _rules(report)


def _normalised(axes: int | tuple[int, ...]) -> Callable[..., Any]:
    """One wide array, normalised over the given axes on its way."""

    def loss(params: Any, x: Any) -> Any:
        wide = x[:, :, None] * params["scale"]
        centred = wide - wide.mean(axis=axes, keepdims=True)
        normal = centred * jax.lax.rsqrt(jnp.square(centred).mean(axis=axes, keepdims=True) + 1e-5)
        return jnp.tanh(jnp.tanh(normal) @ params["out"]).mean()

    return loss


@pytest.mark.parametrize(
    ("axes", "can_be_cut"),
    [
        (-1, True),  # layer normalization: each row has its own
        ((1, 2), True),  # instance normalization
        ((0, 1), False),  # batch statistics
        (0, False),
        ((0, 1, 2), False),  # one mean for all
    ],
)
def test_an_array_is_cut_where_its_rows_do_not_need_each_other(axes: int | tuple[int, ...], can_be_cut: bool) -> None:
    report = _compiled(_normalised(axes), {"scale": (512,), "out": (512, 2)}, (32, 16))
    assert ("huge_buffer" in _rules(report)) is can_be_cut


def test_arrays_of_other_layers_are_another_family() -> None:
    def loss(params: Any, x: Any) -> Any:
        for layer in params.values():
            x = x + jnp.tanh(jnp.tanh(x @ layer["up"]) @ layer["down"])
        return x.mean()

    layer = {"up": (16, 1024), "down": (1024, 16)}
    report = _compiled(loss, {"a": layer, "b": layer}, (64, 16))
    kept = {buffer.family for buffer in report.buffers if buffer.shape == (64, 1024)}
    assert len(kept) == 2
    largest = max(buffer.size_bytes for buffer in report.buffers if buffer.shape == (64, 1024))
    saved = [advice.saving_bytes for advice in advise(report) if advice.rule == "huge_buffer"]
    assert all(saving_bytes <= 2 * largest for saving_bytes in saved)


def _step(params: Any, x: Any, state: Any) -> Any:
    gradients = jax.grad(lambda params: jnp.tanh(x @ params["w"]).mean())(params)
    state = jax.tree.map(lambda m, g: 0.9 * m + g, state, gradients)
    return jax.tree.map(lambda p, m: p - 0.1 * m, params, state), state


@pytest.mark.parametrize(
    ("by_keyword", "code"),
    [(False, "donate_argnums=(0, 2)"), (True, "donate_argnames=('params', 'state')")],
)
def test_the_line_that_donates_can_be_followed(by_keyword: bool, code: str) -> None:
    tree = {"w": jax.ShapeDtypeStruct((_T, _T), jnp.float32)}
    x = jax.ShapeDtypeStruct((8, _T), jnp.float32)
    args, kwargs = ((), {"params": tree, "x": x, "state": tree}) if by_keyword else ((tree, x, tree), {})
    spec = StepSpec(_step, args, kwargs=kwargs, roles={"params": "params", "x": "batch", "state": "optimizer_state"})
    with tempfile.TemporaryDirectory() as folder:
        target = resolve("cpu")
        report = analyze(
            with_plan(compile_step(spec, target, dump_folder=Path(folder), progress=lambda _: None).planned).capture
        )
    (advice,) = (advice for advice in advise(report) if advice.rule == "donate_state")
    assert code in advice.proposal.how_to
    step = followed(advice.proposal.how_to, step=_step)["step"]
    memory = step.lower(*args, **kwargs).compile().memory_analysis()
    assert memory.alias_size_in_bytes == advice.saving_bytes == 2 * 4 * _T * _T
