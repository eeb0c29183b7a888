"""The settings of JAX's memory pool in this process; only this module reads them from the environment.

The rules follow `jaxlib.xla_client.generate_pjrt_gpu_plugin_options`, and XLA for
TF_FORCE_UNIFIED_MEMORY. Values that JAX rejects are also rejected here.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import replace

from memprof.amounts import parse_share
from memprof.analysis.records.capture import Target
from memprof.analysis.records.device_family import family_of
from memprof.analysis.records.pool import MAX_MEM_FRACTION, Allocator, PoolSettings
from memprof.errors import MemprofError, unknown_name

_ALLOCATOR, _PREALLOCATE = "XLA_PYTHON_CLIENT_ALLOCATOR", "XLA_PYTHON_CLIENT_PREALLOCATE"
_FRACTION, _OLD_FRACTION = "XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"
_UNIFIED = "TF_FORCE_UNIFIED_MEMORY"
_ALL = (_ALLOCATOR, _PREALLOCATE, _FRACTION, _OLD_FRACTION, _UNIFIED)
_DEFAULT = "default"
# Child processes that only compile do not preallocate. The unusual value `0` marks this; another variable keeps the
# user's.
_OFF_IN_CHILDREN, _KEPT_PREALLOCATE = "0", "MEMPROF_XLA_PYTHON_CLIENT_PREALLOCATE"


def pool_settings(
    target: Target, recorded: PoolSettings | None = None, environment: Mapping[str, str] = os.environ
) -> PoolSettings:
    """Return the settings for a step.

    Args:
        target: the target; only CUDA devices have such a pool.
        recorded: settings of the process that compiled the step, used if the environment has none.

    Raises:
        MemprofError: the environment has a value that JAX rejects.
    """
    environment = _of_user(environment)
    if not family_of(target.platform).has_share_pool or not any(environment.get(name) for name in _ALL):
        return recorded or PoolSettings()
    return _of_environment(environment)


def without_preallocation(environment: Mapping[str, str]) -> dict[str, str]:
    """Return variables that turn off preallocation, for a child process that only compiles."""
    own = environment.get(_KEPT_PREALLOCATE, environment.get(_PREALLOCATE, ""))
    return {_PREALLOCATE: _OFF_IN_CHILDREN, _KEPT_PREALLOCATE: own}


def parse_pool(text: str, *, option: str = "--pool ", environment: Mapping[str, str] = os.environ) -> PoolSettings:
    """Return the settings with another fraction, written as `0.9` or `90%`.

    Args:
        option: the option before the fraction, for messages.

    Raises:
        MemprofError: the text is not a valid fraction; or the environment has a value that JAX rejects.
    """
    share = parse_share(text)
    fraction = _number(text) if share is None else float(share)
    settings = _of_environment({**_of_user(environment), _FRACTION: "", _OLD_FRACTION: ""})
    most = MAX_MEM_FRACTION if settings.unified_memory else 1.0
    if fraction is None or not 0 < fraction <= most:
        raise MemprofError(
            f"{option}{text} is not a share of the card's memory: write a number above 0 and up to 1, such as 0.9, "
            "or 90%"
        )
    # A fraction applies only to a pool.
    allocator = settings.allocator if settings.allocator.is_capped else Allocator.BFC
    return replace(settings, allocator=allocator, mem_fraction=fraction, origin=f"{option}{text.strip()}")


def _of_user(environment: Mapping[str, str]) -> Mapping[str, str]:
    """Return the environment without the variables that memprof sets in its child processes."""
    if environment.get(_PREALLOCATE) != _OFF_IN_CHILDREN or _KEPT_PREALLOCATE not in environment:
        return environment
    return {**environment, _PREALLOCATE: environment[_KEPT_PREALLOCATE]}


def _of_environment(environment: Mapping[str, str]) -> PoolSettings:
    name = (environment.get(_ALLOCATOR) or _DEFAULT).lower()
    if name not in (_DEFAULT, *Allocator):
        raise unknown_name(f"allocator that {_ALLOCATOR} can name", name, [_DEFAULT, *Allocator])
    new, old = environment.get(_FRACTION, ""), environment.get(_OLD_FRACTION, "")
    if new and old:
        raise MemprofError(
            f"{_FRACTION} and {_OLD_FRACTION} are both set, which JAX rejects: unset {_OLD_FRACTION}, its old name"
        )
    variable, text = (_OLD_FRACTION, old) if old else (_FRACTION, new)
    fraction = _number(text) if text else None
    if text and (fraction is None or not 0 < fraction <= MAX_MEM_FRACTION):
        raise MemprofError(f"{variable}={text} is not a share of the card's memory: set it to a number such as .9")
    return PoolSettings(
        allocator=Allocator.BFC if name == _DEFAULT else Allocator(name),
        mem_fraction=fraction,
        preallocate=environment.get(_PREALLOCATE, "") not in ("false", "False", "0"),
        unified_memory=environment.get(_UNIFIED, "").lower() in ("1", "true"),
        origin=f"{variable}={text.strip()}" if text else "",
    )


def _number(text: str) -> float | None:
    """Parse a finite number as Python does, or return None."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
