"""Interatomic potential: energies by a message-passing network (jraph.GraphNetwork, haiku MLPs), forces = -dE/dx, both in the loss."""
import haiku as hk, jax, jax.numpy as jnp, jraph, optax
NN, NE, F = 4096, 32768, 128
def make():
    def energy_fn(pos, species, senders, receivers):
        d = jnp.sqrt(jnp.sum((pos[senders] - pos[receivers]) ** 2, -1, keepdims=True) + 1e-6)
        rbf = jnp.exp(-10 * (d - jnp.linspace(0, 5, 32)) ** 2)
        nodes = hk.Embed(16, F, name="species")(species)
        def edge(e, s, r, g): return hk.nets.MLP([F, F], activation=jax.nn.silu, name="edge_mlp")(jnp.concatenate([e, s, r], -1))
        def node(n, s, r, g): return n + hk.nets.MLP([F, F], activation=jax.nn.silu, name="node_mlp")(jnp.concatenate([n, r], -1))
        g = jraph.GraphsTuple(nodes=nodes, edges=rbf, senders=senders, receivers=receivers, globals=None, n_node=jnp.array([NN]), n_edge=jnp.array([NE]))
        g = jraph.GraphNetwork(edge, node)(g)
        return jnp.sum(hk.nets.MLP([F, 1], activation=jax.nn.silu, name="readout")(g.nodes))
    net = hk.without_apply_rng(hk.transform(energy_fn)); tx = optax.adam(1e-3)
    s = jax.ShapeDtypeStruct
    b = dict(pos=s((NN, 3), jnp.float32), species=s((NN,), jnp.int32), senders=s((NE,), jnp.int32), receivers=s((NE,), jnp.int32), energy=s((), jnp.float32), forces=s((NN, 3), jnp.float32))
    p = jax.eval_shape(net.init, jax.random.PRNGKey(0), b["pos"], b["species"], b["senders"], b["receivers"])
    def step(params, opt_state, b):
        def loss(p):
            e, g = jax.value_and_grad(net.apply, 1)(p, b["pos"], b["species"], b["senders"], b["receivers"])
            return (e - b["energy"]) ** 2 / NN + 100 * jnp.mean((-g - b["forces"]) ** 2)
        l, g = jax.value_and_grad(loss)(params); u, opt_state = tx.update(g, opt_state)
        return optax.apply_updates(params, u), opt_state, l
    return jax.jit(step, donate_argnums=(0, 1)), (p, jax.eval_shape(tx.init, p), b)
