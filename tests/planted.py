"""Small training steps, each with one inefficiency planted, and the same steps where the advice for it is followed.

Each function returns a `StepSpec` on shapes. `recipe` is the code of a piece of advice: it runs in the place of
the code that it is about, and what it defines is what the step goes on with. Sizes are such that most memory goes to
the inefficiency.
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


def followed(recipe: str, **names: Any) -> dict[str, Any]:
    """All names after the line of code has run among them."""
    namespace = {"jax": jax, "jnp": jnp, "optax": optax, **names}
    exec(recipe, namespace)
    return namespace


def _shape(*dimensions: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(dimensions, dtype)


def _layers(number: int, inputs: int, outputs: int, dtype: Any = jnp.float32) -> Params:
    return {f"layer_{index}": {"w": _shape(inputs, outputs, dtype=dtype)} for index in range(number)}


def _sgd(loss: Callable[..., Any], params: Params, *batch: Any) -> StepSpec:
    """A step of plain gradient descent: no optimizer state, nothing but what `loss` needs."""

    def step(params: Params, *batch: Any) -> tuple[Params, Any]:
        value, gradients = jax.value_and_grad(loss)(params, *batch)
        return jax.tree.map(lambda p, g: p - 0.1 * g.astype(p.dtype), params, gradients), value

    return StepSpec(step, (params, *batch), donate_argnums=(0,), roles={"params": "params", "batch": "batch"})


def _of_tanh(params: Params, x: Any) -> Any:
    for layer in params.values():
        x = jnp.tanh(x @ layer["w"])
    return x.astype(jnp.float32).mean()


def state_not_donated(recipe: str = "") -> StepSpec:
    spec = _sgd(_of_tanh, _layers(4, 2048, 2048), _shape(16, 2048))
    step = followed(recipe, step=spec.fn)["step"]
    return StepSpec(step, spec.args, roles=spec.roles)


def float32_activations(recipe: str = "") -> StepSpec:
    def loss(params: Params, x: Any) -> Any:
        names = followed(recipe, params=params, batch=x.astype(jnp.float32))
        return _of_tanh(names["params"], names["batch"])

    return _sgd(loss, _layers(4, 512, 512), _shape(32768, 512, dtype=jnp.bfloat16))


def whole_logits(recipe: str = "") -> StepSpec:
    def loss(params: Params, x: Any, labels: Any) -> Any:
        def loss_of_chunk(chunk: tuple[Any, Any]) -> Any:
            hidden, labels = chunk
            logits = (hidden @ params["head"]["w"]).astype(jnp.float32)
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).sum()

        hidden = jnp.tanh(x @ params["body"]["w"])
        if not recipe:
            return loss_of_chunk((hidden, labels))
        return followed(
            recipe,
            loss_of_chunk=loss_of_chunk,
            hidden_chunks=hidden.reshape(_NUM_CHUNKS, -1, hidden.shape[-1]),
            label_chunks=labels.reshape(_NUM_CHUNKS, -1),
        )["loss"]

    params = {"body": {"w": _shape(256, 256)}, "head": {"w": _shape(256, 32768)}}
    return _sgd(loss, params, _shape(8192, 256), _shape(8192, dtype=jnp.int32))


def attend(queries: Any, keys: Any, values: Any) -> Any:
    """Attention as the textbook has it."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", queries, keys) / jnp.sqrt(queries.shape[-1]).astype(queries.dtype)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, axis=-1), values)


def attention_with(recipe: str, q: Any, k: Any, v: Any, *, num_blocks: int = 32) -> Any:
    """The same by a line of code."""
    if not recipe:
        return attend(q, k, v)
    blocks = jnp.moveaxis(q.reshape(q.shape[0], num_blocks, -1, *q.shape[2:]), 1, 0)
    attended = followed(recipe, attend=attend, q=q, k=k, v=v, blocks_of_q=blocks)["attended"]
    return attended if attended.shape == q.shape else jnp.moveaxis(attended, 0, 1).reshape(q.shape)


