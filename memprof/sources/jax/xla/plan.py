"""XLA's plan: the scheduled program with its buffer assignment, which XLA dumps before it generates code.

The plan determines a step's memory, and code generation is often more than half of a compile. So a step that will not
run is compiled in a thread until its plan is complete on disk. The process then reads the plan and exits, which ends
the compile. Beside the plan XLA writes its own memory report with the total of each memory space; `decode_plan` checks
the plan against it.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from memprof.analysis.hlo.decoded import Decoded, FreshCapture, decode
from memprof.analysis.hlo.hlo_proto import parse_memory_report, parse_proto
from memprof.analysis.hlo.rematerialization import may_be_rematerialized
from memprof.analysis.memory.checks import check_allocations, check_memory_spaces, plan_totals, totals_of
from memprof.analysis.records.capture import Capture, CompilerTotals, Target
from memprof.errors import InternalError, MemprofError
from memprof.sources.jax.xla.compiler_log import partitioner_messages
from memprof.sources.jax.xla.kernels import kernels_of, known_kernels, scoped_limit_bytes, used_vmem_bytes
from memprof.sources.jax.xla.source_lines import source_lines_of
from memprof.untrusted import clean

# Endings of the file names, after an underscore, or after a dot in libtpu's files.
_PLAN, _MEMORY_REPORT = "after_optimizations.hlo.pb", "after_optimizations-memory-usage-report.pb"
_PAUSE_SECONDS = 0.02
_CODE_BYTES = 1 << 18  # more than libtpu adds to the footprint for the program itself
# A refusal takes milliseconds; the refusal of a kernel takes as long as generating its code. If the outcome depends on
# the program's code or on temporaries of the compiler, there may be no refusal.
_REFUSAL_SECONDS, _DOUBT_SECONDS = 60.0, 5.0
_DOUBT_SHARE = 0.75  # of the limit of a kernel
_REFUSAL = re.compile(
    r"RESOURCE_EXHAUSTED: (?:E\d+: \w+:\s)?(?:XLA:TPU compile permanent error\. )?"
    r"((?:Ran out of memory|Allocation \(size=\d+\) would exceed memory).*)",
    re.DOTALL,
)
_SCOPED = re.compile(r"(Ran out of memory [^=]*) = .*?(Scoped allocation with [^\n]*?limit by [\d.]+\w+)", re.DOTALL)
# Placeholder for the totals of a step that is not compiled yet.
NOT_COMPILED = CompilerTotals(
    argument_bytes=0,
    output_bytes=0,
    alias_bytes=0,
    temp_bytes=0,
    peak_memory_bytes=None,
    total_allocation_bytes=None,
    is_complete=False,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The result of a compile, undecoded.

    Attributes:
        hlo_proto: the serialized `HloProto`, with the buffer assignment.
        memory_report: XLA's own memory report of the plan; empty if XLA wrote no report.
        totals: the compiler's own totals after a complete compile; None if only the plan exists.
        compile_seconds: duration of the compile; for a cached plan, of the compile that made it.
        partitioner_messages: warnings of XLA's partitioner (see `compiler_log.py`).
        proto_without_limit: the serialized `HloProto` of the same program, compiled without a memory limit; empty if
            XLA recomputes nothing on its own.
        refusal: the compiler's error message if it stopped because the program does not fit the device; else empty.
        kernel_limit_bytes: VMEM limit per kernel if a compiler option sets it; else 0.
        used_vmem_bytes: VMEM use that the compiler reports for each kernel, by the name of its call; empty if only the
            plan exists.
        is_cached: whether the plan came from the cache, without a compile.
    """

    hlo_proto: bytes
    memory_report: bytes
    totals: CompilerTotals | None
    compile_seconds: float
    partitioner_messages: tuple[str, ...] = ()
    proto_without_limit: bytes = b""
    refusal: str = ""
    kernel_limit_bytes: int = 0
    used_vmem_bytes: Mapping[str, int] = field(default_factory=dict)
    is_cached: bool = False

    def encoded(self) -> bytes:
        """Encode the plan for a file."""
        return msgspec.msgpack.encode(self)

    @staticmethod
    def decoded(data: bytes) -> Plan:
        """Decode the output of `encoded`; raise `msgspec.DecodeError` for any other content."""
        return _DECODER.decode(data)


