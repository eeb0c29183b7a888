"""Bytes that can be worked out without a compiler: they must be found to the last one."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from math import prod

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from integration.steps import Step

import memprof
from memprof.analysis.records.categories import Category, Phase
from memprof.workloads.build import build_trainer, plan

MLP = Step(workload="mlp", preset="tiny", target="h100-80gb")
TRANSFORMER = Step(workload="transformer", preset="tiny", target="h100-80gb")
WHOLE_GPT2 = Step(workload="transformer", preset="gpt2", target="h100-80gb")
GPT2 = dataclasses.replace(WHOLE_GPT2, overrides=("num_layers=2",))  # one layer is like the other, and takes long
# Sizes that no two things in the program share, and logits so large that the peak is at the loss: there, all that is
# kept for the backward pass is live.
SIZED = dataclasses.replace(TRANSFORMER, overrides=("seq_len=96", "max_seq_len=96", "vocab_size=1000"))
# Of the 8 bytes in a pointer, one for each leaf of a result, XLA keeps a table.
POINTER_BYTES = 8
METRICS_BYTES = 4 * 4  # loss and accuracy, each a (sum, count) in float32


def on_cpu(step: Step) -> Step:
    return dataclasses.replace(step, target="cpu")


def with_techniques(step: Step, *techniques: str) -> Step:
    return dataclasses.replace(step, techniques=techniques)


def with_overrides(step: Step, *overrides: str) -> Step:
    return dataclasses.replace(step, overrides=(*step.overrides, *overrides))


def choices_of(step: Step):
    return plan(**step.arguments)


def size_bytes(tree) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def initial_params(step: Step):
    """The parameters that the model's own `nn.Module.init` makes, as shapes."""
    model = build_trainer(choices_of(step)).model
    rngs = dict.fromkeys(("params", "dropout"), jax.ShapeDtypeStruct((2,), jnp.uint32))
    inputs = {name: model.batch_shapes[name] for name in model.inputs}
    return jax.eval_shape(lambda rngs, inputs: model.module.init(rngs, **inputs), rngs, inputs)["params"]


def num_transformer_params(config) -> int:
    """In closed form: two embeddings, and per layer two norms, QKV and output projection, up and down projection."""
    width, up = config.hidden_size, config.mlp_width
    attention = 2 * width + width * 3 * width + 3 * width + width * width + width
    mlp = 2 * width + width * up + up + up * width + width
    head = 0 if config.tied_embeddings else width * config.vocab_size + config.vocab_size
    embeddings = (config.vocab_size + config.max_seq_len) * width
    return embeddings + config.num_layers * (attention + mlp) + 2 * width + head


@pytest.mark.parametrize("step", [TRANSFORMER, SIZED, GPT2], ids=str)
@pytest.mark.slow_cases
def test_the_number_of_parameters_of_a_transformer(compiler, step):
    expected = num_transformer_params(choices_of(step).config)
    assert compiler.report(step).num_params == expected
    assert sum(leaf.size for leaf in jax.tree.leaves(initial_params(step))) == expected


def test_the_number_of_parameters_of_gpt2_is_the_published_one():
    assert num_transformer_params(choices_of(WHOLE_GPT2).config) == 124_439_808
    assert sum(leaf.size for leaf in jax.tree.leaves(initial_params(WHOLE_GPT2))) == 124_439_808


@pytest.mark.parametrize("step", [MLP, TRANSFORMER, GPT2, on_cpu(MLP), on_cpu(TRANSFORMER)], ids=str)
def test_arguments_are_what_the_pytrees_say(compiler, step):
    report, params = compiler.report(step), initial_params(step)
    num_params = sum(leaf.size for leaf in jax.tree.leaves(params))
    assert report.categories[Category.PARAMS] == 4 * num_params
    # AdamW: two float32 moments, and one counter of steps.
    assert report.categories[Category.OPTIMIZER_STATE] == 8 * num_params + 4
    optimizer_state = jax.eval_shape(optax.adamw(1e-3).init, params)
    assert report.categories[Category.OPTIMIZER_STATE] == size_bytes(optimizer_state)
    batch = build_trainer(choices_of(step)).model.batch_shapes
    assert report.categories[Category.BATCH] == size_bytes(batch)
    assert report.categories[Category.OTHER_STATE] == 8 + 4  # the rng's key and the step's number
    assert report.unused_arguments == ()


@pytest.mark.parametrize(
    ("step", "bytes_per_param", "counter_bytes"),
    [(with_overrides(on_cpu(MLP), "optimizer=adam"), 8, 4), (with_overrides(on_cpu(MLP), "optimizer=sgd"), 0, 0)],
    ids=["adam", "sgd"],
)
def test_the_state_of_other_optimizers(compiler, step, bytes_per_param, counter_bytes):
    report = compiler.report(step)
    expected = bytes_per_param * report.num_params + counter_bytes
    assert report.categories[Category.OPTIMIZER_STATE] == expected


