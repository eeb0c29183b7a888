"""From what the user wrote after `--target` to a target: without touching JAX, so that mistakes are found at once."""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from memprof.capture.targets.gpu import Gpu, gpus
from memprof.errors import MemprofError

LOCAL, CPU = "local", "cpu"
DEFAULT_GPU = "h100-80gb"


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicelessTarget:
    """A GPU that need not be there: `config` is the text of its `GpuTargetConfigProto`."""

    name: str
    description: str
    memory_bytes: int
    compute_capability: str
    config: str


def deviceless_target(name: str) -> DevicelessTarget | None:
    """The target of a catalogue name or of an exported target file; None for `local` and `cpu`.

    Args:
        name: what the user wrote: `h100-80gb`, `path/to/gpu_target_config.pbtxt`, `local` or `cpu`.

    Raises:
        MemprofError: it is neither, or the file is no target.
    """
    if name in (LOCAL, CPU):
        return None
    if name in gpus():
        return _of_gpu(gpus()[name])
    path = Path(name)
    if os.path.isfile(name):  # of a name that is too long, `Path` raises an error
        return _of_file(path)
    known = [*gpus(), LOCAL, CPU]
    close = [other for other in known if other.startswith(name)] or difflib.get_close_matches(name, known, n=1)
    hint = f" (did you mean '{close[0]}'?)" if close else ""
    raise MemprofError(
        f"There is no target '{name}'{hint}: choose from {', '.join(known)}, or give the path of a"
        " gpu_target_config.pbtxt that XLA exported on the real machine."
    )


def with_absolute_path(name: str | None) -> str | None:
    """A target's name, where it is a file's path such that it holds in any working folder."""
    is_file = name is not None and name not in (*gpus(), LOCAL, CPU) and Path(name).is_file()
    return str(Path(name).absolute()) if name is not None and is_file else name


def check_can_run(name: str | None) -> None:
    """Find out whether a step can run on a target.

    Raises:
        MemprofError: it is one that steps are only compiled for, or there is none of that name.
    """
    if name is not None and deviceless_target(name) is not None:
        raise MemprofError(
            f"{name} is a target to compile for; a step runs on a device that is there: use --target {LOCAL} or {CPU},"
            " or leave --steps out"
        )


def _of_gpu(gpu: Gpu) -> DevicelessTarget:
    return DevicelessTarget(
        name=gpu.name,
        description=gpu.description,
        memory_bytes=gpu.memory_bytes,
        compute_capability=gpu.compute_capability,
        config=gpu.target_config(),
    )


def _of_file(path: Path) -> DevicelessTarget:
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
            f"{path} is no GPU target: a text proto with gpu_device_info, its device_memory_size and"
            " cuda_compute_capability was expected (XLA writes one, *.gpu_target_config.pbtxt, when it dumps a program)"
        )
    description = re.search(r'device_description_str:\s*"([^"]*)"', config)
    return DevicelessTarget(
        name=path.stem,
        description=description.group(1) if description else path.name,
        memory_bytes=int(memory.group(1)),
        # A text proto leaves out fields that are 0, such as the minor of 9.0.
        compute_capability=f"{major.group(1)}.{minor.group(1) if minor else 0}",
        config=config,
    )