_DECODER = msgspec.msgpack.Decoder(Plan)  # created once: see `untrusted.convert` on threads


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    """A lowered step with its plan, which is neither decoded nor checked (see `plan_cache.checked`).

    Attributes:
        lowered: the capture before the compile.
        cache_key: the plan's key in the user's cache; empty if it is not cached.
        search_path: the folders of modules, for the text of source lines; None means this process's path.
    """

    lowered: Capture
    plan: Plan
    cache_key: str = ""
    search_path: tuple[str, ...] | None = None


def compile_to_plan(compile_step: Callable[[], Any], folder: Path, *, refused_by: Target | None = None) -> str:
    """Start a compile, and return as soon as its plan is in the folder of its dump; the compile still runs.

    A complete plan is the result, even if the compile fails later. A compiler that refuses programs (`refused_by`) does
    so after the plan; if the plan exceeds a limit, this function waits for the compiler's error message.

    Args:
        compile_step: the compile, with its dump; called in a daemon thread.
        folder: an empty or missing folder for the dump.
        refused_by: the target, if its compiler refuses programs that exceed its memory.

    Returns:
        The compiler's error message if it refuses the program; else empty.

    Raises:
        Exception: the compile failed before its plan was complete.
    """
    errors: list[Exception] = []

    def run() -> None:
        try:
            compile_step()
        except Exception as error:  # raised again by the thread that waits
            errors.append(error)

    compiling = threading.Thread(target=run, name="compile", daemon=True)
    compiling.start()
    has_ended = False
    while not has_ended:
        compiling.join(_PAUSE_SECONDS)
        has_ended = not compiling.is_alive()  # before the search for the plan, which may appear in between
        if _is_complete(folder):
            compiling.join(0.0 if refused_by is None else _seconds_to_refusal(folder, refused_by))
            return next(filter(None, map(refusal, errors)), "")
    for error in errors:
        raise error
    return ""


def refusal(error: Exception) -> str:
    """Return the compiler's message that the device has too little memory for a program; empty for other errors.

    Examples of libtpu's messages (0.0.42 to 0.0.50), the second without the text of the operation:

        E1000: CompileTimeHbmOom: Ran out of memory on HBM, ...
        E1001: CompileTimeScopedVmemOom:
        Ran out of memory in memory space vmem while allocating on stack for %kernel.1 = ... Scoped allocation with ...
        Allocation (size=134217728) would exceed memory (size=16777216) :: #allocation3 [...]
    """
    match = _REFUSAL.match(str(error))
    if match is None:
        return ""
    scoped = _SCOPED.match(match[1])
    return clean(f"{scoped[1]}. {scoped[2]}" if scoped else match[1].partition("\n")[0].partition(" :: ")[0])


def _seconds_to_refusal(folder: Path, target: Target) -> float:
    """Return how long to wait for the compiler's error message about the plan in a dump's folder."""
    seconds = 0.0
    if target.usable_bytes is not None:
        over_bytes = _device_bytes(folder) + _CODE_BYTES - target.usable_bytes
        if over_bytes > 0:
            seconds = _REFUSAL_SECONDS if over_bytes > _CODE_BYTES else _DOUBT_SECONDS
    for path in folder.glob(f"*{_PLAN}"):
        with suppress(MemprofError):  # the capture reports this error
            for kernel in kernels_of(path.read_bytes(), target, scoped_limit_bytes(folder)):
                if kernel.is_over_limit or kernel.is_over_smem:
                    return _REFUSAL_SECONDS
                if kernel.limit_bytes and kernel.asked_bytes > kernel.limit_bytes * _DOUBT_SHARE:
                    seconds = max(seconds, _DOUBT_SECONDS)
    return seconds


def read_plan(
    folder: Path, *, totals: CompilerTotals | None = None, compile_seconds: float = 0.0, refusal: str = ""
) -> Plan:
    """Read the plan that XLA wrote into the folder of its dump.

    Raises:
        MemprofError: the plan is missing.
        InternalError: there is more than one program.
    """
    plans = list(folder.glob(f"*{_PLAN}"))
    if not plans:
        raise MemprofError(
            f"XLA could not write its program to {folder}: the disk may be full, file sizes limited (`ulimit -f`), "
            "or the folder removed by the step's code"
        )
    if len(plans) != 1:
        raise InternalError(f"XLA wrote {len(plans)} optimized programs instead of one")
    return Plan(
        hlo_proto=plans[0].read_bytes(),
        memory_report=b"".join(path.read_bytes() for path in folder.glob(f"*{_MEMORY_REPORT}")),
        totals=totals,
        compile_seconds=compile_seconds,
        partitioner_messages=partitioner_messages(folder),
        refusal=refusal,
        kernel_limit_bytes=scoped_limit_bytes(folder),
        used_vmem_bytes={} if totals is None else used_vmem_bytes(folder),
    )


