"""How the devices of a family are named, described and compiled for: one record for each family, its `FAMILY`.

What a compiled program means is a fact of the family: see `analysis/records/device_family.py`.
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
        description: the vendor's name of the kind of device, by which JAX knows it.
        memory_bytes: None if it has no fixed amount.
        compute_capability: None where there is none.
        source: where its figures come from, in a word.
        devices_per_chip: for devices that form slices; else None.
        peak_flops_per_second: of dense 16-bit matrix products; None if that is unknown.
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
        """The target that it is.

        Raises:
            MemprofError: its devices form no such topology.
        """
        ...


class Driver(Protocol):
    """The driver's view of one device."""

    def read(self) -> DriverMemory:
        """What is in use now, and was when the view was opened."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of `memprof doctor`. `ok` is None if it is neither good nor bad; `advice` says how to mend a fault."""

    what: str
    ok: bool | None
    found: str
    advice: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetFamily:
    """A family of devices, as a target of compiles.

    Attributes:
        jax_platform: JAX's name of the platform of a device that is here; empty if memprof uses no such device.
        catalogue: its devices by name, in the order in which they are listed.
        device_of_kind: the device that JAX gives a description; None if the catalogue has none, or several.
        read_file: the target that a file describes; raises `MemprofError`. None if no file describes devices.
        file_row: how `memprof list targets` names such a file, and what it is.
        compiler: how a step is compiled for absent devices, loaded when it is asked for; None if it cannot be.
        example: the device that `memprof doctor` compiles for; empty: none.
        unlimited: XLA's options that lift the limit of memory where a present device is compiled for.
        packages: distributions of its compiler. A worker elsewhere must have the versions that are here.
        versions: the fields of a `Toolchain` that name the compiler's version; also part of a plan's key.
        open_drivers: what the driver says of the devices of this machine, as JAX numbers them; called before JAX takes
            hold of them.
        findings: the lines of `memprof doctor` about its tools.
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
