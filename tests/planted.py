"""Small training steps, each with one inefficiency planted, and the same steps without it.

Each function returns a `StepSpec` on shapes; `is_mended` takes the inefficiency out as the advice for it says. Sizes
are such that most memory goes to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from memprof import StepSpec

Params = Any
_NUM_CHUNKS = 8


def _shape(*dimensions: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(dimensions, dtype)


def _layers(number: int, inputs: int, outputs: int, dtype: Any = jnp.float32) -> Params:
    return {f"layer_{index}": {"w": _shape(inputs, outputs, dtype=dtype)} for index in range(number)}


def _sgd(loss: Callable[..., Any], params: Params, *batch: Any, donate: bool = True) -> StepSpec:
    """A step of plain gradient descent: no optimizer state, nothing but what `loss` needs."""

    def step(params: Params, *batch: Any) -> tuple[Params, Any]:
        value, gradients = jax.value_and_grad(loss)(params, *batch)
        return jax.tree.map(lambda p, g: p - 0.1 * g.astype(p.dtype), params, gradients), value

    roles = {"params": "params", "batch": "batch"}
    return StepSpec(step, (params, *batch), donate_argnums=(0,) if donate else (), roles=roles)


def state_not_donated(is_mended: bool = False) -> StepSpec:
    def loss(params: Params, x: Any) -> Any:
        for layer in params.values():
            x = jnp.tanh(x @ layer["w"])
        return x.mean()

    return _sgd(loss, _layers(8, 2048, 2048), _shape(16, 2048), donate=is_mended)


def float32_activations(is_mended: bool = False) -> StepSpec:
    dtype = jnp.bfloat16 if is_mended else jnp.float32

    def loss(params: Params, x: Any) -> Any:
        x = x.astype(dtype)
        for layer in params.values():
            x = jnp.tanh(x @ layer["w"].astype(dtype))
        return x.astype(jnp.float32).mean()

    return _sgd(loss, _layers(8, 512, 512), _shape(32768, 512, dtype=jnp.bfloat16))


def whole_logits(is_mended: bool = False) -> StepSpec:
    def of_chunk(head: Any, hidden: Any, labels: Any) -> Any:
        logits = (hidden @ head).astype(jnp.float32)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).sum()

    def loss(params: Params, x: Any, labels: Any) -> Any:
        hidden = jnp.tanh(x @ params["body"]["w"])
        head = params["head"]["w"]
        if not is_mended:
            return of_chunk(head, hidden, labels)
        chunks = (hidden.reshape(_NUM_CHUNKS, -1, hidden.shape[-1]), labels.reshape(_NUM_CHUNKS, -1))
        return jax.lax.map(lambda chunk: jax.checkpoint(of_chunk)(head, *chunk), chunks).sum()

    params = {"body": {"w": _shape(256, 256)}, "head": {"w": _shape(256, 32768)}}
    return _sgd(loss, params, _shape(8192, 256), _shape(8192, dtype=jnp.int32))


def attention_probabilities(is_mended: bool = False) -> StepSpec:
    def attend(queries: Any, keys: Any, values: Any) -> Any:
        scores = jnp.einsum("bqhd,bkhd->bhqk", queries, keys) / 8
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, axis=-1), values)

    def attention(queries: Any, keys: Any, values: Any) -> Any:
        if not is_mended:
            return attend(queries, keys, values)
        blocks = jnp.moveaxis(queries.reshape(queries.shape[0], 32, -1, *queries.shape[2:]), 1, 0)
        attended = jax.lax.map(lambda block: jax.checkpoint(attend)(block, keys, values), blocks)
        return jnp.moveaxis(attended, 0, 1).reshape(queries.shape)

    def loss(params: Params, x: Any) -> Any:
        for layer in params.values():
            queries, keys, values = jnp.split((x @ layer["w"]).reshape(*x.shape[:2], 24, 64), 3, axis=2)
            x = x + attention(queries, keys, values).reshape(x.shape)
        return x.astype(jnp.float32).mean()

    return _sgd(loss, _layers(4, 512, 1536, jnp.bfloat16), _shape(2, 2048, 512, dtype=jnp.bfloat16))


def _block(layer: Params, x: Any) -> Any:
    return x + jax.nn.gelu(x @ layer["up"]) @ layer["down"]


def _blocks(number: int, *leading: int) -> Params:
    up, down = _shape(*leading, 512, 2048, dtype=jnp.bfloat16), _shape(*leading, 2048, 512, dtype=jnp.bfloat16)
    return {f"layer_{index}": {"up": up, "down": down} for index in range(number)}


def residuals_of_blocks(is_mended: bool = False) -> StepSpec:
    block = jax.checkpoint(_block) if is_mended else _block

    def loss(params: Params, x: Any) -> Any:
        for name, layer in params.items():
            with jax.named_scope(name):
                x = block(layer, x)
        return x.astype(jnp.float32).mean()

    return _sgd(loss, _blocks(12), _shape(16384, 512, dtype=jnp.bfloat16))


def residuals_of_a_scan(is_mended: bool = False) -> StepSpec:
    block = jax.checkpoint(_block, prevent_cse=False) if is_mended else _block

    def loss(params: Params, x: Any) -> Any:
        x, _ = jax.lax.scan(lambda x, layer: (block(layer, x), None), x, params["layer_0"])
        return x.astype(jnp.float32).mean()

    return _sgd(loss, _blocks(1, 12), _shape(16384, 512, dtype=jnp.bfloat16))


def copies_of_parameters(is_mended: bool = False) -> StepSpec:
    def standardised(layer: Params) -> Any:
        w = layer["w"]
        return ((w - w.mean(axis=0)) / (w.std(axis=0) + 1e-5)).astype(jnp.bfloat16)

    def apply(layer: Params, x: Any) -> Any:
        return jnp.tanh(x @ standardised(layer))

    def loss(params: Params, x: Any) -> Any:
        if is_mended:
            for layer in params.values():
                x = jax.checkpoint(apply)(layer, x)
        else:
            weights = [standardised(layer) for layer in params.values()]
            for w in weights:
                x = jnp.tanh(x @ w)
        return x.astype(jnp.float32).mean()

    return _sgd(loss, _layers(16, 2048, 2048), _shape(16, 2048, dtype=jnp.bfloat16))


def state_of_adam(is_mended: bool = False) -> StepSpec:
    optimizer = optax.adafactor(1e-3) if is_mended else optax.adam(1e-3)
    params = _layers(12, 2048, 2048)

    def loss(params: Params, x: Any) -> Any:
        for layer in params.values():
            x = jnp.tanh(x @ layer["w"])
        return x.mean()

    def step(params: Params, state: Any, x: Any) -> tuple[Params, Any, Any]:
        value, gradients = jax.value_and_grad(loss)(params, x)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    return StepSpec(step, (params, jax.eval_shape(optimizer.init, params), _shape(16, 2048)), donate_argnums=(0, 1))


def float32_accumulators(is_mended: bool = False) -> StepSpec:
    dtype = jnp.bfloat16 if is_mended else jnp.float32

    def loss(params: Params, x: Any) -> Any:
        for layer in params.values():
            x = jnp.tanh(x @ layer["w"])
        return x.mean()

    def step(params: Params, minibatches: Any) -> Params:
        def body(total: Params, x: Any) -> tuple[Params, None]:
            gradients = jax.grad(loss)(params, x)
            return jax.tree.map(lambda t, g: (t + g).astype(dtype), total, gradients), None

        zeros = jax.tree.map(lambda p: jnp.zeros(p.shape, dtype), params)
        total, _ = jax.lax.scan(body, zeros, minibatches)
        return jax.tree.map(lambda p, t: p - 0.1 * t, params, total)

    return StepSpec(
        step,
        (_layers(32, 1024, 1024), _shape(4, 16, 1024)),
        donate_argnums=(0,),
        roles={"params": "params", "minibatches": "batch"},
    )


def one_huge_array(is_mended: bool = False) -> StepSpec:
    def of_rows(params: Params, rows: Any, columns: Any) -> Any:
        pairs = jnp.tanh(rows[:, None, :] + columns[None, :, :])
        return jnp.tanh(pairs @ params["mix"]["w"]).sum(axis=(1, 2))

    def loss(params: Params, x: Any) -> Any:
        rows, columns = x @ params["rows"]["w"], x @ params["columns"]["w"]
        if not is_mended:
            return of_rows(params, rows, columns).mean()
        pieces = rows.reshape(4 * _NUM_CHUNKS, -1, rows.shape[-1])
        return jax.lax.map(lambda piece: jax.checkpoint(of_rows)(params, piece, columns), pieces).mean()

    half = jnp.bfloat16
    params = {
        "rows": {"w": _shape(128, 256, dtype=half)},
        "columns": {"w": _shape(128, 256, dtype=half)},
        "mix": {"w": _shape(256, 8, dtype=half)},
    }
    return _sgd(loss, params, _shape(2048, 128, dtype=half))


def peak_in_the_update(is_mended: bool = False) -> StepSpec:
    def loss(params: Params, x: Any) -> Any:
        for layer in params.values():
            x = jnp.tanh(x @ layer["w"])
        return x.mean()

    def orthogonalised(matrix: Any) -> Any:
        """Newton-Schulz iterations, as in the Muon optimizer."""
        for _ in range(3):
            matrix = 1.5 * matrix - 0.5 * matrix @ (matrix.T @ matrix)
        return matrix

    def step(params: Params, x: Any) -> Params:
        gradients = [gradient["w"] for gradient in jax.grad(loss)(params, x).values()]
        norm = optax.global_norm(gradients)
        gradients = [gradient / norm for gradient in gradients]
        if is_mended:
            updates = [orthogonalised(gradient) for gradient in gradients]
        else:
            updates = list(jax.vmap(orthogonalised)(jnp.stack(gradients)))
        return {name: {"w": layer["w"] - 0.1 * u} for (name, layer), u in zip(params.items(), updates, strict=True)}

    return StepSpec(
        step,
        (_layers(16, 1024, 1024), _shape(16, 1024)),
        donate_argnums=(0,),
        roles={"params": "params", "x": "batch"},
    )


def nothing_to_mend() -> StepSpec:
    """Donated, bfloat16, checkpointed, without optimizer state."""
    return residuals_of_blocks(is_mended=True)
