"""Training steps as users of these libraries write them, each with the pytrees that its report must find again.

The libraries are imported in the functions: where one is not installed, the others' steps can be made all the same.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

import memprof

KEY = jax.random.key(0)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LibraryStep:
    """A step, and which pytrees among its arguments are what."""

    spec: memprof.StepSpec
    params: Any
    opt_state: Any
    batch: Any


def array(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def jraph_graph_network() -> LibraryStep:
    import jraph

    class Model(nn.Module):
        @nn.compact
        def __call__(self, graph: Any) -> Any:
            @jraph.concatenated_args
            def update(features: Any) -> Any:
                return nn.relu(nn.Dense(64)(features))

            graph = jraph.GraphMapFeatures(nn.Dense(32, name="embed_edges"), nn.Dense(32, name="embed_nodes"))(graph)
            graph = jraph.GraphNetwork(update, update)(graph)
            return nn.Dense(1, name="readout")(graph.nodes)[:, 0]

    optimizer = optax.adam(1e-3)
    model = Model()

    def train_step(params: Any, opt_state: Any, graph: Any, targets: Any) -> Any:
        def loss_fn(params: Any) -> Any:
            predictions = model.apply(params, graph)
            return jnp.mean((predictions - targets) ** 2)

        loss, grads = jax.value_and_grad(loss_fn)(params)
        updates, opt_state = optimizer.update(grads, opt_state)
        return optax.apply_updates(params, updates), opt_state, loss

    graph = jraph.GraphsTuple(
        nodes=array(200, 16), edges=array(1000, 8), globals=None,
        senders=array(1000, dtype=jnp.int32), receivers=array(1000, dtype=jnp.int32),
        n_node=array(4, dtype=jnp.int32), n_edge=array(4, dtype=jnp.int32),
    )  # fmt: skip
    targets = array(200)
    params = jax.eval_shape(model.init, KEY, graph)
    opt_state = jax.eval_shape(optimizer.init, params)
    spec = memprof.StepSpec(train_step, (params, opt_state, graph, targets), donate_argnums=(0, 1))
    # Without globals a GraphNetwork reads neither counts: jit drops them, and they take no memory of the step.
    return LibraryStep(spec=spec, params=params, opt_state=opt_state, batch=(graph, targets))


def numpyro_svi() -> LibraryStep:
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import SVI, Trace_ELBO
    from numpyro.infer.autoguide import AutoNormal

    def model(x: Any, y: Any) -> None:
        hidden = numpyro.sample("hidden", dist.Normal(0, 1).expand([16, 128]).to_event(2))
        out = numpyro.sample("out", dist.Normal(0, 1).expand([128]).to_event(1))
        mean = jnp.tanh(x @ hidden) @ out
        with numpyro.plate("examples", x.shape[0]):
            numpyro.sample("y", dist.Normal(mean, 0.1), obs=y)

    svi = SVI(model, AutoNormal(model), numpyro.optim.Adam(1e-3), Trace_ELBO())
    x, y = array(256, 16), array(256)
    state = jax.eval_shape(
        lambda key, x, y: svi.init(key, x, y), jax.random.PRNGKey(0), jnp.zeros(x.shape), jnp.zeros(256)
    )
    params = jax.eval_shape(svi.get_params, state)

    def train_step(state: Any, x: Any, y: Any) -> Any:
        return svi.update(state, x, y)

    spec = memprof.StepSpec(train_step, (state, x, y), donate_argnums=(0,))
    # Its state holds the parameters beside their two moments, and a step counter, which is state of another kind.
    moments = (params, params)
    return LibraryStep(spec=spec, params=params, opt_state=moments, batch=(x, y))


def flowjax_flow() -> LibraryStep:
    import flowjax.bijections as bijections
    import flowjax.distributions as distributions
    import flowjax.flows as flows
    import paramax

    def is_fixed(leaf: Any) -> bool:
        return isinstance(leaf, paramax.NonTrainable)

    optimizer = optax.adam(1e-3)

    @eqx.filter_jit(donate="all")
    def train_step(flow: Any, opt_state: Any, x: Any) -> Any:
        params, static = eqx.partition(flow, eqx.is_inexact_array, is_leaf=is_fixed)

        def loss_fn(params: Any) -> Any:
            return -paramax.unwrap(eqx.combine(params, static)).log_prob(x).mean()

        loss, grads = eqx.filter_value_and_grad(loss_fn)(params)
        updates, opt_state = optimizer.update(grads, opt_state)
        return eqx.combine(eqx.apply_updates(params, updates), static), opt_state, loss

    # Made for real: its functions close over arrays, which shapes cannot take the place of.
    flow = flows.masked_autoregressive_flow(
        KEY, base_dist=distributions.Normal(jnp.zeros(8)), flow_layers=2, nn_width=32,
        transformer=bijections.RationalQuadraticSpline(knots=4, interval=4),
    )  # fmt: skip
    params = eqx.filter(flow, eqx.is_inexact_array, is_leaf=is_fixed)
    opt_state, x = optimizer.init(params), array(128, 8)
    spec = memprof.StepSpec(train_step, (flow, opt_state, x))
    return LibraryStep(spec=spec, params=params, opt_state=opt_state, batch=x)


def diffrax_neural_ode() -> LibraryStep:
    import diffrax

    class Field(eqx.Module):
        mlp: eqx.nn.MLP

        def __call__(self, t: Any, y: Any, args: Any) -> Any:
            return self.mlp(y)

    class NeuralODE(eqx.Module):
        field: Field

        def __call__(self, times: Any, start: Any) -> Any:
            return diffrax.diffeqsolve(
                diffrax.ODETerm(self.field), diffrax.Tsit5(), t0=times[0], t1=times[-1], dt0=times[1] - times[0],
                y0=start, saveat=diffrax.SaveAt(ts=times), max_steps=16,
            ).ys  # fmt: skip

    optimizer = optax.adamw(1e-3)

    def init(key: Any) -> Any:
        model = NeuralODE(Field(eqx.nn.MLP(4, 4, 64, 2, key=key)))
        return model, optimizer.init(eqx.filter(model, eqx.is_inexact_array))

    @eqx.filter_jit(donate="all")
    def train_step(model: Any, opt_state: Any, times: Any, ys: Any) -> Any:
        @eqx.filter_value_and_grad
        def loss_fn(model: Any) -> Any:
            paths = jax.vmap(model, in_axes=(None, 0))(times, ys[:, 0])
            return jnp.mean((paths - ys) ** 2)

        loss, grads = loss_fn(model)
        updates, opt_state = optimizer.update(grads, opt_state, eqx.filter(model, eqx.is_inexact_array))
        return eqx.apply_updates(model, updates), opt_state, loss

    times, ys = array(10), array(64, 10, 4)
    model, opt_state = eqx.filter_eval_shape(init, KEY)
    spec = memprof.StepSpec(train_step, (model, opt_state, times, ys))
    return LibraryStep(spec=spec, params=eqx.filter(model, _is_floating), opt_state=opt_state, batch=(times, ys))


def penzai_mlp() -> LibraryStep:
    from penzai import pz
    from penzai.models.simple_mlp import MLP

    optimizer = optax.adam(1e-3)
    model = MLP.from_config(init_base_rng=KEY, feature_sizes=[32, 256, 256, 8])
    unbound, variables = pz.unbind_params(model, freeze=True)

    def train_step(params: Any, opt_state: Any, x: Any, labels: Any) -> Any:
        def loss_fn(params: Any) -> Any:
            logits = pz.bind_variables(unbound, params)(pz.nx.wrap(x).tag("batch", "features"))
            losses = pz.nx.nmap(optax.softmax_cross_entropy_with_integer_labels)(
                logits.untag("features"), pz.nx.wrap(labels).tag("batch")
            )
            return losses.unwrap("batch").mean()

        loss, grads = jax.value_and_grad(loss_fn)(params)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    opt_state = jax.eval_shape(optimizer.init, variables)
    x, labels = array(64, 32), array(64, dtype=jnp.int32)
    spec = memprof.StepSpec(train_step, (variables, opt_state, x, labels), donate_argnums=(0, 1))
    return LibraryStep(spec=spec, params=variables, opt_state=opt_state, batch=(x, labels))


def ott_sinkhorn() -> LibraryStep:
    from ott.geometry import pointcloud
    from ott.solvers import linear

    class Generator(nn.Module):
        @nn.compact
        def __call__(self, noise: Any) -> Any:
            x = nn.relu(nn.Dense(64, name="hidden")(noise))
            return nn.Dense(2, name="points")(x)

    generator, optimizer = Generator(), optax.sgd(1e-2, momentum=0.9)

    def train_step(params: Any, opt_state: Any, noise: Any, data: Any) -> Any:
        def loss_fn(params: Any) -> Any:
            made = generator.apply(params, noise)
            return linear.solve(pointcloud.PointCloud(made, data, epsilon=0.1), max_iterations=50).reg_ot_cost

        loss, grads = jax.value_and_grad(loss_fn)(params)
        updates, opt_state = optimizer.update(grads, opt_state)
        return optax.apply_updates(params, updates), opt_state, loss

    noise, data = array(128, 8), array(96, 2)
    params = jax.eval_shape(generator.init, KEY, noise)
    opt_state = jax.eval_shape(optimizer.init, params)
    spec = memprof.StepSpec(train_step, (params, opt_state, noise, data), donate_argnums=(0, 1))
    return LibraryStep(spec=spec, params=params, opt_state=opt_state, batch=(noise, data))


def equimo_vision_transformer() -> LibraryStep:
    from equimo.models.vit import VisionTransformer

    optimizer = optax.adamw(1e-3)

    def init(key: Any) -> Any:
        model = VisionTransformer(
            img_size=16,
            in_channels=3,
            dim=64,
            patch_size=4,
            num_heads=2,
            depths=[2],
            num_classes=10,
            reg_tokens=0,
            key=key,
        )
        return model, optimizer.init(eqx.filter(model, eqx.is_inexact_array))

    @eqx.filter_jit(donate="all")
    def train_step(model: Any, opt_state: Any, images: Any, labels: Any, key: Any) -> Any:
        def loss_fn(model: Any) -> Any:
            keys = jax.random.split(key, len(images))
            logits = jax.vmap(model)(images, keys)
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        loss, grads = eqx.filter_value_and_grad(loss_fn)(model)
        updates, opt_state = optimizer.update(grads, opt_state, eqx.filter(model, eqx.is_inexact_array))
        return eqx.apply_updates(model, updates), opt_state, loss

    images, labels = array(8, 3, 16, 16), array(8, dtype=jnp.int32)
    model, opt_state = eqx.filter_eval_shape(init, KEY)
    spec = memprof.StepSpec(train_step, (model, opt_state, images, labels, jax.eval_shape(jax.random.key, 0)))
    return LibraryStep(spec=spec, params=eqx.filter(model, _is_floating), opt_state=opt_state, batch=(images, labels))


def e3nn_network() -> LibraryStep:
    import e3nn_jax as e3nn

    class Model(nn.Module):
        @nn.compact
        def __call__(self, positions: Any, features: Any) -> Any:
            directions = e3nn.spherical_harmonics("0e + 1o + 2e", positions, normalize=True)
            x = e3nn.flax.Linear("16x0e + 16x1o", name="mix")(e3nn.IrrepsArray("8x0e", features))
            x = e3nn.flax.Linear("16x0e + 8x1o", name="combine")(e3nn.tensor_product(x, directions))
            return e3nn.flax.Linear("0e", name="energy")(e3nn.scalar_activation(x, [jax.nn.silu, None])).array[:, 0]

    model, optimizer = Model(), optax.adam(1e-3)

    def train_step(params: Any, opt_state: Any, positions: Any, features: Any, energies: Any) -> Any:
        def loss_fn(params: Any) -> Any:
            return jnp.mean((model.apply(params, positions, features) - energies) ** 2)

        loss, grads = jax.value_and_grad(loss_fn)(params)
        updates, opt_state = optimizer.update(grads, opt_state)
        return optax.apply_updates(params, updates), opt_state, loss

    batch = (array(256, 3), array(256, 8), array(256))
    params = jax.eval_shape(model.init, KEY, *batch[:2])
    opt_state = jax.eval_shape(optimizer.init, params)
    spec = memprof.StepSpec(train_step, (params, opt_state, *batch), donate_argnums=(0, 1))
    return LibraryStep(spec=spec, params=params, opt_state=opt_state, batch=batch)


def tinygp_kernel() -> LibraryStep:
    import tinygp

    optimizer = optax.adam(1e-2)

    def train_step(params: Any, opt_state: Any, x: Any, y: Any) -> Any:
        def loss_fn(params: Any) -> Any:
            features = jnp.tanh(x @ params["features"])
            kernel = jnp.exp(params["log_amplitude"]) * tinygp.kernels.ExpSquared()
            process = tinygp.GaussianProcess(kernel, features, diag=jnp.exp(params["log_noise"]))
            return -process.log_probability(y)

        loss, grads = jax.value_and_grad(loss_fn)(params)
        updates, opt_state = optimizer.update(grads, opt_state)
        return optax.apply_updates(params, updates), opt_state, loss

    params = {"features": array(8, 4), "log_amplitude": array(), "log_noise": array()}
    opt_state = jax.eval_shape(optimizer.init, params)
    x, y = array(128, 8), array(128)
    spec = memprof.StepSpec(train_step, (params, opt_state, x, y), donate_argnums=(0, 1))
    return LibraryStep(spec=spec, params=params, opt_state=opt_state, batch=(x, y))


def qwix_lora() -> LibraryStep:
    import qwix

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.Dense(8, name="down")(nn.relu(nn.Dense(256, name="up")(x)))

    model = qwix.apply_lora_to_model(Model(), qwix.LoraProvider(module_path=".*", rank=4, alpha=4.0))
    optimizer = optax.adam(1e-3)
    x, y = array(64, 32), array(64, 8)
    params = jax.eval_shape(model.init, KEY, x)["params"]
    adapters = jax.tree_util.tree_map_with_path(
        lambda path, leaf: leaf if "lora" in jax.tree_util.keystr(path) else None, params
    )
    base = jax.tree_util.tree_map_with_path(
        lambda path, leaf: None if "lora" in jax.tree_util.keystr(path) else leaf, params
    )
    opt_state = jax.eval_shape(optimizer.init, adapters)

    def train_step(adapters: Any, opt_state: Any, base: Any, x: Any, y: Any) -> Any:
        def loss_fn(adapters: Any) -> Any:
            merged = jax.tree.map(
                lambda own, frozen: frozen if own is None else own, adapters, base, is_leaf=lambda leaf: leaf is None
            )
            return jnp.mean((model.apply({"params": merged}, x) - y) ** 2)

        loss, grads = jax.value_and_grad(loss_fn)(adapters)
        updates, opt_state = optimizer.update(grads, opt_state)
        return optax.apply_updates(adapters, updates), opt_state, loss

    spec = memprof.StepSpec(train_step, (adapters, opt_state, base, x, y), donate_argnums=(0, 1))
    return LibraryStep(spec=spec, params=(adapters, base), opt_state=opt_state, batch=(x, y))


def _is_floating(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.inexact)
