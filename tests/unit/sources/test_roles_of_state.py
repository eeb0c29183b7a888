"""Roles of what comes back: targets, environments, queues, statistics, scalars, samplers, handwritten optimizers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx
from flax.training.dynamic_scale import DynamicScale

from memprof.sources.jax.roles.arguments import TRAINS_NOTHING
from memprof.sources.jax.tracing.step import StepSpec
from tests.unit.sources.test_roles import OPT, WEIGHTS, B, P, S, X, Y, loss_of, predict, roles

ADAM = optax.adam(1e-3)
MOMENTS = ADAM.init(WEIGHTS)
KEY = jax.random.key(0)
COUNT = jnp.int32(0)
ONE = jnp.float32(1)

Case = tuple[Callable[..., Any], tuple[Any, ...], dict[str, str]]
CASES: dict[str, Callable[[], Case]] = {}


def case(make: Callable[[], Case]) -> Callable[[], Case]:
    CASES[make.__name__] = make
    return make


def sgd(weights: Any, grads: Any) -> Any:
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads)


def mixed(average: Any, new: Any) -> Any:
    return jax.tree.map(lambda a, n: 0.99 * a + 0.01 * n, average, new)


def trained(weights: Any, state: Any, x: Any, y: Any) -> Any:
    updates, state = ADAM.update(jax.grad(loss_of)(weights, x, y), state)
    return optax.apply_updates(weights, updates), state


def against(online: Any, target: Any, x: Any, y: Any) -> Any:
    aim = jax.lax.stop_gradient(y + 0.9 * predict(target, x))
    return jnp.mean((predict(online, x) - aim) ** 2)


@case
def a_target_mixed_with_old_parameters() -> Case:
    def step(online: Any, target: Any, state: Any, x: Any, y: Any) -> Any:
        updates, state = ADAM.update(jax.grad(against)(online, target, x, y), state)
        return optax.apply_updates(online, updates), mixed(target, online), state

    return step, (WEIGHTS, WEIGHTS, MOMENTS, X, Y), {"online": P, "target": S, "state": OPT, "x": B, "y": B}


@case
def a_target_that_is_the_old_parameters() -> Case:
    def step(online: Any, target: Any, state: Any, x: Any, y: Any) -> Any:
        updates, state = ADAM.update(jax.grad(against)(online, target, x, y), state)
        return optax.apply_updates(online, updates), online, state

    return step, (WEIGHTS, WEIGHTS, MOMENTS, X, Y), {"online": P, "target": S, "state": OPT, "x": B, "y": B}


@case
def a_target_copied_now_and_then_from_old_parameters() -> Case:
    def step(agent: Any, x: Any, y: Any) -> Any:
        grads = jax.grad(against)(agent["online"], agent["target"], x, y)
        target = jax.lax.cond(agent["count"] % 10 == 0, lambda: agent["online"], lambda: agent["target"])
        return {"online": sgd(agent["online"], grads), "target": target, "count": agent["count"] + 1}

    agent = {"online": WEIGHTS, "target": WEIGHTS, "count": COUNT}
    expected = {"agent['online']": P, "agent['target']": S, "agent['count']": S, "x": B, "y": B}
    return step, (agent, X, Y), expected


@case
def a_target_in_a_scan_over_steps() -> Case:
    def step(agent: Any, batches: Any) -> Any:
        def once(agent: Any, batch: Any) -> Any:
            online, target, velocity = agent
            grads = jax.grad(against)(online, target, *batch)
            velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, grads)
            online = sgd(online, velocity)
            return (online, mixed(target, online), velocity), None

        return jax.lax.scan(once, agent, batches)[0]

    args = ((WEIGHTS, WEIGHTS, WEIGHTS), (jnp.ones((7, 4, 3)), jnp.ones((7, 4, 1))))
    return step, args, {"agent[0]": P, "agent[1]": S, "agent[2]": OPT, "batches": B}


@case
def a_target_that_is_an_nnx_module() -> Case:
    def step(online: Any, target: Any, optimizer: Any, x: Any, y: Any) -> Any:
        def loss(online: Any) -> Any:
            return jnp.mean((online(x) - y - 0.9 * jax.lax.stop_gradient(target(x))) ** 2)

        grads = nnx.grad(loss)(online)
        nnx.update(target, mixed(nnx.state(target, nnx.Param), nnx.state(online, nnx.Param)))
        optimizer.update(online, grads)

    online, target = (nnx.Linear(3, 1, rngs=nnx.Rngs(0)) for _ in range(2))
    optimizer = nnx.Optimizer(online, ADAM, wrt=nnx.Param)
    expected = {"online": P, "target": S, "optimizer.opt_state": OPT, "x": B, "y": B}
    return step, (online, target, optimizer, X, Y), expected


@case
def a_momentum_encoder_with_a_queue_of_keys() -> Case:
    class State(NamedTuple):
        query: Any
        key: Any
        moments: Any
        queue: Any
        place: Any

    def step(state: State, views: Any) -> Any:
        key = mixed(state.key, state.query)
        new = jax.lax.stop_gradient(predict(key, views[1]))

        def loss(query: Any) -> Any:
            made = predict(query, views[0])
            logits = jnp.concatenate([(made * new).sum(1, keepdims=True), made @ state.queue.T], 1)
            return -jax.nn.log_softmax(logits)[:, 0].mean()

        updates, moments = ADAM.update(jax.grad(loss)(state.query), state.moments)
        queue = jax.lax.dynamic_update_slice(state.queue, new, (state.place, 0))
        return State(optax.apply_updates(state.query, updates), key, moments, queue, (state.place + 4) % 8)

    state = State(WEIGHTS, WEIGHTS, MOMENTS, jnp.ones((8, 1)), COUNT)
    expected = {
        "state.query": P, "state.key": S, "state.moments": OPT, "state.queue": S, "state.place": S, "views": B,
    }  # fmt: skip
    return step, (state, (X, X)), expected


@case
def a_queue_as_an_argument_that_is_shifted() -> Case:
    def step(weights: Any, queue: Any, x: Any) -> Any:
        def loss(weights: Any) -> Any:
            made = predict(weights, x)
            return (made @ queue.T).mean(), made

        grads, made = jax.grad(loss, has_aux=True)(weights)
        return sgd(weights, grads), jnp.concatenate([made, queue[:-4]])

    return step, (WEIGHTS, jnp.ones((8, 1)), X), {"weights": P, "queue": S, "x": B}


@case
def vectors_of_spectral_norm() -> Case:
    def step(weights: Any, u: Any, x: Any, y: Any) -> Any:
        w = weights["a"]["w"]
        v = w @ u
        v = v / jnp.linalg.norm(v)
        new = v @ w
        new = jax.lax.stop_gradient(new / jnp.linalg.norm(new))

        def loss(weights: Any) -> Any:
            norm = v @ weights["a"]["w"] @ new
            return loss_of({**weights, "a": {**weights["a"], "w": weights["a"]["w"] / norm}}, x, y)

        return sgd(weights, jax.grad(loss)(weights)), new, loss(weights)

    return step, (WEIGHTS, jnp.ones(5), X, Y), {"weights": P, "u": S, "x": B, "y": B}


class Pole(NamedTuple):
    place: Any
    speed: Any
    time: Any


def acted(pole: Pole, force: Any) -> Pole:
    speed = pole.speed + 0.1 * force
    place = pole.place + 0.1 * speed
    is_over = (jnp.abs(place) > 2) | (pole.time > 100)
    zero = jnp.zeros_like(place)
    return Pole(jnp.where(is_over, zero, place), jnp.where(is_over, zero, speed), jnp.where(is_over, 0, pole.time + 1))


def of_policy(weights: Any, pole: Pole, key: Any) -> Any:
    x = jnp.stack([pole.place, pole.speed, pole.place * pole.speed], 1)
    return x, predict(weights, x)[:, 0] + jax.random.normal(key, x.shape[:1])


def learned(weights: Any, moments: Any, seen: Any, forces: Any, rewards: Any) -> Any:
    def loss(weights: Any) -> Any:
        return jnp.mean((predict(weights, seen)[..., 0] - forces) ** 2 * rewards)

    updates, moments = ADAM.update(jax.grad(loss)(weights), moments)
    return optax.apply_updates(weights, updates), moments


POLE = Pole(jnp.ones(4), jnp.ones(4), jnp.zeros(4, int))
OF_AGENT = {"weights": P, "moments": OPT, "pole": S, "key": S}


@case
def an_environment_that_comes_back() -> Case:
    def step(weights: Any, moments: Any, pole: Any, key: Any) -> Any:
        def turn(pole: Any, key: Any) -> Any:
            x, force = of_policy(weights, pole, key)
            after = acted(pole, force)
            return after, (x, force, -jnp.abs(after.place))

        keys = jax.random.split(key, 6)
        pole, seen = jax.lax.scan(turn, pole, keys[1:])
        return *learned(weights, moments, *seen), pole, keys[0]

    return step, (WEIGHTS, MOMENTS, POLE, KEY), OF_AGENT


@case
def an_environment_in_a_scan_over_updates() -> Case:
    def step(agent: Any) -> Any:
        def update(agent: Any, _: Any) -> Any:
            weights, moments, pole, key = agent
            keys = jax.random.split(key, 3)
            x, force = of_policy(weights, pole, keys[0])
            after = acted(pole, force)
            weights, moments = learned(weights, moments, x, force, -jnp.abs(after.place))
            return (weights, moments, acted(after, of_policy(weights, after, keys[1])[1]), keys[2]), None

        return jax.lax.scan(update, agent, None, 3)[0]

    expected = {"agent[0]": P, "agent[1]": OPT, "agent[2]": S, "agent[3]": S}
    return step, ((WEIGHTS, MOMENTS, POLE, KEY),), expected


@case
def an_environment_of_one_array_and_keys_of_the_old_kind() -> Case:
    def step(weights: Any, moments: Any, poles: Any, keys: Any) -> Any:
        def each(pole: Any, key: Any) -> Any:
            key, own = jax.random.split(key)
            force = predict(weights, pole[None])[0, 0] + jax.random.normal(own)
            place, speed, _ = pole
            return jnp.array([place + 0.1 * speed, speed + 0.1 * force, place * speed]), force, key

        after, forces, keys = jax.vmap(each)(poles, keys)
        return *learned(weights, moments, poles, forces, -after[:, 0]), after, keys

    args = (WEIGHTS, MOMENTS, X, jnp.zeros((4, 2), jnp.uint32))
    return step, args, {"weights": P, "moments": OPT, "poles": S, "keys": S}


@case
def a_replay_buffer_in_the_state() -> Case:
    def step(state: Any, x: Any, y: Any) -> Any:
        buffer = state["buffer"]
        put = lambda old, new: jax.lax.dynamic_update_slice(old, new, (buffer["place"], 0))  # noqa: E731
        xs, ys = put(buffer["x"], x), put(buffer["y"], y)
        key, own = jax.random.split(state["key"])
        rows = jax.random.randint(own, (4,), 0, 20)
        weights, moments = trained(state["weights"], state["moments"], xs[rows], ys[rows])
        buffer = {"x": xs, "y": ys, "place": (buffer["place"] + 4) % 20}
        return {"weights": weights, "moments": moments, "buffer": buffer, "key": key}

    buffer = {"x": jnp.ones((20, 3)), "y": jnp.ones((20, 1)), "place": COUNT}
    state = {"weights": WEIGHTS, "moments": MOMENTS, "buffer": buffer, "key": KEY}
    expected = {"state['weights']": P, "state['moments']": OPT, "state['buffer']": S, "state['key']": S, "x": B, "y": B}
    return step, (state, X, Y), expected


@case
def a_temperature_that_is_trained_beside_a_policy() -> Case:
    def step(agent: Any, x: Any, y: Any) -> Any:
        def of_policy(weights: Any) -> Any:
            return jnp.exp(agent["log_alpha"]) * loss_of(weights, x, y)

        weights, moments = agent["weights"], agent["moments"]
        updates, moments = ADAM.update(jax.grad(of_policy)(weights), moments)
        error = loss_of(weights, x, y)
        grads = jax.grad(lambda log_alpha: jnp.exp(log_alpha) * (error - 1))(agent["log_alpha"])
        of_alpha, alpha_moments = ADAM.update(grads, agent["alpha_moments"])
        return {
            "weights": optax.apply_updates(weights, updates), "moments": moments,
            "log_alpha": agent["log_alpha"] + of_alpha, "alpha_moments": alpha_moments,
        }  # fmt: skip

    agent = {"weights": WEIGHTS, "moments": MOMENTS, "log_alpha": ONE, "alpha_moments": ADAM.init(ONE)}
    expected = {
        "agent['weights']": P, "agent['moments']": OPT, "agent['log_alpha']": P, "agent['alpha_moments']": OPT,
        "x": B, "y": B,
    }  # fmt: skip
    return step, (agent, X, Y), expected


@case
def a_measured_energy_that_the_loss_is_made_of() -> Case:
    def step(weights: Any, batch: Any) -> Any:
        def loss(weights: Any) -> Any:
            energy, forces = jax.value_and_grad(lambda x: jnp.sum(predict(weights, x)))(batch["x"])
            return (energy - batch["energy"]) ** 2 + jnp.sum(forces**2)

        value, grads = jax.value_and_grad(loss)(weights)
        return sgd(weights, grads), value

    return step, (WEIGHTS, {"x": X, "energy": ONE}), {"weights": P, "batch": B}


@case
def a_temperature_and_a_regulariser_that_are_not_trained() -> Case:
    def step(state: Any, temperature: Any, x: Any, y: Any) -> Any:
        def loss(weights: Any) -> Any:
            penalty = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(weights))
            return loss_of(weights, x, y) / temperature + state["regulariser"] * penalty

        weights = sgd(state["weights"], jax.grad(loss)(state["weights"]))
        return {"weights": weights, "regulariser": state["regulariser"] * 0.99}

    state = {"weights": WEIGHTS, "regulariser": ONE}
    expected = {"state['weights']": P, "state['regulariser']": S, "temperature": B, "x": B, "y": B}
    return step, (state, ONE, X, Y), expected


@case
def a_scale_of_the_loss_by_flax() -> Case:
    def step(weights: Any, moments: Any, scale: Any, x: Any, y: Any) -> Any:
        scale, is_finite, _, grads = scale.value_and_grad(loss_of)(weights, x, y)
        updates, new = ADAM.update(grads, moments)
        choose = lambda new, old: jax.tree.map(lambda n, o: jnp.where(is_finite, n, o), new, old)  # noqa: E731
        return choose(optax.apply_updates(weights, updates), weights), choose(new, moments), scale

    args = (WEIGHTS, MOMENTS, DynamicScale(), X, Y)
    return step, args, {"weights": P, "moments": OPT, "scale": S, "x": B, "y": B}


@case
def a_scale_of_the_loss_of_ones_own() -> Case:
    def step(state: Any, x: Any, y: Any) -> Any:
        weights, moments, scale = state["weights"], state["moments"], state["scale"]
        grads = jax.grad(lambda weights: scale * loss_of(weights, x, y))(weights)
        grads = jax.tree.map(lambda g: g / scale, grads)
        is_finite = jnp.isfinite(optax.tree.norm(grads))
        weights, moments = jax.lax.cond(
            is_finite,
            lambda: (lambda out: (optax.apply_updates(weights, out[0]), out[1]))(ADAM.update(grads, moments)),
            lambda: (weights, moments),
        )
        return {"weights": weights, "moments": moments, "scale": scale * jnp.where(is_finite, 1.001, 0.5)}

    state = {"weights": WEIGHTS, "moments": MOMENTS, "scale": ONE}
    expected = {"state['weights']": P, "state['moments']": OPT, "state['scale']": S, "x": B, "y": B}
    return step, (state, X, Y), expected


@case
def histories_of_scales_that_their_gradient_replaces() -> Case:
    @jax.custom_vjp
    def scaled(x: Any, history: Any) -> Any:
        return x / history.max()

    def forward(x: Any, history: Any) -> Any:
        return scaled(x, history), (x, history)

    def backward(kept: Any, grads: Any) -> Any:
        x, history = kept
        return grads / history.max(), jnp.roll(history, 1).at[0].set(jnp.abs(x).max())

    @jax.custom_vjp
    def scaled_back(x: Any, history: Any) -> Any:
        return x

    def scaled_backward(history: Any, grads: Any) -> Any:
        return grads, jnp.roll(history, 1).at[0].set(jnp.abs(grads).max())

    scaled.defvjp(forward, backward)
    scaled_back.defvjp(lambda x, history: (x, history), scaled_backward)

    def step(state: Any, moments: Any, x: Any, y: Any) -> Any:
        def loss(params: Any, histories: Any) -> Any:
            weights = {**params, "a": {**params["a"], "w": scaled(params["a"]["w"], histories["kernel"])}}
            made = scaled_back(predict(weights, scaled(x, histories["input"])), histories["output"])
            return jnp.mean((made - y) ** 2)

        grads, histories = jax.grad(loss, (0, 1))(state["params"], state["histories"])
        updates, moments = ADAM.update(grads, moments)
        return {"params": optax.apply_updates(state["params"], updates), "histories": histories}, moments

    histories = {name: jnp.ones(8) for name in ("input", "kernel", "output")}
    expected = {"state['params']": P, "state['histories']": S, "moments": OPT, "x": B, "y": B}
    return step, ({"params": WEIGHTS, "histories": histories}, MOMENTS, X, Y), expected


def log_density(weights: Any, x: Any, y: Any) -> Any:
    return -loss_of(weights, x, y) - sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(weights))


class Chain(NamedTuple):
    position: Any
    density: Any
    gradient: Any


@case
def hamiltonian_dynamics_with_a_metropolis_test() -> Case:
    def step(chain: Chain, step_size: Any, key: Any, x: Any, y: Any) -> Any:
        keys = jax.random.split(key, 3)
        leaves, structure = jax.tree.flatten(chain.position)
        momentum = jax.tree.unflatten(structure, [jax.random.normal(keys[0], leaf.shape) for leaf in leaves])

        def leap(_: Any, carry: Any) -> Any:
            position, momentum, _, gradient = carry
            momentum = jax.tree.map(lambda m, g: m + 0.5 * step_size * g, momentum, gradient)
            position = jax.tree.map(lambda q, m: q + step_size * m, position, momentum)
            density, gradient = jax.value_and_grad(log_density)(position, x, y)
            return position, jax.tree.map(lambda m, g: m + 0.5 * step_size * g, momentum, gradient), density, gradient

        position, _, density, gradient = jax.lax.fori_loop(0, 3, leap, (chain.position, momentum, *chain[1:]))
        is_accepted = jnp.log(jax.random.uniform(keys[1])) < density - chain.density
        new = Chain(position, density, gradient)
        return jax.tree.map(lambda new, old: jnp.where(is_accepted, new, old), new, chain), keys[2]

    chain = Chain(WEIGHTS, ONE, WEIGHTS)
    return step, (chain, ONE, KEY, X, Y), {"chain": S, "step_size": B, "key": S, "x": B, "y": B}


@case
def langevin_dynamics_of_the_weights_of_a_network() -> Case:
    def step(weights: Any, key: Any, x: Any, y: Any) -> Any:
        grads = jax.grad(log_density)(weights, x, y)
        return jax.tree.map(lambda w, g: w + 0.1 * g + jax.random.normal(key, w.shape), weights, grads)

    return step, (WEIGHTS, KEY, X, Y), {"weights": P, "key": S, "x": B, "y": B}


@case
def a_velocity_that_the_loss_looks_ahead_with() -> Case:
    def step(weights: Any, velocity: Any, x: Any, y: Any) -> Any:
        ahead = jax.tree.map(lambda w, v: w + 0.9 * v, weights, velocity)
        velocity = jax.tree.map(lambda v, g: 0.9 * v - 0.1 * g, velocity, jax.grad(loss_of)(ahead, x, y))
        return jax.tree.map(jnp.add, weights, velocity), velocity

    return step, (WEIGHTS, WEIGHTS, X, Y), {"weights": P, "velocity": OPT, "x": B, "y": B}


@case
def preconditioners_of_shampoo() -> Case:
    def step(weights: Any, factors: Any, count: Any, x: Any, y: Any) -> Any:
        grads = jax.grad(lambda w: jnp.mean((x @ w - y) ** 2))(weights)
        left, right = factors["left"] + grads @ grads.T, factors["right"] + grads.T @ grads

        def root(matrix: Any) -> Any:
            values, vectors = jnp.linalg.eigh(matrix + 1e-3 * jnp.eye(len(matrix)))
            return (vectors * values**-0.25) @ vectors.T

        roots = jax.lax.cond(
            count % 5 == 0, lambda: (root(left), root(right)), lambda: (factors["left_root"], factors["right_root"])
        )
        new = {"left": left, "right": right, "left_root": roots[0], "right_root": roots[1]}
        return weights - 0.1 * roots[0] @ grads @ roots[1], new, count + 1

    square = {"left": jnp.eye(3), "right": jnp.eye(5), "left_root": jnp.eye(3), "right_root": jnp.eye(5)}
    args = (jnp.ones((3, 5)), square, COUNT, X, jnp.ones((4, 5)))
    return step, args, {"weights": P, "factors": OPT, "count": S, "x": B, "y": B}


@case
def factors_of_curvature_by_the_forward_pass() -> Case:
    def step(weights: Any, factor: Any, x: Any, y: Any) -> Any:
        def loss(w: Any) -> Any:
            return jnp.mean((x @ w - y) ** 2), x.T @ x

        grads, new = jax.grad(loss, has_aux=True)(weights)
        factor = 0.9 * factor + 0.1 * new
        return weights - 0.1 * jnp.linalg.solve(factor + jnp.eye(3), grads), factor

    args = (jnp.ones((3, 5)), jnp.eye(3), X, jnp.ones((4, 5)))
    return step, args, {"weights": P, "factor": OPT, "x": B, "y": B}


@case
def the_gradient_of_the_step_before() -> Case:
    def step(weights: Any, before: Any, x: Any, y: Any) -> Any:
        grads = jax.grad(loss_of)(weights, x, y)
        return sgd(weights, jax.tree.map(lambda new, old: 2 * new - old, grads, before)), grads

    return step, (WEIGHTS, WEIGHTS, X, Y), {"weights": P, "before": OPT, "x": B, "y": B}


@case
def moments_and_their_counter_in_a_dict() -> Case:
    def step(weights: Any, state: Any, x: Any, y: Any) -> Any:
        grads, count = jax.grad(loss_of)(weights, x, y), state["count"] + 1
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["first"], grads)
        weights = jax.tree.map(lambda w, m: w - 0.1 * m / (1 - 0.9**count), weights, first)
        return weights, {"first": first, "count": count}

    args = (WEIGHTS, {"first": WEIGHTS, "count": COUNT}, X, Y)
    return step, args, {"weights": P, "state": OPT, "x": B, "y": B}


def adam_by_hand(
    count: Any, rate: Any = 0.1, *, next_rate: Callable[[Any, Any], Any] = lambda rate, grads: rate
) -> Case:
    """Adam's first moment, whose number of updates and rate are arguments of their own and results."""

    def step(weights: Any, first: Any, count: Any, rate: Any, x: Any, y: Any) -> Any:
        grads, count = jax.grad(loss_of)(weights, x, y), count + 1
        first = mixed(first, grads)
        weights = jax.tree.map(lambda w, m: w - rate * m / (1 - 0.9**count), weights, first)
        return weights, first, count, next_rate(rate, grads)

    return step, (WEIGHTS, WEIGHTS, count, rate, X, Y), {"weights": P, "first": OPT, "count": OPT, "x": B, "y": B}


