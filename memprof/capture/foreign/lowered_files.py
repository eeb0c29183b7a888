"""Programs that others have lowered and not compiled: StableHLO in files, and what `jax.export` has serialized.

    lowered.as_text()                                    # *.mlir, *.stablehlo
    jax.export.export(jax.jit(f))(*args).serialize()     # the module lies in it as it is

They are compiled for a target in a child, as every step, and then are programs like those of a dump.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from memprof.analysis.records.capture import Target
from memprof.capture.foreign.dumps import FoundProgram, content_of
from memprof.capture.processes.child_process import Progress
from memprof.capture.processes.launch import plan_in_child
from memprof.capture.xla.portable_program import BYTECODE, PORTABLE_STABLEHLO, TO_THE_PLAN, PlanTask, PortableProgram
from memprof.errors import MemprofError

_TEXT = re.compile(rb"\bfunc\.func\b[^\0]*?\b(?:stablehlo|mhlo|chlo)\.|\b(?:stablehlo|mhlo)\.[^\0]*?\bfunc\.func\b")
_NUM_PARTITIONS = re.compile(rb"mhlo\.num_(?:partitions|replicas) = (\d+)")
_NAME = re.compile(rb"\bmodule @([\w.$-]+)")


def lowered_module(path: Path) -> bytes | None:
    """The StableHLO module in a file, as MLIR text or bytecode; None where there is none.

    Raises:
        MemprofError: the file cannot be read.
    """
    if not os.path.isfile(path):  # of a name that is too long, `Path` raises an error
        return None
    content = content_of(path)
    if content.startswith(BYTECODE) or _TEXT.search(content):
        return content
    # What `jax.export` has serialized is a flatbuffer: a vector of bytes lies in it as it is, after its length.
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
        raise MemprofError(f"{path} is not compiled yet: say for what with --target, h100-80gb or cpu say")
    if any(int(number) > 1 for number in _NUM_PARTITIONS.findall(module)):
        raise MemprofError(f"{path} is lowered for several devices; give what XLA has compiled of it (--xla_dump_to)")
    task = PlanTask(target=target, options={}, xla_flags=os.environ.get("XLA_FLAGS", ""), settings=TO_THE_PLAN)
    plan = plan_in_child(PortableProgram(module=module, compile_options=b""), task, progress=progress)
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
