"""A plan from the command line and from Python: within its budget in truth, and the same as its code pasted by hand."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from functools import partial
from itertools import chain, combinations
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from integration.command import Command

import memprof as package
from memprof.studies.plan.plan import CheckpointPlan

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


@pytest.mark.with_one_jax
def test_a_budget_becomes_code_that_stays_within_it(memprof: Command, own: dict[str, Any]) -> None:
    (memprof.folder / "train.py").write_text(_SCRIPT)
    command = ("plan", "train.py:step_spec", "--target", "cpu", "--allow", "none", "--format", "json")
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
    plan = package.plan(own["step"], own["weights"], own["x"], memory="6MiB", target="cpu", allow="none")
    changed = package.apply(plan)(own["step"])
    assert plan.best is not None
    profile = package.profile(changed, own["weights"], own["x"], target="cpu")
    assert profile.footprint_bytes == plan.best.footprint_bytes <= plan.budget_bytes
    args = jax.tree.map(lambda leaf: jnp.full(leaf.shape, 0.01), (own["weights"], own["x"]))
    jax.tree.map(np.testing.assert_array_equal, jax.jit(changed)(*args), jax.jit(own["step"])(*args))
    enough = package.plan(own["step"], own["weights"], own["x"], memory="1GiB", target="cpu")
    assert (enough.code, len(enough.points), package.apply(enough)(own["step"])) == ("", 1, own["step"])


@pytest.mark.with_one_jax
@pytest.mark.slow
def test_no_other_choice_of_a_small_block_is_better(own: dict[str, Any]) -> None:
    """All 16 choices of what a layer keeps (two products, tanh, sin) are compiled, and plans for five budgets."""
    names = (("dot_general", 64), ("dot_general", 256), ("tanh", 256), ("sin", 64))
    _hold_against_all_choices(own["step"], (own["weights"], own["x"]), names, "cpu", (0.02, 0.2, 0.4, 0.6, 0.9))


@pytest.mark.with_one_jax
@pytest.mark.slow
def test_no_other_choice_of_a_small_unrolled_block_is_better() -> None:
    """All 8 choices of what a layer keeps (two products, tanh) are compiled for a GPU, and plans for three budgets."""

    def loss(weights: list[jax.Array], x: jax.Array) -> jax.Array:
        for w in weights:
            x = x + jnp.sin(jnp.tanh(x @ w) @ w.T)
        return jnp.sum(x**2)

    args = [jax.ShapeDtypeStruct((64, 256), jnp.float32)] * 4, jax.ShapeDtypeStruct((512, 64), jnp.float32)
    names = (("dot_general", 256), ("dot_general", 64), ("tanh", 256))
    plan = _hold_against_all_choices(jax.grad(loss), args, names, "h100-80gb", (0.1, 0.4, 0.7))
    values = jax.tree.map(lambda each: jnp.linspace(-0.1, 0.1, each.size).reshape(each.shape), args)
    changed = package.apply(plan)(jax.grad(loss))
    jax.tree.map(
        lambda new, old: np.testing.assert_allclose(new, old, rtol=1e-5, atol=1e-5),
        jax.jit(changed)(*values),
        jax.jit(jax.grad(loss))(*values),
    )


def _hold_against_all_choices(
    step: Callable[..., Any],
    args: tuple[Any, ...],
    names: tuple[tuple[str, int], ...],
    target: str,
    shares: tuple[float, ...],
) -> CheckpointPlan:
    """Compare plans with all choices of operations to keep, each by its primitive and the last axis of its last input.

    Returns:
        The last plan.
    """

    def compiled(kept: tuple[tuple[str, int], ...]) -> tuple[int, int]:
        def policy(primitive: Any, *inputs: Any, **_: Any) -> bool:
            return (primitive.name, *inputs[-1].shape[-1:]) in kept  # a scalar has no last axis

        profile = package.profile(package.apply(policy)(step), *args, target=target)
        return profile.footprint_bytes, profile.report.recomputed_flops

    as_it_is = package.profile(step, *args, target=target).footprint_bytes
    kept = chain.from_iterable(combinations(names, number) for number in range(len(names) + 1))
    choices = [(as_it_is, 0), *map(compiled, kept)]
    assert len({flops for _, flops in choices}) > 2
    smallest = min(footprint for footprint, _ in choices)
    for share in shares:
        budget_bytes = int(smallest + share * (as_it_is - smallest))
        best = min(flops for footprint, flops in choices if footprint <= budget_bytes)
        plan = package.plan(step, *args, memory=budget_bytes, target=target, allow="none")
        assert plan.best is not None
        assert plan.best.footprint_bytes <= budget_bytes
        assert plan.best.recomputed_flops <= 1.02 * best
    return plan


_WIDER = {"up": (128, 512), "down": (512, 128)}


@pytest.mark.with_one_jax
@pytest.mark.slow
def test_results_wait_in_host_memory_where_no_other_policy_is_enough(own: dict[str, Any]) -> None:
    """Eight layers of 4096 rows: a layer's input takes 2 MiB, and it is all that a layer must keep on the device."""
    step = own["step"]
    weights = {name: jax.ShapeDtypeStruct((8, *shape), jnp.float32) for name, shape in _WIDER.items()}
    x = jax.ShapeDtypeStruct((4096, 128), jnp.float32)
    ask = partial(package.plan, step, weights, x, target="h100-80gb", allow="none")
    smallest = min(point.footprint_bytes for point in ask(memory=1).points)
    assert ask(memory=smallest - 2**20).best is None
    plan = ask(memory=smallest - 8 * 2**20, offload=True)
    assert plan.best is not None
    assert plan.best.footprint_bytes <= plan.budget_bytes
    assert plan.best.host_bytes >= 8 * 2 * 2**20
    assert plan.best.waiting_seconds > 0  # the first operation of the backward pass needs it
    changed = package.profile(package.apply(plan)(step), weights, x, target="h100-80gb")
    pasted: dict[str, Any] = {"body": own["body"]}
    exec(plan.code, pasted)
    by_hand = package.profile(lambda w, x: step(w, x, pasted["body"]), weights, x, target="h100-80gb")
    assert changed.footprint_bytes == by_hand.footprint_bytes == plan.best.footprint_bytes
    args = jax.tree.map(lambda leaf: jnp.linspace(-0.1, 0.1, leaf.size).reshape(leaf.shape), (weights, x))
    expected = jax.jit(step)(*args)
    for each in (package.apply(plan)(step), lambda w, x: step(w, x, pasted["body"])):
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5), jax.jit(each)(*args), expected)


