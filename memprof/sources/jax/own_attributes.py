"""Attributes that an object really has.

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