def attention_probabilities(recipe: str = "") -> StepSpec:
    """Two recipes are for it: one for the attention, and one for the block around it."""
    is_of_block = "block = " in recipe

    def block(layer: Params, x: Any) -> Any:
        q, k, v = jnp.split((x @ layer["w"]).reshape(*x.shape[:2], 24, 64), 3, axis=2)
        return x + attention_with("" if is_of_block else recipe, q, k, v).reshape(x.shape)

    block = followed(recipe if is_of_block else "", block=block)["block"]

    def loss(params: Params, x: Any) -> Any:
        for layer in params.values():
            x = block(layer, x)
        return x.astype(jnp.float32).mean()

    return _sgd(loss, _layers(4, 512, 1536, jnp.bfloat16), _shape(2, 2048, 512, dtype=jnp.bfloat16))


def _block(layer: Params, x: Any) -> Any:
    return x + jax.nn.gelu(x @ layer["up"]) @ layer["down"]


def _blocks(number: int, *leading: int) -> Params:
    up, down = _shape(*leading, 512, 2048, dtype=jnp.bfloat16), _shape(*leading, 2048, 512, dtype=jnp.bfloat16)
    return {f"layer_{index}": {"up": up, "down": down} for index in range(number)}


def residuals_of_blocks(recipe: str = "") -> StepSpec:
    block = followed(recipe, block=_block)["block"]

    def loss(params: Params, x: Any) -> Any:
        for name, layer in params.items():
            with jax.named_scope(name):
                x = block(layer, x)
        return x.astype(jnp.float32).mean()

    return _sgd(loss, _blocks(12), _shape(16384, 512, dtype=jnp.bfloat16))


def residuals_of_a_scan(recipe: str = "") -> StepSpec:
    def body(x: Any, layer: Params) -> tuple[Any, None]:
        return _block(layer, x), None

    def loss(params: Params, x: Any) -> Any:
        x, _ = jax.lax.scan(followed(recipe, body=body)["body"], x, params["layer_0"])
        return x.astype(jnp.float32).mean()

    return _sgd(loss, _blocks(1, 12), _shape(16384, 512, dtype=jnp.bfloat16))


def copies_of_parameters(recipe: str = "") -> StepSpec:
    def standardised(w: Any) -> Any:
        return ((w - w.mean(axis=0)) / (w.std(axis=0) + 1e-5)).astype(jnp.bfloat16)

    def apply(layer: Params, x: Any) -> Any:
        return jnp.tanh(x @ layer["w"])

    def loss(params: Params, x: Any) -> Any:
        block = followed(recipe, block=jax.checkpoint(apply), apply=apply, to_bfloat16=standardised)["block"]
        layers = params if recipe else jax.tree.map(standardised, params)
        for layer in layers.values():
            x = block(layer, x)
        return x.astype(jnp.float32).mean()

    return _sgd(loss, _layers(16, 2048, 2048), _shape(16, 2048, dtype=jnp.bfloat16))


def state_of_adam(recipe: str = "") -> StepSpec:
    optimizer = followed(recipe, optimizer=optax.adam(1e-3), learning_rate=1e-3)["optimizer"]
    params = _layers(6, 2048, 2048)

    def step(params: Params, state: Any, x: Any) -> tuple[Params, Any, Any]:
        value, gradients = jax.value_and_grad(_of_tanh)(params, x)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    return StepSpec(step, (params, jax.eval_shape(optimizer.init, params), _shape(16, 2048)), donate_argnums=(0, 1))


def float32_accumulators(recipe: str = "") -> StepSpec:
    def step(params: Params, minibatches: Any) -> Params:
        zeros = jax.tree.map(jnp.zeros_like, params)
        names = followed(recipe, params=params, zeros=zeros, add=lambda t, g: jax.tree.map(jnp.add, t, g))
        add = names["add"]
        total, _ = jax.lax.scan(
            lambda total, x: (add(total, jax.grad(_of_tanh)(params, x)), None), names["zeros"], minibatches
        )
        return jax.tree.map(lambda p, t: p - 0.1 * t, params, total)

    return StepSpec(
        step,
        (_layers(8, 1024, 1024), _shape(4, 16, 1024)),
        donate_argnums=(0,),
        roles={"params": "params", "minibatches": "batch"},
    )


