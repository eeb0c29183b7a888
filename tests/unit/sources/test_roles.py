"""What the arguments of a step are for, where nobody says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
import flax.struct
import haiku as hk
import jax
import jax.numpy as jnp
import optax
import pytest
from flax import linen as nn
from flax import nnx
from flax.training.train_state import TrainState

from memprof.errors import MemprofError
from memprof.sources.jax.roles import arguments as roles_of_arguments
from memprof.sources.jax.roles.arguments import argument_leaves, place_on
from memprof.sources.jax.targets.choose import devices_of
from memprof.sources.jax.targets.resolve import resolve
from memprof.sources.jax.tracing.jitting import jit_step, trace_step
from memprof.sources.jax.tracing.step import StepSpec
from memprof.workloads.build import build_step

P, OPT, B, S = "params", "optimizer_state", "batch", "other_state"
X = jnp.ones((4, 3))
Y = jnp.ones((4, 1))
WEIGHTS = {"a": {"w": jnp.ones((3, 5)), "b": jnp.ones(5)}, "c": {"w": jnp.ones((5, 1))}}


def roles(spec: StepSpec) -> tuple[dict[str, str], tuple[str, ...]]:
    """The role of each argument leaf by its path, and what is in doubt."""
    step = trace_step(jit_step(spec), place_on(devices_of(resolve("cpu")), {}), frozenset(), 1)
    leaves, doubts = argument_leaves(step, step.traced.lower(), spec.roles)
    return {leaf.path: leaf.role.value for leaf in leaves}, doubts


def by_argument(spec: StepSpec) -> dict[str, str]:
    """The one role that all leaves of each argument have; several, joined, where they differ."""
    found, doubts = roles(spec)
    assert doubts == ()
    joined: dict[str, list[str]] = {}
    for path, role in found.items():
        seen = joined.setdefault(path.split("[")[0].split(".")[0], [])
        if role not in seen:
            seen.append(role)
    return {name: "+".join(seen) for name, seen in joined.items()}


def predict(weights: Mapping[str, Any], x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ weights["a"]["w"] + weights["a"]["b"]) @ weights["c"]["w"]


def loss_of(weights: Mapping[str, Any], x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.mean((predict(weights, x) - y) ** 2)


def stepper(optimizer: optax.GradientTransformation) -> Callable[..., Any]:
    def step(weights: Any, state: Any, x: Any, y: Any) -> Any:
        grads = jax.grad(loss_of)(weights, x, y)
        updates, state = optimizer.update(grads, state, weights)
        return optax.apply_updates(weights, updates), state

    return step


@pytest.mark.parametrize(
    "optimizer",
    [
        optax.sgd(0.1),
        optax.sgd(0.1, momentum=0.9),
        optax.adamw(1e-3),
        optax.adafactor(1e-3),
        optax.lion(1e-3),
        optax.sm3(1e-3),
        optax.contrib.muon(1e-3),
        optax.scale_by_adam(),
        optax.MultiSteps(optax.adam(1e-3), 2).gradient_transformation(),
        optax.inject_hyperparams(optax.adam)(learning_rate=1e-3),
        optax.chain(optax.clip_by_global_norm(1.0), optax.masked(optax.adam(1e-3), {"a": True, "c": False})),
        optax.multi_transform({"x": optax.adam(1e-3), "y": optax.sgd(1e-3)}, {"a": "x", "c": "y"}),
        optax.apply_if_finite(optax.adam(1e-3), 3),
        optax.contrib.schedule_free_adamw(1e-3),
    ],
    ids=lambda optimizer: "",
)
def test_a_dict_of_weights_with_the_state_of_an_optax_optimizer(optimizer: optax.GradientTransformation) -> None:
    spec = StepSpec(stepper(optimizer), (WEIGHTS, optimizer.init(WEIGHTS), X, Y))
    found = by_argument(spec)
    assert found.pop("state", OPT) == OPT  # plain SGD has none
    assert found == {"weights": P, "x": B, "y": B}


def test_state_that_is_no_optax_state_is_told_by_what_the_step_does() -> None:
    def step(weights: Any, velocity: Any, count: Any, x: Any, y: Any) -> Any:
        grads = jax.grad(loss_of)(weights, x, y)
        velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, grads)
        return jax.tree.map(lambda w, v: w - 0.1 * v, weights, velocity), velocity, count + 1

    assert by_argument(StepSpec(step, (WEIGHTS, WEIGHTS, jnp.int32(0), X, Y))) == {
        "weights": P, "velocity": OPT, "count": S, "x": B, "y": B
    }  # fmt: skip


def test_gradients_accumulated_by_a_scan_and_weights_cast_before() -> None:
    def step(weights: Any, x: Any, y: Any) -> Any:
        def add(total: Any, part: Any) -> Any:
            half = jax.tree.map(lambda w: w.astype(jnp.bfloat16), weights)
            return jax.tree.map(jnp.add, total, jax.grad(loss_of)(half, *part)), None

        zeros = jax.tree.map(lambda w: jnp.zeros(w.shape, jnp.bfloat16), weights)
        total, _ = jax.lax.scan(add, zeros, (x.reshape(2, 2, 3), y.reshape(2, 2, 1)))
        return jax.tree.map(lambda w, g: w - 0.1 * g.astype(w.dtype), weights, total)

    assert by_argument(StepSpec(step, (WEIGHTS, X, Y))) == {"weights": P, "x": B, "y": B}


def test_a_function_that_returns_its_gradients_names_its_parameters_by_them() -> None:
    step = jax.value_and_grad(loss_of)
    assert by_argument(StepSpec(step, (WEIGHTS, X, Y))) == {"weights": P, "x": B, "y": B}


def test_a_step_that_prints_what_it_computes_has_the_roles_that_it_would_have_without() -> None:
    def step(weights: Any, x: Any, y: Any) -> Any:
        jax.debug.print("{} {}", x.sum(), weights["c"]["w"][0])
        return sgd_step(weights, x, y)

    def sgd_step(weights: Any, x: Any, y: Any) -> Any:
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, jax.grad(loss_of)(weights, x, y))

    assert by_argument(StepSpec(step, (WEIGHTS, X, Y))) == by_argument(StepSpec(sgd_step, (WEIGHTS, X, Y)))


def test_weights_that_are_read_but_not_trained_are_parameters_too() -> None:
    def step(base: Any, scale: Any, x: Any, y: Any) -> Any:
        def loss(scale: Any) -> Any:
            return jnp.mean((predict(base, x) * scale["by"] - y) ** 2)

        return jax.tree.map(lambda s, g: s - g, scale, jax.grad(loss)(scale))

    assert by_argument(StepSpec(step, (WEIGHTS, {"by": jnp.ones(1)}, X, Y))) == {
        "base": P, "scale": P, "x": B, "y": B
    }  # fmt: skip


def test_a_flax_training_state_with_batch_statistics_and_a_key() -> None:
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            x = nn.BatchNorm(use_running_average=False)(nn.Dense(5)(x))
            return nn.Dense(1)(nn.Dropout(0.5, deterministic=False)(x))

    class State(TrainState):
        batch_stats: Any
        key: jax.Array

    net, tx = Net(), optax.adam(1e-3)
    variables = net.init({"params": jax.random.key(0), "dropout": jax.random.key(1)}, X)
    state = State.create(
        apply_fn=net.apply, params=variables["params"], tx=tx, batch_stats=variables["batch_stats"],
        key=jax.random.PRNGKey(0),
    )  # fmt: skip

    def step(state: State, batch: Any) -> Any:
        def loss(params: Any) -> Any:
            variables = {"params": params, "batch_stats": state.batch_stats}
            out, new = net.apply(variables, batch["x"], rngs={"dropout": state.key}, mutable=["batch_stats"])
            return jnp.mean((out - batch["y"]) ** 2), new

        grads, new = jax.grad(loss, has_aux=True)(state.params)
        return state.apply_gradients(grads=grads, batch_stats=new["batch_stats"])

    found, doubts = roles(StepSpec(step, (state, {"x": X, "y": Y})))
    assert doubts == ()
    assert {path: role for path, role in found.items() if "params" not in path and "opt_state" not in path} == {
        "state.step": S,
        "state.batch_stats['BatchNorm_0']['mean']": S,
        "state.batch_stats['BatchNorm_0']['var']": S,
        "state.key": S,
        "batch['x']": B,
        "batch['y']": B,
    }
    assert {role for path, role in found.items() if path.startswith("state.params")} == {P}
    assert {role for path, role in found.items() if path.startswith("state.opt_state")} == {OPT}


def test_a_training_state_of_the_users_own_is_known_by_its_parts() -> None:
    optimizer = optax.adam(1e-3)

    @flax.struct.dataclass
    class Mine:
        params: Any
        moments: Any
        average: Any
        step: jax.Array

    def step(mine: Mine, x: Any, y: Any) -> Mine:
        grads = jax.grad(loss_of)(mine.params, x, y)
        updates, moments = optimizer.update(grads, mine.moments)
        params = optax.apply_updates(mine.params, updates)
        average = jax.tree.map(lambda a, p: 0.99 * a + 0.01 * p, mine.average, params)
        return Mine(params=params, moments=moments, average=average, step=mine.step + 1)

    mine = Mine(params=WEIGHTS, moments=optimizer.init(WEIGHTS), average=WEIGHTS, step=jnp.int32(0))
    found, _ = roles(StepSpec(step, (mine, X, Y)))
    assert found["mine.params['a']['w']"] == P
    assert found["mine.moments[0].mu['a']['w']"] == OPT
    assert found["mine.average['a']['w']"] != P  # nothing that is differentiated reads it
    assert found["mine.step"] == S


def test_nnx_variables_are_known_by_their_types_and_go_by_their_own_paths() -> None:
    class Net(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.dense, self.norm = nnx.Linear(3, 5, rngs=rngs), nnx.BatchNorm(5, rngs=rngs)
            self.dropout = nnx.Dropout(0.5, rngs=rngs)

        def __call__(self, x: jax.Array) -> jax.Array:
            return self.dropout(self.norm(self.dense(x)))

    @nnx.jit(donate_argnums=(0,))
    def step(model: Net, optimizer: nnx.Optimizer, x: jax.Array) -> None:
        optimizer.update(model, nnx.grad(lambda model: model(x).sum())(model))

    model = Net(nnx.Rngs(0))
    spec = StepSpec(step, (model, nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param), X))
    found, doubts = roles(spec)
    assert doubts == ()
    assert found["model.dense.kernel"] == P
    assert found["model.norm.mean"] == S
    assert found["model.dropout.rngs.key"] == S
    assert found["optimizer.opt_state[0].mu['dense']['kernel']"] == OPT
    assert found["x"] == B
    assert P not in {role for path, role in found.items() if path.startswith("optimizer")}


def test_equinox_modules_hold_parameters_but_not_inside_an_optimizers_state() -> None:
    model = eqx.nn.MLP(3, 1, 5, 1, key=jax.random.key(0))
    optimizer = optax.adam(1e-3)

    @eqx.filter_jit
    def step(model: Any, state: Any, x: Any, y: Any) -> Any:
        grads = eqx.filter_grad(lambda model: jnp.mean((jax.vmap(model)(x) - y) ** 2))(model)
        updates, state = optimizer.update(grads, state, model)
        return eqx.apply_updates(model, updates), state

    spec = StepSpec(step, (model, optimizer.init(eqx.filter(model, eqx.is_inexact_array)), X, Y))
    assert by_argument(spec) == {"model": P, "state": OPT, "x": B, "y": B}


def test_numbers_in_an_equinox_module_are_static() -> None:
    class Net(eqx.Module):
        dense: eqx.nn.Linear
        dropout: eqx.nn.Dropout
        times: int = 2

        def __call__(self, x: jax.Array) -> jax.Array:
            for _ in range(self.times):
                x = self.dropout(x, inference=True)
            return self.dense(x)

    model = Net(eqx.nn.Linear(3, 1, key=jax.random.key(0)), eqx.nn.Dropout(0.5))
    step = eqx.filter_jit(lambda model, x: eqx.filter_grad(lambda model: jax.vmap(model)(x).sum())(model))
    assert by_argument(StepSpec(step, (model, X))) == {"model": P, "x": B}


def test_a_batch_that_comes_with_the_key_of_the_step() -> None:
    def step(weights: Any, inputs: Any) -> Any:
        x, y, key = inputs
        x = x + jax.random.normal(key, x.shape)
        return jax.tree.map(lambda w, g: w - g, weights, jax.grad(loss_of)(weights, x, y))

    found, doubts = roles(StepSpec(step, (WEIGHTS, (X, Y, jax.random.key(0)))))
    assert [found[f"inputs[{place}]"] for place in range(3)] == [B, B, S]
    assert doubts == ()


def test_haiku_parameters_and_the_state_that_comes_back() -> None:
    net = hk.without_apply_rng(
        hk.transform_with_state(lambda x: hk.Linear(1)(hk.BatchNorm(True, True, 0.9)(hk.Linear(5)(x), True)))
    )
    weights, statistics = net.init(jax.random.key(0), X)

    def step(weights: Any, statistics: Any, x: Any, y: Any) -> Any:
        def loss(weights: Any) -> Any:
            out, new = net.apply(weights, statistics, x)
            return jnp.mean((out - y) ** 2), new

        grads, statistics = jax.grad(loss, has_aux=True)(weights)
        return jax.tree.map(lambda w, g: w - g, weights, grads), statistics

    found = by_argument(StepSpec(step, (weights, statistics, X, Y)))
    assert found == {"weights": P, "statistics": S, "x": B, "y": B}


def test_a_step_without_gradients() -> None:
    assert by_argument(StepSpec(lambda params, x: predict(params, x), (WEIGHTS, X))) == {"params": P, "x": B}
    assert by_argument(StepSpec(lambda v, x: predict(v["params"], x), ({"params": WEIGHTS}, X))) == {"v": P, "x": B}


def test_what_cannot_be_told_is_other_state_and_said_so() -> None:
    table = {"one": jnp.ones((2, 3)), "two": jnp.ones((7,), jnp.int32)}
    found, doubts = roles(StepSpec(lambda table, x: x.sum() * table["one"].sum() + table["two"].sum(), (table, X)))
    assert found == {"table['one']": S, "table['two']": S, "x": B}
    (doubt,) = doubts
    assert "table['one'], table['two'] (52 bytes)" in doubt  # 2*3*4 + 7*4
    assert "--role" in doubt


def test_roles_that_are_given_decide_and_leave_no_doubt() -> None:
    table = {"one": jnp.ones((2, 3)), "two": jnp.ones((7,), jnp.int32)}
    step = lambda table, x: x.sum() * table["one"].sum() + table["two"].sum()  # noqa: E731
    found, doubts = roles(StepSpec(step, (table, X), roles={"table": "batch", "table['one']": "params"}))
    assert found == {"table['one']": P, "table['two']": B, "x": B}
    assert doubts == ()


@pytest.mark.parametrize(
    ("given", "sentence"),
    [({"tabel": "batch"}, "no such argument"), ({"x": "weights"}, "'weights' is not a role")],
)
def test_a_role_that_is_wrong_is_refused(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(MemprofError, match=sentence):
        roles(StepSpec(lambda x: x + 1, (X,), roles=given))


class _Custom(NamedTuple):
    trace: Any


def test_the_state_of_a_transformation_of_the_users_own_in_a_chain() -> None:
    custom = optax.GradientTransformation(lambda p: _Custom(p), lambda g, s, p=None: (g, s))
    optimizer = optax.chain(custom, optax.adam(1e-3))
    spec = StepSpec(stepper(optimizer), (WEIGHTS, optimizer.init(WEIGHTS), X, Y))
    assert by_argument(spec) == {"weights": P, "state": OPT, "x": B, "y": B}


@pytest.mark.parametrize("technique", ["bf16", "fp16", "prune=0.5"])
def test_where_all_roles_are_given_the_program_is_not_followed(technique: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = build_step(workload="mlp", preset="tiny", techniques=[technique])
    all_but_the_rest = {path: role for path, role in spec.roles.items() if path != "state"}
    inferred = roles(replace(spec, roles=all_but_the_rest))
    monkeypatch.delattr(roles_of_arguments, "follow")
    assert roles(spec) == inferred
