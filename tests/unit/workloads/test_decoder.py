"""The decoder at inference: bytes by arithmetic, and the same logits whatever the phase and the layout of the cache."""

from __future__ import annotations

import math
import re
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memprof.analysis.pipeline import analyze
from memprof.analysis.records.categories import Category
from memprof.errors import MemprofError
from memprof.sources.jax.compile import capture_of
from memprof.sources.jax.targets.resolve import resolve
from memprof.workloads import registry
from memprof.workloads.build import build_step, plan
from memprof.workloads.models.transformer.network import build_transformer
from memprof.workloads.train_config import TrainConfig

pytestmark = pytest.mark.usefixtures("quick_compiles")


class Sizes(NamedTuple):
    """Of a configuration, by hand."""

    layers: int
    kv_heads: int
    head_size: int
    num_params: int


LLAMA_1B = Sizes(16, 8, 64, 1_235_814_400)
LLAMA_8B = Sizes(32, 8, 128, 8_030_261_248)
LLAMA_8B_MQA = Sizes(32, 1, 128, 8_030_261_248 - 32 * 2 * 4096 * 7 * 128)
LLAMA_70B = Sizes(80, 8, 128, 70_553_706_496)
GEMMA_2B = Sizes(18, 1, 256, 2_506_172_416)
GPT2 = Sizes(12, 12, 64, 124_439_808)

# 2 x layers x batch x length x kv heads x head size x bytes.
CONFIGURATIONS = [
    ("llama-1b", LLAMA_1B, 1, 2048, "", 134_217_728),
    ("llama-1b", LLAMA_1B, 64, 2048, "bf16-params", 4_294_967_296),
    ("llama-8b", LLAMA_8B, 16, 4096, "bf16-params", 8_589_934_592),
    ("llama-8b", LLAMA_8B, 16, 4096, "", 17_179_869_184),
    ("llama-8b", LLAMA_8B, 1, 131_072, "bf16-params", 17_179_869_184),
    ("llama-8b", LLAMA_8B, 57, 4096, "bf16-params+kv-list", 30_601_641_984),
    ("llama-70b", LLAMA_70B, 32, 8192, "bf16-params", 85_899_345_920),
    ("gemma-2b", GEMMA_2B, 8, 8192, "bf16-params", 1_207_959_552),
    ("gpt2", GPT2, 8, 1024, "", 603_979_776),
    # One head of keys and values instead of eight: 2 x 4096 x 7 x 128 parameters fewer in each layer.
    ("llama-8b", LLAMA_8B_MQA, 16, 4096, "bf16-params+gqa=1", 1_073_741_824),
    ("llama-8b", LLAMA_8B, 16, 4096, "bf16-params+window=1024", 2_147_483_648),
    # One byte for each of 4,294,967,296 numbers, and a float32 scale for each 128 of them.
    ("llama-8b", LLAMA_8B, 16, 4096, "bf16-params+int8-kv", 4_294_967_296 + 134_217_728),
    ("llama-8b", LLAMA_8B, 16, 4096, "bf16-params+fp8-kv", 4_294_967_296),
    # Pages of 16 tokens: 256 of them for each sequence; 4,097 tokens take one page more.
    ("llama-8b", LLAMA_8B, 16, 4096, "bf16-params+paged-kv", 8_589_934_592),
    ("llama-8b", LLAMA_8B, 16, 4097, "bf16-params+paged-kv", 8_589_934_592 // 256 * 257),
    ("llama-8b", LLAMA_8B, 16, 4096, "bf16-params+paged-kv+int8-kv", 4_294_967_296 + 134_217_728),
]


def size_bytes(tree: Any) -> int:
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize(("preset", "sizes", "batch", "length", "label", "cache_bytes"), CONFIGURATIONS)
def test_weights_and_cache_are_those_of_arithmetic(
    preset: str, sizes: Sizes, batch: int, length: int, label: str, cache_bytes: int
) -> None:
    spec = build_step(
        workload="decoder",
        preset=preset,
        overrides=[f"batch_size={batch}", f"context_len={length}"],
        techniques=[label] if label else [],
    )
    params, cache, *_ = spec.args
    assert size_bytes(cache) == cache_bytes
    item_bytes = 2 if "bf16" in label else 4
    if not {"window", "int8", "fp8", "paged"} & set(re.split("[-+=]", label)):
        product = 2 * sizes.layers * batch * length * sizes.kv_heads * sizes.head_size * item_bytes
        assert cache_bytes == product
    assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params)) == sizes.num_params
    assert size_bytes(params) == sizes.num_params * item_bytes