def test_what_cannot_be_offloaded_is_refused(own: dict[str, Any]) -> None:
    with pytest.raises(package.MemprofError, match="cannot plan offloading for cpu"):
        package.plan(own["step"], own["weights"], own["x"], memory="6MiB", target="cpu", offload=True)
    layers = [jax.ShapeDtypeStruct((64, 64), jnp.float32)] * 4
    unrolled = jax.grad(lambda weights, x: sum(jnp.sum(jnp.tanh(x @ w)) for w in weights))
    with pytest.raises(package.MemprofError, match="no layers in a scan"):
        package.plan(unrolled, layers, own["x"], memory="1MiB", target="h100-80gb", offload=True)


def test_a_policy_is_applied(own: dict[str, Any]) -> None:
    kept = jax.checkpoint_policies.nothing_saveable
    for step in (own["step"], jax.jit(own["step"])):
        changed = package.profile(package.apply(kept)(step), own["weights"], own["x"], target="cpu")
        assert changed.report.recomputed_flops > 0


@pytest.mark.slow
def test_the_last_layers_keep_more_where_the_budget_allows_it() -> None:
    def loss(weights: list[jax.Array], x: jax.Array, num_first: int = 0, **policies: Any) -> jax.Array:
        def layer(x: jax.Array, w: jax.Array) -> jax.Array:
            return x + jnp.sin(jnp.tanh(x @ w) @ w.T)

        for number, w in enumerate(weights):
            policy = policies.get("checkpoint_policy" if number < num_first else "rest_policy")
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
    policies = {name: pasted[name] for name in ("checkpoint_policy", "rest_policy") if name in pasted}
    by_hand = package.profile(
        jax.grad(lambda weights, x: loss(weights, x, plan.best.checkpoints.num_first, **policies)),
        weights,
        x,
        target="h100-80gb",
    )
    assert by_hand.footprint_bytes == plan.best.footprint_bytes <= plan.budget_bytes


