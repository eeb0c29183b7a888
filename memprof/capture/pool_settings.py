"""The settings of JAX's memory pool that this process would have: the one place that reads them from the environment.

The rules are those of `jaxlib.xla_client.generate_pjrt_gpu_plugin_options` (0.10.2 to 0.12), and of XLA for
TF_FORCE_UNIFIED_MEMORY. What JAX refuses is refused here.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import replace

from memprof.amounts import parse_share
from memprof.analysis.records.capture import Target
from memprof.analysis.records.device_family import family_of
from memprof.analysis.records.pool import MOST_MEM_FRACTION, Allocator, PoolSettings
from memprof.errors import MemprofError, unknown_name

_ALLOCATOR, _PREALLOCATE = "XLA_PYTHON_CLIENT_ALLOCATOR", "XLA_PYTHON_CLIENT_PREALLOCATE"
_FRACTION, _OLD_FRACTION = "XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"
_UNIFIED = "TF_FORCE_UNIFIED_MEMORY"
_ALL = (_ALLOCATOR, _PREALLOCATE, _FRACTION, _OLD_FRACTION, _UNIFIED)
_DEFAULT = "default"
# Children of memprof do not preallocate. Nobody else spells it so, and the user's own value is kept beside it.
_OFF_IN_CHILDREN, _KEPT_PREALLOCATE = "0", "MEMPROF_XLA_PYTHON_CLIENT_PREALLOCATE"


def pool_settings(
    target: Target, recorded: PoolSettings | None = None, environment: Mapping[str, str] = os.environ
) -> PoolSettings:
    """The settings for a step.

    Args:
        target: the device; only CUDA devices have such a pool.
        recorded: settings of the process that compiled the step, which count if the environment says nothing.

    Raises:
        MemprofError: the environment has a value that JAX refuses.
    """
    environment = _of_user(environment)
    if not family_of(target.platform).has_share_pool or not any(environment.get(name) for name in _ALL):
        return recorded or PoolSettings()
    return _of_environment(environment)


def without_preallocation(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables for a child process, whose allocator takes memory as it goes: else it has no peak to measure."""
    own = environment.get(_KEPT_PREALLOCATE, environment.get(_PREALLOCATE, ""))
    return {_PREALLOCATE: _OFF_IN_CHILDREN, _KEPT_PREALLOCATE: own}


def parse_pool(text: str, *, option: str = "--pool ", environment: Mapping[str, str] = os.environ) -> PoolSettings:
    """The settings with another fraction, as the user wrote it: `0.9` or `90%`.

    Args:
        option: what the user wrote before it, for messages.

    Raises:
        MemprofError: it is no fraction; or the environment has a value that JAX refuses.
    """
    share = parse_share(text)
    fraction = _number(text) if share is None else float(share)
    settings = _of_environment({**_of_user(environment), _FRACTION: "", _OLD_FRACTION: ""})
    most = MOST_MEM_FRACTION if settings.unified_memory else 1.0
    if fraction is None or not 0 < fraction <= most:
        raise MemprofError(
            f"{option}{text} is no share of the card's memory: write a number above 0 and up to 1, such as 0.9, or 90%"
        )
    # A fraction means something to a pool alone.
    allocator = settings.allocator if settings.allocator.is_capped else Allocator.BFC
    return replace(settings, allocator=allocator, mem_fraction=fraction, origin=f"{option}{text.strip()}")


def _of_user(environment: Mapping[str, str]) -> Mapping[str, str]:
    """The environment without what memprof sets in its child processes."""
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
            f"{_FRACTION} and {_OLD_FRACTION} are both set, which JAX refuses: unset {_OLD_FRACTION}, its old name"
        )
    variable, text = (_OLD_FRACTION, old) if old else (_FRACTION, new)
    fraction = _number(text) if text else None
    if text and (fraction is None or not 0 < fraction <= MOST_MEM_FRACTION):
        raise MemprofError(f"{variable}={text} is no share of the card's memory: set it to a number such as .9")
    return PoolSettings(
        allocator=Allocator.BFC if name == _DEFAULT else Allocator(name),
        mem_fraction=fraction,
        preallocate=environment.get(_PREALLOCATE, "") not in ("false", "False", "0"),
        unified_memory=environment.get(_UNIFIED, "").lower() in ("1", "true"),
        origin=f"{variable}={text.strip()}" if text else "",
    )


def _number(text: str) -> float | None:
    """The number in a text, as Python reads it; None if there is none."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
