"""The Transformer: parameters to the number, what may influence what, and the precision of each part."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memprof.workloads.models.transformer import (
    BERT_LARGE,
    GEMMA_2B,
    GPT2,
    LLAMA_1B,
    LLAMA_8B,
    LLAMA_70B,
    TINY,
    TINY_LLAMA,
    UVA,
)
from memprof.workloads.models.transformer.network import build_transformer
from memprof.workloads.train_config import TrainConfig

pytestmark = pytest.mark.usefixtures("quick_compiles")

# Without dropout, so that two runs can be compared; one layer, since more would only take longer to compile.
PLAIN = dataclasses.replace(TINY, batch_size=2, seq_len=6, num_layers=1, dropout_rate=0.0)
CLASSIFIER = dataclasses.replace(PLAIN, task="classification", causal=False, padding_mask=True)
NAMES = ["untied", "classifier", "tied"]
TOKENS = jnp.array([[3, 1, 4, 1, 5, 9], [2, 6, 5, 3, 5, 8]], jnp.int32)
KEY = jax.random.PRNGKey(0)


@functools.cache
def model_and_params(config=PLAIN):
    model = build_transformer(config, TrainConfig())
    return model, jax.jit(model.init_params)(KEY)


def logits_of(model, params, *inputs):
    apply = jax.jit(lambda params, inputs: model.module.apply({"params": params}, *inputs, rngs={"dropout": KEY}))
    return np.asarray(apply(params, inputs))


def paths(params) -> dict[str, tuple[int, ...]]:
    leaves = jax.tree_util.tree_flatten_with_path(params)[0]
    return {"/".join(key.key for key in path): leaf.shape for path, leaf in leaves}


def abstract_params(config):
    return jax.eval_shape(build_transformer(config, TrainConfig()).init_params, KEY)


# GPT-2: 50257 * 768 + 1024 * 768 + 12 * (12 * 768^2 + 13 * 768) + 2 * 768; the output layer is the token table.
# BERT: 30522 * 1024 + 512 * 1024 + 24 * (12 * 1024^2 + 13 * 1024) + 2 * 1024 + pooler 1024^2 + 1024 + head 2050.
# UvA: 2048 * 1024 + 512 * 1024 + 12 * (12 * 1024^2 + 13 * 1024) + 2 * 1024 + untied head with bias 1024 * 2048 + 2048.
# Llama and Gemma: V h (twice where untied) + layers * (h (heads + 2 kv heads) d + heads d h + 3 h m + 2 h) + h:
# 1B: 128256 * 2048 + 16 * (2048 * 48 * 64 + 2048^2 + 3 * 2048 * 8192 + 2 * 2048) + 2048;
# 8B: 2 * 128256 * 4096 + 32 * (4096 * 48 * 128 + 4096^2 + 3 * 4096 * 14336 + 2 * 4096) + 4096;
# 70B: 2 * 128256 * 8192 + 80 * (8192 * 80 * 128 + 8192^2 + 3 * 8192 * 28672 + 2 * 8192) + 8192;
# Gemma: 256000 * 2048 + 18 * (2048 * 10 * 256 + 2048^2 + 3 * 2048 * 16384 + 2 * 2048) + 2048.
@pytest.mark.parametrize(
    ("config", "num_params"),
    [
        (GPT2, 124_439_808),
        (BERT_LARGE, 335_141_890),
        (UVA, 155_877_376),
        (LLAMA_1B, 1_235_814_400),
        (LLAMA_8B, 8_030_261_248),
        (LLAMA_70B, 70_553_706_496),
        (GEMMA_2B, 2_506_172_416),
    ],
    ids=["gpt2", "bert-large", "uva", "llama-1b", "llama-8b", "llama-70b", "gemma-2b"],
)
@pytest.mark.slow_cases
def test_presets_have_exactly_the_published_number_of_parameters(config, num_params):
    assert sum(leaf.size for leaf in jax.tree.leaves(abstract_params(config))) == num_params


def test_the_blocks_of_llama_have_their_parts():
    block = {
        "attention/norm/scale": (32,),
        "attention/qkv/kernel": (32, (4 + 2 * 2) * 8),
        "attention/out/kernel": (32, 32),
        "mlp/norm/scale": (32,),
        "mlp/gate/kernel": (32, 64),
        "mlp/up/kernel": (32, 64),
        "mlp/down/kernel": (64, 32),
    }
    assert paths(abstract_params(TINY_LLAMA)) == {
        "token_embedding/embedding": (64, 32),
        **{f"layers_{layer}/{path}": shape for layer in range(2) for path, shape in block.items()},
        "final_norm/scale": (32,),
        "head/kernel": (32, 64),
    }


def test_parameter_paths_name_the_parts():
    block = {
        "attention/norm/scale": (32,),
        "attention/norm/bias": (32,),
        "attention/qkv/kernel": (32, 96),
        "attention/qkv/bias": (96,),
        "attention/out/kernel": (32, 32),
        "attention/out/bias": (32,),
        "mlp/norm/scale": (32,),
        "mlp/norm/bias": (32,),
        "mlp/up/kernel": (32, 128),
        "mlp/up/bias": (128,),
        "mlp/down/kernel": (128, 32),
        "mlp/down/bias": (32,),
    }
    assert paths(abstract_params(TINY)) == {
        "token_embedding/embedding": (64, 32),
        "position_embedding/embedding": (24, 32),
        **{f"layers_{layer}/{path}": shape for layer in range(2) for path, shape in block.items()},
        "final_norm/scale": (32,),
        "final_norm/bias": (32,),
        "head/kernel": (32, 64),
        "head/bias": (64,),
    }


def test_a_tied_model_has_no_output_layer_of_its_own():
    untied, tied = (
        paths(abstract_params(PLAIN)),
        paths(abstract_params(dataclasses.replace(PLAIN, tied_embeddings=True))),
    )
    assert untied.keys() - tied.keys() == {"head/kernel", "head/bias"}
    assert tied.keys() <= untied.keys()


def test_tied_logits_are_products_with_the_token_table():
    model, params = model_and_params(dataclasses.replace(PLAIN, tied_embeddings=True))
    hidden = jax.random.normal(KEY, (2, 6, 32))
    logits = model.module.apply({"params": params}, hidden, method="decode")
    np.testing.assert_allclose(logits, hidden @ params["token_embedding"]["embedding"].T, rtol=1e-5, atol=1e-6)


def test_decode_after_encode_is_the_whole_model():
    model, params = model_and_params()
    hidden = model.module.apply({"params": params}, TOKENS, method="encode", rngs={"dropout": KEY})
    logits = model.module.apply({"params": params}, hidden, method="decode")
    np.testing.assert_allclose(logits, logits_of(model, params, TOKENS), rtol=1e-4, atol=1e-5)


def test_a_causal_model_does_not_look_ahead():
    model, params = model_and_params()
    before, after = logits_of(model, params, TOKENS), logits_of(model, params, TOKENS.at[:, 4].set(7))
    np.testing.assert_array_equal(before[:, :4], after[:, :4])
    assert (before[:, 4:] != after[:, 4:]).any(axis=-1).all()


def test_a_model_that_is_not_causal_looks_both_ways():
    model, params = model_and_params(dataclasses.replace(PLAIN, causal=False))
    before, after = logits_of(model, params, TOKENS), logits_of(model, params, TOKENS.at[:, 4].set(7))
    assert (before != after).any(axis=-1).all()


def test_a_classifier_ignores_padded_tokens_and_only_those():
    model, params = model_and_params(CLASSIFIER)
    is_real = jnp.array([[True] * 6, [True] * 4 + [False] * 2])
    batch = {"inputs": TOKENS, "labels": jnp.array([0, 1]), "input_mask": is_real}

    def loss(inputs):
        return float(model.metrics(params, {**batch, "inputs": inputs}, KEY)["loss"][0])

    assert loss(TOKENS.at[1, 4:].set(7)) == loss(TOKENS)
    assert loss(TOKENS.at[1, 3].set(7)) != loss(TOKENS)
    assert loss(TOKENS.at[0, 5].set(7)) != loss(TOKENS)


def test_the_prediction_of_padding_does_not_count():
    model, params = model_and_params(dataclasses.replace(PLAIN, padding_mask=True))
    is_real = jnp.array([[True] * 6, [True] * 4 + [False] * 2])
    batch = {"inputs": TOKENS, "labels": TOKENS, "input_mask": is_real}
    metrics = model.metrics(params, batch, KEY)
    changed = model.metrics(params, {**batch, "labels": TOKENS.at[1, 4:].set(0)}, KEY)
    assert float(metrics["loss"][1]) == 10
    assert float(metrics["loss"][0]) == float(changed["loss"][0])


def test_packed_documents_do_not_see_each_other():
    model, params = model_and_params(dataclasses.replace(PLAIN, causal=False, custom_mask=True))
    in_second = jnp.arange(6) >= 2
    allowed = jnp.broadcast_to(in_second[:, None] == in_second[None, :], (2, 6, 6))
    before = logits_of(model, params, TOKENS, None, allowed)
    after = logits_of(model, params, TOKENS.at[:, 4].set(7), None, allowed)
    np.testing.assert_array_equal(before[:, :2], after[:, :2])
    assert (before[:, 2:] != after[:, 2:]).any(axis=-1).all()


def test_only_the_positions_in_use_are_trained():
    model, params = model_and_params()
    batch = {"inputs": TOKENS, "labels": TOKENS}
    gradients = jax.jit(jax.grad(lambda params: model.metrics(params, batch, KEY)["loss"][0]))(params)
    is_used = np.asarray(gradients["position_embedding"]["embedding"]).any(axis=-1)
    assert is_used.tolist() == [True] * 6 + [False] * 18


# The two tests of dtypes look at shapes alone: nothing is compiled.
@pytest.mark.parametrize("config", [PLAIN, CLASSIFIER, dataclasses.replace(PLAIN, tied_embeddings=True)], ids=NAMES)
def test_bf16_computes_in_bfloat16_between_float32_parameters_and_logits(config):
    model = build_transformer(config, TrainConfig(compute_dtype="bfloat16"))
    inputs = [TOKENS, jnp.ones((2, 6), bool)][: len(model.inputs)]

    def run(rng):
        params = model.init_params(rng)
        return params, model.module.apply(
            {"params": params}, *inputs, rngs={"dropout": rng}, capture_intermediates=True, mutable=["intermediates"]
        )

    params, (logits, captured) = jax.eval_shape(run, KEY)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    assert logits.dtype == jnp.float32
    dtypes = {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf.dtype.name
        for path, leaf in jax.tree_util.tree_flatten_with_path(captured["intermediates"])[0]
    }
    in_float32 = {path for path, dtype in dtypes.items() if dtype != "bfloat16"}
    assert in_float32 == {"head/__call__/0", "__call__/0"}
    assert {"layers_0/attention/qkv/__call__/0", "layers_0/mlp/up/__call__/0", "token_embedding/__call__/0"} <= set(
        dtypes
    )


def test_gradients_of_bf16_come_back_in_float32():
    model = build_transformer(PLAIN, TrainConfig(compute_dtype="bfloat16"))
    batch = {"inputs": TOKENS, "labels": TOKENS}

    def gradients(rng):
        return jax.grad(lambda params: model.metrics(params, batch, rng)["loss"][0])(model.init_params(rng))

    assert {leaf.dtype for leaf in jax.tree.leaves(jax.eval_shape(gradients, KEY))} == {jnp.dtype("float32")}


def dot_operand_dtypes(jaxpr) -> set[str]:
    dtypes = set()
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            dtypes |= {variable.aval.dtype.name for variable in equation.invars}
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda leaf: hasattr(leaf, "jaxpr")):
            dtypes |= dot_operand_dtypes(inner.jaxpr) if hasattr(inner, "jaxpr") else set()
    return dtypes


@pytest.mark.parametrize("config", [PLAIN, CLASSIFIER, dataclasses.replace(PLAIN, tied_embeddings=True)], ids=NAMES)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_every_matrix_product_forward_and_backward_is_in_the_compute_dtype(config, dtype):
    model = build_transformer(config, TrainConfig(compute_dtype=dtype))

    def gradients(rng, batch):
        return jax.grad(lambda params: model.metrics(params, batch, rng)["loss"][0])(model.init_params(rng))

    assert dot_operand_dtypes(jax.make_jaxpr(gradients)(KEY, dict(model.batch_shapes))) == {dtype}


@pytest.mark.parametrize("field", ["dropout_rate", "attention_dropout_rate", "embedding_dropout_rate"])
@pytest.mark.slow_cases
def test_each_dropout_rate_has_an_effect(field):
    model, params = model_and_params(dataclasses.replace(PLAIN, **{field: 0.5}))
    first, second = (
        model.module.apply({"params": params}, TOKENS, rngs={"dropout": jax.random.PRNGKey(seed)}) for seed in (0, 1)
    )
    assert (np.asarray(first) != np.asarray(second)).any()
