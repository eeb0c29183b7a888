"""From a capture to a report: the whole analysis on one screen.

    proto ──▶ program ──▶ groups ──▶ data flow ──▶ values ─┐
          └─▶ buffer table ──▶ liveness ──────────────────┴▶ live buffers and timeline ──▶ breakdowns ──▶ report

Nothing here needs JAX. Each pass visits each instruction a fixed number of times (loops: to a fixpoint);
benchmarks/analysis_time.py measures the time.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from memprof.analysis.attribution.kernels import kernel_calls
from memprof.analysis.attribution.layout_copies import layout_copies
from memprof.analysis.attribution.module_paths import ModulePaths
from memprof.analysis.attribution.op_names import Named, named_phase
from memprof.analysis.attribution.patterns import Patterns, find_patterns
from memprof.analysis.attribution.program_facts import op_costs, program_facts
from memprof.analysis.attribution.sources import Sources
from memprof.analysis.attribution.values import Values
from memprof.analysis.engines import analyze_engine
from memprof.analysis.hlo.decoded import Decoded, decode_capture, no_garbage_collection
from memprof.analysis.hlo.liveness import replay
from memprof.analysis.hlo.program import Program
from memprof.analysis.hlo.program_order import ProgramOrder
from memprof.analysis.memory.accounting import Attribution, Memory, account_memory
from memprof.analysis.memory.breakdown import common_fields
from memprof.analysis.memory.checks import check_shapes, check_totals, plan_totals
from memprof.analysis.memory.device_traces import device_traces
from memprof.analysis.memory.named_buffers import buffers_named
from memprof.analysis.memory.pressure import find_pressure
from memprof.analysis.memory.training_loop import pieces_of
from memprof.analysis.memory.verdict import judge
from memprof.analysis.mesh.collectives import collective_traffic
from memprof.analysis.mesh.partitioner import partitioner_notes
from memprof.analysis.records.capture import ArgumentLeaf, Capture
from memprof.analysis.records.categories import Role
from memprof.analysis.records.live_buffer import LiveBuffer
from memprof.analysis.records.pool import PoolSettings
from memprof.analysis.records.pressure import Pressure
from memprof.analysis.records.report import Report
from memprof.analysis.records.why_live import WhyLive
from memprof.analysis.roofline.bound import roofline
from memprof.analysis.scheduling.memory_graph import MemoryGraph
from memprof.analysis.scheduling.schedule import PeakOrder
from memprof.analysis.traced import analyze_trace
from memprof.errors import InternalError, MemprofError, as_damage

_MAX_REASONS = 1000  # the largest buffers; `analyze_peak` says it of any


def analyze(
    capture: Capture, decoded: Decoded | None = None, *, pool: PoolSettings | None = None, with_order: bool = True
) -> Report:
    """Account for every byte of the captured step's device memory.

    Args:
        decoded: the capture's program, if its compile has just decoded it.
        pool: the settings of JAX's allocator for the verdict; None: those in the capture.
        with_order: whether to analyse the order of the operations, for `Report.schedule` and `Report.reasons`; that
            takes about 25% more time.

    Raises:
        MemprofError: the capture's program cannot be read.
        InternalError: the program does not match its arguments, or its numbers do not add up to the compiler's totals.
            For a capture that was read from a file, this is a MemprofError: the file is damaged.
    """
    if capture.engine is not None:
        return analyze_engine(capture)
    started = time.perf_counter()
    with _reading(capture):
        if capture.trace is not None:
            return analyze_trace(capture)
        parts = _parts_of(capture, decoded or decode_capture(capture))
        return _report(_with_pool(capture, pool), parts, started, with_order=with_order)


def analyze_peak(
    capture: Capture, name: str, *, pool: PoolSettings | None = None
) -> tuple[Report, tuple[WhyLive, ...]]:
    """Return the report, and the reasons why buffers are live at the peak, largest first.

    Args:
        name: of the instruction that makes them, or any text that a report prints for them (see `named_buffers.py`).
        pool: see `analyze`.

    Raises:
        MemprofError: no buffer at the peak has such a name, or the capture is a trace; also as `analyze`.
        InternalError: see `analyze`.
    """
    if capture.engine is not None:
        raise MemprofError(f"{capture.label} is an engine, and its builder does not report why a tensor is live")
    started = time.perf_counter()
    if capture.trace is not None:
        raise MemprofError(f"{capture.label} is a trace, but only a compiled program shows why a buffer is live")
    with _reading(capture):
        parts = _parts_of(capture, decode_capture(capture))
        report = _report(_with_pool(capture, pool), parts, started, with_order=True)
        named = buffers_named(report.buffers, name)
        if not named:
            largest = ", ".join(dict.fromkeys(buffer.name for buffer in report.buffers[:3]))
            raise MemprofError(
                f"no buffer at the peak of {report.label} is called {name!r}: give the name of an HLO instruction, "
                f"or a name from a report (an op name, source line, module or shape); the largest are {largest}"
            )
        return report, parts.why(named)


def _with_pool(capture: Capture, pool: PoolSettings | None) -> Capture:
    return capture if pool is None else replace(capture, pool=pool)


@contextmanager
def _reading(capture: Capture) -> Iterator[None]:
    """Report an inconsistent capture that was read from a file as damage to the file."""
    with no_garbage_collection(), as_damage(capture.file):
        yield


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """A program with its buffer assignment and the facts derived from both."""

    decoded: Decoded
    modules: ModulePaths
    values: Values
    patterns: Patterns
    sources: Sources
    memory: Memory
    order: ProgramOrder
    peak: PeakOrder

    def why(self, buffers: Sequence[LiveBuffer]) -> tuple[WhyLive, ...]:
        """Return the reason why each buffer is live at the peak."""
        return self.peak.why(self.values, self.sources, buffers)


def _parts_of(capture: Capture, decoded: Decoded) -> _Parts:
    program, table = decoded.program, decoded.table
    check_shapes(capture, program, table)
    params = tuple(leaf.path for leaf in capture.arguments if leaf.role is Role.PARAMS)
    modules = ModulePaths(params, {instruction.op_name for instruction in program.instructions})
    values = Values(program, table, _by_parameter_number(capture.arguments, program), modules)
    order = ProgramOrder(program, values.order)
    traces = tuple(replay(trace, table) for trace in table.traces)
    on_device = device_traces(traces, table, values, order)
    patterns = find_patterns(program, table, [each.liveness for each in on_device], values, order)
    sources = Sources(program, capture.folders)
    memory = account_memory(table, on_device, values, order, Attribution(program, sources, patterns))
    check_totals(capture, table, traces, memory)
    return _Parts(
        decoded=decoded,
        modules=modules,
        values=values,
        patterns=patterns,
        sources=sources,
        memory=memory,
        order=order,
        peak=PeakOrder(partial(MemoryGraph, program, table, on_device, values, order), memory, capture.fenced_values),
    )


def _report(capture: Capture, parts: _Parts, started: float, *, with_order: bool) -> Report:
    program, table, values, memory = parts.decoded.program, parts.decoded.table, parts.values, parts.memory
    buffers = memory.at_peak
    forward_flops = _forward_flops(capture.flops_by_scope, values)
    pieces, pressed_pieces = pieces_of(table, capture.arguments), None
    assert pieces.footprint_bytes == memory.footprint_bytes
    pressure, without_limit = _find_pressure(capture, parts.decoded, with_order=with_order)
    if without_limit is not None:
        pieces, pressed_pieces = without_limit.pieces, pieces
    return Report(
        **common_fields(capture, buffers, parts.modules, memory.footprint_bytes, forward_flops),
        temp_buffers=memory.temps,
        timeline=memory.timeline,
        parameter_bytes={
            each.parameter_number: each.size_bytes for each in table.allocations if each.parameter_number is not None
        },
        collectives=collective_traffic(program, capture.target.topology, values),
        partitioner_notes=partitioner_notes(capture.partitioner_messages, program, values, parts.sources),
        doubts=capture.doubts,
        program=program_facts(
            program,
            table,
            values,
            backward_end=parts.patterns.backward_end,
            has_fenced_values=bool(capture.fenced_values),
        ),
        verdict=judge(pieces, capture.target, capture.pool, pressed=pressed_pieces, refusal=capture.refusal),
        pressure=pressure,
        without_limit=without_limit,
        pieces=pieces,
        memory_spaces=table.space_bytes,
        refusal=capture.refusal,
        kernels=kernel_calls(capture.kernels, program, values, parts.sources),
        layout_copies=layout_copies(
            program, table, values, parts.order, parts.sources, frozenset(each.name for each in buffers)
        ),
        pool=capture.pool,
        pressed_pieces=pressed_pieces,
        analysis_seconds=time.perf_counter() - started,
        measured=capture.measured,
        op_costs=op_costs(
            capture.measured.op_times if capture.measured else (),
            program,
            values,
            (*memory.indefinite, *memory.temps),
        ),
        roofline=roofline(program, capture.target),
        schedule=parts.peak.schedule if with_order else None,
        reasons=parts.why(buffers[:_MAX_REASONS]) if with_order else (),
        source_lines=capture.source_lines,
    )


def _find_pressure(capture: Capture, decoded: Decoded, *, with_order: bool) -> tuple[Pressure | None, Report | None]:
    """Return what XLA recomputes on its own, and the report of the plan without that, if one exists."""
    other, started = decoded.without_limit, time.perf_counter()
    pressure = find_pressure(decoded.program, capture.target, capture.pool, None if other is None else other.program)
    if pressure is None or other is None:
        return pressure, None
    unlimited = replace(
        capture,
        hlo_proto=capture.proto_without_limit,
        proto_without_limit=b"",
        compiler=plan_totals(other.table, platform=capture.target.platform),
        measured=None,
        replay=capture.replay_without_limit,
        replay_without_limit=None,
    )
    report = _report(unlimited, _parts_of(unlimited, other), started, with_order=with_order)
    return replace(pressure, footprint_without_limit_bytes=report.footprint_bytes), report


def _forward_flops(by_scope: Mapping[str, int], values: Values) -> dict[str, int]:
    """Return FLOPs by module; a program without differentiation is one forward pass."""
    op_names = {f"{scope}/": number for scope, number in by_scope.items()}  # such a name ends with its primitive
    forward = {name: number for name, number in op_names.items() if named_phase(name) is Named.FORWARD}
    if all(named_phase(name) is Named.UNPHASED for name in op_names):
        forward = op_names
    flops: Counter[str] = Counter()
    for name, number in forward.items():
        flops[values.module_of_scope(name)] += number
    return dict(flops)


def _by_parameter_number(arguments: Sequence[ArgumentLeaf], program: Program) -> dict[int, ArgumentLeaf]:
    leaves = {leaf.parameter_number: leaf for leaf in arguments if leaf.parameter_number is not None}
    numbers = {program.instructions[index].parameter_number for index in program.entry.parameters}
    if leaves.keys() != numbers:
        raise InternalError(
            f"the program has {len(numbers)} parameters, but the capture names {len(leaves)} arguments for others; "
            "the capture is damaged"
        )
    return leaves
