"""The table of device families, with lookups by platform, by target and by JAX device. Imports no JAX."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable
from functools import cache
from types import ModuleType
from typing import Any

from memprof.analysis.records.capture import Target
from memprof.analysis.records.device_family import family_of
from memprof.sources.jax.targets import folders
from memprof.sources.jax.targets.deviceless import DevicelessCompiler
from memprof.sources.jax.targets.family import Device, Driver, TargetFamily


@cache
def families() -> tuple[TargetFamily, ...]:
    """Return all families: first those with their own memory, then the host."""
    return tuple(sorted(map(_family_in, folders()), key=lambda each: each.facts.is_host))


def _family_in(folder: ModuleType) -> TargetFamily:
    if importlib.util.find_spec(f"{folder.__name__}.family") is None:
        return TargetFamily(facts=folder.FACTS)
    family: TargetFamily = importlib.import_module(f"{folder.__name__}.family").FAMILY
    return family


def target_family(platform: str) -> TargetFamily:
    """Return the family of a platform. For an unknown platform, the family has no compiler."""
    found = (each for each in families() if each.facts.platform == platform)
    return next(found, TargetFamily(facts=family_of(platform)))


def family_of_device(device: Any) -> TargetFamily:
    """Return the family of a present JAX device."""
    found = (each for each in families() if each.jax_platform == device.platform)
    return next(found, TargetFamily(facts=family_of(device.platform), jax_platform=device.platform))


def is_host(device: Any) -> bool:
    """Whether a JAX device is the host's CPU."""
    return family_of_device(device).facts.is_host


def open_drivers() -> tuple[Driver, ...]:
    """Return the drivers' views of this machine's devices. Call it before JAX initialises the devices."""
    return tuple(driver for family in families() for driver in family.open_drivers())


def catalogue() -> dict[str, Device]:
    """Return the devices of all families by name."""
    return {name: device for family in families() for name, device in family.catalogue().items()}


def compiler_of(target: Target) -> DevicelessCompiler | None:
    """Return the compiler for the absent devices of a target, or None for present devices."""
    if not target.is_deviceless:
        return None
    compiler = target_family(target.platform).compiler
    assert compiler is not None, target.platform  # a target is absent only if its family gave it a configuration
    return compiler()


def our_options(target: Target, asked: Iterable[str], *, to_the_plan: bool) -> dict[str, str]:
    """Return our XLA options for a compile; empty if the program may run on a present device.

    Args:
        asked: the names of the step's own options.
        to_the_plan: the compile may end after the plan.
    """
    compiler = compiler_of(target)
    return {} if compiler is None else compiler.options(asked, to_the_plan)