@pytest.mark.with_one_jax
@pytest.mark.slow
def test_the_turns_of_a_scan_have_two_policies_where_one_leaves_a_part_of_the_budget() -> None:
    """A layer has one array to keep, of 512 KiB: with one policy for 16 layers all are kept, or none."""

    def layer(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
        return jnp.sin(jnp.tanh(x @ w) @ w.T), None

    def loss(weights: jax.Array, x: jax.Array, *parts: Any) -> jax.Array:
        for body, start, stop in parts or ((layer, 0, 16),):
            x = jax.lax.scan(body, x, weights[start:stop])[0]
        return jnp.sum(x**2)

    step = jax.grad(loss)
    weights, x = jax.ShapeDtypeStruct((16, 16, 64), jnp.float32), jax.ShapeDtypeStruct((2048, 16), jnp.float32)
    plan = package.plan(step, weights, x, memory="8MiB", target="cpu")
    assert plan.best is not None
    assert plan.best.checkpoints is not None
    num_first = plan.best.checkpoints.num_first
    assert num_first is not None
    others = [point for point in plan.points if point.footprint_bytes <= plan.budget_bytes and point is not plan.best]
    assert all(point.recomputed_flops > plan.best.recomputed_flops > 0 for point in others)
    changed = package.apply(plan)(step)
    assert package.profile(changed, weights, x, target="cpu").footprint_bytes == plan.best.footprint_bytes
    args = [jnp.full(each.shape, 0.01) for each in (weights, x)]
    np.testing.assert_allclose(jax.jit(changed)(*args), jax.jit(step)(*args), rtol=1e-6)
    pasted: dict[str, Any] = {"body": layer}
    exec(plan.code, pasted)
    parts = (pasted["first_body"], 0, num_first), (pasted["rest_body"], num_first, 16)
    by_hand = package.profile(jax.grad(lambda weights, x: loss(weights, x, *parts)), weights, x, target="cpu")
    assert by_hand.report.recomputed_flops == plan.best.recomputed_flops


_ROLLOUT = """
import jax, jax.numpy as jnp, memprof

def body(state, force):
    state = jnp.sin(state + 0.01 * force)
    return state, jnp.mean(state ** 2)

def step(force, state, scan=jax.lax.scan):
    return jax.grad(lambda force: jnp.sum(scan(body, state, force)[1]))(force)

S = jax.ShapeDtypeStruct
args = S((256, 1), jnp.float32), S((64, 1024), jnp.float32)

def step_spec():
    return memprof.StepSpec(step, args, workload="rollout")
"""


@pytest.mark.slow
def test_a_long_scan_is_planned_in_groups_of_iterations(memprof: Command) -> None:
    """256 iterations carry 256 KiB each: 64 MiB. In groups of 16 they keep 16, and 16 of one group: 8 MiB."""
    (memprof.folder / "rollout.py").write_text(_ROLLOUT)
    command = ("plan", "rollout.py:step_spec", "--target", "cpu", "--allow", "none", "--format", "json")
    ended = memprof(*command, "--memory", "16MiB")
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["footprint_bytes"] <= found["budget_bytes"] == 16 * 2**20
    names: dict[str, Any] = {}
    exec(_ROLLOUT, names)
    exec(found["code"], pasted := dict[str, Any]())
    by_hand = package.profile(partial(names["step"], scan=pasted["scan_in_groups"]), *names["args"], target="cpu")
    assert by_hand.footprint_bytes == found["footprint_bytes"]
    plan = package.plan(names["step"], *names["args"], memory="16MiB", target="cpu", allow="none")
    assert plan.best is not None
    assert plan.best.group_size is not None
    args = [jnp.full(each.shape, 0.1) for each in names["args"]]
    changed = jax.jit(package.apply(plan)(names["step"]))
    np.testing.assert_allclose(changed(*args), jax.jit(names["step"])(*args), rtol=1e-5)
    text = memprof(*command[:-2], "--memory", "1MiB")
    assert text.returncode == 1
    assert "in groups of 16" in text.stdout


_DEEP = """
import jax, jax.numpy as jnp, memprof

def layer(w, x):
    return jnp.sin(x @ w)

def in_turn(layers, x):
    for each in layers:
        x = each(x)
    return x

def step(weights, x, run=in_turn):
    layers = [lambda x, w=w: layer(w, x) for w in weights]
    return jax.grad(lambda x: jnp.sum(run(layers, x) ** 2))(x)

args = [jax.ShapeDtypeStruct((64, 64), jnp.float32)] * 36, jax.ShapeDtypeStruct((4096, 64), jnp.float32)
"""


@pytest.mark.with_one_jax  # for a CPU, the XLA of jax 0.10 computes nothing twice
@pytest.mark.slow
def test_deep_layers_are_planned_in_groups() -> None:
    """36 layers pass on 1 MiB each. In groups of 6 they keep 6, and 6 of one group."""
    names: dict[str, Any] = {}
    exec(_DEEP, names)
    step, args = names["step"], names["args"]
    plan = package.plan(step, *args, memory="22MiB", target="cpu", allow="none")
    assert plan.best is not None
    assert plan.best.group_size is not None
    assert plan.best.footprint_bytes <= plan.budget_bytes < min(each.footprint_bytes for each in plan.points[:-1])
    exec(plan.code, pasted := dict[str, Any]())
    by_hand = package.profile(partial(step, run=pasted["layers_in_groups"]), *args, target="cpu")
    assert by_hand.footprint_bytes == plan.best.footprint_bytes
    inputs = jax.tree.map(lambda each: jnp.full(each.shape, 0.1), args)
    changed = jax.jit(package.apply(plan)(step))
    np.testing.assert_allclose(changed(*inputs), jax.jit(step)(*inputs), rtol=1e-5)


@pytest.mark.with_one_jax
def test_allowed_changes_come_before_checkpoints() -> None:
    """The logits are nearly all of the step: without them it fits, and the layers keep what they keep."""

    @jax.jit
    def step(params: dict[str, Any], x: jax.Array, labels: jax.Array) -> dict[str, Any]:
        def loss(params: dict[str, Any]) -> jax.Array:
            logp = jax.nn.log_softmax(jnp.tanh(x @ params["up"]) @ params["head"])
            return -jnp.take_along_axis(logp, labels[:, None], -1).mean()

        return jax.tree.map(lambda w, g: w - 0.1 * g, params, jax.grad(loss)(params))

    shapes = {"up": (64, 64), "head": (64, 2048)}
    params = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
    args = (params, jax.ShapeDtypeStruct((512, 64), jnp.float32), jax.ShapeDtypeStruct((512,), jnp.int32))
    plan = package.plan(step, *args, memory="4MiB", target="cpu", allow="donate,chunked-loss")
    assert [point.name for point in plan.points] == ["as it is", "donate_state", "chunked_loss"]
    assert [each.rule for each in plan.changes] == ["donate_state", "chunked_loss"]
    assert plan.best is plan.points[-1]
    assert plan.best.footprint_bytes < plan.budget_bytes < plan.points[1].footprint_bytes
    pasted: dict[str, Any] = {"step": step}
    exec(plan.code, pasted)
    by_hand = package.profile(pasted["step"], *args, target="cpu")
    applied = package.profile(package.apply(plan)(step), *args, target="cpu")
    assert by_hand.footprint_bytes == applied.footprint_bytes == plan.best.footprint_bytes
    assert any(leaf.donated for leaf in by_hand.report.arguments)
    values = jax.tree.map(lambda leaf: jnp.ones(leaf.shape, leaf.dtype), args)
    changed, before = package.apply(plan)(step), step(*values)
    jax.tree.map(lambda new, old: np.testing.assert_allclose(new, old, rtol=1e-5), changed(*values), before)
    by_default = package.plan(step, *args, memory="6MiB", target="cpu")
    assert [point.name for point in by_default.points][:2] == ["as it is", "donate_state"]
    with pytest.raises(package.MemprofError, match="cannot be allowed 'bf16'"):
        package.plan(step, *args, memory="4MiB", target="cpu", allow="donate,bf16")


@pytest.mark.with_one_jax
def test_a_step_without_gradients_is_planned() -> None:
    """The logits of 4 x 200 tokens take 6.25 MiB, and those that are read 32 KiB."""

    @jax.jit
    def step(embed: jax.Array, tokens: jax.Array, lengths: jax.Array) -> jax.Array:
        logits = jnp.tanh(embed[tokens]) @ embed.T
        return jax.nn.softmax(logits[jnp.arange(4), lengths - 1])

    args = (jnp.ones((2048, 16)), jnp.zeros((4, 200), int), jnp.array([1, 7, 200, 3]))
    plan = package.plan(step, *args, memory="1MiB", target="cpu", allow="donate,only-read-rows")
    assert [each.rule for each in plan.changes] == ["whole_prompt_logits"]
    assert plan.best is not None
    assert plan.best.footprint_bytes <= 2**20 < 6 * 2**20 < plan.points[0].footprint_bytes
    np.testing.assert_allclose(package.apply(plan)(step)(*args), step(*args), rtol=1e-5)
    pasted = {"step": step}
    exec(plan.code, pasted)
    assert package.profile(pasted["step"], *args, target="cpu").footprint_bytes == plan.best.footprint_bytes
    by_default = package.plan(step, *args, memory="1MiB", target="cpu")
    assert (by_default.best, len(by_default.points)) == (None, 1)


def test_what_cannot_be_planned_is_refused() -> None:
    x = jax.ShapeDtypeStruct((4,), jnp.float32)
    with pytest.raises(package.MemprofError, match="no fixed amount of memory"):
        package.plan(jax.grad(lambda x: jnp.sum(x**2)), x, target="cpu")


@pytest.mark.with_one_jax
@pytest.mark.slow
def test_a_plan_for_a_mesh_is_that_of_one_device(memprof: Command) -> None:
    """The step fits as it is, which takes one compile."""
    step = ("--preset", "tiny", "--target", "h100-80gb", "-t", "dp", "--mesh", "dp=2", "--format", "json")
    planned, ran = memprof("plan", "mlp", *step), memprof("run", "mlp", *step)
    assert planned.returncode == ran.returncode == 0, planned.stderr
    assert json.loads(planned.stdout)["footprint_bytes"] == json.loads(ran.stdout)["footprint_bytes"]


@pytest.mark.slow
def test_the_command_accumulates_gradients(memprof: Command) -> None:
    (memprof.folder / "train.py").write_text(_SCRIPT)
    command = ("plan", "train.py:step_spec", "--target", "cpu", "--memory", "7MiB", "--allow", "accumulate")
    shown = memprof(*command)
    assert shown.returncode == 0, shown.stderr
    for each in ("accumulated_gradients in 2 parts", "accumulated_gradients in 4 parts", "apart from rounding"):
        assert each in shown.stdout
    found = json.loads(memprof(*command, "--format", "json").stdout)
    assert [each["name"] for each in found["curve"]] == ["accumulated_gradients"]
    names: dict[str, Any] = {}
    exec(_SCRIPT, names)
    exec(found["code"], names)
    by_hand = package.profile(names["step"], names["weights"], names["x"], target="cpu")
    assert by_hand.footprint_bytes == found["footprint_bytes"] <= found["budget_bytes"]


def _residual_step(weights: Any, batch: Any) -> Any:
    def loss(weights: Any) -> Any:
        x = batch
        for up, down in weights:
            x = x + jax.nn.gelu(x @ up) @ down
        return jnp.mean(x**2)

    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, jax.grad(loss)(weights))


