"""VAE by numpyro SVI, in the style of numpyro's examples/vae.py (stax-free: numpyro.param weights), svi.update as the step."""

import jax, jax.numpy as jnp, numpyro, numpyro.distributions as dist
from numpyro.infer import SVI, Trace_ELBO

B, D, H, Z = 4096, 784, 1024, 64


def make():
    def w(name, *s):
        return numpyro.param(name, lambda key: 0.05 * jax.random.normal(key, s))

    def model(batch):
        w1, b1, w2, b2 = w("dec_w1", Z, H), w("dec_b1", H), w("dec_w2", H, D), w("dec_b2", D)
        with numpyro.plate("batch", batch.shape[0]):
            z = numpyro.sample("z", dist.Normal(0, 1).expand([Z]).to_event(1))
            logits = jax.nn.softplus(z @ w1 + b1) @ w2 + b2
            numpyro.sample("obs", dist.Bernoulli(logits=logits).to_event(1), obs=batch)

    def guide(batch):
        w1, b1 = w("enc_w1", D, H), w("enc_b1", H)
        wm, ws = w("enc_wm", H, Z), w("enc_ws", H, Z)
        h = jax.nn.softplus(batch @ w1 + b1)
        with numpyro.plate("batch", batch.shape[0]):
            numpyro.sample("z", dist.Normal(h @ wm, jnp.exp(h @ ws)).to_event(1))

    svi = SVI(model, guide, numpyro.optim.Adam(1e-3), Trace_ELBO())
    batch = jax.ShapeDtypeStruct((B, D), jnp.float32)
    st = jax.eval_shape(lambda k, b: svi.init(k, b), jax.random.PRNGKey(0), batch)
    return jax.jit(svi.update, donate_argnums=0), (st, batch)
