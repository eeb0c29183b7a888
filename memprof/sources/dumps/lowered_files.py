"""Programs lowered elsewhere but not compiled: StableHLO files, and files serialized by `jax.export`.

    lowered.as_text()                                    # *.mlir, *.stablehlo
    jax.export.export(jax.jit(f))(*args).serialize()     # contains the module unchanged

A child compiles them for a target, as it does any step. The result is treated like a program from a dump.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from memprof.analysis.memory.pressure import memory_limit
from memprof.analysis.records.capture import Target
from memprof.errors import MemprofError
from memprof.sources.dumps.dumps import FoundProgram, content_of
from memprof.sources.jax.processes.child_process import Progress
from memprof.sources.jax.processes.launch import plan_in_child
from memprof.sources.jax.xla.portable_program import (
    BYTECODE,
    PORTABLE_STABLEHLO,
    TO_THE_PLAN,
    PlanTask,
    PortableProgram,
)
from memprof.sources.pool_settings import pool_settings

_TEXT = re.compile(rb"\bfunc\.func\b[^\0]*?\b(?:stablehlo|mhlo|chlo)\.|\b(?:stablehlo|mhlo)\.[^\0]*?\bfunc\.func\b")
_NUM_PARTITIONS = re.compile(rb"mhlo\.num_(?:partitions|replicas) = (\d+)")
_NAME = re.compile(rb"\bmodule @([\w.$-]+)")


def lowered_module(path: Path) -> bytes | None:
    """Return the StableHLO module in a file, as MLIR text or bytecode, or None if it contains no module.

    Raises:
        MemprofError: the file cannot be read.
    """
    if not os.path.isfile(path):  # `Path` raises an error if the name is too long
        return None
    content = content_of(path)
    if content.startswith(BYTECODE) or _TEXT.search(content):
        return content
    # `jax.export` writes a flatbuffer, which stores a vector of bytes unchanged after its length.
    portable = PORTABLE_STABLEHLO.search(content, 4)
    if portable is None:
        return None
    start = portable.start()
    return content[start : start + int.from_bytes(content[start - 4 : start], "little")]


def compile_lowered(path: Path, module: bytes, target: Target | None, *, progress: Progress) -> FoundProgram:
    """Compile a module for a target, to XLA's plan.

    Raises:
        MemprofError: no target is given, the module is for several devices, or it cannot be compiled (`WorkloadError`).
    """
    if target is None:
        raise MemprofError(f"{path} is not compiled yet: name a target with --target, for example h100-80gb or cpu")
    if any(int(number) > 1 for number in _NUM_PARTITIONS.findall(module)):
        raise MemprofError(f"{path} is lowered for several devices; give its compiled program (--xla_dump_to)")
    task = PlanTask(target=target, options={}, xla_flags=os.environ.get("XLA_FLAGS", ""), settings=TO_THE_PLAN)
    limit_bytes = memory_limit(target, pool_settings(target))
    program = PortableProgram(module=module, compile_options=b"", memory_limit_bytes=limit_bytes)
    plan = plan_in_child(program, task, progress=progress)
    name = _NAME.search(module)
    return FoundProgram(
        name=name[1].decode() if name else path.name.partition(".")[0],
        file=path,
        written=path.stat().st_mtime,
        hlo_proto=plan.hlo_proto,
        proto_without_limit=plan.proto_without_limit,
        platform=target.platform,
        memory_report=plan.memory_report,
    )