@case
def a_counter_of_updates_that_is_an_integer() -> Case:
    return adam_by_hand(COUNT)


@case
def a_counter_of_updates_that_is_a_float_and_a_rate_that_decays() -> Case:
    step, args, expected = adam_by_hand(ONE, ONE, next_rate=lambda rate, grads: 0.99 * rate)
    return step, args, {**expected, "rate": OPT}


@case
def a_rate_that_comes_back_as_it_is_counts_nothing() -> Case:
    step, args, expected = adam_by_hand(ONE, ONE)
    return step, args, {**expected, "rate": S}


@case
def a_counter_of_the_learner_beside_the_state_of_its_optimizer() -> Case:
    class Params(NamedTuple):
        online: Any
        target: Any

    class Learner(NamedTuple):
        count: Any
        moments: Any

    def step(params: Params, learner: Learner, x: Any, y: Any) -> Any:
        target = optax.periodic_update(params.online, params.target, learner.count, 50)
        updates, moments = ADAM.update(jax.grad(against)(params.online, target, x, y), learner.moments)
        return Params(optax.apply_updates(params.online, updates), target), Learner(learner.count + 1, moments)

    args = (Params(WEIGHTS, WEIGHTS), Learner(COUNT, MOMENTS), X, Y)
    expected = {
        "params.online": P, "params.target": S, "learner.count": S, "learner.moments": OPT, "x": B, "y": B,
    }  # fmt: skip
    return step, args, expected


