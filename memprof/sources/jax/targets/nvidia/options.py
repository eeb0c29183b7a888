"""XLA options for compiles for absent GPUs, which skip work that cannot change the plan.

Autotuning has no device to try kernels on. Since jaxlib 0.12 it takes half of the compile's time and changes nothing
(`benchmarks/plan_identity.py --autotuning` compares the plans). Before 0.12 it takes no time, but changes cuBLAS's
scratch.

Up to the plan, XLA's threads mostly wait for each other: a single thread takes a tenth less processor time, and no
longer (`benchmarks/plan_identity.py --option` compares the plans). After the plan, code generation is faster with all
threads.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from memprof.sources.jax.xla.toolchain import installed_version

_AUTOTUNING = "autotune"  # part of the name of every autotuning option
_NO_AUTOTUNING = {"xla_gpu_autotune_level": "0"}
_IDLE_AUTOTUNING_SINCE = (0, 12)
_THREADS = "xla_gpu_force_compilation_parallelism"


def options_for_gpu(asked: Iterable[str], *, to_the_plan: bool) -> dict[str, str]:
    """Return our XLA options for a compile. `XLA_FLAGS` and the step's own options take precedence.

    Args:
        asked: the names of the step's own options.
        to_the_plan: the compile ends as soon as its plan is complete.
    """
    said = " ".join((os.environ.get("XLA_FLAGS", ""), *asked))
    major, minor = (installed_version("jaxlib") or "0.0").split(".")[:2]
    is_idle = (int(major), int(minor)) >= _IDLE_AUTOTUNING_SINCE
    options = dict(_NO_AUTOTUNING) if is_idle and _AUTOTUNING not in said else {}
    if to_the_plan and _THREADS not in said:
        options[_THREADS] = "1"
    return options
