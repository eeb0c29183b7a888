"""Facts about compiled programs that differ between families of devices, as one record per family.

    family_of(target.platform).pads_arrays

`import memprof` registers the facts of all families from their folders (`targets/nvidia/`, `targets/tpu/`). Code looks
up a fact here instead of comparing platform names. The same folders hold the code that compiles a step for a family.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

HBM, HOST = "hbm", "host"  # the memory of the device itself, of any technology; and the memory of its host
# By XLA's number of a memory space, for GPUs and the CPU. 1 in jaxlib 0.10.2 and 7 in 0.12 hold
# the buffers of collectives, which NCCL allocates. 2 holds temporaries, with the flag
# xla_gpu_temp_buffer_use_separate_color (xla/service/gpu/gpu_memory_space_assignment.h). 5 is from xla/layout.h.
SPACES_OF_GPU = {0: HBM, 1: HBM, 2: HBM, 7: HBM, 5: HOST}
COLLECTIVES_OF_GPU = frozenset({1, 7})


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFamily:
    """Facts about a family of devices in XLA.

    Attributes:
        platform: XLA's name of the platform.
        device: the word for one of its devices.
        memory_spaces: the name of each memory space by XLA's number, which XLA also calls color.
        collective_spaces: the memory spaces that hold the buffers of collectives.
        is_host: whether it is the processor that runs JAX itself, so that its memory is the host's.
        has_cuda: whether its programs call CUDA's libraries, and its devices have CUDA's compute capabilities.
        has_peak: whether XLA reports a peak that includes the temporaries.
        has_temp_total: whether XLA's total of the temporaries is the size of the temp allocations.
        has_schedule_options: whether XLA has options to order operations for memory.
        has_time_estimate: whether `cost_analysis()` of an executable estimates the time of a step.
        planned_percent: the percentage of the memory for which XLA plans before it recomputes values by itself, unless
            jaxlib tells it the size of JAX's pool. On a GPU, XLA reserves another 5% of the part that remains after
            arguments and results
            (`GetSchedulerMemoryLimit` in xla/service/gpu/gpu_hlo_schedule.cc, `xla_gpu_memory_limit_slop_factor`).
        has_share_pool: whether JAX's pool is a share of the device's memory, set by environment variables.
        offloads: whether advice and plans offer host memory for arrays.
        pads_arrays: whether an array may take more bytes than its shape implies.
        device_files: a pattern for the names of its device files in /dev on Linux; empty if it has none.
        mark: bytes that XLA writes only into programs for this platform (jaxlib 0.4 to 0.12); empty if there are none.
        dumped_as: a regular expression for the platform's name in the files of XLA's dumps; empty if it has no name
            there. The group `capability` is the compute capability.
    """

    platform: str
    device: str = "device"
    memory_spaces: Mapping[int, str] = field(default_factory=lambda: {0: HBM, 5: HOST})
    collective_spaces: frozenset[int] = frozenset()
    is_host: bool = False
    has_cuda: bool = False
    has_peak: bool = True
    has_temp_total: bool = True
    has_schedule_options: bool = False
    has_time_estimate: bool = False
    planned_percent: int = 80
    has_share_pool: bool = False
    offloads: bool = False
    pads_arrays: bool = False
    device_files: str = ""
    mark: bytes = b""
    dumped_as: str = ""

    @property
    def devices(self) -> str:
        """The word for several of its devices."""
        return f"{self.device}s"

    @property
    def has_fixed_memory(self) -> bool:
        """Whether a device has memory of its own, of a fixed size."""
        return not self.is_host

    def space_of(self, color: int) -> str:
        """Return the name of a memory space; `space 9` for an unknown one."""
        return self.memory_spaces.get(color, f"space {color}")


# For programs of an unknown device: the memory spaces of GPUs and the CPU.
ANY = DeviceFamily(platform="", memory_spaces=SPACES_OF_GPU, collective_spaces=COLLECTIVES_OF_GPU)
_FAMILIES: dict[str, DeviceFamily] = {}  # by platform


def add_families(families: Iterable[DeviceFamily]) -> None:
    """Register the facts of families. A later record of a platform replaces an earlier one."""
    _FAMILIES.update({each.platform: each for each in families})


def all_families() -> tuple[DeviceFamily, ...]:
    """Return the facts of all registered families."""
    return tuple(_FAMILIES.values())


def family_of(platform: str) -> DeviceFamily:
    """Return the family of a platform; an unknown platform gets the default facts."""
    return _FAMILIES.get(platform) or DeviceFamily(platform=platform)
