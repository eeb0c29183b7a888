"""The built-in workloads, a folder each, which exposes `WORKLOAD` and imports no jax before the model is built."""
