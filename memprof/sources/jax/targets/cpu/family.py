"""The host's CPU as a target: steps are compiled and run on the machine where memprof runs."""

from __future__ import annotations

from dataclasses import dataclass

from memprof.analysis.records.capture import Target, Topology
from memprof.sources.jax.targets.cpu import FACTS
from memprof.sources.jax.targets.family import Device, TargetFamily
from memprof.sources.jax.targets.nvidia.family import UNLIMITED, versions


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The only device of its catalogue."""

    name: str = "cpu"
    description: str = "host CPU"
    memory_bytes: int | None = None
    compute_capability: str | None = None
    source: str = ""
    devices_per_chip: int | None = None
    peak_flops_per_second: float | None = None

    def target(self, reason: str, topology: Topology = Topology()) -> Target:  # noqa: B008 - a value
        """Return the host as one device. The code that runs a step decides how many devices the host presents."""
        return Target(
            name=self.name,
            description=self.description,
            platform=FACTS.platform,
            memory_bytes=None,
            compute_capability=None,
            reason=reason,
        )


_HOST: dict[str, Device] = {"cpu": Host()}
FAMILY = TargetFamily(
    facts=FACTS, jax_platform="cpu", catalogue=lambda: _HOST, example="cpu", unlimited=UNLIMITED, versions=versions
)
