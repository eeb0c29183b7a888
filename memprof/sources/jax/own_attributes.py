"""Attributes that an object really has, and the package that defines its class.

Some objects answer to every name: `nnx.Rngs`, proxies, lazy modules, mocks. For them `hasattr` is always true, or
raises their own error. `own` checks the object and its class without calling `__getattr__`.
"""

from __future__ import annotations

import inspect
from typing import Any

_MISSING = object()


def has_own(value: object, name: str) -> bool:
    """Whether an object or its class defines an attribute."""
    return inspect.getattr_static(value, name, _MISSING) is not _MISSING


def own(value: Any, name: str) -> Any:
    """Return an attribute that an object or its class defines, or None."""
    return getattr(value, name, None) if has_own(value, name) else None


def is_defined_in(package: str, value: object, *, name: str | None = None) -> bool:
    """Whether a package defines a value's class or one of its base classes, by a name if it is given."""
    return any(
        str(cls.__module__).split(".")[0] == package and name in (None, cls.__name__) for cls in type(value).__mro__
    )


def is_equinox_module(value: object) -> bool:
    """Whether a value is a module of Equinox. Its numbers and functions are leaves, but not arrays."""
    return is_defined_in("equinox", value, name="Module")
