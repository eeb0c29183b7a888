"""Device families: the names, descriptions and compiler of a family's devices, as one record, its `FAMILY`.

The facts needed to read compiled programs are in `analysis/records/device_family.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from memprof.analysis.records.capture import Target, Topology
from memprof.analysis.records.device_family import DeviceFamily
from memprof.analysis.records.measurement import DriverMemory
from memprof.sources.jax.targets.deviceless import DevicelessCompiler


class Device(Protocol):
    """One entry of a family's catalogue.

    Attributes:
        description: the vendor's name of the device, as JAX reports it.
        memory_bytes: size of its memory, or None if it has no fixed amount.
        compute_capability: its CUDA compute capability, or None.
        source: the origin of its figures, in a word.
        devices_per_chip: number of devices per chip if the devices form slices, else None.
        peak_flops_per_second: peak of dense 16-bit matrix products, or None if unknown.
    """

    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def memory_bytes(self) -> int | None: ...
    @property
    def compute_capability(self) -> str | None: ...
    @property
    def source(self) -> str: ...
    @property
    def devices_per_chip(self) -> int | None: ...
    @property
    def peak_flops_per_second(self) -> float | None: ...

    def target(self, reason: str, topology: Topology = ...) -> Target:
        """Return this device as a target.

        Raises:
            MemprofError: its devices cannot form this topology.
        """
        ...


class Driver(Protocol):
    """The driver's view of one device."""

    def read(self) -> DriverMemory:
        """Return the memory in use now, and when the view was opened."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of `memprof doctor`. `ok` is None if it is neither good nor bad; `advice` says how to fix a problem."""

    what: str
    ok: bool | None
    found: str
    advice: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetFamily:
    """A family of devices, as a target of compiles.

    Attributes:
        jax_platform: JAX's platform name of present devices; empty if memprof does not use them.
        catalogue: returns its devices by name, in the order of listings.
        device_of_kind: returns the device with a JAX description, or None if the catalogue has none or several.
        read_file: returns the target that a file describes, or raises `MemprofError`; None if the family has no files.
        file_row: name and description of such a file in `memprof list targets`.
        compiler: loads the compiler for absent devices; None if there is none.
        example: the device that `memprof doctor` compiles for; empty: none.
        unlimited: XLA options that lift the memory limit of a compile for a present device.
        packages: distributions of its compiler. Remote workers must have the same versions as this machine.
        versions: returns the fields of a `Toolchain` that hold the compiler's version; they are part of a plan's key.
        open_drivers: returns the driver's views of this machine's devices, in JAX's order; called before JAX
            initialises the devices.
        findings: returns the lines of `memprof doctor` about its tools.
    """

    facts: DeviceFamily
    jax_platform: str = ""
    catalogue: Callable[[], Mapping[str, Device]] = dict
    device_of_kind: Callable[[str], Device | None] = lambda kind: None
    read_file: Callable[[str, Topology], Target] | None = None
    file_row: tuple[str, str] = ("", "")
    compiler: Callable[[], DevicelessCompiler] | None = None
    example: str = ""
    unlimited: Mapping[str, Any] = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    versions: Callable[[], Mapping[str, str | None]] = dict
    open_drivers: Callable[[], Sequence[Driver]] = tuple
    findings: Callable[[], Sequence[Finding]] = tuple