@pytest.mark.with_one_jax
@pytest.mark.parametrize(
    ("num_examples", "megabytes", "num_minibatches", "has_checkpoints"),
    [
        (1024, 7, 2, False),
        (1024, 4.5, 4, False),
        (1028, 3.5, 4, True),  # 4 x 257, so there are no smaller minibatches
    ],
)
@pytest.mark.slow_cases
def test_accumulation_takes_as_few_minibatches_as_fit(
    num_examples: int, megabytes: float, num_minibatches: int, has_checkpoints: bool
) -> None:
    weights = [(jnp.full((64, 256), 0.01), jnp.full((256, 64), 0.01))] * 4
    batch = jnp.linspace(-1.0, 1.0, num_examples * 64).reshape(num_examples, 64)
    plan = package.plan(_residual_step, weights, batch, memory=f"{megabytes}MB", target="h100-80gb", allow="accumulate")
    assert plan.rewrites == (package.InMinibatches(number=num_minibatches),)
    assert (plan.checkpoints is not None) == has_checkpoints
    assert plan.best is not None
    changed = package.apply(plan)(_residual_step)
    profile = package.profile(changed, weights, batch, target="h100-80gb")
    assert profile.footprint_bytes == plan.best.footprint_bytes <= plan.budget_bytes
    found, expected = jax.jit(lambda *args: (changed(*args), _residual_step(*args)))(weights, batch)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6), found, expected)


