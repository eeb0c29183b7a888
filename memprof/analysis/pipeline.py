"""From a capture to a report: the whole analysis on one screen.

    proto ──▶ program ──▶ groups ──▶ data flow ──▶ values ─┐
          └─▶ buffer table ──▶ liveness ──────────────────┴▶ holdings ──▶ breakdowns and timeline ──▶ report

Nothing here needs JAX. Each step looks at each instruction a fixed number of times (loops: until nothing changes);
benchmarks/analysis_time.py measures how the time grows.
"""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from memprof.analysis.breakdown import module_tree, sum_by, sum_by_category
from memprof.analysis.buffer_table import decode_buffer_table
from memprof.analysis.capture import ArgumentLeaf, Capture
from memprof.analysis.categories import Category, Phase, Role
from memprof.analysis.checks import check_totals
from memprof.analysis.hlo_proto import parse_proto
from memprof.analysis.holdings import Holding, Holdings, hold
from memprof.analysis.module_paths import ModulePaths
from memprof.analysis.op_names import Named, named_phase
from memprof.analysis.patterns import find_patterns
from memprof.analysis.program import Program, decode_program
from memprof.analysis.program_facts import op_costs, program_facts
from memprof.analysis.program_order import ProgramOrder
from memprof.analysis.report import LiveBuffer, Report
from memprof.analysis.sources import SourcePlace, Sources
from memprof.analysis.timeline import Change, Timeline
from memprof.analysis.values import Values
from memprof.errors import InternalError, MemprofError


def analyze(capture: Capture) -> Report:
    """Say where every byte of the captured step's device memory goes.

    Raises:
        MemprofError: the capture's program cannot be read.
        InternalError: the program does not fit its arguments, or its numbers do not add up to the compiler's totals.
            Of a capture that was read from a file it is a MemprofError: the file is damaged.
    """
    with _no_garbage_collection():
        try:
            return _analyze(capture)
        except InternalError as error:
            if capture.file is None:
                raise
            raise MemprofError(
                f"{capture.file} is damaged, or of a version of XLA that this memprof does not understand: {error};"
                " make it again with `memprof run`"
            ) from error


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Put off looking for reference cycles.

    Python's collector goes through all objects again whenever their number has grown by a share; the analysis makes
    millions that live until its end and next to no cycles.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _analyze(capture: Capture) -> Report:
    started = time.perf_counter()
    proto = parse_proto(capture.hlo_proto)
    program = decode_program(proto)
    table = decode_buffer_table(proto, program)
    modules = ModulePaths(tuple(leaf.path for leaf in capture.arguments if leaf.role is Role.PARAMS))
    values = Values(program, table, _by_parameter_number(capture.arguments, program), modules)
    order = ProgramOrder(program, values.order)
    holdings = hold(table, values, order)
    check_totals(capture, table, holdings)

    changes, held = _changes(holdings)
    sources = Sources(program, capture.folders)
    patterns = find_patterns(program, values, order, holdings)
    lasting = [patterns.told(_live_buffer(each, None, program, sources), each.value) for each in holdings.lasting]
    temps = [
        patterns.told(_live_buffer(each, places, program, sources), each.value)
        for each, places in zip(holdings.passing, held, strict=True)
    ]
    at_peak = (buffer for buffer, holding in zip(temps, holdings.passing, strict=True) if holding.at_peak)
    buffers = tuple(sorted([*lasting, *at_peak], key=lambda buffer: -buffer.size_bytes))
    rest = holdings.footprint_bytes - holdings.live_peak_bytes
    return Report(
        label=capture.label,
        workload=capture.workload,
        techniques=capture.techniques,
        config=capture.config,
        target=capture.target,
        toolchain=capture.toolchain,
        compiler=capture.compiler,
        timings=capture.timings,
        footprint_bytes=holdings.footprint_bytes,
        live_peak_bytes=holdings.live_peak_bytes,
        num_params=capture.num_params,
        flops=capture.flops,
        recomputed_flops=capture.recomputed_flops,
        categories=sum_by_category(buffers, fragmentation_bytes=rest),
        by_source=sum_by(buffers, lambda buffer: buffer.source, rest=("", rest)),
        by_dtype=sum_by(buffers, lambda buffer: buffer.dtype, rest=("", rest)),
        by_phase=sum_by(buffers, lambda buffer: buffer.phase, rest=(Phase.NONE, rest)),
        modules=module_tree(buffers, capture.arguments, modules, fragmentation_bytes=rest),
        buffers=buffers,
        temp_buffers=tuple(temps),
        timeline=_timeline(holdings, changes, order, values),
        arguments=capture.arguments,
        doubts=capture.doubts,
        program=program_facts(program, table, values, backward_end=patterns.backward_end),
        analysis_seconds=time.perf_counter() - started,
        measured=capture.measured,
        op_costs=op_costs(
            capture.measured.op_times if capture.measured else (),
            program,
            values,
            (*holdings.lasting, *holdings.passing),
        ),
        forward_flops=_forward_flops(capture.flops_by_scope, values),
        source_lines=capture.source_lines,
    )


