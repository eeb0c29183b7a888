"""The catalogue of TPUs: facts as records, and the slices that their chips form.

XLA compiles for an absent TPU if it receives the name of the chip and the topology of the slice: `v5e:2x4`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from math import prod

from memprof.analysis.records.capture import Speeds, Target, Topology
from memprof.errors import MemprofError
from memprof.sources.jax.targets.tpu import FACTS

# Chips of one host, along each dimension of a slice.
_HOST = (2, 2, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tpu:
    """Facts of one TPU device, as JAX presents it (see tpus.toml).

    Attributes:
        reserved_bytes: the part of its HBM that is not available to programs.
        chip_bytes: the memory on the chip, by memory space.
        kernel_vmem_bytes: the part of it available to a kernel that sets no limit itself.
        cores: number of devices per chip.
        dimensions: number of dimensions of a slice.
        options: further options for libtpu, besides the name of the chip.
        link_bytes_per_second: bandwidth of the links, or None if it is not published.
    """

    name: str
    description: str
    memory_bytes: int
    reserved_bytes: int
    chip_bytes: Mapping[str, int]
    kernel_vmem_bytes: int
    cores: int
    dimensions: int
    bandwidth_bytes_per_second: float
    operations_per_second: Mapping[str, float]
    link_bytes_per_second: float | None = None
    host_bytes_per_second: float | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def peak_flops_per_second(self) -> float:
        """The peak of dense 16-bit matrix products."""
        return self.operations_per_second["bf16"]

    @property
    def speeds(self) -> Speeds | None:
        """The speeds for the roofline bound, or None if a link's speed is not published."""
        if self.link_bytes_per_second is None or self.host_bytes_per_second is None:
            return None
        bf16 = self.peak_flops_per_second
        return Speeds(
            # A float32 product consists of bfloat16 products: one at JAX's default precision, three or six at others.
            operations_per_second={"f32": bf16 / 3, "tf32": bf16, **self.operations_per_second},
            memory_bytes_per_second=self.bandwidth_bytes_per_second,
            link_bytes_per_second=self.link_bytes_per_second,
            host_bytes_per_second=self.host_bytes_per_second,
        )

    @property
    def compute_capability(self) -> str | None:
        """None: TPUs have no compute capability."""
        return None

    @property
    def source(self) -> str:
        """The origin of most of its figures (see tpus.toml)."""
        return "jax"

    @property
    def devices_per_chip(self) -> int | None:
        """The number of devices per chip of a slice."""
        return self.cores

    def target(self, reason: str, topology: Topology = Topology()) -> Target:  # noqa: B008 - a value
        """Return this device as a target, absent or present.

        Raises:
            MemprofError: its chips cannot form such a slice.
        """
        chips = chips_of(self, topology)
        num_hosts = topology.num_slices * (prod(chips) // prod(host_bounds(chips)))
        if topology.num_hosts not in (1, num_hosts):
            raise MemprofError(
                f"{topology.num_devices} devices of {self.name} are on {num_hosts} "
                f"host{'' if num_hosts == 1 else 's'}, but {topology.num_hosts} were given: leave out the hosts, "
                "which follow from the topology"
            )
        return Target(
            name=self.name,
            description=self.description,
            platform=FACTS.platform,
            memory_bytes=self.memory_bytes,
            reserved_bytes=self.reserved_bytes,
            chip_bytes=self.chip_bytes,
            kernel_vmem_bytes=self.kernel_vmem_bytes,
            compute_capability=None,
            reason=reason,
            topology=Topology(
                num_devices=topology.num_devices,
                num_hosts=num_hosts if topology.num_devices > 1 else 1,
                num_slices=topology.num_slices,
                axes=topology.axes,
                chips=chips if topology.num_devices > 1 else (),
            ),
            compiler_config=self.name,
            speeds=self.speeds,
        )


@cache
def tpus() -> dict[str, Tpu]:
    """Return all TPUs of the catalogue by name, the oldest first."""
    text = resources.files(__package__).joinpath("tpus.toml").read_text(encoding="utf-8")
    return {name: Tpu(name=name, **facts) for name, facts in tomllib.loads(text).items()}


def tpu_of_kind(device_kind: str) -> Tpu | None:
    """Return the catalogue's record of a device by JAX's name for it, or None."""
    return next((tpu for tpu in tpus().values() if tpu.description == device_kind), None)


def chips_of(tpu: Tpu, topology: Topology) -> tuple[int, ...]:
    """Return the number of chips along each dimension of a slice: the requested ones, or as even as possible.

    Raises:
        MemprofError: the devices do not fill such a slice.
    """
    per_slice, rest = divmod(topology.num_devices, topology.num_slices)
    if rest:
        raise MemprofError(
            f"{topology.num_devices} devices are not divided evenly by {topology.num_slices} slices: give a multiple"
        )
    if topology.chips:
        return _checked(tpu, topology.chips, per_slice)
    if per_slice % tpu.cores and per_slice > 1:
        raise MemprofError(
            f"a chip of {tpu.name} has {tpu.cores} devices, but {per_slice} are not a whole number of chips: give a "
            "multiple"
        )
    num_chips = max(per_slice // tpu.cores, 1)
    return _most_even(num_chips, tpu.dimensions)


def _checked(tpu: Tpu, chips: tuple[int, ...], per_slice: int) -> tuple[int, ...]:
    text = "x".join(map(str, chips))
    if len(chips) != tpu.dimensions:
        example = "x".join(["2"] * tpu.dimensions)
        raise MemprofError(
            f"a slice of {tpu.name} has {tpu.dimensions} dimensions, but --topology {text} has {len(chips)}: write "
            f"it as {example}"
        )
    num_devices = prod(chips) * tpu.cores
    if per_slice not in (1, num_devices):
        raise MemprofError(
            f"--topology {text} of {tpu.name} has {num_devices} devices, but the mesh has {per_slice} per slice: "
            "make both equal"
        )
    return chips


def _most_even(num_chips: int, dimensions: int) -> tuple[int, ...]:
    """Return the most even factors of a number, in ascending order, as slices are written: 2x4, 2x2x4."""
    if dimensions == 1:
        return (num_chips,)
    best: tuple[int, ...] = ()
    for first in range(1, round(num_chips ** (1 / dimensions)) + 1):
        if num_chips % first == 0:
            rest = _most_even(num_chips // first, dimensions - 1)
            found = tuple(sorted((first, *rest)))
            if not best or sum(found) < sum(best):
                best = found
    # A slice of one host has one layer along the last dimension: 2x2x1.
    ones = best.count(1)
    return (*best[ones:], *best[:ones]) if dimensions == len(_HOST) else best


def host_bounds(chips: tuple[int, ...]) -> tuple[int, int, int]:
    """Return the number of a host's chips along each dimension: 2x2 if this divides the slice, else the slice."""
    sizes = (*chips, *[1] * (len(_HOST) - len(chips)))
    fits = all(size % of_host == 0 for size, of_host in zip(sizes, _HOST, strict=True))
    if fits:
        return _HOST
    first, second, third = sizes
    return first, second, third
