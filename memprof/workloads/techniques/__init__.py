"""The techniques, one per file. Each file exposes `TECHNIQUE` and imports no jax."""
