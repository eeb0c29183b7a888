"""The built-in workloads. Each folder exposes `WORKLOAD`, and imports jax only when the model is built."""
