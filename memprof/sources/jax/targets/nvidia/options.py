"""XLA's options for a compile for an absent GPU: without work that cannot change the plan.

Autotuning has no device to try kernels on: since jaxlib 0.12 it takes half of the compile's time to end where it began
(`benchmarks/plan_identity.py --autotuning` compares the plans). Before, it takes no time, and gives cuBLAS other
scratch.

Up to the plan XLA has threads that wait for each other more than they work: one alone takes a tenth less of processor
time, and no longer (`benchmarks/plan_identity.py --option` compares the plans). What comes after the plan, generating
code, is quicker with all of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from memprof.sources.jax.xla.toolchain import installed_version

_AUTOTUNING = "autotune"  # in the names of all options that are about it
_NO_AUTOTUNING = {"xla_gpu_autotune_level": "0"}
_IDLE_AUTOTUNING_SINCE = (0, 12)
_THREADS = "xla_gpu_force_compilation_parallelism"


def options_for_gpu(asked: Iterable[str], *, to_the_plan: bool) -> dict[str, str]:
    """XLA's options for a compile. What `XLA_FLAGS` or the step's own options say of the same matter stands.

    Args:
        asked: the names of the step's own options.
        to_the_plan: whether the compile is ended as soon as its plan is complete.
    """
    said = " ".join((os.environ.get("XLA_FLAGS", ""), *asked))
    major, minor = (installed_version("jaxlib") or "0.0").split(".")[:2]
    is_idle = (int(major), int(minor)) >= _IDLE_AUTOTUNING_SINCE
    options = dict(_NO_AUTOTUNING) if is_idle and _AUTOTUNING not in said else {}
    if to_the_plan and _THREADS not in said:
        options[_THREADS] = "1"
    return options
