"""The training step of a script that names none: the script runs until it calls that step.

The script runs in its own greenlet, which is then suspended for good, as if its step took forever. No `except`,
`finally` or `atexit` of the script notices that memprof continues alone. The caller of `training_call` must end its
process with `os._exit`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from greenlet import greenlet

from memprof.errors import WorkloadError
from memprof.sources.jax.tracing import jit_adapter
from memprof.sources.jax.tracing.flops import has_backward_pass
from memprof.sources.jax.tracing.step import StepSpec
from memprof.workloads.user.reference import Reference
from memprof.workloads.user.script_source import prepare

_kept_greenlets: list[greenlet] = []  # keeps references: Python raises an error in a greenlet that is garbage-collected


def is_standing_still() -> bool:
    """Whether a script of this process is suspended in the middle of a call, so that Python must not exit normally."""
    return bool(_kept_greenlets)


def training_call(where: Reference, arguments: Sequence[str], overrides: Sequence[tuple[str, str]]) -> StepSpec:
    """Run a script until it calls a jitted function that differentiates, and return that call.

    Args:
        where: the file, or the module as for `python -m`.
        arguments: arguments for its `sys.argv`.
        overrides: names and texts of constants at its top level, or else of its own options.

    Raises:
        MemprofError: it has no such constant and no such option.
        WorkloadError: it ended, or exited, without such a call.
        Exception: any error of the script.
    """
    script_source = prepare(where, arguments, overrides)
    main = greenlet.getcurrent()

    def called(fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if not jit_adapter.is_of_jax(fn) and has_backward_pass(fn.trace(*args, **kwargs).jaxpr):
            outer = jit_adapter.outer_call(fn)
            shown, given, named = outer if outer and jit_adapter.is_framework_jit(outer[0]) else (fn, args, kwargs)
            main.switch(StepSpec(shown, tuple(given), kwargs=dict(named), config=script_source.config()))

    script = greenlet(script_source.run)
    try:
        with jit_adapter.watch_calls(called, with_lowered=True), script_source.noted():
            found = script.switch()
    except SystemExit as ended:
        raise WorkloadError(f"{where} has ended itself with {ended.code!r} before it called a training step") from ended
    if not isinstance(found, StepSpec):
        raise WorkloadError(
            f"{where} ended without calling a jitted function that differentiates, so no training step was found: "
            f"memprof watch {_watched(where)} shows everything that it compiles, and a function that returns "
            "memprof.StepSpec(step, args) names the step"
        )
    _kept_greenlets.append(script)
    return replace(found, workload=where.label)


def _watched(where: Reference) -> str:
    return str(where.path) if where.path else f"-m {where.module}"
