"""Small causal LM with tied embeddings, flax nnx (nnx.jit-free, split/merge), bf16 compute, jax.checkpoint per block."""

import jax, jax.numpy as jnp, optax
from flax import nnx

V, D, L, H, B, T = 8192, 512, 2, 8, 8, 512


class Block(nnx.Module):
    def __init__(self, rngs):
        self.ln1 = nnx.LayerNorm(D, dtype=jnp.bfloat16, rngs=rngs)
        self.ln2 = nnx.LayerNorm(D, dtype=jnp.bfloat16, rngs=rngs)
        self.attn = nnx.MultiHeadAttention(H, D, decode=False, dtype=jnp.bfloat16, rngs=rngs)
        self.up = nnx.Linear(D, 4 * D, dtype=jnp.bfloat16, rngs=rngs)
        self.down = nnx.Linear(4 * D, D, dtype=jnp.bfloat16, rngs=rngs)

    def __call__(self, x, mask):
        x = x + self.attn(self.ln1(x), mask=mask)
        return x + self.down(nnx.gelu(self.up(self.ln2(x))))


class LM(nnx.Module):
    def __init__(self, rngs):
        self.wte = nnx.Embed(V, D, dtype=jnp.bfloat16, rngs=rngs)
        self.wpe = nnx.Embed(T, D, dtype=jnp.bfloat16, rngs=rngs)
        self.blocks = nnx.List([Block(rngs) for _ in range(L)])
        self.ln_f = nnx.LayerNorm(D, dtype=jnp.bfloat16, rngs=rngs)

    def __call__(self, tok):
        x = self.wte(tok) + self.wpe(jnp.arange(T))
        mask = nnx.make_causal_mask(tok)
        for b in self.blocks:
            x = nnx.remat(lambda b, x, m: b(x, m))(b, x, mask)
        return self.wte.attend(self.ln_f(x))


def make():
    tx = optax.adamw(3e-4)

    def build():
        m = LM(nnx.Rngs(0))
        return nnx.split((m, nnx.Optimizer(m, tx, wrt=nnx.Param)))

    graphdef, state = nnx.eval_shape(build)

    def step(state, tokens):
        model, opt = nnx.merge(graphdef, state)

        def loss(m):
            logits = m(tokens).astype(jnp.float32)
            return optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], tokens[:, 1:]).mean()

        l, g = nnx.value_and_grad(loss)(model)
        opt.update(model, g)
        return nnx.state((model, opt)), l

    return jax.jit(step, donate_argnums=0), (state, jax.ShapeDtypeStruct((B, T), jnp.int32))