def one_huge_array(recipe: str = "") -> StepSpec:
    def loss(params: Params, x: Any) -> Any:
        rows, columns = x @ params["rows"]["w"], x @ params["columns"]["w"]

        def f(row: Any) -> Any:
            pairs = jnp.tanh(row + columns)
            return jnp.tanh(pairs @ params["mix"]["w"]).sum()

        return followed(recipe or "ys = jax.vmap(f)(xs)", f=f, xs=rows)["ys"].mean()

    half = jnp.bfloat16
    params = {
        "rows": {"w": _shape(128, 256, dtype=half)},
        "columns": {"w": _shape(128, 256, dtype=half)},
        "mix": {"w": _shape(256, 8, dtype=half)},
    }
    return _sgd(loss, params, _shape(2048, 128, dtype=half))


def peak_in_the_update(recipe: str = "") -> StepSpec:
    def orthogonalised(matrix: Any) -> Any:
        """Newton-Schulz iterations, as in the Muon optimizer."""
        for _ in range(3):
            matrix = 1.5 * matrix - 0.5 * matrix @ (matrix.T @ matrix)
        return matrix

    def step(params: Params, x: Any) -> Params:
        gradients = jax.grad(_of_tanh)(params, x)
        norm = optax.global_norm(gradients)
        gradients = jax.tree.map(lambda gradient: gradient / norm, gradients)
        if recipe:
            names = followed(
                recipe, gradients=gradients, params=params, update_one=lambda gradient, _: orthogonalised(gradient)
            )
            updates = names["updates"]
        else:
            leaves, structure = jax.tree.flatten(gradients)
            updates = jax.tree.unflatten(structure, list(jax.vmap(orthogonalised)(jnp.stack(leaves))))
        return jax.tree.map(lambda p, u: p - 0.1 * u, params, updates)

    return StepSpec(
        step,
        (_layers(8, 1024, 1024), _shape(16, 1024)),
        donate_argnums=(0,),
        roles={"params": "params", "x": "batch"},
    )


def state_that_waits(recipe: str = "") -> StepSpec:
    optimizer = optax.sgd(1e-3, momentum=0.9)
    params = _layers(6, 2048, 2048)

    def step(params: Params, state: Any, x: Any) -> tuple[Params, Any]:
        gradients = jax.grad(_of_tanh)(params, x)
        names = followed(recipe, gradients=gradients, opt_state=state)
        updates, state = optimizer.update(names["gradients"], names["opt_state"], params)
        if recipe:
            state = jax.device_put(state, jax.memory.Space.Host)
        return optax.apply_updates(params, updates), state

    return StepSpec(
        step,
        (params, jax.eval_shape(optimizer.init, params), _shape(16384, 2048)),
        donate_argnums=(0, 1),
        memory_kinds={"state": "pinned_host"} if recipe else {},
    )


def deferred_weight_gradients(recipe: str = "") -> StepSpec:
    """All weight gradients wait for the last gradient of an activation, so both their operands are kept until then."""
    recipe = recipe or "operands = jax.lax.optimization_barrier(operands)"

    def step(params: Params, x: Any) -> tuple[Params, Any]:
        inputs, outputs = [], [x]
        for layer in params.values():
            inputs.append(outputs[-1])
            outputs.append(jnp.tanh(outputs[-1] @ layer["w"]))
        cotangent = outputs[-1]
        products = []
        for layer, before, after in zip(reversed(params.values()), reversed(inputs), reversed(outputs), strict=False):
            cotangent = cotangent * (1 - after * after)
            products.append((before, cotangent))
            cotangent = cotangent @ layer["w"].T
        products, _ = followed(recipe, operands=(products, cotangent))["operands"]
        gradients = [before.T @ after for before, after in reversed(products)]
        return {
            name: {"w": layer["w"] - gradient}
            for (name, layer), gradient in zip(params.items(), gradients, strict=True)
        }, outputs[-1].sum()

    args = (_layers(8, 1024, 1024, jnp.bfloat16), _shape(8192, 1024, dtype=jnp.bfloat16))
    return StepSpec(step, args, donate_argnums=(0,), roles={"params": "params", "x": "batch"})