@case
def weights_that_are_averaged_now_and_then() -> Case:
    def step(state: Any, x: Any, y: Any) -> Any:
        weights, moments = trained(state["weights"], state["moments"], x, y)
        num = state["num"]
        average = jax.tree.map(lambda a, w: (a * num + w) / (num + 1), state["average"], weights)
        is_now = state["count"] % 5 == 0
        average = jax.tree.map(lambda new, old: jnp.where(is_now, new, old), average, state["average"])
        return {
            "weights": weights, "moments": moments, "average": average, "num": num + is_now,
            "count": state["count"] + 1,
        }  # fmt: skip

    state = {"weights": WEIGHTS, "moments": MOMENTS, "average": WEIGHTS, "num": COUNT, "count": COUNT}
    expected = {
        "state['weights']": P, "state['moments']": OPT, "state['average']": S, "state['num']": S, "state['count']": S,
        "x": B, "y": B,
    }  # fmt: skip
    return step, (state, X, Y), expected


@case
def gradients_accumulated_between_updates_under_a_condition() -> Case:
    def step(state: Any, x: Any, y: Any) -> Any:
        total = jax.tree.map(jnp.add, state["total"], jax.grad(loss_of)(state["weights"], x, y))

        def update() -> Any:
            updates, moments = ADAM.update(total, state["moments"])
            return optax.apply_updates(state["weights"], updates), moments, jax.tree.map(jnp.zeros_like, total)

        weights, moments, total = jax.lax.cond(
            state["count"] % 4 == 3, update, lambda: (state["weights"], state["moments"], total)
        )
        return {"weights": weights, "moments": moments, "total": total, "count": state["count"] + 1}

    state = {"weights": WEIGHTS, "moments": MOMENTS, "total": WEIGHTS, "count": COUNT}
    expected = {
        "state['weights']": P, "state['moments']": OPT, "state['total']": OPT, "state['count']": S, "x": B, "y": B,
    }  # fmt: skip
    return step, (state, X, Y), expected