_PYRAMID = """
import jax, jax.numpy as jnp, memprof

def stage(w, x):
    h = jnp.tanh(x @ w["up"])
    return jnp.sin(h @ w["mid"]) @ w["down"]

def loss(weights, x):
    for w in weights:
        x = stage(w, x)
    return jnp.mean(x ** 2)

@jax.jit
def step(weights, x):
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, jax.grad(loss)(weights, x))

def shapes(n):
    return {"up": S((n, 256)), "mid": S((256, 320)), "down": S((320, n + 8))}

def S(shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)

def step_spec():
    return memprof.StepSpec(step, ([shapes(n) for n in (16, 24, 32, 40)], S((2048, 16))), workload="pyramid")
"""


@pytest.mark.with_one_jax  # the CPU's compiler of jax 0.10 merges what is recomputed with the first computation
@pytest.mark.slow
def test_calls_with_other_shapes_are_blocks_of_their_function(memprof: Command) -> None:
    """No operations repeat, so there are no layers. The code is pasted where its comment says."""
    path = memprof.folder / "pyramid.py"
    path.write_text(_PYRAMID)
    command = ("plan", "pyramid.py:step_spec", "--target", "cpu", "--allow", "none", "--format", "json")
    ended = memprof(*command, "--memory", "18MiB", "-o", "policy.py")
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["footprint_bytes"] <= 18 * 2**20 < found["curve"][0]["footprint_bytes"]
    imports, place, rest = found["code"].partition("# in pyramid.py, after the definition of stage\n")
    assert place
    assert rest == "stage = jax.checkpoint(stage, policy=checkpoint_policy)"
    path.write_text(_PYRAMID.replace("def loss(", f"{imports}{rest}\n\ndef loss("))
    ended = memprof("run", "pyramid.py:step_spec", "--target", "cpu", "--format", "json")
    assert json.loads(ended.stdout)["footprint_bytes"] == found["footprint_bytes"]


@pytest.mark.with_one_jax
def test_a_plan_around_a_function_is_applied(memprof: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    (memprof.folder / "pyramid_to_apply.py").write_text(_PYRAMID)
    monkeypatch.syspath_prepend(memprof.folder)
    module = importlib.import_module("pyramid_to_apply")
    spec = module.step_spec()
    plan = package.plan(spec, memory="18MiB", target="cpu", allow="none")
    assert plan.best is not None
    assert (plan.placement.has_blocks, plan.placement.num_blocks) == (False, 4)
    changed = package.apply(plan)(module.step)
    assert package.profile(changed, *spec.args, target="cpu").footprint_bytes == plan.best.footprint_bytes
    args = jax.tree.map(lambda leaf: jnp.linspace(-0.1, 0.1, leaf.size).reshape(leaf.shape), spec.args)
    jax.tree.map(
        lambda new, old: np.testing.assert_allclose(new, old, rtol=1e-6, atol=1e-7), changed(*args), module.step(*args)
    )
