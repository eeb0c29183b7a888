"""The gradient transformations of our own optimizers, for optax. They import jax; `optimizers/` does not."""
