"""One step of beam search as transformers' Flax generation has it: the caches of all beams are flattened for the model, and
gathered in the order of the surviving beams afterwards. Flax linen model, flax.struct state."""

import flax.linen as nn, jax, jax.numpy as jnp
from flax import struct

V, D, H, L, B, K, S = 32000, 512, 8, 3, 8, 4, 1024


@struct.dataclass
class BeamState:
    cur_len: jax.Array
    running_sequences: jax.Array
    running_scores: jax.Array
    sequences: jax.Array
    scores: jax.Array
    is_sent_finished: jax.Array
    past_key_values: dict


class Layer(nn.Module):
    @nn.compact
    def __call__(self, x, past, at):
        h = nn.LayerNorm(name="attn_norm")(x)
        q, k, v = (nn.DenseGeneral((H, D // H), name=f"{n}_proj")(h) for n in "qkv")
        keys = jax.lax.dynamic_update_slice_in_dim(past["k"], k, at, axis=1)
        values = jax.lax.dynamic_update_slice_in_dim(past["v"], v, at, axis=1)
        mask = (jnp.arange(S) <= at)[None, None, None]
        y = nn.dot_product_attention(q, keys, values, mask=mask)
        x = x + nn.DenseGeneral(D, axis=(-2, -1), name="out_proj")(y)
        h = nn.LayerNorm(name="mlp_norm")(x)
        return x + nn.Dense(D, name="fc2")(nn.relu(nn.Dense(4 * D, name="fc1")(h))), {"k": keys, "v": values}


class Decoder(nn.Module):
    @nn.compact
    def __call__(self, ids, past, at):
        embed = nn.Embed(V, D, name="embed_tokens")
        x = embed(ids) + self.param("positions", nn.initializers.normal(), (S, D))[at]
        new = {}
        for i in range(L):
            x, new[f"layer_{i}"] = Layer(name=f"layer_{i}")(x, past[f"layer_{i}"], at)
        return embed.attend(nn.LayerNorm(name="final_norm")(x)), new


def make():
    model = Decoder()
    s = lambda *shape, dtype=jnp.float32: jax.ShapeDtypeStruct(shape, dtype)
    flat = lambda x: x.reshape(B * K, *x.shape[2:])
    past = {f"layer_{i}": {n: s(B, K, S, H, D // H) for n in "kv"} for i in range(L)}
    ids = s(B * K, 1, dtype=jnp.int32)
    init = lambda key, ids, past: model.init(key, ids, jax.tree.map(flat, past), 0)["params"]
    params = jax.eval_shape(init, jax.random.PRNGKey(0), ids, past)

    def gather(tree, beams):
        return jax.tree.map(lambda x: jnp.take_along_axis(x, beams.reshape(B, -1, *[1] * (x.ndim - 2)), axis=1), tree)

    def beam_step(params, state):
        ids = jax.lax.dynamic_slice(state.running_sequences, (0, 0, state.cur_len - 1), (B, K, 1))
        logits, past = model.apply({"params": params}, flat(ids), jax.tree.map(flat, state.past_key_values), state.cur_len - 1)
        past = jax.tree.map(lambda x: x.reshape(B, K, *x.shape[1:]), past)
        logp = jax.nn.log_softmax(logits[:, -1]).reshape(B, K, V) + state.running_scores[..., None]
        top, where = jax.lax.top_k(logp.reshape(B, K * V), 2 * K)
        beams, tokens = where // V, where % V
        longer = gather(state.running_sequences, beams)
        longer = jax.lax.dynamic_update_slice(longer, tokens[..., None], (0, 0, state.cur_len))
        ended = tokens == 2
        running, keep = jax.lax.top_k(jnp.where(ended, -1e7, top), K)
        finished = jnp.where(ended, top / (state.cur_len + 1.0), -1e7)
        scores, best = jax.lax.top_k(jnp.concatenate([state.scores, finished], 1), K)
        return BeamState(
            cur_len=state.cur_len + 1,
            running_sequences=gather(longer, keep),
            running_scores=running,
            sequences=gather(jnp.concatenate([state.sequences, longer], 1), best),
            scores=scores,
            is_sent_finished=gather(jnp.concatenate([state.is_sent_finished, ended], 1), best),
            past_key_values=gather(past, gather(beams, keep)),
        )

    i32 = jnp.int32
    state = BeamState(s(dtype=i32), s(B, K, S, dtype=i32), s(B, K), s(B, K, S, dtype=i32), s(B, K), s(B, K, dtype=bool), past)
    return jax.jit(beam_step, donate_argnums=1), (params, state)
