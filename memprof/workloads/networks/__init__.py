"""The Flax modules that the workloads are made of. These files import jax; `models/` imports them when it builds."""