@case
def statistics_of_a_batch_beside_a_penalty_on_gradients() -> Case:
    def step(weights: Any, moments: Any, statistics: Any, x: Any, y: Any) -> Any:
        def loss(weights: Any) -> Any:
            new = mixed(statistics, {"mean": x.mean(0), "var": x.var(0)})
            seen = (x - statistics["mean"]) / jnp.sqrt(statistics["var"])
            penalty = jax.grad(lambda x: predict(weights, x).sum())(seen)
            return loss_of(weights, seen, y) + jnp.mean(penalty**2), new

        grads, statistics = jax.grad(loss, has_aux=True)(weights)
        updates, moments = ADAM.update(grads, moments)
        return optax.apply_updates(weights, updates), moments, statistics

    args = (WEIGHTS, MOMENTS, {"mean": jnp.ones(3), "var": jnp.ones(3)}, X, Y)
    return step, args, {"weights": P, "moments": OPT, "statistics": S, "x": B, "y": B}


@case
def a_network_that_obeys_an_equation() -> Case:
    def step(weights: Any, moments: Any, points: Any, edge: Any) -> Any:
        def loss(weights: Any) -> Any:
            at = lambda point: predict(weights, point[None])[0, 0]  # noqa: E731
            inside = jax.vmap(lambda point: jnp.trace(jax.hessian(at)(point)))(points)
            return jnp.mean(inside**2) + jnp.mean(jax.vmap(at)(edge) ** 2)

        updates, moments = ADAM.update(jax.grad(loss)(weights), moments)
        return optax.apply_updates(weights, updates), moments

    args = (WEIGHTS, MOMENTS, jnp.ones((6, 3)), jnp.ones((4, 3)))
    return step, args, {"weights": P, "moments": OPT, "points": B, "edge": B}


