"""The compiler for absent NVIDIA GPUs."""

from __future__ import annotations

import re
from dataclasses import replace

from memprof.analysis.records.capture import Target
from memprof.sources.jax.targets.deviceless import DevicelessCompiler
from memprof.sources.jax.targets.nvidia import tools
from memprof.sources.jax.targets.nvidia.options import options_for_gpu
from memprof.sources.jax.xla import xla_adapter

_AMPLE_BYTES = 1 << 50  # 1 PiB; XLA multiplies it by percentages in 64 bits


def with_ample_memory(target: Target) -> Target:
    """Return the same GPU with so much memory that XLA never recomputes values to save memory."""
    config = re.sub(r"\b(device_memory_size:\s*)\d+", rf"\g<1>{_AMPLE_BYTES}", target.compiler_config)
    return replace(target, compiler_config=config)


COMPILER = DevicelessCompiler(
    missing=tools.missing_for_deviceless,
    install=tools.INSTALL_DEVICELESS,
    devices=xla_adapter.gpu_devices,
    tools=lambda: (tools.find_ptxas(), tools.find_libdevice()),
    options=lambda asked, to_the_plan: options_for_gpu(asked, to_the_plan=to_the_plan),
    needs_tools=True,
    with_ample_memory=with_ample_memory,
)
