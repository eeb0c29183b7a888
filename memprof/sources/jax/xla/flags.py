"""The flags of `XLA_FLAGS` that are in force.

XLA reads the variable once per process, at its first use; later changes of the environment have no effect. A flag of
the initial or the current environment is in force if XLA's own options show its value.
"""

from __future__ import annotations

import os
import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from memprof.sources.jax.xla import xla_adapter

_VARIABLE = "XLA_FLAGS"
_INITIAL_ENVIRONMENT = Path("/proc/self/environ")
_BOOLEANS = {"": "true", "true": "true", "1": "true", "false": "false", "0": "false"}


def xla_flags() -> str:
    """Return the flags that a compile in this process uses."""
    current = os.environ.get(_VARIABLE, "")
    options = xla_adapter.debug_options()
    return current if options is None else flags_in_force(current, _initial(), options)


def flags_in_force(current: str, initial: str, options: str) -> str:
    """Choose the flags that XLA has read.

    Args:
        current, initial: `XLA_FLAGS` now and when the process started.
        options: XLA's `DebugOptions` as a text proto, which leaves out zero, false and empty values.
    """
    if not f"{current}{initial}".lstrip().startswith("-"):
        return current  # the name of a file of flags
    values = defaultdict(list)
    for line in options.splitlines():
        name, _, value = line.strip().partition(": ")
        values[name].append(value.strip('"'))
    flags = dict.fromkeys([*_split(current), *_split(initial)])
    return " ".join(flag for flag in flags if _is_effective(flag, values))


def _is_effective(flag: str, values: Mapping[str, Sequence[str]]) -> bool:
    name, _, asked = flag.lstrip("-").partition("=")
    found = values.get(name)
    if not found:
        return asked.lower() in ("false", "0", "0.0")
    if found[-1] in ("true", "false"):
        return _BOOLEANS.get(asked.lower(), asked.lower()) == found[-1]
    try:
        return float(asked) == float(found[-1])
    except ValueError:
        return {each.lower() for each in asked.split(",")} <= {each.lower() for each in found} or len(found) > 1


def _split(flags: str) -> list[str]:
    try:
        return shlex.split(flags)
    except ValueError:  # an unclosed quote
        return flags.split()


def _initial() -> str:
    try:
        variables = _INITIAL_ENVIRONMENT.read_bytes().split(b"\0")
    except OSError:  # no /proc
        return ""
    begin = f"{_VARIABLE}=".encode()
    return next((os.fsdecode(each[len(begin) :]) for each in variables if each.startswith(begin)), "")