@case
def a_reconstruction_that_is_returned() -> Case:
    weights = {"in": jnp.ones((3, 2)), "out": jnp.ones((2, 3))}

    def step(weights: Any, x: Any) -> Any:
        def loss(weights: Any) -> Any:
            made = jnp.tanh(x @ weights["in"]) @ weights["out"]
            return jnp.mean((made - x) ** 2), made

        grads, made = jax.grad(loss, has_aux=True)(weights)
        return sgd(weights, grads), made

    return step, (weights, X), {"weights": P, "x": B}


@case
def an_nnx_module_with_its_rngs_and_metrics() -> Case:
    class Net(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.dense, self.norm = nnx.Linear(3, 1, rngs=rngs), nnx.BatchNorm(3, rngs=rngs)
            self.dropout = nnx.Dropout(0.5)

        def __call__(self, x: Any, rngs: nnx.Rngs) -> Any:
            return self.dense(self.dropout(self.norm(x), rngs=rngs))

    def step(model: Any, optimizer: Any, metrics: Any, rngs: nnx.Rngs, x: Any, y: Any) -> Any:
        loss, grads = nnx.value_and_grad(lambda model, rngs: jnp.mean((model(x, rngs) - y) ** 2))(model, rngs)
        metrics.update(loss=loss)
        optimizer.update(model, grads)

    model, metrics = Net(nnx.Rngs(0)), nnx.MultiMetric(loss=nnx.metrics.Average("loss"))
    optimizer = nnx.Optimizer(model, ADAM, wrt=nnx.Param)
    expected = {
        "model.dense": P, "model.norm.scale": P, "model.norm.mean": S, "optimizer.opt_state": OPT, "metrics": S,
        "rngs": S, "x": B, "y": B,
    }  # fmt: skip
    return step, (model, optimizer, metrics, nnx.Rngs(0), X, Y), expected


@case
def an_equinox_model_with_its_state_and_frozen_layers() -> Case:
    class Net(eqx.Module):
        frozen: eqx.nn.Linear
        norm: eqx.nn.BatchNorm
        head: eqx.nn.Linear

        def __call__(self, x: Any, state: Any) -> Any:
            x, state = self.norm(jax.lax.stop_gradient(self.frozen(x)), state)
            return self.head(x), state

    def make(key: Any) -> Any:
        one, two = jax.random.split(key)
        return Net(eqx.nn.Linear(3, 5, key=one), eqx.nn.BatchNorm(5, "batch", mode="ema"), eqx.nn.Linear(5, 1, key=two))

    model, state = eqx.nn.make_with_state(make)(KEY)
    where = jax.tree.map(lambda _: False, model)
    where = eqx.tree_at(lambda tree: (tree.head.weight, tree.head.bias), where, (True, True))
    moments = ADAM.init(eqx.filter(model, where))

    @eqx.filter_jit
    def step(model: Any, state: Any, moments: Any, x: Any, y: Any) -> Any:
        trained, fixed = eqx.partition(model, where)

        def loss(trained: Any) -> Any:
            both = jax.vmap(eqx.combine(trained, fixed), axis_name="batch", in_axes=(0, None), out_axes=(0, None))
            made, new = both(x, state)
            return jnp.mean((made - y) ** 2), new

        grads, new = eqx.filter_grad(loss, has_aux=True)(trained)
        updates, moments_ = ADAM.update(grads, moments)
        return eqx.combine(eqx.apply_updates(trained, updates), fixed), new, moments_

    expected = {"model.head": P, "model.frozen": P, "state": S, "moments": OPT, "x": B, "y": B}
    return step, (model, state, moments, X, Y), expected


@pytest.mark.with_each_jax
@pytest.mark.parametrize("name", CASES)
def test_every_leaf_that_comes_back_has_its_role(name: str) -> None:
    step, args, expected = CASES[name]()
    found, doubts = roles(StepSpec(step, args))
    wrong = {
        path: role
        for path, role in found.items()
        for prefix, right in expected.items()
        if path.startswith(prefix) and (path[len(prefix) :] or ".")[0] in ".[" and role != right
    }
    assert (wrong, doubts) == ({}, () if P in expected.values() else (TRAINS_NOTHING,))
