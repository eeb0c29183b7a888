"""What a step can be compiled for: families of devices, one in each folder here, and what a user's `--target` names.

A folder of a family has in `__init__.py` its `FACTS`, which say what a compiled program means; and in `family.py` its
`FAMILY`, which says how its devices are named and compiled for. `families.py` finds all by themselves.
"""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType

from memprof.analysis.records.device_family import DeviceFamily


def folders() -> tuple[ModuleType, ...]:
    """The packages of all families, in alphabetical order."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__) if module.ispkg)
    return tuple(importlib.import_module(f"{__name__}.{name}") for name in names)


def facts() -> tuple[DeviceFamily, ...]:
    """What compiled programs mean on each family. Imports neither JAX nor the catalogues."""
    return tuple(folder.FACTS for folder in folders())
