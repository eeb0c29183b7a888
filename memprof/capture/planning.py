"""The plan of a program: the one in the user's cache, where it has been compiled before, else a new one.

What determines a plan is its key. In doubt two keys differ: the module has the source lines that reports name, the
options of the compile have JAX's settings. Of memprof there is nothing in it but what it asks of XLA.
"""

from __future__ import annotations

import functools
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
from memprof.capture.targets.families import compiler_of, our_options, target_family
from memprof.capture.xla.plan import Plan, with_plan
from memprof.capture.xla.plan_cache import PlanCache
from memprof.capture.xla.portable_program import PlanTask, PortableProgram
from memprof.capture.xla.toolchain import installed_version
from memprof.errors import MemprofError

_OF_XLA = re.compile(r"(XLA|TF|TPU|LIBTPU|PJRT|CUDA|NVIDIA|CUDNN|CUBLAS|OMP|MKL|ONEDNN|DNNL)_.*|NPROC")
# Where allocators take memory from, what is logged, and libtpu, which is a tool of its own in the key.
_WITHOUT_A_SAY = re.compile(r"XLA_PYTHON_CLIENT_.*|TF_CPP_.*|TPU_LIBRARY_PATH")
# Of /proc/cpuinfo, on x86 and on Arm.
_CPU_FACTS = ("vendor_id", "model name", "flags", "CPU implementer", "CPU part", "Features")


Progress = Callable[[str], None]
WAITING = "waiting for an equal compile"  # a stage


def capture_plan(
    lowered: Capture, program: PortableProgram, task: PlanTask, make: Callable[[], Plan], *, progress: Progress
) -> Capture:
    """The capture of a step by its plan: the one in the user's cache, else as it is made, which is then kept there.

    Args:
        lowered: what is known of the step (see `with_plan`).
        program: the same step as any process can compile it.
        make: compiles it as the task says.
        progress: called with a stage where another process makes it.

    Raises:
        MemprofError: a variable of the environment does not say where the cache is, or how large; see `with_plan`.
        Exception: whatever `make` raises.
    """
    if task.settings.complete or not task.settings.use_cache:
        return with_plan(lowered, make())
    key, cache = plan_key(program, task.target, task.options), PlanCache.of_user()
    find_or_make = functools.partial(cache.find_or_make, key, make, waiting=lambda: progress(WAITING))
    plan = find_or_make()
    try:
        return with_plan(lowered, plan)
    except MemprofError:
        cache.remove(key)
        if not plan.is_cached:
            raise
    return with_plan(lowered, find_or_make())  # what was there is what was written, and is no plan of this step


def plan_key(program: PortableProgram, target: Target, asked: Mapping[str, Any]) -> str:
    """The key of a program's plan.

    Args:
        target: one that is not a device of this machine: there XLA may try things out.
        asked: XLA's options that the step asks for.
    """
    compiler = compiler_of(target)
    topology = target.topology
    facts = {
        "module": hashlib.sha256(program.module).hexdigest(),
        "compile options": program.compile_options.hex(),
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
    """What XLA sees of the processor that it compiles for."""
    num_processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    facts = [platform.machine(), f"{num_processors} processors"]
    try:
        first, _, _ = Path("/proc/cpuinfo").read_text(errors="replace").partition("\n\n")
    except OSError:
        return [*facts, platform.processor()]
    return [*facts, *(line for line in first.splitlines() if line.partition(":")[0].strip() in _CPU_FACTS)]


def _identity(tool: Path | None) -> list[str | int]:
    """A tool by its place and size: one of another version has another size."""
    return [] if tool is None else [str(tool), tool.stat().st_size]


def _environment() -> dict[str, str]:
    """The variables that XLA reads, with the content of a file of flags."""
    found = {
        name: value
        for name, value in os.environ.items()
        if _OF_XLA.fullmatch(name) and not _WITHOUT_A_SAY.fullmatch(name)
    }
    flags = found.get("XLA_FLAGS", "").strip()
    if flags and not flags.startswith("-"):
        with suppress(OSError):  # XLA has its own words for a file that cannot be read
            found["the file of XLA_FLAGS"] = Path(flags).read_text(errors="replace")
    return found