@pytest.mark.parametrize("phase", ["prefill", "decode", "chunked-prefill"])
@pytest.mark.parametrize("label", ["", "bf16-params+kv-list"])
def test_a_compiled_program_has_these_bytes_in_its_categories(phase: str, label: str) -> None:
    spec = build_step(
        workload="decoder", preset="tiny", overrides=[f"phase={phase}"], techniques=[label] if label else []
    )
    report = analyze(capture_of(spec, resolve("cpu"), progress=lambda stage: None).capture)
    params, cache, tokens, positions = spec.args
    assert report.categories[Category.PARAMS] == size_bytes(params)
    assert report.categories[Category.KV_CACHE] == size_bytes(cache) == 2 * 2 * 4 * 32 * 2 * 8 * (2 if label else 4)
    # Without positions, which XLA drops where nothing depends on them.
    assert size_bytes(tokens) <= report.categories[Category.BATCH] <= size_bytes((tokens, positions))
    absent = (Category.GRADIENTS, Category.ACTIVATIONS, Category.COTANGENTS, Category.OPTIMIZER_STATE)
    assert [report.categories[category] for category in absent] == [0] * len(absent)
    assert report.categories[Category.UNATTRIBUTED] == 0


@cache
def built(overrides: tuple[str, ...] = (), label: str = "", preset: str = "tiny") -> tuple[Any, Any, Any]:
    """A program, random weights in its layout, and an empty cache."""
    techniques = [label] if label else []
    spec = build_step(workload="decoder", preset=preset, overrides=overrides, techniques=techniques)
    stacked = build_step(workload="decoder", preset=preset, techniques=[part for part in techniques if "gqa" in part])
    params = jax.tree.map(
        lambda leaf, key: 0.3 * jax.random.normal(key, leaf.shape),
        stacked.args[0],
        keys_like(stacked.args[0]),
    )
    if isinstance(spec.args[0]["layers"], list):
        number = len(spec.args[0]["layers"])
        params["layers"] = [jax.tree.map(lambda leaf, n=n: leaf[n], params["layers"]) for n in range(number)]
    cache = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), spec.args[1])
    return jax.jit(spec.fn), params, cache


def keys_like(tree: Any) -> Any:
    leaves, structure = jax.tree.flatten(tree)
    return jax.tree.unflatten(structure, list(jax.random.split(jax.random.key(0), len(leaves))))


def span(first: int, length: int) -> jax.Array:
    return jnp.broadcast_to(jnp.arange(first, first + length, dtype=jnp.int32), (4, length))


TOKENS = np.random.default_rng(0).integers(64, size=(4, 24), dtype=np.int32)


def logits_of(label: str, *phases: tuple[str, int, int], preset: str = "tiny") -> np.ndarray:
    """The logits after several calls, each of a phase, for the tokens from a first one to a last one."""
    _, _, cache = built((), label, preset)
    for phase, first, last in phases:
        sizes = (f"prompt_len={last - first}",) if phase == "prefill" else (f"chunk_len={last - first}",)
        step, params, _ = built((f"phase={phase}", *sizes), label, preset)
        # In pages of 16 tokens: 2 for each of the 4 sequences, in no order.
        numbers = [[3], [0], [2], [1]] if "window=8" in label else [[6, 1], [0, 3], [7, 2], [5, 4]]
        pages = (jnp.array(numbers, jnp.int32),) if "paged-kv" in label else ()
        logits, cache = step(params, cache, TOKENS[:, first:last], span(first, last - first), *pages)
    return np.asarray(logits, np.float32)


WHOLE = (("prefill", 0, 24),)
DECODED = (("prefill", 0, 20), *(("decode", n, n + 1) for n in range(20, 24)))
CHUNKED = tuple(("chunked-prefill", n, n + 8) for n in range(0, 24, 8))


