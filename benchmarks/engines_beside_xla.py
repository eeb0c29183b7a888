"""The plans of TensorRT for RTX and of XLA for the same eight inference steps, beside sums by hand.

    python -m benchmarks.engines_beside_xla

Builds engines and compiles the steps, for an RTX 4090 that need not be present, and prints a markdown table. The models
are those of `tests/integration/test_engines.py`: as ONNX files by hand, and written in JAX, of which an engine is built
too. Needs the extras `deviceless` and `tensorrt`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
import jax.numpy as jnp

import memprof

_MIB = 2**20
_TESTS = Path(__file__).parents[1] / "tests"
_HEADS = 4
_WORKSPACE = 8_192_000  # of every engine of TensorRT for RTX 1.7.1

Spec = Callable[[], memprof.StepSpec]


def _mlp(sizes: tuple[int, ...], batch: int, dtype: str) -> Spec:
    """Products by weights, with relu between them."""

    def step(weights: list[jax.Array], x: jax.Array) -> jax.Array:
        for number, weight in enumerate(weights):
            x = (jnp.maximum(x, 0) if number else x) @ weight
        return x

    weights = [jax.ShapeDtypeStruct(pair, dtype) for pair in pairwise(sizes)]
    return lambda: memprof.StepSpec(step, (weights, jax.ShapeDtypeStruct((batch, sizes[0]), dtype)))


def _norm(x: jax.Array, scale: jax.Array, shift: jax.Array) -> jax.Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * scale + shift


def _transformer(batch: int, length: int, width: int, num_layers: int) -> Spec:
    """Pre-norm blocks in float16 with four heads of attention and gelu."""

    def block(p: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        h = _norm(x, p["scale_1"], p["shift_1"])
        q, k, v = ((h @ p[name]).reshape(batch, length, _HEADS, -1) for name in "qkv")
        scores = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) * (width // _HEADS) ** -0.5)
        x = x + jnp.einsum("bhqk,bkhd->bqhd", scores, v).reshape(x.shape) @ p["out"]
        h = _norm(x, p["scale_2"], p["shift_2"])
        return x + jax.nn.gelu(h @ p["up"], approximate=False) @ p["down"]

    def step(params: list[dict[str, jax.Array]], x: jax.Array) -> jax.Array:
        for layer in params:
            x = block(layer, x)
        return x

    def array(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.float16)

    layer = {name: array(width, width) for name in ("q", "k", "v", "out")}
    layer |= {name: array(width) for name in ("scale_1", "shift_1", "scale_2", "shift_2")}
    layer |= {"up": array(width, 4 * width), "down": array(4 * width, width)}
    return lambda: memprof.StepSpec(step, ([layer] * num_layers, array(batch, length, width)))


# In the order of the tests' models.
two_products = _mlp((512, 2048, 512), 32, "float32")
three_products = _mlp((1024, 4096, 4096, 1024), 64, "float32")
large_batch = _mlp((1024, 4096, 4096, 1024), 1024, "float32")
three_in_float16 = _mlp((1024, 4096, 4096, 1024), 64, "float16")
four_in_float16 = _mlp((256, 1024, 1024, 1024, 256), 128, "float16")
block = _transformer(4, 256, 512, 1)
two_blocks = _transformer(2, 128, 256, 2)
long_sequences = _transformer(8, 512, 512, 1)
NAMES = (
    "two_products", "three_products", "large_batch", "three_in_float16", "four_in_float16",
    "block", "two_blocks", "long_sequences",
)  # fmt: skip


def main() -> int:
    sys.path.insert(0, str(_TESTS))
    tests: Any = import_module("integration.test_engines")

    print("| model | weights by hand | TensorRT | XLA | live by hand | TensorRT | exported by memprof | XLA's temps |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    with TemporaryDirectory() as folder:
        for name, (title, hand) in zip(NAMES, tests.MODELS.items(), strict=True):
            write = tests.models.mlp if isinstance(hand.parts[0], tuple) else tests.models.transformer
            by_hand = _report(str(write(Path(folder) / f"{name}.onnx", *hand.parts)), "--engine", "tensorrt")
            exported = _report(f"{__file__}:{name}", "--engine", "tensorrt")
            program = _report(f"{__file__}:{name}")
            weights = (
                hand.num_weights * hand.weight_size,
                by_hand["engine_memory"]["weights_bytes"],
                program["categories"]["params"],
            )
            engines = [each["engine_memory"]["activation_bytes"] - _WORKSPACE for each in (by_hand, exported)]
            sizes = (hand.live_bytes, *engines, program["compiler"]["temp_bytes"])
            cells = [*(f"{each:,}" for each in weights), *(f"{each / _MIB:.3f}" for each in sizes)]
            print(f"| {title} | {' | '.join(cells)} |", flush=True)
    return 0


def _report(subject: str, *options: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "memprof", "run", subject, *options, "--target", "rtx-4090"]
    command += ["--format", "json", "--no-save", "-q"]
    found: dict[str, Any] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return found


if __name__ == "__main__":
    sys.exit(main())
