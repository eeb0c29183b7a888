"""Optimizers of our own, one per file. Each file exposes `OPTIMIZER`; those of optax are in `optax_optimizers`."""
