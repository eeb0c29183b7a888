"""A plan from the command line and from Python: within its budget in truth, and the same as its code pasted by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from integration.command import Command

import memprof as package

_SCRIPT = """
import jax, jax.numpy as jnp, memprof

def body(x, w):
    h = jnp.tanh(x @ w["up"])
    return x + jnp.sin(h @ w["down"]), None

def step(weights, x, body=body):
    def loss(weights):
        return jnp.sum(jax.lax.scan(body, x, weights)[0] ** 2)
    print("traced")
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, jax.grad(loss)(weights))

S = jax.ShapeDtypeStruct
weights = {"up": S((8, 64, 256), jnp.float32), "down": S((8, 256, 64), jnp.float32)}
x = jax.ShapeDtypeStruct((512, 64), jnp.float32)

def step_spec():
    return memprof.StepSpec(step, (weights, x), workload="scanned")
"""


@pytest.fixture
def own() -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(_SCRIPT, names)
    return names


def test_a_budget_becomes_code_that_stays_within_it(memprof: Command, own: dict[str, Any]) -> None:
    (memprof.folder / "train.py").write_text(_SCRIPT)
    command = ("plan", "train.py:step_spec", "--target", "cpu", "--format", "json")
    ended = memprof(*command, "--memory", "6MiB", "-o", "policy.py")
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["schema"] == "memprof.plan/1"
    assert found["footprint_bytes"] <= found["budget_bytes"] == 6 * 2**20
    assert found["num_compiles"] <= 5
    as_it_is = found["curve"][0]
    assert (as_it_is["name"], as_it_is["recomputed_flops"]) == ("as it is", 0)
    assert as_it_is["footprint_bytes"] > found["budget_bytes"]
    assert found["code"] == (memprof.folder / "policy.py").read_text()
    pasted = {"body": own["body"]}
    exec(found["code"], pasted)
    step: Callable[..., Any] = own["step"]
    by_hand = package.profile(lambda w, x: step(w, x, pasted["body"]), own["weights"], own["x"], target="cpu")
    assert by_hand.footprint_bytes == found["footprint_bytes"]
    too_small = memprof(*command, "--memory", "1MiB")
    assert (too_small.returncode, json.loads(too_small.stdout)["fits"]) == (1, False)


def test_a_plan_is_applied(own: dict[str, Any]) -> None:
    plan = package.plan(own["step"], own["weights"], own["x"], memory="6MiB", target="cpu")
    changed = package.apply(plan)(own["step"])
    assert plan.best is not None
    profile = package.profile(changed, own["weights"], own["x"], target="cpu")
    assert profile.footprint_bytes == plan.best.footprint_bytes <= plan.budget_bytes
    args = jax.tree.map(lambda leaf: jnp.full(leaf.shape, 0.01), (own["weights"], own["x"]))
    jax.tree.map(np.testing.assert_array_equal, jax.jit(changed)(*args), jax.jit(own["step"])(*args))
    enough = package.plan(own["step"], own["weights"], own["x"], memory="1GiB", target="cpu")
    assert (enough.code, len(enough.points), package.apply(enough)(own["step"])) == ("", 1, own["step"])


def test_a_policy_is_applied(own: dict[str, Any]) -> None:
    kept = jax.checkpoint_policies.nothing_saveable
    for step in (own["step"], jax.jit(own["step"])):
        changed = package.profile(package.apply(kept)(step), own["weights"], own["x"], target="cpu")
        assert changed.report.recomputed_flops > 0


def test_the_last_layers_keep_more_where_the_budget_allows_it() -> None:
    def loss(weights: list[jax.Array], x: jax.Array, num_first: int = 0, **policies: Any) -> jax.Array:
        def layer(x: jax.Array, w: jax.Array) -> jax.Array:
            return x + jnp.sin(jnp.tanh(x @ w) @ w.T)

        for number, w in enumerate(weights):
            policy = policies.get("policy" if number < num_first else "rest_policy")
            x = (layer if policy is None else jax.checkpoint(layer, policy=policy))(x, w)
        return jnp.sum(x**2)

    weights, x = [jax.ShapeDtypeStruct((64, 256), jnp.float32)] * 8, jax.ShapeDtypeStruct((512, 64), jnp.float32)
    plan = package.plan(jax.grad(loss), weights, x, memory="6MiB", target="h100-80gb")
    assert plan.best is not None
    assert plan.best.checkpoints is not None
    assert plan.best.checkpoints.num_first is not None
    others = [point for point in plan.points if point.footprint_bytes <= plan.budget_bytes and point is not plan.best]
    assert all(point.repeated_seconds > plan.best.repeated_seconds for point in others)
    pasted: dict[str, Any] = {"layer": len}
    exec(plan.code, pasted)
    policies = {name: pasted[name] for name in ("policy", "rest_policy") if name in pasted}
    by_hand = package.profile(
        jax.grad(lambda weights, x: loss(weights, x, plan.best.checkpoints.num_first, **policies)),
        weights,
        x,
        target="h100-80gb",
    )
    assert by_hand.footprint_bytes == plan.best.footprint_bytes <= plan.budget_bytes


def test_what_cannot_be_planned_is_refused() -> None:
    x = jax.ShapeDtypeStruct((4,), jnp.float32)
    with pytest.raises(package.MemprofError, match="differentiates nothing"):
        package.plan(lambda x: x + 1, x, memory="1GiB", target="cpu")
    with pytest.raises(package.MemprofError, match="no fixed amount of memory"):
        package.plan(jax.grad(lambda x: jnp.sum(x**2)), x, target="cpu")
