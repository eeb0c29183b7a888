"""Keras 3 on the JAX backend, custom training loop of the Keras guide 'Writing a training loop in JAX' (stateless_call, stateless_apply)."""

import os

os.environ["KERAS_BACKEND"] = "jax"
import jax, jax.numpy as jnp, keras

B = 256


def make():
    inp = keras.Input((32, 32, 3))
    x = inp
    for i, f in enumerate((64, 128)):
        x = keras.layers.Conv2D(f, 3, padding="same", use_bias=False, name=f"conv{i}")(x)
        x = keras.layers.BatchNormalization(name=f"bn{i}")(x)
        x = keras.layers.Activation("relu", name=f"relu{i}")(x)
        x = keras.layers.MaxPooling2D(name=f"pool{i}")(x)
    x = keras.layers.Flatten()(x)
    x = keras.layers.Dropout(0.3, name="drop")(x)
    x = keras.layers.Dense(1024, activation="relu", name="fc")(x)
    out = keras.layers.Dense(10, name="logits")(x)
    model = keras.Model(inp, out)
    opt = keras.optimizers.Adam(1e-3)
    opt.build(model.trainable_variables)
    loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def compute(tv, ntv, x, y):
        yp, ntv = model.stateless_call(tv, ntv, x, training=True)
        return loss_fn(y, yp), ntv

    def train_step(state, data):
        tv, ntv, ov = state
        x, y = data
        (loss, ntv), g = jax.value_and_grad(compute, has_aux=True)(tv, ntv, x, y)
        tv, ov = opt.stateless_apply(ov, g, tv)
        return loss, (tv, ntv, ov)

    ab = lambda vs: [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in vs]
    make.names = (
        [v.path for v in model.trainable_variables],
        [v.path for v in model.non_trainable_variables],
        [v.path for v in opt.variables],
    )
    return jax.jit(train_step, donate_argnums=0), (
        (ab(model.trainable_variables), ab(model.non_trainable_variables), ab(opt.variables)),
        (jax.ShapeDtypeStruct((B, 32, 32, 3), jnp.float32), jax.ShapeDtypeStruct((B,), jnp.int32)),
    )
