"""How XLA compiles for a GPU that need not be there: without work that cannot change the plan.

Autotuning has no device to try kernels on: since jaxlib 0.12 it takes half of the compile's time to end where it began
(`benchmarks/plan_identity.py --autotuning` compares the plans). Before, it takes no time, and gives cuBLAS other
scratch.

Up to the plan XLA has threads that wait for each other more than they work: one alone takes a tenth less of processor
time, and no longer (`benchmarks/plan_identity.py --option` compares the plans). What comes after the plan, generating
code, is quicker with all of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from memprof.analysis.records.capture import Target
from memprof.capture.xla import xla_adapter
from memprof.capture.xla.toolchain import installed_version
from memprof.errors import MemprofError

_AUTOTUNING = "autotune"  # in the names of all options that are about it
_NO_AUTOTUNING = {"xla_gpu_autotune_level": "0"}
_IDLE_AUTOTUNING_SINCE = (0, 12)
_THREADS = "xla_gpu_force_compilation_parallelism"


def with_our_options(
    compile_it: Callable[[Mapping[str, Any]], Any], target: Target, asked: Mapping[str, Any], *, to_the_plan: bool
) -> Any:
    """Compile with options of ours, none where the program may run. One that this XLA has not is left out.

    Args:
        asked: the options that the step asks for.
        to_the_plan: whether what comes after it is of no interest.

    Raises:
        MemprofError: XLA has no such option, or it does not take that value.
    """
    ours = deviceless_options(asked, to_the_plan=to_the_plan) if target.is_deviceless else {}
    while True:
        try:
            return compile_it(ours)
        except Exception as error:  # XLA's own errors have no common type
            unknown = [name for name in ours if xla_adapter.rejected_option(error, [name])]
            if unknown:
                ours = {name: value for name, value in ours.items() if name not in unknown}
                continue
            reason = xla_adapter.rejected_option(error, asked)
            if reason is None:
                raise
            raise MemprofError(f"XLA does not accept an option of this step: {reason}") from error


def deviceless_options(asked: Iterable[str], *, to_the_plan: bool) -> dict[str, str]:
    """XLA's options for a compile. What `XLA_FLAGS` or the step's own options say of the same matter stands.

    Args:
        asked: the names of the step's own options.
        to_the_plan: see `with_our_options`.
    """
    said = " ".join((os.environ.get("XLA_FLAGS", ""), *asked))
    major, minor = (installed_version("jaxlib") or "0.0").split(".")[:2]
    is_idle = (int(major), int(minor)) >= _IDLE_AUTOTUNING_SINCE
    options = dict(_NO_AUTOTUNING) if is_idle and _AUTOTUNING not in said else {}
    if to_the_plan and _THREADS not in said:
        options[_THREADS] = "1"
    return options
