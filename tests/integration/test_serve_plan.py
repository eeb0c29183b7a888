"""A server of several programs: `memprof serve-plan` and `memprof.serving`."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import memprof as api
from memprof.workloads.build import build_step

# The server of pages: see the sizes there.
ENGINE = Path(__file__).parents[2] / "examples" / "engine.py"
WEIGHTS_BYTES = 2 * (4096 * 256 + 4 * (256 * 3 * 256 + 256 * 256))
BYTES_PER_TOKEN = 2 * 4 * 2 * 256


@pytest.mark.with_one_jax
def test_the_command_prints_the_plan_of_all_programs(memprof):
    done = memprof(
        "serve-plan", f"{ENGINE}:engine_spec", "--set", "num_pages=64", "--target", "cpu", "--format", "json"
    )
    plan = json.loads(done.stdout)
    assert (plan["schema"], plan["weights_bytes"]) == ("memprof.serving/1", WEIGHTS_BYTES)
    assert (plan["cache_bytes_per_token"], plan["cache_tokens"]) == (BYTES_PER_TOKEN, 64 * 16)
    assert plan["cache_bytes"] == 64 * 16 * BYTES_PER_TOKEN
    assert plan["max_tokens"] is None  # a CPU has no fixed amount
    assert {each["name"] for each in plan["programs"]} == {"prefill-512", "prefill-128", "decode"}
    assert plan["programs"] == sorted(plan["programs"], key=lambda each: -each["own_bytes"])


@pytest.mark.with_one_jax
@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (("serve-plan", "ENGINE:decode_step"), "not a server: it must be a memprof.ServingSpec"),
        (("run", "ENGINE:engine_spec"), "is a server of several programs: use memprof serve-plan"),
        (("serve-plan", "decoder"), "decoder is not a server"),
    ],
)
def test_what_is_no_server_and_what_is_one_have_a_sentence(memprof, command, sentence):
    verb, subject = command
    done = memprof(verb, subject.replace("ENGINE", str(ENGINE)), "--target", "cpu")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert sentence in done.stderr


@pytest.mark.with_one_jax
@pytest.mark.usefixtures("quick_compiles")
def test_the_api_gives_the_same_for_a_spec():
    overrides = ["batch_size=2"]
    programs = {
        phase: build_step(workload="decoder", preset="tiny", overrides=[*overrides, f"phase={phase}"])
        for phase in ("decode", "prefill")
    }
    serving = api.serving(api.ServingSpec(programs, cache_tokens=2 * 32), target="cpu", label="tiny")
    params, cache = jax.tree.leaves(programs["decode"].args[0]), jax.tree.leaves(programs["decode"].args[1])
    assert serving.plan.weights_bytes == sum(leaf.size * leaf.dtype.itemsize for leaf in params)
    assert serving.plan.cache_bytes == sum(leaf.size * leaf.dtype.itemsize for leaf in cache) == 64 * 256
    assert serving.max_tokens is None
    assert serving.to_json()["cache_bytes_per_token"] == 256
    assert "256 bytes of cache for each token" in str(serving)


@pytest.mark.parametrize(
    ("programs", "cache_tokens", "sentence"),
    [
        ({}, 1, "a mapping from names to memprof.StepSpec was expected"),
        ({"decode": "step"}, 1, "the program decode is 'step'"),
        ({"a,b": None}, 1, "it must not contain a comma"),
    ],
)
def test_a_wrong_spec_has_a_sentence(programs, cache_tokens, sentence):
    with pytest.raises(api.MemprofError, match=sentence):
        api.ServingSpec(programs, cache_tokens=cache_tokens)


def test_a_server_says_how_many_tokens_its_cache_holds():
    program = build_step(workload="decoder", preset="tiny")
    with pytest.raises(api.MemprofError, match="the number of tokens that the cache holds was expected"):
        api.ServingSpec({"decode": program}, cache_tokens=0)


PAGES, TOKENS_OF_A_PAGE, CONTEXT, WIDTH, DRAFT_WIDTH, VOCAB = 8, 4, 16, 32, 16, 64


def _read(params, cache, pages, positions, tokens):
    """Logits of the last token of each sequence; keys and values are the hidden units."""
    hidden = params["embed"][tokens]
    page = jnp.take_along_axis(pages, positions // TOKENS_OF_A_PAGE, axis=1)
    cache = cache.at[:, page, positions % TOKENS_OF_A_PAGE].set(hidden)
    keys, values = cache[:, pages].reshape(2, len(tokens), -1, hidden.shape[-1])
    weights = jax.nn.softmax(jnp.einsum("bqd,bkd->bqk", hidden, keys))
    return jnp.einsum("bqk,bkd->bqd", weights, values)[:, -1] @ params["embed"].T, cache


def _draft(draft, draft_cache, pages, positions, tokens):
    return _read(draft, draft_cache, pages, positions, tokens)


def _embedding(params, tokens):
    return jnp.mean(jnp.tanh(params["embed"][tokens]), axis=1)


def _server() -> dict[str, api.StepSpec]:
    def array(*shape, dtype=jnp.float32):
        return jax.ShapeDtypeStruct(shape, dtype)

    def reads(num_sequences, length, step=_read, width=WIDTH):
        tokens = array(num_sequences, length, dtype=jnp.int32)
        pages = array(num_sequences, CONTEXT // TOKENS_OF_A_PAGE, dtype=jnp.int32)
        cache = array(2, PAGES, TOKENS_OF_A_PAGE, width)
        return api.StepSpec(step, ({"embed": array(VOCAB, width)}, cache, pages, tokens, tokens), donate_argnums=(1,))

    return {
        "prefill-16": reads(2, 16),
        "prefill-8": reads(2, 8),
        "chunked": reads(2, 4),
        "decode": reads(8, 1),
        "draft": reads(8, 1, _draft, DRAFT_WIDTH),
        "embedding": api.StepSpec(_embedding, ({"embed": array(VOCAB, WIDTH)}, array(2, 16, dtype=jnp.int32))),
    }


@pytest.mark.usefixtures("quick_compiles")
def test_a_server_of_six_programs_is_the_sum_by_hand():
    """Two models' weights once, two caches once, and of the six programs the one that holds most beside them."""
    programs = _server()
    plan = api.serving(api.ServingSpec(programs, cache_tokens=PAGES * TOKENS_OF_A_PAGE), target="cpu").plan
    weights_bytes = {name: 4 * VOCAB * width for name, width in (("params", WIDTH), ("draft", DRAFT_WIDTH))}
    cache_bytes = {name: 2 * 4 * PAGES * TOKENS_OF_A_PAGE * width for name, width in
                   (("params", WIDTH), ("draft", DRAFT_WIDTH))}  # fmt: skip
    assert plan.weights_bytes == sum(weights_bytes.values())
    assert plan.cache_bytes == sum(cache_bytes.values())
    assert plan.cache_bytes_per_token == 2 * 4 * (WIDTH + DRAFT_WIDTH)
    own = {}
    for name, spec in programs.items():
        report = api.profile(spec.fn, *spec.args, donate_argnums=spec.donate_argnums, target="cpu").report
        model = "draft" if name == "draft" else "params"
        shared = weights_bytes[model] + (0 if name == "embedding" else cache_bytes[model])
        own[name] = report.footprint_bytes - shared - report.categories["constants"]
    assert {each.name: each.own_bytes for each in plan.programs} == own
    assert plan.programs[0].own_bytes == max(own.values())
    assert plan.footprint_bytes == (
        sum(weights_bytes.values()) + sum(cache_bytes.values()) + plan.constant_bytes + max(own.values())
    )
