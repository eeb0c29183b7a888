"""The plan of a program: from the user's cache if it was compiled before, otherwise a new one.

A plan's key includes everything that determines the plan. The key is conservative: the module includes the source lines
that reports name, and the compile options include JAX's settings. The only part of memprof in the key is its XLA
options.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from memprof.analysis.records.capture import Capture, Target
from memprof.sources.jax.targets.families import compiler_of, our_options, target_family
from memprof.sources.jax.xla.plan import Plan, PlannedStep
from memprof.sources.jax.xla.plan_cache import PlanCache
from memprof.sources.jax.xla.portable_program import PlanTask, PortableProgram
from memprof.sources.jax.xla.toolchain import installed_version

_OF_XLA = re.compile(r"(XLA|TF|TPU|LIBTPU|PJRT|CUDA|NVIDIA|CUDNN|CUBLAS|OMP|MKL|ONEDNN|DNNL)_.*|NPROC")
# Variables that do not affect a plan: allocators, logging, and the path of libtpu, which is a separate part of the key.
_IGNORED_VARIABLES = re.compile(r"XLA_PYTHON_CLIENT_.*|TF_CPP_.*|TPU_LIBRARY_PATH")
# Fields of /proc/cpuinfo on x86 and Arm.
_CPU_FACTS = ("vendor_id", "model name", "flags", "CPU implementer", "CPU part", "Features")


Progress = Callable[[str], None]
WAITING = "waiting for an identical compile"  # a stage


def planned_step(
    lowered: Capture, program: PortableProgram, task: PlanTask, make: Callable[[], Plan], *, progress: Progress
) -> PlannedStep:
    """Return a step with the plan in the user's cache, or with a new plan, which is then cached.

    Args:
        lowered: the capture before the compile.
        program: the same step, in a form that any process can compile.
        make: compiles the program according to the task.
        progress: called with a stage while another process makes the plan.

    Raises:
        MemprofError: an environment variable has an invalid folder or size for the cache.
        Exception: whatever `make` raises.
    """
    if task.settings.complete or not task.settings.use_cache:
        return PlannedStep(lowered=lowered, plan=make())
    key = plan_key(program, task.target, task.options)
    plan = PlanCache.of_user().find_or_make(key, make, waiting=lambda: progress(WAITING))
    return PlannedStep(lowered=lowered, plan=plan, cache_key=key)


def plan_key(program: PortableProgram, target: Target, asked: Mapping[str, Any]) -> str:
    """Return the key of a program's plan.

    Args:
        target: a target other than an accelerator of this machine, on which XLA may run trials.
        asked: XLA options that the step requests.
    """
    compiler = compiler_of(target)
    topology = target.topology
    facts = {
        "module": hashlib.sha256(program.module).hexdigest(),
        "partitioned calls": hashlib.sha256(program.partitioned_calls).hexdigest(),
        "compile options": program.compile_options.hex(),
        "memory limit": program.memory_limit_bytes,
        "options": [asked, our_options(target, asked, to_the_plan=True)],
        "platform": target.platform,
        "device": _host() if compiler is None else target.compiler_config,
        "topology": [topology.num_devices, topology.num_hosts, topology.num_slices, *topology.chips],
        "versions": [
            installed_version("jax"),
            installed_version("jaxlib"),
            *target_family(target.platform).versions().values(),
        ],
        "tools": [] if compiler is None else [*map(_identity, compiler.tools())],
        "environment": _environment(),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=repr).encode()).hexdigest()


def _host() -> list[str]:
    """Return the properties of this processor that XLA detects."""
    num_processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    facts = [platform.machine(), f"{num_processors} processors"]
    try:
        first, _, _ = Path("/proc/cpuinfo").read_text(errors="replace").partition("\n\n")
    except OSError:
        return [*facts, platform.processor()]
    return [*facts, *(line for line in first.splitlines() if line.partition(":")[0].strip() in _CPU_FACTS)]


def _identity(tool: Path | None) -> list[str | int]:
    """Identify a tool by its path and size: another version has another size."""
    return [] if tool is None else [str(tool), tool.stat().st_size]


def _environment() -> dict[str, str]:
    """Return the environment variables that XLA reads, with the content of a flags file."""
    found = {
        name: value
        for name, value in os.environ.items()
        if _OF_XLA.fullmatch(name) and not _IGNORED_VARIABLES.fullmatch(name)
    }
    flags = found.get("XLA_FLAGS", "").strip()
    if flags and not flags.startswith("-"):
        with suppress(OSError):  # XLA reports a file that cannot be read
            found["the file named by XLA_FLAGS"] = Path(flags).read_text(errors="replace")
    return found
