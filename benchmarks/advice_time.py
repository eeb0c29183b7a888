"""How soon advice is compiled: the first plan of GPT-2 (124M), the first true saving, all of them, and all again.

    python -m benchmarks.advice_time [--target h100-80gb] [--unrolled] [-o RESULT.json]
    python -m benchmarks.advice_time --layers 2 --tokens 128      # a minute, to see that it works

Seconds are those that pass, so they are for an idle machine; the load at the start and the end stands beside them. The
cache of plans is a folder of its own, empty at the start.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax

_VOCABULARY, _WIDTH, _HEADS, _BATCH = 50_304, 768, 12, 8


def _norm(x: Any, weights: Any) -> Any:
    wide = x.astype(jnp.float32)
    scaled = (wide - wide.mean(-1, keepdims=True)) * jax.lax.rsqrt(wide.var(-1, keepdims=True) + 1e-5)
    return (scaled * weights["scale"] + weights["bias"]).astype(x.dtype)


def _block(x: Any, weights: Any) -> Any:
    half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), weights)
    heads = jnp.split(_norm(x, weights["norm_1"]) @ half["qkv"], 3, -1)
    query, key, value = (each.reshape(*each.shape[:2], _HEADS, -1) for each in heads)
    scores = jnp.einsum("bthd,bshd->bhts", query, key).astype(jnp.float32) / 8
    mask = jnp.tril(jnp.ones(scores.shape[2:], bool))
    probabilities = jax.nn.softmax(jnp.where(mask, scores, -1e9)).astype(x.dtype)
    x += jnp.einsum("bhts,bshd->bthd", probabilities, value).reshape(x.shape) @ half["out"]
    return x + jax.nn.gelu(_norm(x, weights["norm_2"]) @ half["up"]) @ half["down"]


def _loss(params: Any, tokens: Any) -> Any:
    embedding = params["embedding"].astype(jnp.bfloat16)
    x = embedding[tokens[:, :-1]] + params["positions"].astype(jnp.bfloat16)
    if isinstance(params["layers"], list):
        for weights in params["layers"]:
            x = _block(x, weights)
    else:
        x, _ = jax.lax.scan(lambda x, weights: (_block(x, weights), None), x, params["layers"])
    logits = (_norm(x, params["norm"]) @ embedding.T).astype(jnp.float32)
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()


_OPTIMIZER = optax.adamw(1e-4)


def train_step(params: Any, state: Any, tokens: Any) -> Any:
    """One step of GPT-2 with AdamW, in bfloat16."""
    loss, gradients = jax.value_and_grad(_loss)(params, tokens)
    updates, state = _OPTIMIZER.update(gradients, state, params)
    return optax.apply_updates(params, updates), state, loss


def _arguments(num_layers: int, num_tokens: int, *, is_unrolled: bool) -> tuple[Any, ...]:
    def array(*shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    def layer(*lead: int) -> Any:
        norm = {"scale": array(*lead, _WIDTH), "bias": array(*lead, _WIDTH)}
        shapes = {"qkv": (_WIDTH, 3 * _WIDTH), "out": (_WIDTH, _WIDTH), "up": (_WIDTH, 4 * _WIDTH)}
        matrices = {name: array(*lead, *shape) for name, shape in shapes.items()}
        return {"norm_1": norm, "norm_2": norm, "down": array(*lead, 4 * _WIDTH, _WIDTH), **matrices}

    params = {
        "embedding": array(_VOCABULARY, _WIDTH),
        "positions": array(num_tokens, _WIDTH),
        "norm": {"scale": array(_WIDTH), "bias": array(_WIDTH)},
        "layers": [layer() for _ in range(num_layers)] if is_unrolled else layer(num_layers),
    }
    tokens = jax.ShapeDtypeStruct((_BATCH, num_tokens + 1), jnp.int32)
    return params, jax.eval_shape(_OPTIMIZER.init, params), tokens


class _Clock:
    """Seconds since the beginning."""

    def __init__(self) -> None:
        self._started = time.perf_counter()

    def now(self) -> float:
        return round(time.perf_counter() - self._started, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="h100-80gb")
    parser.add_argument("--unrolled", action="store_true", help="layers one after another, and no scan")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=1024, help="of each sequence")
    parser.add_argument("-o", "--output", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MEMPROF_CACHE_DIR"] = folder
        arguments = _arguments(asked.layers, asked.tokens, is_unrolled=asked.unrolled)
        found = _measured(arguments, asked.target)
    found |= {"command": " ".join(["python -m benchmarks.advice_time", *sys.argv[1:]])}
    found |= {"jax": version("jax"), "target": asked.target, "num_processors": os.cpu_count()}
    print(json.dumps(found, indent=1))
    if asked.output:
        asked.output.write_text(json.dumps(found, indent=1) + "\n")


def _measured(arguments: tuple[Any, ...], target: str) -> dict[str, Any]:
    import memprof
    from memprof.sources.jax.targets.resolve import resolve
    from memprof.sources.jax.tracing.step import StepSpec
    from memprof.studies.advice.compiled import advise_step

    spec = StepSpec(train_step, arguments, workload="gpt2")
    stages: dict[str, float] = {}
    clock, load = _Clock(), os.getloadavg()[0]

    @contextmanager
    def rows(labels: Sequence[str]) -> Iterator[Callable[[str, str], None]]:
        stages["first plan"] = clock.now()

        def row(label: str, stage: str) -> None:
            if stage in ("done", "failed"):
                stages[f"{label} {stage}"] = clock.now()

        yield row

    def asked() -> list[str]:
        _, advice = advise_step(spec, resolve(target), progress=lambda stage: None, rows=rows)
        return [each.rule for each in advice if each.is_compiled]

    rules = asked()
    stages["all"] = clock.now()
    again = _Clock()
    assert asked() == rules
    seconds = again.now()
    return {
        "memprof": memprof.__version__,
        "advice": rules,
        "seconds_until": stages,
        "seconds_again": seconds,
        "load": [load, os.getloadavg()[0]],
    }


if __name__ == "__main__":
    main()
