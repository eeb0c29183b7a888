"""Finds the formats. A new one is a new file in `formats/` that exposes `FORMAT`; nothing else changes."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from memprof.errors import MemprofError
from memprof.reports import formats as _package
from memprof.reports.format import Format


@cache
def formats() -> tuple[Format, ...]:
    """All formats, by name."""
    names = sorted(module.name for module in pkgutil.iter_modules(_package.__path__))
    modules = (importlib.import_module(f"{_package.__name__}.{name}") for name in names)
    return tuple(module.FORMAT for module in modules)


def format_named(name: str) -> Format:
    """The format called `name`.

    Raises:
        MemprofError: there is none; the message names those that there are.
    """
    for candidate in formats():
        if candidate.name == name:
            return candidate
    allowed = ", ".join(candidate.name for candidate in formats())
    raise MemprofError(f"There is no format {name!r}. Use one of: {allowed}.")
