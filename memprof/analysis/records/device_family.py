"""What a compiled program means on each family of devices: facts that differ, as one record for each family.

    family_of(target.platform).pads_arrays

`import memprof` adds the facts of all families, which their folders hold (`targets/nvidia/`, `targets/tpu/`). Code asks
for a fact here and compares no names of platforms. How a step is compiled for a family is in the same folders.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

HBM, HOST = "hbm", "host"  # the memory of the device itself, whatever it is made of; and that of its host
# By XLA's number of a memory space, for GPUs and the CPU (jaxlib 0.10.2 to 0.12). 1 in jaxlib 0.10.2 and 7 in 0.12:
# what collectives work on, which NCCL allocates. 2: temporaries, with the flag xla_gpu_temp_buffer_use_separate_color
# (xla/service/gpu/gpu_memory_space_assignment.h). 5: xla/layout.h.
SPACES_OF_GPU = {0: HBM, 1: HBM, 2: HBM, 7: HBM, 5: HOST}
COLLECTIVES_OF_GPU = frozenset({1, 7})


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFamily:
    """The facts about a family of devices, as XLA sees it (jaxlib 0.10.2 to 0.12).

    Attributes:
        platform: XLA's name of the platform.
        device: the word for one of its devices.
        memory_spaces: the name of each memory space by XLA's number of it, which XLA also calls color.
        collective_spaces: the memory spaces that are taken for what devices send each other.
        is_host: whether it is the processor that JAX itself runs on, with the host's memory in place of its own.
        has_cuda: whether its programs call CUDA's libraries, and its devices have CUDA's compute capabilities.
        has_peak: whether XLA reports a peak that includes the temporaries.
        has_temp_total: whether XLA's total of the temporaries is the size of the temp allocations.
        has_schedule_options: whether options of XLA make it order operations for memory.
        has_time_estimate: whether `cost_analysis()` of an executable estimates the time of a step.
        planned_percent: the share of the memory for which XLA plans, before it recomputes values on its own. Of what
            arguments and results leave of it, XLA keeps another 5% free on a GPU (`GetSchedulerMemoryLimit` in
            xla/service/gpu/gpu_hlo_schedule.cc, `xla_gpu_memory_limit_slop_factor`).
        has_share_pool: whether JAX's pool is a share of the device's memory that its variables set.
        offloads_state: whether advice offers host memory for the optimizer state.
        pads_arrays: whether an array may take more bytes than its shape says.
        device_files: the files in /dev by which Linux shows its devices, as a pattern of names; empty: none.
        mark: bytes that XLA writes into programs of this platform alone (jaxlib 0.4 to 0.12); empty if it writes none.
        dumped_as: how XLA names the platform in the files of its dumps, a regular expression; empty: not at all. A
            group `capability` is the compute capability.
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
    offloads_state: bool = False
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
        """The name of a memory space; `space 9` for one that memprof does not know."""
        return self.memory_spaces.get(color, f"space {color}")


# For programs whose device nobody names: the numbers of GPUs and the CPU.
ANY = DeviceFamily(platform="", memory_spaces=SPACES_OF_GPU, collective_spaces=COLLECTIVES_OF_GPU)
_FAMILIES: dict[str, DeviceFamily] = {}  # by platform


def add_families(families: Iterable[DeviceFamily]) -> None:
    """Make the facts of families known. A later record of a platform replaces an earlier one."""
    _FAMILIES.update({each.platform: each for each in families})


def all_families() -> tuple[DeviceFamily, ...]:
    """The facts of all families that are known."""
    return tuple(_FAMILIES.values())


def family_of(platform: str) -> DeviceFamily:
    """The family of a platform; for an unknown platform one with the default facts."""
    return _FAMILIES.get(platform) or DeviceFamily(platform=platform)