def with_unlimited(plan: Plan, make: Callable[[], Plan]) -> Plan:
    """Extend a plan with the same program's plan without a memory limit, if XLA seems to recompute due to the limit.

    Args:
        make: compiles the same program without a memory limit.

    Raises:
        Exception: whatever `make` raises.
    """
    if not may_be_rematerialized(plan.hlo_proto):
        return plan
    other = make()
    seconds = plan.compile_seconds + other.compile_seconds
    return replace(plan, proto_without_limit=other.hlo_proto, compile_seconds=seconds)


def decode_plan(plan: Plan, platform: str) -> Decoded:
    """Decode the program and its buffer assignment, and check them.

    Args:
        platform: the target's platform.

    Raises:
        MemprofError: the plan is truncated.
        InternalError: the plan is inconsistent.
    """
    data = plan.hlo_proto
    cut_short = MemprofError(
        f"XLA's dump of the program is cut short after {len(data):,} bytes: the disk may be full, or file sizes "
        "limited (`ulimit -f`); free some space, or set TMPDIR to another folder"
    )
    try:
        proto = parse_proto(data)
        space_bytes = parse_memory_report(plan.memory_report) if plan.memory_report else {}
    except MemprofError as error:
        raise cut_short from error
    if not proto.HasField("buffer_assignment"):  # the last field: a file that ends just before it still parses
        raise cut_short
    decoded = decode(proto, platform)
    check_memory_spaces(decoded.table, space_bytes)
    if plan.proto_without_limit:
        decoded = replace(decoded, without_limit=decode(parse_proto(plan.proto_without_limit), platform))
    return decoded


def with_plan(planned: PlannedStep) -> FreshCapture:
    """Complete the capture of a lowered step with its plan.

    Raises:
        MemprofError, InternalError: see `decode_plan`; or the compiler's totals contradict the plan.
    """
    lowered, plan = planned.lowered, planned.plan
    assert lowered.folders is not None
    platform = lowered.target.platform
    decoded = decode_plan(plan, platform)
    table, other = decoded.table, decoded.without_limit
    totals = plan.totals or plan_totals(table, platform=platform)
    check_allocations(totals, table, platform=platform)
    kernels, doubts = known_kernels(plan.hlo_proto, lowered.target, plan.kernel_limit_bytes, plan.used_vmem_bytes)
    capture = replace(
        lowered,
        compiler=totals,
        timings=replace(
            lowered.timings,
            compile_seconds=0.0 if plan.is_cached else plan.compile_seconds,
            cached_compile_seconds=plan.compile_seconds if plan.is_cached else None,
        ),
        hlo_proto=plan.hlo_proto,
        proto_without_limit=plan.proto_without_limit,
        partitioner_messages=plan.partitioner_messages,
        refusal=plan.refusal,
        kernels=kernels,
        doubts=(*lowered.doubts, *doubts),
        replay=totals_of(table),
        replay_without_limit=None if other is None else totals_of(other.table),
        source_lines=source_lines_of(decoded.program, lowered.folders, planned.search_path or sys.path),
    )
    return FreshCapture(capture=capture, decoded=decoded)


def _device_bytes(folder: Path) -> int:
    """Return the footprint from the memory report in a dump's folder."""
    return sum(parse_memory_report(path.read_bytes()).get(0, 0) for path in folder.glob(f"*{_MEMORY_REPORT}"))


def _is_complete(folder: Path) -> bool:
    """Whether XLA has written both files and closed them: a file is open from its creation to its last byte.

    It runs fifty times a second while XLA works, so it avoids glob patterns, which take two to three times as long.
    """
    try:
        names = [name for name in os.listdir(folder) if name.endswith((_PLAN, _MEMORY_REPORT))]
        files = {_identity((folder / name).stat()) for name in names}
    except OSError:  # the folder does not exist yet, or the user's code removes files in the meantime
        return False
    return len(files) == 2 and files.isdisjoint(_open_files())


def _open_files() -> Iterator[tuple[int, int]]:
    for descriptor in os.listdir("/dev/fd"):
        with suppress(OSError):  # closed in the meantime
            yield _identity(os.fstat(int(descriptor)))


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
