"""A server of several programs: `memprof serve-plan` and `memprof.serving`."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import pytest

import memprof as api
from memprof.workloads.build import build_step

_ENGINE = """
import jax
import jax.numpy as jnp
import memprof


def step(params, cache, tokens, positions):
    rows = jnp.arange(tokens.shape[0])[:, None]
    hidden = params["embed"][tokens]
    query, key, value = (hidden @ params[name] for name in ("query", "key", "value"))
    keys, values = cache["k"].at[rows, positions].set(key), cache["v"].at[rows, positions].set(value)
    scores = jnp.einsum("bqd,bkd->bqk", query, keys)
    scores = jnp.where(jnp.arange(keys.shape[1]) <= positions[..., None], scores, -1e9)
    attended = jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(scores), values)
    return attended[:, -1] @ params["embed"].T, {"k": keys, "v": values}


def engine_spec(batch_size: int = 4, context_len: int = 32) -> memprof.ServingSpec:
    array = jax.ShapeDtypeStruct
    params = {name: array((16, 16), jnp.float32) for name in ("query", "key", "value")}
    params["embed"] = array((64, 16), jnp.float32)
    cache = {name: array((batch_size, context_len, 16), jnp.float32) for name in ("k", "v")}

    def program(length):
        tokens = array((batch_size, length), jnp.int32)
        return memprof.StepSpec(step, (params, cache, tokens, tokens), donate_argnums=(1,))

    return memprof.ServingSpec({"decode": program(1), "prefill": program(16)}, cache_tokens=batch_size * context_len)


def lone_step() -> memprof.StepSpec:
    return engine_spec().programs["decode"]
"""
_WEIGHTS_BYTES = 4 * (3 * 16 * 16 + 64 * 16)
_BYTES_PER_TOKEN = 4 * 2 * 16


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    path = tmp_path / "engine.py"
    path.write_text(_ENGINE)
    return path


@pytest.mark.with_one_jax
def test_the_command_prints_the_plan_of_all_programs(memprof, engine):
    done = memprof(
        "serve-plan", f"{engine}:engine_spec", "--set", "batch_size=8", "--target", "cpu", "--format", "json"
    )
    plan = json.loads(done.stdout)
    assert (plan["schema"], plan["weights_bytes"]) == ("memprof.serving/1", _WEIGHTS_BYTES)
    assert (plan["cache_bytes_per_token"], plan["cache_tokens"]) == (_BYTES_PER_TOKEN, 8 * 32)
    assert plan["cache_bytes"] == 8 * 32 * _BYTES_PER_TOKEN
    assert plan["max_tokens"] is None  # a CPU has no fixed amount
    assert [each["name"] for each in plan["programs"]] == ["prefill", "decode"]


@pytest.mark.with_one_jax
@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (("serve-plan", "ENGINE:lone_step"), "no server: it must be a memprof.ServingSpec"),
        (("run", "ENGINE:engine_spec"), "is a server of several programs: use memprof serve-plan"),
        (("serve-plan", "decoder"), "decoder is no server"),
    ],
)
def test_what_is_no_server_and_what_is_one_have_a_sentence(memprof, engine, command, sentence):
    verb, subject = command
    done = memprof(verb, subject.replace("ENGINE", str(engine)), "--target", "cpu")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert sentence in done.stderr


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
        ({"a,b": None}, 1, "it must have no comma"),
    ],
)
def test_a_wrong_spec_has_a_sentence(programs, cache_tokens, sentence):
    with pytest.raises(api.MemprofError, match=sentence):
        api.ServingSpec(programs, cache_tokens=cache_tokens)


def test_a_server_says_how_many_tokens_its_cache_holds():
    program = build_step(workload="decoder", preset="tiny")
    with pytest.raises(api.MemprofError, match="it is the number of tokens that the cache holds"):
        api.ServingSpec({"decode": program}, cache_tokens=0)