def _forward_flops(by_scope: Mapping[str, int], values: Values) -> dict[str, int]:
    flops: Counter[str] = Counter()
    for scope, number in by_scope.items():
        op_name = f"{scope}/"  # the name of an operation ends with its primitive
        if named_phase(op_name) is Named.FORWARD:
            flops[values.module_of_scope(op_name)] += number
    return dict(flops)


def _by_parameter_number(arguments: Sequence[ArgumentLeaf], program: Program) -> dict[int, ArgumentLeaf]:
    leaves = {leaf.parameter_number: leaf for leaf in arguments if leaf.parameter_number is not None}
    numbers = {program.instructions[index].parameter_number for index in program.entry.parameters}
    if leaves.keys() != numbers:
        raise InternalError(
            f"the program has {len(numbers)} parameters, but the capture names {len(leaves)} arguments for other ones;"
            " the capture is damaged"
        )
    return leaves


def _live_buffer(holding: Holding, held: tuple[int, int] | None, program: Program, sources: Sources) -> LiveBuffer:
    value, claim = holding.value, holding.claim
    lines = SourcePlace("", "") if value.argument else sources.lines(program.instructions[value.operation])
    return LiveBuffer(
        size_bytes=holding.size_bytes,
        shape=value.shape,
        dtype=value.dtype,
        category=claim.category,
        phase=Phase.ARGUMENT if value.argument else Phase.CONSTANT if value.is_constant else value.phase,
        module=value.module,
        name=value.name,
        op=value.argument.path if value.argument else value.op_name,
        source=lines.user,
        library=lines.library,
        rule=claim.rule,
        evidence=claim.evidence,
        start=holding.start,
        end=holding.end,
        offset=holding.offset,
        held=held,
    )


def _changes(holdings: Holdings) -> tuple[tuple[Change, ...], list[tuple[int, int]]]:
    """The timeline's changes, and for each passing holding the places of its own two among them."""
    moments = []
    for index, holding in enumerate(holdings.passing):
        assert holding.events is not None
        (start, end), category, size = holding.events, holding.claim.category, holding.size_bytes
        moments.append(((holding.start, start), index, Change(holding.start, category, size)))
        moments.append(((holding.end, end), index, Change(holding.end, category, -size)))
    # Within one event a death comes before a birth: the memory changes hands.
    moments.sort(key=lambda moment: (moment[0], moment[2].delta_bytes))
    places: list[list[int]] = [[] for _ in holdings.passing]
    for place, (_, index, _) in enumerate(moments):
        places[index].append(place)
    return tuple(change for _, _, change in moments), [(born, died) for born, died in places]


def _timeline(holdings: Holdings, changes: tuple[Change, ...], order: ProgramOrder, values: Values) -> Timeline:
    base: dict[Category, int] = {}
    for holding in holdings.lasting:
        base[holding.claim.category] = base.get(holding.claim.category, 0) + holding.size_bytes
    return Timeline(
        num_positions=order.length,
        base=base,
        changes=changes,
        phases=order.phase_spans(values.phase_of),
        peak_position=holdings.peak_position,
        modules=order.module_spans(values.module_of),
    )