@pytest.mark.parametrize("preset", ["tiny", "tiny-gpt2"])
@pytest.mark.parametrize("phases", [DECODED, CHUNKED], ids=["decode", "chunks"])
@pytest.mark.slow_cases
def test_all_phases_give_the_logits_of_one_prefill(phases: Any, preset: str) -> None:
    expected = logits_of("", *WHOLE, preset=preset)
    np.testing.assert_allclose(logits_of("", *phases, preset=preset), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("label", ["kv-list", "window=32", "paged-kv", "paged-kv+kv-list"])
@pytest.mark.slow_cases
def test_the_layout_of_the_cache_changes_no_logits(label: str) -> None:
    np.testing.assert_allclose(logits_of(label, *DECODED), logits_of("", *DECODED), rtol=1e-4, atol=1e-4)


def test_a_window_in_a_prefill_is_the_one_of_the_cache() -> None:
    windowed = logits_of("window=8", *DECODED)
    np.testing.assert_allclose(windowed, logits_of("window=8", *WHOLE), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(windowed, logits_of("window=8+paged-kv", *DECODED), rtol=1e-4, atol=1e-4)
    assert np.abs(logits_of("window=8", *WHOLE) - logits_of("", *WHOLE)).max() > 0.01


@pytest.mark.slow
def test_8_bit_integers_are_near() -> None:
    exact, near = logits_of("", *DECODED), logits_of("int8-kv", *DECODED)
    assert 0 < np.abs(near - exact).max() < 0.05 * np.abs(exact).max()
    np.testing.assert_allclose(logits_of("int8-kv+paged-kv", *DECODED), near, rtol=1e-4, atol=1e-4)


def test_8_bit_floats_are_near() -> None:
    exact, near = logits_of("", *DECODED), logits_of("fp8-kv", *DECODED)
    assert 0 < np.abs(near - exact).max() < 0.2 * np.abs(exact).max()


def test_the_pool_of_pages_has_the_size_that_is_asked_for() -> None:
    spec = build_step(workload="decoder", preset="tiny", overrides=["num_pages=5"], techniques=["paged-kv"])
    assert {leaf.shape for leaf in jax.tree.leaves(spec.args[1])} == {(2, 5, 16, 2, 8)}
    assert spec.args[4].shape == (4, 2)
    assert spec.feed is not None
    assert spec.feed.argument(4, 0).max() == 4


GPT2_BLOCKS = ("num_heads=4", "max_seq_len=32", "vocab_size=64", "tied_embeddings=true", "dropout_rate=0")


@pytest.mark.parametrize(
    ("preset", "trained_preset", "overrides"), [("tiny-gpt2", "tiny", GPT2_BLOCKS), ("tiny", "tiny-llama", ())]
)
def test_a_prefill_gives_the_logits_of_the_transformer_that_is_trained(
    preset: str, trained_preset: str, overrides: tuple[str, ...]
) -> None:
    """Their blocks are the same, but for queries, keys and values, which `transformer` projects at once."""
    step, params, cache = built(("phase=prefill", "all_logits=true"), preset=preset)
    trained = plan(
        workload="transformer", preset=trained_preset, overrides=(*overrides, "seq_len=16"), techniques=["scan"]
    )
    model = build_transformer(trained.config, trained.train_config)
    attention = params["layers"]["attention"]
    joined = {
        leaf: jnp.concatenate([attention[name][leaf] for name in ("query", "key", "value")], -1)
        for leaf in attention["query"]
    }
    layers = {
        "attention": {"norm": attention["norm"], "qkv": joined, "out": attention["out"]},
        "mlp": params["layers"]["mlp"],
    }
    expected = model.module.apply(
        {"params": {**params, "layers": layers}}, TOKENS[:, :16], rngs={"dropout": jax.random.key(0)}
    )
    logits, _ = step(params, cache, TOKENS[:, :16], span(0, 16))
    np.testing.assert_allclose(logits, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("overrides", "label", "sentence"),
    [
        (("num_kv_heads=3",), "", "num_heads is 4, but it must be a multiple of num_kv_heads = 3."),
        (("prompt_len=33",), "", "the cache has room for context_len = 32 tokens"),
        (("head_size=7",), "", "rotary positions need an even width"),
        (("phase=training",), "", "phase expects one of prefill, decode, chunked-prefill"),
        (("learning_rate=1",), "", "learning_rate"),
        ((), "gqa=3", "needs a divisor of num_heads, which is 4"),
        ((), "window=64", "needs a context_len of at least that"),
        (
            ("num_pages=1",),
            "paged-kv",
            "num_pages is 1, but the 32 tokens of one sequence take 2 pages of page_size = 16",
        ),
        (("num_pages=64",), "", "num_pages applies only to a paged cache: add -t paged-kv"),
        ((), "chunked-prefill=4", "applies to --phase prefill, but the phase is decode"),
        (("phase=chunked-prefill",), "window=8", "leave one of them out"),
        ((), "remat", "does not apply to decoder"),
        ((), "accum2", "does not apply to decoder"),
        ((), "opt=adafactor", "does not apply to decoder"),
    ],
)
def test_what_does_not_go_has_a_sentence(overrides: tuple[str, ...], label: str, sentence: str) -> None:
    with pytest.raises(MemprofError, match=sentence.replace("(", r"\(")):
        plan(workload="decoder", preset="tiny", overrides=overrides, techniques=[label] if label else [])


@pytest.mark.parametrize(
    "label", ["kv-list", "gqa=1", "window=8", "int8-kv", "fp8-kv", "paged-kv", "chunked-prefill=4"]
)
def test_techniques_of_a_cache_do_not_apply_to_training(label: str) -> None:
    with pytest.raises(MemprofError, match="does not apply to transformer"):
        plan(workload="transformer", preset="tiny", techniques=[label])


def test_the_configuration_says_nothing_of_training() -> None:
    config = plan(workload="decoder", preset="tiny").flat_config()
    assert not {"learning_rate", "optimizer", "remat_policy"} & config.keys()
    assert {"phase", "num_kv_heads", "cache_dtype", "param_dtype"} <= config.keys()
    assert "cache_dtype" not in plan(workload="mlp", preset="tiny").flat_config()
    assert registry.workload("mlp").trains(registry.workload("mlp").preset())
    assert TrainConfig().cache_dtype == "compute"
