"""Whether this machine has an accelerator, found out without starting JAX's backends."""

from __future__ import annotations

from pathlib import Path


def has_accelerator_device() -> bool:
    """Whether the system shows a device that JAX may be able to use.

    Asking JAX would start its backends, and once it has tried CUDA and failed, it can no longer compile for a GPU that
    is not there (jax 0.10.2 to 0.12).
    """
    return any(Path("/dev").glob("nvidia[0-9]*")) or any(Path("/dev").glob("accel[0-9]*")) or Path("/dev/kfd").exists()
