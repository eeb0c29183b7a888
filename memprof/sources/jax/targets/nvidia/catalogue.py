"""The catalogue of GPUs: facts as records, and their text form for XLA.

XLA compiles for an absent GPU if it receives a `stream_executor.GpuTargetConfigProto` in text form. The same program
has different peaks on different GPUs, even of one compute capability, so the catalogue has exact facts for each GPU.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

from memprof.analysis.records.capture import Speeds, Target, Topology
from memprof.sources.jax.targets.nvidia import FACTS


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """Facts of one GPU. `source` is their origin: `xla` or `datasheet` (see gpus.toml).

    Targets are made from this record. It also describes the device that a step ran on, whose target is `local`, and
    holds facts that only XLA needs, for absent devices.

    `operations_per_second` holds peaks by dtype. The bandwidths of links count one direction. The origin of both is
    `speeds_source`.
    """

    name: str
    description: str
    compute_capability: str
    num_multiprocessors: int
    fp32_units_per_multiprocessor: int
    memory_bytes: int
    bandwidth_bytes_per_second: int
    l2_cache_bytes: int
    clock_ghz: float
    shared_memory_per_multiprocessor_bytes: int
    shared_memory_per_block_optin_bytes: int
    threads_per_multiprocessor: int
    source: str
    operations_per_second: Mapping[str, float]
    link_bytes_per_second: float
    host_bytes_per_second: float
    speeds_source: str

    @property
    def peak_flops_per_second(self) -> float | None:
        """The peak of dense 16-bit matrix products, or None if it has no units for them."""
        return self.operations_per_second.get("bf16", self.operations_per_second.get("f16"))

    @property
    def speeds(self) -> Speeds:
        """The speeds for the roofline bound."""
        return Speeds(
            operations_per_second=self.operations_per_second,
            memory_bytes_per_second=self.bandwidth_bytes_per_second,
            link_bytes_per_second=self.link_bytes_per_second,
            host_bytes_per_second=self.host_bytes_per_second,
        )

    @property
    def devices_per_chip(self) -> int | None:
        """None: GPUs form no slices."""
        return None

    def target(self, reason: str, topology: Topology = Topology()) -> Target:  # noqa: B008 - a value
        """Return this GPU as a target, absent or present."""
        return Target(
            name=self.name,
            description=self.description,
            platform=FACTS.platform,
            memory_bytes=self.memory_bytes,
            compute_capability=self.compute_capability,
            reason=reason,
            topology=topology,
            compiler_config=self.target_config(),
            speeds=self.speeds,
        )

    def target_config(self) -> str:
        """Return the text of a `stream_executor.GpuTargetConfigProto`.

        `device_interconnect_info` is omitted: with it, compiling for 64 devices crashes the process.
        `runtime_version` is required: without it XLA silently compiles matrix products in another way.
        """
        major, minor = self.compute_capability.split(".")
        return f"""
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: {self.shared_memory_per_multiprocessor_bytes}
  threads_per_core_limit: {self.threads_per_multiprocessor}
  core_count: {self.num_multiprocessors}
  fpus_per_core: {self.fp32_units_per_multiprocessor}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: {self.bandwidth_bytes_per_second}
  l2_cache_size: {self.l2_cache_bytes}
  clock_rate_ghz: {self.clock_ghz}
  device_memory_size: {self.memory_bytes}
  shared_memory_per_block_optin: {self.shared_memory_per_block_optin_bytes}
  cuda_compute_capability {{ major: {major} minor: {minor} }}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 patch: 2 }}
runtime_version {{ major: 13 minor: 0 patch: 0 }}
device_description_str: "{self.description}"
"""


@cache
def gpus() -> dict[str, Gpu]:
    """Return all GPUs of the catalogue by name, in alphabetical order."""
    text = resources.files(__package__).joinpath("gpus.toml").read_text(encoding="utf-8")
    return {name: Gpu(name=name, **facts) for name, facts in sorted(tomllib.loads(text).items())}


def gpu_of_kind(device_kind: str) -> Gpu | None:
    """Return the catalogue's record of a device by the vendor's name for it, or None if there is none or several.

    The driver's name may be shorter than the catalogue's (`NVIDIA H200` for `NVIDIA H200 141GB HBM3e`).
    """
    same = [gpu for gpu in gpus().values() if gpu.description == device_kind]
    longer = [gpu for gpu in gpus().values() if gpu.description.startswith(f"{device_kind} ")]
    found = same or longer
    return found[0] if len(found) == 1 else None
