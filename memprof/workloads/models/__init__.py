"""The built-in workloads, one per file. Each file exposes `WORKLOAD` and imports no jax until it is built."""
