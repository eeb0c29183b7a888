"""Kernels as XLA emitted them for the CPU before MLIR: they compute the same, and compile in a third of the time.

For numbers that are looked at, not for plans: what is fused may be another. jax 0.11 has only the others.
"""

from __future__ import annotations

from importlib.metadata import version

_ARE_THERE = tuple(map(int, version("jax").split(".")[:2])) < (0, 11)
# As options of a compile, and as an addition to XLA_FLAGS, which ends a process where a flag is not known.
SIMPLE_KERNELS = {"xla_cpu_use_fusion_emitters": False} if _ARE_THERE else {}
SIMPLE_KERNEL_FLAGS = " ".join(f"--{name}={str(value).lower()}" for name, value in SIMPLE_KERNELS.items())
