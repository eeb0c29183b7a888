"""The available workloads, techniques and optimizers.

Workloads and techniques are found by scanning their packages. To add one, add a file with its constant, or another
technique to the file of its family. Nothing here imports jax; a scanned file that does would slow down every listing.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Iterable
from dataclasses import replace
from types import ModuleType
from typing import Any, TypeVar

from memprof.errors import unknown_name
from memprof.workloads import models as models_package
from memprof.workloads import techniques as techniques_package
from memprof.workloads.optimizers.catalogue import OPTIMIZERS, Optimizer
from memprof.workloads.technique import Technique
from memprof.workloads.workload import Workload

_Named = TypeVar("_Named", Workload[Any], Technique, Optimizer)


@functools.cache
def workloads() -> tuple[Workload[Any], ...]:
    """Return all workloads, by name."""
    return _sorted_by_name(_constants(models_package, "WORKLOAD").values())


@functools.cache
def techniques() -> tuple[Technique, ...]:
    """Return all techniques: the baseline first, then by family and name."""
    families = _constants(techniques_package, "TECHNIQUES")
    found = _sorted_by_name(replace(each, family=family) for family, own in families.items() for each in own)
    return tuple(sorted(found, key=lambda technique: (technique.family != "baseline", technique.family)))


@functools.cache
def optimizers() -> tuple[Optimizer, ...]:
    """Return all optimizers, memprof's own and those of optax, by name."""
    return _sorted_by_name(OPTIMIZERS)


def workload(name: str) -> Workload[Any]:
    """Return the workload of that name; raise `MemprofError` if there is none."""
    return _find("workload", name, workloads())


def technique(name: str) -> Technique:
    """Return the technique of that name; raise `MemprofError` if there is none."""
    return _find("technique", name, techniques())


def optimizer(name: str) -> Optimizer:
    """Return the optimizer of that name; raise `MemprofError` if there is none."""
    return _find("optimizer", name, optimizers())


def technique_names() -> tuple[str, ...]:
    """Return the spelling of each technique, in the order of `techniques`."""
    return tuple(technique.usage for technique in techniques())


def _find(kind: str, name: str, found: tuple[_Named, ...]) -> _Named:
    for candidate in found:
        if candidate.name == name:
            return candidate
    raise unknown_name(kind, name, (candidate.name for candidate in found))


def _sorted_by_name(found: Iterable[_Named]) -> tuple[_Named, ...]:
    return tuple(sorted(found, key=lambda candidate: candidate.name))


def _constants(package: ModuleType, constant: str) -> dict[str, Any]:
    names = [info.name for info in pkgutil.iter_modules(package.__path__)]
    return {name: getattr(importlib.import_module(f"{package.__name__}.{name}"), constant) for name in names}
