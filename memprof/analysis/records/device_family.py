"""The facts that differ between families of devices, one record for each: `FAMILIES`.

    family_of(target.platform).pads_arrays

How a step is compiled for a device of a family that is absent says `capture/xla/deviceless.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

HBM, HOST = "hbm", "host"  # the memory of the device itself, whatever it is made of; and that of its host


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFamily:
    """The facts about a family of devices, as XLA sees it (jaxlib 0.10.2 to 0.12).

    Attributes:
        platform: XLA's name of the platform.
        devices: the word for several of its devices.
        memory_spaces: the name of each memory space by XLA's number of it, which XLA also calls color.
        collective_spaces: the memory spaces that are taken for what devices send each other.
        has_fixed_memory: whether a device has memory of its own, of a fixed size.
        has_peak: whether XLA reports a peak that includes the temporaries.
        has_temp_total: whether XLA's total of the temporaries is the size of the temp allocations.
        has_time_estimate: whether `cost_analysis()` of an executable estimates the time of a step.
        planned_percent: the share of the memory for which XLA plans, before it recomputes values on its own. Of what
            arguments and results leave of it, XLA keeps another 5% free on a GPU (`GetSchedulerMemoryLimit` in
            xla/service/gpu/gpu_hlo_schedule.cc, `xla_gpu_memory_limit_slop_factor`).
        has_share_pool: whether JAX's pool is a share of the device's memory that its variables set.
        pads_arrays: whether an array may take more bytes than its shape says.
        mark: bytes that XLA writes into programs of this platform alone (jaxlib 0.4 to 0.12); empty if it writes none.
    """

    platform: str
    devices: str = "devices"
    memory_spaces: Mapping[int, str] = field(default_factory=lambda: {0: HBM, 5: HOST})
    collective_spaces: frozenset[int] = frozenset()
    has_fixed_memory: bool = True
    has_peak: bool = True
    has_temp_total: bool = True
    has_time_estimate: bool = False
    planned_percent: int = 80
    has_share_pool: bool = False
    pads_arrays: bool = False
    mark: bytes = b""

    def space_of(self, color: int) -> str:
        """The name of a memory space; `space 9` for one that memprof does not know."""
        return self.memory_spaces.get(color, f"space {color}")


# 1 in jaxlib 0.10.2, 7 in 0.12: what collectives work on, which NCCL allocates. 2: temporaries, with the flag
# xla_gpu_temp_buffer_use_separate_color (xla/service/gpu/gpu_memory_space_assignment.h). 5: xla/layout.h.
_OF_GPU = {0: HBM, 1: HBM, 2: HBM, 7: HBM, 5: HOST}
NVIDIA = DeviceFamily(
    platform="cuda",
    devices="GPUs",
    memory_spaces=_OF_GPU,
    collective_spaces=frozenset({1, 7}),
    has_share_pool=True,
    mark=b'"operation_queue_id"',
)
AMD = DeviceFamily(platform="rocm", devices="GPUs", memory_spaces=_OF_GPU, collective_spaces=frozenset({1, 7}))
TPU = DeviceFamily(
    platform="tpu",
    devices="TPUs",
    # By libtpu's memory report (0.0.42 to 0.0.50), but for 3, which is v4's CMEM; it has no names for others.
    memory_spaces={0: HBM, 1: "vmem", 2: "smem", 3: "cmem", 5: HOST},
    has_temp_total=False,
    has_time_estimate=True,
    planned_percent=95,  # by its log: "rematerialization limit = 95% hbm - ..."
    pads_arrays=True,
    mark=b'"scoped_memory_configs"',
)
CPU = DeviceFamily(
    platform="cpu",
    memory_spaces=_OF_GPU,
    collective_spaces=frozenset({1, 7}),
    has_fixed_memory=False,
    has_peak=False,
)
FAMILIES = (NVIDIA, AMD, TPU, CPU)


def family_of(platform: str) -> DeviceFamily:
    """The family of a platform; for an unknown platform one with the default facts."""
    return next((each for each in FAMILIES if each.platform == platform), DeviceFamily(platform=platform))