@pytest.mark.parametrize("step", [MLP, TRANSFORMER, on_cpu(TRANSFORMER)], ids=str)
def test_the_batch_has_the_bytes_of_its_shapes(compiler, step):
    config = choices_of(step).config
    if step.workload == "mlp":  # float32 inputs, int32 labels
        expected = 4 * config.batch_size * config.input_size + 4 * config.batch_size
    else:  # int32 inputs, int32 labels
        expected = 2 * 4 * config.batch_size * config.seq_len
    assert compiler.report(step).categories[Category.BATCH] == expected


@pytest.mark.parametrize(
    ("plain", "donated"),
    [(step, with_techniques(step, "donate")) for step in (MLP, TRANSFORMER, on_cpu(MLP), on_cpu(TRANSFORMER))],
    ids=str,
)
@pytest.mark.slow_cases
def test_not_donating_costs_exactly_the_new_state(compiler, plain, donated):
    state = build_trainer(choices_of(plain)).abstract_state()
    state_bytes, num_results = size_bytes(state), len(jax.tree.leaves(state)) + 4
    rest_bytes = METRICS_BYTES + POINTER_BYTES * num_results

    without, with_donation = compiler.report(plain), compiler.report(donated)
    assert without.compiler.alias_bytes == 0
    assert without.categories[Category.OUTPUTS] == state_bytes + rest_bytes
    assert with_donation.compiler.alias_bytes == state_bytes
    assert with_donation.categories[Category.OUTPUTS] == rest_bytes
    donated_bytes = sum(leaf.size_bytes for leaf in compiler.capture(donated).arguments if leaf.donated)
    assert donated_bytes == state_bytes
    arguments = (Category.PARAMS, Category.OPTIMIZER_STATE, Category.BATCH, Category.OTHER_STATE)
    assert {each: without.categories[each] for each in arguments} == {
        each: with_donation.categories[each] for each in arguments
    }


@pytest.mark.parametrize(
    ("once", "twice"),
    [
        (MLP, with_overrides(MLP, "batch_size=32")),
        (SIZED, with_overrides(SIZED, "batch_size=8")),
        (on_cpu(TRANSFORMER), with_overrides(on_cpu(TRANSFORMER), "batch_size=8")),
    ],
    ids=str,
)
@pytest.mark.slow_cases
def test_twice_the_batch_is_twice_the_batch_and_nothing_of_the_state(compiler, once, twice):
    one, two = compiler.report(once).categories, compiler.report(twice).categories
    assert two[Category.BATCH] == 2 * one[Category.BATCH]
    for category in (Category.PARAMS, Category.OPTIMIZER_STATE, Category.OTHER_STATE, Category.OUTPUTS):
        assert two[category] == one[category]


@pytest.mark.parametrize("step", [SIZED, GPT2], ids=str)
def test_each_layer_keeps_its_attention_probabilities(compiler, step):
    config = choices_of(step).config
    num_elements = config.batch_size * config.num_heads * config.seq_len**2
    for layer in range(config.num_layers):
        kept = [
            buffer
            for buffer in compiler.report(step).buffers
            if buffer.module == f"layers_{layer}/attention"
            and buffer.category is Category.ACTIVATIONS
            and buffer.dtype == "f32"
            and prod(buffer.shape) == num_elements
        ]
        assert kept
        assert {buffer.size_bytes for buffer in kept} == {4 * num_elements}


@pytest.mark.parametrize("step", [SIZED, GPT2], ids=str)
def test_the_logits_or_their_gradient_are_live_at_the_peak(compiler, step):
    config = choices_of(step).config
    num_elements = config.batch_size * config.seq_len * config.vocab_size
    logits = [buffer for buffer in compiler.report(step).buffers if prod(buffer.shape) == num_elements]
    assert logits
    for buffer in logits:
        assert (buffer.dtype, buffer.size_bytes) == ("f32", 4 * num_elements)
        assert buffer.category in (Category.ACTIVATIONS, Category.COTANGENTS)
        assert buffer.phase in (Phase.FORWARD, Phase.BACKWARD)


@pytest.mark.parametrize(("fp32", "bf16"), [(SIZED, with_techniques(SIZED, "bf16"))], ids=str)
def test_bf16_halves_what_is_kept_for_the_backward_pass(compiler, fp32, bf16):
    """Value by value: of one module, of as many elements, kept in both programs."""

    def kept(step):
        values = defaultdict(set)
        for buffer in compiler.report(step).buffers:
            if buffer.category is Category.ACTIVATIONS and buffer.dtype in ("f32", "bf16"):
                values[buffer.module, prod(buffer.shape)].add((buffer.dtype, buffer.size_bytes))
        return values

    config = choices_of(fp32).config
    num_tokens = config.batch_size * config.seq_len
    num_probabilities = config.batch_size * config.num_heads * config.seq_len**2
    in_fp32, in_bf16 = kept(fp32), kept(bf16)
    # Statistics of the norms (a number or two for each token) stay in float32.
    in_both = {value for value in in_fp32.keys() & in_bf16.keys() if value[1] >= num_tokens * config.hidden_size}
    probabilities = {(f"layers_{layer}/attention", num_probabilities) for layer in range(config.num_layers)}
    assert probabilities | {("layers_1/mlp/up", num_tokens * config.mlp_width)} <= in_both
    for module, num_elements in in_both:
        assert in_fp32[module, num_elements] == {("f32", 4 * num_elements)}
        assert in_bf16[module, num_elements] == {("bf16", 2 * num_elements)}


