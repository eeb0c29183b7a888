"""GPUs described by a file that XLA wrote, `*.gpu_target_config.pbtxt`."""

from __future__ import annotations

import re
from pathlib import Path

from memprof.analysis.records.capture import Target, Topology
from memprof.errors import MemprofError
from memprof.sources.jax.targets.nvidia import FACTS
from memprof.sources.jax.targets.nvidia.catalogue import gpu_of_kind


def read_file(name: str, topology: Topology) -> Target:
    """Return the GPU that a file of XLA describes.

    Raises:
        MemprofError: the file cannot be read, or is not a target.
    """
    path = Path(name)
    try:
        config = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise MemprofError(f"the target file {path} cannot be read as text: {error}") from error
    memory = re.search(r"\bdevice_memory_size:\s*(\d+)", config)
    major, minor = (
        re.search(rf"cuda_compute_capability\s*\{{[^}}]*\b{part}:\s*(\d+)", config) for part in ("major", "minor")
    )
    if not (memory and major and "gpu_device_info" in config):
        raise MemprofError(
            f"{path} is not a GPU target: a text proto with gpu_device_info, its device_memory_size and"
            " cuda_compute_capability was expected (XLA writes one, *.gpu_target_config.pbtxt, when it dumps a program)"
        )
    description = re.search(r'device_description_str:\s*"([^"]*)"', config)
    kind = description.group(1) if description else path.name
    known = gpu_of_kind(kind)
    return Target(
        name=path.stem,
        description=kind,
        platform=FACTS.platform,
        memory_bytes=int(memory.group(1)),
        # A text proto omits fields that are 0, such as the minor version of 9.0.
        compute_capability=f"{major.group(1)}.{minor.group(1) if minor else 0}",
        reason="asked for",
        topology=topology,
        compiler_config=config,
        file=name,
        speeds=None if known is None else known.speeds,
    )
