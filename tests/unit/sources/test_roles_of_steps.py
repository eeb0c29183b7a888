"""Roles of the arguments of steps as people write them: graphs, adversaries, averages, loops over steps, inference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import flax.struct
import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx
from flax.training.train_state import TrainState

from memprof.sources.jax.tracing.step import StepSpec
from tests.unit.sources.test_roles import OPT, WEIGHTS, B, P, S, X, Y, loss_of, predict, roles

ADAM = optax.adam(1e-3)
MOMENTS = ADAM.init(WEIGHTS)
KEY = jax.random.key(0)


def sgd(weights: Any, grads: Any) -> Any:
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads)


def mixed(average: Any, new: Any) -> Any:
    return jax.tree.map(lambda a, n: 0.99 * a + 0.01 * n, average, new)


def zeros(tree: Any) -> Any:
    return jax.tree.map(jnp.zeros_like, tree)


class Graph(NamedTuple):
    nodes: Any
    edges: Any
    senders: Any
    receivers: Any
    globals: Any
    n_node: Any
    n_edge: Any


GRAPH = Graph(
    jnp.ones((6, 3)), jnp.ones((9, 2)), jnp.zeros(9, int), jnp.zeros(9, int), jnp.ones((2, 4)),
    jnp.array([3, 3]), jnp.array([5, 4]),
)  # fmt: skip

Case = tuple[Callable[..., Any], tuple[Any, ...], dict[str, str]]
CASES: dict[str, Callable[[], Case]] = {}


def case(make: Callable[[], Case]) -> Callable[[], Case]:
    CASES[make.__name__] = make
    return make


@case
def graphs_of_different_first_axes() -> Case:
    weights = {"node": jnp.ones((3 + 2, 8)), "edge": jnp.ones((2, 2)), "out": jnp.ones((8, 1))}

    def loss(weights: Any, graph: Any, labels: Any) -> Any:
        edges = jax.nn.relu(graph.edges @ weights["edge"])
        got = jax.ops.segment_sum(edges, graph.receivers, graph.nodes.shape[0])
        got = got + jax.ops.segment_sum(graph.nodes[graph.senders][:, :2], graph.receivers, graph.nodes.shape[0])
        nodes = jnp.concatenate([graph.nodes, got], 1) @ weights["node"]
        of_node = jnp.repeat(jnp.arange(2), graph.n_node, total_repeat_length=6)
        pooled = jax.ops.segment_sum(nodes, of_node, 2) + graph.globals.sum(1, keepdims=True)
        return jnp.mean((pooled @ weights["out"] - labels) ** 2)

    def step(weights: Any, graph: Any, labels: Any) -> Any:
        return sgd(weights, jax.grad(loss)(weights, graph, labels))

    return step, (weights, GRAPH, jnp.ones((2, 1))), {"weights": P, "graph": B, "labels": B}


@case
def a_graph_convolution_with_a_dense_adjacency_matrix() -> Case:
    def step(weights: Any, batch: Any) -> Any:
        def loss(weights: Any) -> Any:
            hidden = jnp.tanh(batch["near"] @ (batch["x"] @ weights["a"]["w"]) + weights["a"]["b"])
            return jnp.mean((batch["near"] @ hidden @ weights["c"]["w"] - batch["y"]) ** 2)

        return sgd(weights, jax.grad(loss)(weights))

    return step, (WEIGHTS, {"x": X, "y": Y, "near": jnp.ones((4, 4))}), {"weights": P, "batch": B}


@case
def the_same_with_a_sparse_one_beside() -> Case:
    def step(weights: Any, x: Any, senders: Any, receivers: Any, y: Any) -> Any:
        def loss(weights: Any) -> Any:
            hidden = jax.ops.segment_sum((x @ weights["a"]["w"])[senders], receivers, 4)
            return jnp.mean((jnp.tanh(hidden) @ weights["c"]["w"] - y) ** 2)

        return sgd(weights, jax.grad(loss)(weights))

    args = (WEIGHTS, X, jnp.zeros(9, int), jnp.zeros(9, int), Y)
    return step, args, {"weights": P, "x": B, "senders": B, "receivers": B, "y": B}


@case
def masks_of_pruned_weights() -> Case:
    def step(weights: Any, masks: Any, x: Any, y: Any) -> Any:
        grads = jax.grad(lambda w: loss_of(jax.tree.map(jnp.multiply, w, masks), x, y))(weights)
        return sgd(weights, grads)

    return step, (WEIGHTS, WEIGHTS, X, Y), {"weights": P, "masks": S, "x": B, "y": B}


@case
def masks_of_pruned_weights_of_one_shape() -> Case:
    weights = [jnp.ones((3, 3)), jnp.ones((3, 3))]

    def step(weights: Any, masks: Any, x: Any) -> Any:
        def loss(weights: Any) -> Any:
            (one, two), (first, second) = weights, masks
            return jnp.mean(jnp.tanh(x @ (one * first)) @ jnp.where(second, two, 0))

        return sgd(weights, jax.tree.map(lambda g, m: g * m, jax.grad(loss)(weights), masks))

    return step, (weights, [w > 0 for w in weights], X), {"weights": P, "masks": S, "x": B}


@case
def masks_in_the_batch_that_lie_along_it() -> Case:
    def step(weights: Any, batch: Any) -> Any:
        def loss(weights: Any) -> Any:
            return jnp.sum(batch["mask"] * (predict(weights, batch["x"]) - batch["y"])[:, 0] ** 2) / batch["mask"].sum()

        return sgd(weights, jax.grad(loss)(weights))

    return step, (WEIGHTS, {"x": X, "y": Y, "mask": jnp.ones(4)}), {"weights": P, "batch": B}


@case
def permutations_of_features() -> Case:
    def step(weights: Any, permutations: Any, x: Any, y: Any) -> Any:
        def loss(weights: Any) -> Any:
            hidden = jnp.tanh(x[:, permutations[0]] @ weights["a"]["w"] + weights["a"]["b"])
            return jnp.mean((hidden @ weights["c"]["w"] - y) ** 2)

        return sgd(weights, jax.grad(loss)(weights))

    args = (WEIGHTS, [jnp.arange(3), jnp.arange(3)], X, Y)
    return step, args, {"weights": P, "permutations[0]": S, "x": B, "y": B}


@case
def means_of_features_with_the_batch() -> Case:
    def step(weights: Any, inputs: Any) -> Any:
        x = (inputs["x"] - inputs["mean"]) / inputs["deviation"]
        return sgd(weights, jax.grad(loss_of)(weights, x, inputs["y"]))

    inputs = {"x": jnp.ones((3, 3)), "y": jnp.ones((3, 1)), "mean": jnp.ones(3), "deviation": jnp.ones(3)}
    expected = {"weights": P, "inputs['x']": B, "inputs['y']": B, "inputs['mean']": S, "inputs['deviation']": S}
    return step, (WEIGHTS, inputs), expected


@case
def means_of_features_apart_and_weights_of_classes() -> Case:
    weights = {"w": jnp.ones((3, 7)), "b": jnp.ones(7)}

    def step(weights: Any, normaliser: Any, of_class: Any, x: Any, labels: Any) -> Any:
        def loss(weights: Any) -> Any:
            logits = ((x - normaliser["mean"]) / normaliser["deviation"]) @ weights["w"] + weights["b"]
            return jnp.mean(
                of_class[labels] * optax.softmax_cross_entropy(logits, of_class * jax.nn.one_hot(labels, 7))
            )

        return sgd(weights, jax.grad(loss)(weights))

    args = (weights, {"mean": jnp.ones(3), "deviation": jnp.ones(3)}, jnp.ones(7), X, jnp.zeros(4, int))
    return step, args, {"weights": P, "normaliser": S, "of_class": S, "x": B, "labels": B}


@case
def tokens_with_learned_positions() -> Case:
    weights = {"embed": jnp.ones((11, 5)), "places": jnp.ones((6, 5)), "w": jnp.ones((5, 5)), "scale": jnp.ones(5)}

    def step(weights: Any, state: Any, batch: Any) -> Any:
        def loss(weights: Any) -> Any:
            x = weights["embed"][batch["tokens"]] + weights["places"]
            scores = jnp.einsum("bqd,bkd->bqk", x, x @ weights["w"])
            scores = jnp.where(batch["mask"][:, None, :], scores, -1e9)
            x = x + jax.nn.softmax(scores) @ x
            logits = (x * weights["scale"]) @ weights["embed"].T
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"])
            return jnp.mean(losses.reshape(-1) * batch["weights"].reshape(-1))

        updates, state = ADAM.update(jax.grad(loss)(weights), state)
        return optax.apply_updates(weights, updates), state

    batch = {
        "tokens": jnp.zeros((4, 6), int), "labels": jnp.zeros((4, 6), int), "mask": jnp.ones((4, 6), bool),
        "weights": jnp.ones((4, 6)),
    }  # fmt: skip
    return step, (weights, ADAM.init(weights), batch), {"weights": P, "state": OPT, "batch": B}


@case
def one_example_at_a_time() -> Case:
    def step(weights: Any, x: Any, y: Any) -> Any:
        return sgd(weights, jax.grad(loss_of)(weights, x, y))

    return step, (WEIGHTS, X[:1], Y[:1]), {"weights": P, "x": B, "y": B}


@case
def time_first_with_the_hidden_state_between_steps() -> Case:
    weights = {"in": jnp.ones((3, 5)), "again": jnp.ones((5, 5)), "out": jnp.ones((5, 1))}

    def step(weights: Any, hidden: Any, x: Any, y: Any) -> Any:
        def loss(weights: Any) -> Any:
            def turn(hidden: Any, x: Any) -> Any:
                hidden = jnp.tanh(x @ weights["in"] + hidden @ weights["again"])
                return hidden, hidden @ weights["out"]

            last, out = jax.lax.scan(turn, hidden, x)
            return jnp.mean((out - y) ** 2), last

        grads, last = jax.grad(loss, has_aux=True)(weights)
        return sgd(weights, grads), last

    args = (weights, jnp.ones((4, 5)), jnp.ones((7, 4, 3)), jnp.ones((7, 4, 1)))
    return step, args, {"weights": P, "hidden": S, "x": B, "y": B}


@case
def losses_of_examples_that_are_returned() -> Case:
    def step(weights: Any, batch: Any, reward: Any) -> Any:
        def loss(weights: Any) -> Any:
            errors = reward + 0.9 * batch["discount"] - predict(weights, batch["x"])[:, 0]
            return jnp.mean(errors**2), errors

        grads, errors = jax.grad(loss, has_aux=True)(weights)
        return sgd(weights, grads), errors

    return step, (WEIGHTS, {"x": X, "discount": jnp.ones(4)}, jnp.ones(4)), {"weights": P, "batch": B, "reward": B}


@case
def an_average_of_parameters_as_an_argument() -> Case:
    def step(weights: Any, state: Any, average: Any, x: Any, y: Any) -> Any:
        updates, state = ADAM.update(jax.grad(loss_of)(weights, x, y), state)
        weights = optax.apply_updates(weights, updates)
        return weights, state, mixed(average, weights), weights

    args = (WEIGHTS, MOMENTS, WEIGHTS, X, Y)
    return step, args, {"weights": P, "state": OPT, "average": S, "x": B, "y": B}


class _Averages(NamedTuple):
    average: Any
    count: Any


@case
def an_average_of_parameters_in_the_optimizers_state() -> Case:
    def update(updates: Any, state: Any, params: Any) -> Any:
        return updates, _Averages(mixed(state.average, optax.apply_updates(params, updates)), state.count + 1)

    average = optax.GradientTransformation(lambda params: _Averages(params, jnp.int32(0)), update)
    optimizer = optax.chain(optax.adam(1e-3), average)

    def step(weights: Any, state: Any, x: Any, y: Any) -> Any:
        updates, state = optimizer.update(jax.grad(loss_of)(weights, x, y), state, weights)
        return optax.apply_updates(weights, updates), state

    expected = {"weights": P, "state[0]": OPT, "state[1].average": S, "x": B, "y": B}
    return step, (WEIGHTS, optimizer.init(WEIGHTS), X, Y), expected


@case
def an_average_by_optax() -> Case:
    ema = optax.ema(0.99)

    def step(weights: Any, state: Any, average: Any, x: Any, y: Any) -> Any:
        updates, state = ADAM.update(jax.grad(loss_of)(weights, x, y), state)
        weights = optax.apply_updates(weights, updates)
        smooth, average = ema.update(weights, average)
        return weights, state, average, smooth

    args = (WEIGHTS, MOMENTS, ema.init(WEIGHTS), X, Y)
    return step, args, {"weights": P, "state": OPT, "average": S, "x": B, "y": B}


@case
def an_average_in_a_training_state_that_only_finite_gradients_change() -> Case:
    class State(TrainState):
        average: Any
        statistics: Any

    def step(state: Any, x: Any, y: Any) -> Any:
        def loss(weights: Any) -> Any:
            out = predict(weights, x - state.statistics)
            return jnp.mean((out - y) ** 2), 0.9 * state.statistics + 0.1 * x.mean(0)

        grads, statistics = jax.grad(loss, has_aux=True)(state.params)
        new = state.apply_gradients(grads=grads, statistics=statistics)
        new = new.replace(average=mixed(state.average, new.params))
        is_finite = jnp.isfinite(optax.tree.norm(grads))
        return jax.tree.map(lambda new, old: jnp.where(is_finite, new, old), new, state)

    state = State.create(apply_fn=None, params=WEIGHTS, tx=ADAM, average=WEIGHTS, statistics=jnp.ones(3))
    expected = {
        "state.params": P, "state.opt_state": OPT, "state.average": S, "state.statistics": S, "state.step": S,
        "x": B, "y": B,
    }  # fmt: skip
    return step, (state, X, Y), expected


@case
def an_average_of_an_equinox_model() -> Case:
    model = eqx.nn.Linear(3, 1, key=KEY)

    @eqx.filter_jit
    def step(model: Any, average: Any, x: Any, y: Any) -> Any:
        grads = eqx.filter_grad(lambda model: jnp.mean((jax.vmap(model)(x) - y) ** 2))(model)
        model = eqx.apply_updates(model, jax.tree.map(lambda g: -g, grads))
        return model, mixed(average, model)

    return step, (model, model, X, Y), {"model": P, "average": S, "x": B, "y": B}


@case
def a_target_network_that_the_loss_reads() -> Case:
    def step(online: Any, target: Any, state: Any, views: Any) -> Any:
        def loss(online: Any) -> Any:
            left, right = predict(online, views[0]), jax.lax.stop_gradient(predict(target, views[1]))
            return jnp.mean((left - right) ** 2)

        updates, state = ADAM.update(jax.grad(loss)(online), state)
        online = optax.apply_updates(online, updates)
        return online, mixed(target, online), state

    args = (WEIGHTS, WEIGHTS, MOMENTS, (X, X))
    return step, args, {"online": P, "target": S, "state": OPT, "views": B}


@case
def a_target_network_that_is_copied_now_and_then() -> Case:
    def step(state: Any, count: Any, x: Any, y: Any) -> Any:
        def loss(params: Any) -> Any:
            return jnp.mean((predict(params, x) - y - 0.9 * predict(state["target"], x)) ** 2)

        new = sgd(state["online"], jax.grad(loss)(state["online"]))
        return {"online": new, "target": optax.periodic_update(new, state["target"], count, 100)}, count + 1

    args = ({"online": WEIGHTS, "target": WEIGHTS}, jnp.int32(0), X, Y)
    return step, args, {"state['online']": P, "state['target']": S, "count": S, "x": B, "y": B}


@case
def a_teacher_that_stays_as_it_is() -> Case:
    def step(student: Any, teacher: Any, x: Any) -> Any:
        grads = jax.grad(lambda student: loss_of(student, x, predict(teacher, x)))(student)
        return sgd(student, grads), teacher

    return step, (WEIGHTS, WEIGHTS, X), {"student": P, "teacher": P, "x": B}


def adversaries(is_typed: bool) -> Case:
    faker = {"a": {"w": jnp.ones((3, 5)), "b": jnp.ones(5)}, "c": {"w": jnp.ones((5, 3))}}

    def update(weights: Any, moments: Any, grads: Any) -> Any:
        if is_typed:
            updates, moments = ADAM.update(grads, moments)
            return optax.apply_updates(weights, updates), moments
        moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, grads)
        return sgd(weights, moments), moments

    def step(generator: Any, judge: Any, of_generator: Any, of_judge: Any, real: Any, noise: Any) -> Any:
        def judged(judge: Any) -> Any:
            both = jnp.concatenate([real, predict(generator, noise)])
            return jnp.mean(predict(judge, both))

        judge, of_judge = update(judge, of_judge, jax.grad(judged)(judge))
        grads = jax.grad(lambda generator: jnp.mean(predict(judge, predict(generator, noise))))(generator)
        generator, of_generator = update(generator, of_generator, grads)
        return generator, judge, of_generator, of_judge

    states = [ADAM.init(faker), MOMENTS] if is_typed else [faker, WEIGHTS]
    expected = {"generator": P, "judge": P, "of_generator": OPT, "of_judge": OPT, "real": B, "noise": B}
    return step, (faker, WEIGHTS, *states, X, X), expected


CASES["adversaries_with_an_optimizer_each"] = lambda: adversaries(is_typed=True)
CASES["adversaries_with_moments_each"] = lambda: adversaries(is_typed=False)


@case
def an_actor_that_learns_from_the_critic() -> Case:
    critic = {"a": {"w": jnp.ones((4, 5)), "b": jnp.ones(5)}, "c": {"w": jnp.ones((5, 1))}}

    @flax.struct.dataclass
    class Agent:
        actor: Any
        critic: Any
        of_actor: Any
        of_critic: Any
        target: Any
        temperature: Any

    def value(critic: Any, x: Any, action: Any) -> Any:
        return predict(critic, jnp.concatenate([x, action], 1))

    def step(agent: Any, batch: Any, key: Any) -> Any:
        aim = batch.reward[:, None] + 0.9 * value(agent.target, batch.after, predict(agent.actor, batch.after))
        grads = jax.grad(lambda c: jnp.mean((value(c, batch.x, batch.action) - aim) ** 2))(agent.critic)
        updates, of_critic = ADAM.update(grads, agent.of_critic)
        critic = optax.apply_updates(agent.critic, updates)
        noise = jax.random.normal(key, batch.action.shape)
        grads = jax.grad(lambda a: -jnp.mean(value(critic, batch.x, predict(a, batch.x) + noise)))(agent.actor)
        updates, of_actor = ADAM.update(grads, agent.of_actor)
        actor = optax.apply_updates(agent.actor, updates)
        target = optax.incremental_update(critic, agent.target, 0.005)
        temperature = agent.temperature - 0.1 * optax.tree.norm(grads)
        return Agent(actor, critic, of_actor, of_critic, target, temperature)

    class Batch(NamedTuple):
        x: Any
        action: Any
        reward: Any
        after: Any

    agent = Agent(WEIGHTS, critic, MOMENTS, ADAM.init(critic), critic, jnp.float32(1))
    expected = {
        "agent.actor": P, "agent.critic": P, "agent.of_actor": OPT, "agent.of_critic": OPT, "agent.target": S,
        "batch": B, "key": S,
    }  # fmt: skip
    return step, (agent, Batch(X, Y, jnp.ones(4), X), KEY), expected


@case
def lbfgs() -> Case:
    optimizer = optax.lbfgs(memory_size=3)

    def step(weights: Any, state: Any, x: Any, y: Any) -> Any:
        loss = lambda weights: loss_of(weights, x, y)  # noqa: E731
        value, grads = optax.value_and_grad_from_state(loss)(weights, state=state)
        updates, state = optimizer.update(grads, state, weights, value=value, grad=grads, value_fn=loss)
        return optax.apply_updates(weights, updates), state

    args = (WEIGHTS, optimizer.init(WEIGHTS), X, Y)
    return step, args, {"weights": P, "state": OPT, "x": B, "y": B}


@case
def lookahead() -> Case:
    optimizer = optax.lookahead(optax.adam(1e-3), 5, 0.5)

    def step(weights: Any, state: Any, x: Any, y: Any) -> Any:
        updates, state = optimizer.update(jax.grad(loss_of)(weights.fast, x, y), state, weights)
        return optax.apply_updates(weights, updates), state

    weights = optax.LookaheadParams.init_synced(WEIGHTS)
    expected = {"weights.fast": P, "weights.slow": OPT, "state": OPT, "x": B, "y": B}
    return step, (weights, optimizer.init(weights), X, Y), expected


def loops(kind: str, is_typed: bool) -> Case:
    def update(weights: Any, moments: Any, x: Any, y: Any) -> Any:
        grads = jax.grad(loss_of)(weights, x, y)
        if is_typed:
            updates, moments = ADAM.update(grads, moments)
            return optax.apply_updates(weights, updates), moments
        moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, grads)
        return sgd(weights, moments), moments

    def step(weights: Any, moments: Any, average: Any, batches: Any) -> Any:
        def once(carry: Any, batch: Any) -> Any:
            weights, moments, average = carry
            weights, moments = update(weights, moments, *batch)
            return (weights, moments, mixed(average, weights)), None

        if kind == "scan":
            return jax.lax.scan(once, (weights, moments, average), batches)[0]
        return jax.lax.fori_loop(
            0, 7, lambda i, carry: once(carry, jax.tree.map(lambda leaf: leaf[i], batches))[0],
            (weights, moments, average),
        )  # fmt: skip

    args = (WEIGHTS, MOMENTS if is_typed else zeros(WEIGHTS), WEIGHTS, (jnp.ones((7, 4, 3)), jnp.ones((7, 4, 1))))
    return step, args, {"weights": P, "moments": OPT, "average": S, "batches": B}


CASES["a_scan_over_steps"] = lambda: loops("scan", True)
CASES["a_scan_over_steps_that_carries_moments"] = lambda: loops("scan", False)
CASES["a_loop_over_steps"] = lambda: loops("fori", True)
CASES["a_loop_over_steps_that_carries_moments"] = lambda: loops("fori", False)


@case
def decayed_moments_of_ones_own_beside_an_average() -> Case:
    def step(weights: Any, first: Any, second: Any, average: Any, x: Any, y: Any) -> Any:
        grads = jax.tree.map(lambda g, w: g + 0.1 * w, jax.grad(loss_of)(weights, x, y), weights)
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, grads)
        second = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g * g, second, grads)
        weights = jax.tree.map(lambda w, m, v: w - 0.1 * m / jnp.sqrt(v + 1e-8), weights, first, second)
        return mixed(average, weights), weights, first, second

    args = (WEIGHTS, WEIGHTS, WEIGHTS, WEIGHTS, X, Y)
    return step, args, {"weights": P, "first": OPT, "second": OPT, "average": S, "x": B, "y": B}


@case
def moments_in_the_shape_of_an_equinox_model() -> Case:
    model = eqx.nn.MLP(3, 1, 5, 1, key=KEY)

    @eqx.filter_jit
    def step(model: Any, moments: Any, x: Any, y: Any) -> Any:
        grads = eqx.filter_grad(lambda model: jnp.mean((jax.vmap(model)(x) - y) ** 2))(model)
        moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, grads)
        return eqx.apply_updates(model, jax.tree.map(lambda m: -m, moments)), moments

    moments = jax.tree.map(jnp.zeros_like, eqx.filter(model, eqx.is_inexact_array))
    return step, (model, moments, X, Y), {"model": P, "moments": OPT, "x": B, "y": B}


@case
def a_batch_that_is_an_equinox_module() -> Case:
    class Batch(eqx.Module):
        x: Any
        y: Any

    model = eqx.nn.Linear(3, 1, key=KEY)

    @eqx.filter_jit
    def step(model: Any, batch: Any) -> Any:
        grads = eqx.filter_grad(lambda model: jnp.mean((jax.vmap(model)(batch.x) - batch.y) ** 2))(model)
        return eqx.apply_updates(model, jax.tree.map(lambda g: -g, grads))

    return step, (model, Batch(X, Y)), {"model": P, "batch": B}


@case
def low_rank_adapters_of_weights_that_stay_as_they_are() -> Case:
    base = {"a": {"w": jnp.ones((3, 5)), "b": jnp.ones(5)}, "c": {"w": jnp.ones((5, 1)), "b": jnp.ones(1)}}
    lora = {"a": [jnp.ones((3, 2)), jnp.ones((2, 5))]}

    def step(state: Any, moments: Any, x: Any, y: Any) -> Any:
        def loss(lora: Any) -> Any:
            base = state["base"]
            hidden = jnp.tanh(x @ (base["a"]["w"] + lora["a"][0] @ lora["a"][1]) + base["a"]["b"])
            return jnp.mean((hidden @ base["c"]["w"] + base["c"]["b"] - y) ** 2)

        updates, moments = ADAM.update(jax.grad(loss)(state["lora"]), moments)
        return {"base": state["base"], "lora": optax.apply_updates(state["lora"], updates)}, moments

    args = ({"base": base, "lora": lora}, ADAM.init(lora), X, Y)
    return step, args, {"state": P, "moments": OPT, "x": B, "y": B}


@case
def a_frozen_backbone_under_a_trained_head() -> Case:
    def step(head: Any, backbone: Any, images: Any, labels: Any) -> Any:
        def loss(head: Any) -> Any:
            x = jax.lax.conv(images, backbone["conv"], (1, 1), "SAME") + backbone["bias"][:, None, None]
            x = jax.nn.relu(x).mean((2, 3)) @ backbone["dense"]
            return optax.softmax_cross_entropy_with_integer_labels(x @ head["w"] + head["b"], labels).mean()

        return sgd(head, jax.grad(loss)(head))

    backbone = {"conv": jnp.ones((5, 3, 3, 3)), "bias": jnp.ones(5), "dense": jnp.ones((5, 6))}
    args = ({"w": jnp.ones((6, 10)), "b": jnp.ones(10)}, backbone, jnp.ones((4, 3, 8, 8)), jnp.zeros(4, int))
    return step, args, {"head": P, "backbone": P, "images": B, "labels": B}


@case
def made_points_that_are_moved_towards_others() -> Case:
    def step(weights: Any, noise: Any, points: Any) -> Any:
        def loss(weights: Any) -> Any:
            made = predict(weights, noise) * jnp.ones(2)
            squares = (made**2).sum(1)[:, None] + (points**2).sum(1)
            return (squares - 2 * made @ points.T).min(1).mean()

        return sgd(weights, jax.grad(loss)(weights))

    return step, (WEIGHTS, X, jnp.ones((7, 2))), {"weights": P, "noise": B, "points": B}


@case
def an_inner_loop_that_learns_to_learn() -> Case:
    def step(weights: Any, state: Any, tasks: Any) -> Any:
        def after(weights: Any, task: Any) -> Any:
            adapted = sgd(weights, jax.grad(loss_of)(weights, task["x"], task["y"]))
            return loss_of(adapted, task["x_test"], task["y_test"])

        loss = lambda weights: jnp.mean(jax.vmap(after, (None, 0))(weights, tasks))  # noqa: E731
        updates, state = ADAM.update(jax.grad(loss)(weights), state)
        return optax.apply_updates(weights, updates), state

    two = lambda leaf: jnp.stack([leaf] * 6)  # noqa: E731
    tasks = {"x": two(X), "y": two(Y), "x_test": two(X), "y_test": two(Y)}
    return step, (WEIGHTS, MOMENTS, tasks), {"weights": P, "state": OPT, "tasks": B}


@case
def several_models_at_once() -> Case:
    optimizer = optax.sgd(0.1, momentum=0.9)

    def one(weights: Any, state: Any, x: Any, y: Any) -> Any:
        updates, state = optimizer.update(jax.grad(loss_of)(weights, x, y), state)
        return optax.apply_updates(weights, updates), state

    many = lambda tree: jax.tree.map(lambda leaf: jnp.stack([leaf] * 6), tree)  # noqa: E731
    args = (many(WEIGHTS), many(optimizer.init(WEIGHTS)), many(X), many(Y))
    step = lambda weights, state, x, y: jax.vmap(one)(weights, state, x, y)  # noqa: E731
    return step, args, {"weights": P, "state": OPT, "x": B, "y": B}


@case
def accumulated_gradients_and_old_keys() -> Case:
    def step(weights: Any, total: Any, batch: Any, key: Any) -> Any:
        x = batch["x"] * jax.random.bernoulli(key, 0.9, batch["x"].shape)
        total = jax.tree.map(jnp.add, total, jax.grad(loss_of)(weights, x, batch["y"]))
        return sgd(weights, total), zeros(total)

    args = (WEIGHTS, zeros(WEIGHTS), {"x": X, "y": Y}, jax.random.PRNGKey(0))
    return step, args, {"weights": P, "batch": B, "key": S}


@case
def prediction_from_features() -> Case:
    return predict, (WEIGHTS, X), {"weights": P, "x": B}


@case
def prediction_from_tokens_with_a_cache() -> Case:
    weights = {"embed": jnp.ones((11, 5)), "q": jnp.ones((5, 5)), "k": jnp.ones((5, 5)), "out": jnp.ones((5, 11))}

    def step(weights: Any, cache: Any, tokens: Any, place: Any) -> Any:
        x = weights["embed"][tokens]
        cache = jax.lax.dynamic_update_slice(cache, (x @ weights["k"])[:, None], (0, place, 0))
        scores = jnp.einsum("bd,btd->bt", x @ weights["q"], cache)
        x = jnp.einsum("bt,btd->bd", jax.nn.softmax(scores), cache)
        return x @ weights["out"], cache

    args = (weights, jnp.ones((4, 9, 5)), jnp.zeros(4, int), jnp.int32(0))
    return step, args, {"weights": P, "cache": "kv_cache", "tokens": B, "place": B}


@case
def prediction_of_a_single_layer() -> Case:
    return (
        lambda model, x: x @ model["w"] + model["b"],
        ({"w": jnp.ones((3, 2)), "b": jnp.ones(2)}, X),
        {
            "model": P,
            "x": B,
        },
    )


@case
def prediction_with_statistics_of_the_features() -> Case:
    def step(model: Any, statistics: Any, x: Any) -> Any:
        return predict(model, (x - statistics["mean"]) / statistics["deviation"])

    args = (WEIGHTS, {"mean": jnp.ones(3), "deviation": jnp.ones(3)}, X)
    return step, args, {"model": P, "statistics": S, "x": B}


@case
def prediction_from_one_argument() -> Case:
    return lambda inputs: predict(inputs[0], inputs[1]), ((WEIGHTS, X),), {"inputs[0]": P, "inputs[1]": B}


@case
def an_example_without_a_batch_axis() -> Case:
    def step(weights: Any, x: Any, y: Any) -> Any:
        return sgd(weights, jax.grad(loss_of)(weights, x, y))

    return step, (WEIGHTS, X[0], Y[0]), {"weights": P, "x": B, "y": B}


@case
def a_scalar_among_parameters_and_a_data_set_read_by_rows() -> Case:
    weights = {**WEIGHTS, "scale": jnp.float32(1)}

    def step(weights: Any, data: Any, rows: Any) -> Any:
        def loss(weights: Any) -> Any:
            return loss_of(weights, data["x"][rows] * weights["scale"], data["y"][rows])

        return sgd(weights, jax.grad(loss)(weights))

    args = (weights, {"x": jnp.ones((50, 3)), "y": jnp.ones((50, 1))}, jnp.zeros(4, int))
    return step, args, {"weights": P, "data": B, "rows": B}


@case
def a_quantized_base_under_adapters() -> Case:
    base = {"q": jnp.ones((3, 5), jnp.int8), "scale": jnp.ones(5), "out": jnp.ones((5, 1))}
    lora = {"a": jnp.ones((3, 2)), "b": jnp.ones((2, 5))}

    def step(base: Any, lora: Any, x: Any, y: Any) -> Any:
        def loss(lora: Any) -> Any:
            hidden = x @ (base["q"].astype(jnp.float32) * base["scale"]) + x @ lora["a"] @ lora["b"]
            return jnp.mean((jnp.tanh(hidden) @ base["out"] - y) ** 2)

        return sgd(lora, jax.grad(loss)(lora))

    return step, (base, lora, X, Y), {"base": P, "lora": P, "x": B, "y": B}


@case
def running_statistics_in_the_state_of_an_agent() -> Case:
    def step(state: Any, batch: Any) -> Any:
        norm = state["norm"]
        x = (batch["x"] - norm["mean"]) / norm["deviation"]
        updates, opt = ADAM.update(jax.grad(loss_of)(state["params"], x, batch["y"]), state["opt"])
        new = {"mean": 0.9 * norm["mean"] + 0.1 * batch["x"].mean(0), "deviation": norm["deviation"]}
        return {"params": optax.apply_updates(state["params"], updates), "opt": opt, "norm": new}

    state = {"params": WEIGHTS, "opt": MOMENTS, "norm": {"mean": jnp.ones(3), "deviation": jnp.ones(3)}}
    expected = {"state['params']": P, "state['opt']": OPT, "state['norm']": S, "batch": B}
    return step, (state, {"x": X, "y": Y}), expected


@case
def minibatches_of_a_rollout_in_random_order() -> Case:
    def step(weights: Any, state: Any, rollout: Any, key: Any) -> Any:
        def epoch(carry: Any, key: Any) -> Any:
            order = jax.random.permutation(key, 8)

            def part(leaf: Any) -> Any:
                return leaf.reshape((8, *leaf.shape[2:]))[order].reshape((2, 4, *leaf.shape[2:]))

            def once(carry: Any, part: Any) -> Any:
                grads = jax.grad(lambda w: jnp.mean((predict(w, part["x"])[:, 0] - part["y"]) ** 2))(carry[0])
                updates, state = ADAM.update(grads, carry[1])
                return (optax.apply_updates(carry[0], updates), state), None

            return jax.lax.scan(once, carry, jax.tree.map(part, rollout))

        return jax.lax.scan(epoch, (weights, state), jax.random.split(key, 3))[0]

    rollout = {"x": jnp.ones((2, 4, 3)), "y": jnp.ones((2, 4))}
    return step, (WEIGHTS, MOMENTS, rollout, KEY), {"weights": P, "state": OPT, "rollout": B, "key": S}


@case
def an_average_of_an_nnx_module() -> Case:
    def step(model: Any, average: Any, optimizer: Any, x: Any, y: Any) -> None:
        optimizer.update(model, nnx.grad(lambda model: jnp.mean((model(x) - y) ** 2))(model))
        nnx.update(average, mixed(nnx.state(average, nnx.Param), nnx.state(model, nnx.Param)))

    model, average = nnx.Linear(3, 1, rngs=nnx.Rngs(0)), nnx.Linear(3, 1, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, ADAM, wrt=nnx.Param)
    expected = {"model": P, "average": S, "optimizer.opt_state": OPT, "x": B, "y": B}
    return step, (model, average, optimizer, X, Y), expected


def test_the_two_of_a_lone_product_cannot_be_told() -> None:
    found, (doubt,) = roles(StepSpec(lambda w, x: x @ w, (WEIGHTS["a"]["w"], X)))
    assert found == {"w": S, "x": S}
    assert doubt.startswith("What w, x (108 bytes) is for could not be inferred")  # 3*5*4 + 4*3*4
    assert roles(StepSpec(lambda w, x: x @ w, (WEIGHTS["a"]["w"], X), roles={"w": "params"})) == (
        {"w": P, "x": B}, ()
    )  # fmt: skip


@pytest.mark.with_each_jax
@pytest.mark.parametrize("name", CASES)
def test_every_leaf_has_its_role_without_a_doubt(name: str) -> None:
    step, args, expected = CASES[name]()
    found, doubts = roles(StepSpec(step, args))
    wrong = {
        path: role
        for path, role in found.items()
        for prefix, right in expected.items()
        if path.startswith(prefix)
        and (path[len(prefix) :] or ".")[0] in ".["
        and role != right
        # An optimizer's counters are its own, and an average's are the average's.
        and not (right == OPT and "count" in path)
    }
    assert (wrong, doubts) == ({}, ())
