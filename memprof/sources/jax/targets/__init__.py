"""Targets of compiles: families of devices, with one folder for each family, and the user's `--target`.

A family's folder has its `FACTS` in `__init__.py`; they describe how to read compiled programs. `family.py` has its
`FAMILY`, which describes the names of its devices and the compiler for them. `families.py` finds all families
automatically.
"""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType

from memprof.analysis.records.device_family import DeviceFamily


def folders() -> tuple[ModuleType, ...]:
    """Return the packages of all families, in alphabetical order."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__) if module.ispkg)
    return tuple(importlib.import_module(f"{__name__}.{name}") for name in names)


def facts() -> tuple[DeviceFamily, ...]:
    """Return the facts that describe the compiled programs of each family. Imports neither JAX nor the catalogues."""
    return tuple(folder.FACTS for folder in folders())