@pytest.mark.parametrize(("fp32", "bf16"), [(SIZED, with_techniques(SIZED, "bf16"))], ids=str)
def test_bf16_leaves_the_state_in_float32(compiler, fp32, bf16):
    in_fp32, in_bf16 = compiler.report(fp32).categories, compiler.report(bf16).categories
    for category in (Category.PARAMS, Category.OPTIMIZER_STATE, Category.BATCH, Category.OTHER_STATE, Category.OUTPUTS):
        assert in_bf16[category] == in_fp32[category]


@pytest.mark.parametrize("step", [MLP, on_cpu(MLP)], ids=str)
def test_flops_of_an_mlp(compiler, step):
    config = choices_of(step).config
    hidden = 2 * config.batch_size * config.input_size * config.hidden_size
    head = 2 * config.batch_size * config.hidden_size * config.num_classes
    # Forward, gradient of the weights, gradient of the inputs; the batch itself needs no gradient.
    assert compiler.report(step).flops == 2 * hidden + 3 * head
    assert compiler.report(step).recomputed_flops == 0


@pytest.mark.parametrize("step", [TRANSFORMER, SIZED, GPT2], ids=str)
def test_flops_of_a_transformer(compiler, step):
    config = choices_of(step).config
    num_tokens, width = config.batch_size * config.seq_len, config.hidden_size
    projections = 2 * num_tokens * (3 * width * width + width * width + 2 * width * config.mlp_width)
    attention = 2 * 2 * config.batch_size * config.seq_len**2 * width  # scores, and the sum that they weight
    logits = 2 * num_tokens * width * config.vocab_size
    # Each product of the forward pass has two in the backward pass: one for either factor.
    assert compiler.report(step).flops == 3 * (config.num_layers * (projections + attention) + logits)
    assert compiler.report(step).recomputed_flops == 0


@pytest.mark.with_one_jax
@pytest.mark.parametrize("closes_over_data", [True, False])
def test_layers_of_data_that_a_step_closes_over_are_activations(closes_over_data: bool) -> None:
    """They depend on the parameters alone, but are no copies of them: 2048 rows of 256 and of 128 numbers."""
    data = (np.linspace(-1, 1, 2048 * 32, dtype=np.float32).reshape(2048, 32), np.ones((2048, 1), np.float32))

    def step(params, inputs=data[0], labels=data[1]):
        def loss(params):
            hidden = jnp.tanh(jnp.tanh(inputs @ params["a"]) @ params["b"])
            return jnp.mean((hidden @ params["c"] - labels) ** 2)

        return jax.tree.map(lambda w, gradient: w - 0.1 * gradient, params, jax.grad(loss)(params))

    shapes = {"a": (32, 256), "b": (256, 128), "c": (128, 1)}
    params = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
    found = memprof.profile(step, params, *(() if closes_over_data else data), target="cpu").report
    assert found.categories.get(Category.PARAM_COPIES, 0) < 2048 * 128
    assert 2048 * (256 + 128) * 4 <= found.categories[Category.ACTIVATIONS] <= 2048 * (2 * 256 + 128 + 1) * 4


@pytest.mark.with_one_jax
@pytest.mark.parametrize("target", ["cpu", "h100-80gb"])
def test_the_states_of_a_simulation_are_activations(target: str) -> None:
    """They depend on the parameters alone: 100 waves of 64 by 64 numbers are kept."""

    def loss(velocity, observed):
        def propagate(carry, source):
            before, now = carry
            after = (2 * now - before + velocity * (jnp.roll(now, 1) - now)).at[3, 3].add(source)
            return (now, after), after[0]

        start = (jnp.zeros((64, 64)), jnp.zeros((64, 64)))
        sources = jnp.sin(jnp.arange(100.0))
        return jnp.mean((jax.lax.scan(propagate, start, sources)[1] - observed) ** 2)

    def step(velocity, observed):
        return velocity - 0.1 * jax.grad(loss)(velocity, observed)

    arrays = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((64, 64), (100, 64)))
    found = memprof.profile(step, *arrays, target=target).report
    assert found.categories.get(Category.PARAM_COPIES, 0) <= 64 * 64 * 4
    assert found.categories[Category.ACTIVATIONS] >= 100 * 64 * 64 * 4
