"""Diagonal state-space model (S5/LRU-like) by associative_scan in equinox, optax adamw."""
import equinox as eqx, jax, jax.numpy as jnp, optax
B, T, D, N = 16, 512, 256, 256
class SSM(eqx.Module):
    log_a: jax.Array; Bm: jax.Array; Cm: jax.Array; skip: jax.Array
    def __init__(self, key):
        a, b, c = jax.random.split(key, 3)
        self.log_a = jax.random.uniform(a, (N,)); self.Bm = jax.random.normal(b, (D, N)) / 16; self.Cm = jax.random.normal(c, (N, D)) / 16; self.skip = jnp.ones(D)
    def __call__(self, u):
        a = jnp.broadcast_to(jnp.exp(-jnp.exp(self.log_a)), (u.shape[0], N)); bu = u @ self.Bm
        _, h = jax.lax.associative_scan(lambda l, r: (l[0] * r[0], r[0] * l[1] + r[1]), (a, bu))
        return h @ self.Cm + self.skip * u
class Layer(eqx.Module):
    norm: eqx.nn.LayerNorm; ssm: SSM; glu: eqx.nn.Linear
    def __init__(self, key):
        a, b = jax.random.split(key); self.norm = eqx.nn.LayerNorm(D); self.ssm = SSM(a); self.glu = eqx.nn.Linear(D, 2 * D, key=b)
    def __call__(self, x):
        h = jax.nn.gelu(self.ssm(jax.vmap(self.norm)(x))); a, b = jnp.split(jax.vmap(self.glu)(h), 2, -1)
        return x + a * jax.nn.sigmoid(b)
class Model(eqx.Module):
    enc: eqx.nn.Linear; layers: list; dec: eqx.nn.Linear
    def __init__(self, key):
        k = jax.random.split(key, 4); self.enc = eqx.nn.Linear(16, D, key=k[0]); self.layers = [Layer(k[1]), Layer(k[2])]; self.dec = eqx.nn.Linear(D, 10, key=k[3])
    def __call__(self, x):
        x = jax.vmap(self.enc)(x)
        for l in self.layers: x = l(x)
        return self.dec(x.mean(0))
def make():
    m = eqx.filter_eval_shape(Model, jax.random.PRNGKey(0)); params, static = eqx.partition(m, lambda x: hasattr(x, "shape"))
    tx = optax.adamw(1e-3); opt = jax.eval_shape(tx.init, params)
    def step(params, opt_state, x, y):
        def loss(p): return optax.softmax_cross_entropy_with_integer_labels(jax.vmap(eqx.combine(p, static))(x), y).mean()
        l, g = jax.value_and_grad(loss)(params); u, opt_state = tx.update(g, opt_state, params)
        return eqx.apply_updates(params, u), opt_state, l
    return jax.jit(step, donate_argnums=(0, 1)), (params, opt, jax.ShapeDtypeStruct((B, T, 16), jnp.float32), jax.ShapeDtypeStruct((B,), jnp.int32))
