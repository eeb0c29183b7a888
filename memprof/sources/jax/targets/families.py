"""The table of device families: that of a platform, of a name, of a device of JAX. Imports no JAX."""

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
    """All families: those with memory of their own, then the host."""
    return tuple(sorted(map(_family_in, folders()), key=lambda each: each.facts.is_host))


def _family_in(folder: ModuleType) -> TargetFamily:
    if importlib.util.find_spec(f"{folder.__name__}.family") is None:
        return TargetFamily(facts=folder.FACTS)
    family: TargetFamily = importlib.import_module(f"{folder.__name__}.family").FAMILY
    return family


def target_family(platform: str) -> TargetFamily:
    """The family of a platform; for an unknown platform one that cannot be compiled for."""
    found = (each for each in families() if each.facts.platform == platform)
    return next(found, TargetFamily(facts=family_of(platform)))


def family_of_device(device: Any) -> TargetFamily:
    """The family of a device of JAX that is here."""
    found = (each for each in families() if each.jax_platform == device.platform)
    return next(found, TargetFamily(facts=family_of(device.platform), jax_platform=device.platform))


def is_host(device: Any) -> bool:
    """Whether a device of JAX is the processor of the host."""
    return family_of_device(device).facts.is_host


def open_drivers() -> tuple[Driver, ...]:
    """What drivers say of the devices of this machine; to be called before JAX takes hold of them."""
    return tuple(driver for family in families() for driver in family.open_drivers())


def catalogue() -> dict[str, Device]:
    """The devices of all families by name."""
    return {name: device for family in families() for name, device in family.catalogue().items()}


def compiler_of(target: Target) -> DevicelessCompiler | None:
    """The compiler for the absent devices of a target; None for devices that are here."""
    if not target.is_deviceless:
        return None
    compiler = target_family(target.platform).compiler
    assert compiler is not None, target.platform  # a target is absent only if its family gave it a configuration
    return compiler()


def our_options(target: Target, asked: Iterable[str], *, to_the_plan: bool) -> dict[str, str]:
    """XLA's options of ours for a compile; none where the program may run.

    Args:
        asked: the names of the options that the step asks for.
        to_the_plan: whether what comes after the plan is of no interest.
    """
    compiler = compiler_of(target)
    return {} if compiler is None else compiler.options(asked, to_the_plan)
