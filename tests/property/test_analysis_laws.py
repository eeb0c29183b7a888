"""Laws that hold for every program: what adds up, what does not matter, what comes out the same."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hlo import Step, capture_of
from hlo_nodes import BACKWARD, FORWARD, PLAIN, RECOMPUTED, UNNAMED, Node, array, f32, tuple_of
from hypothesis import given, settings
from hypothesis import strategies as st

from memprof.analysis.hlo.buffer_table import BufferTable, Event, EventKind, HeapTrace, LogicalBuffer
from memprof.analysis.hlo.hlo_proto import parse_proto
from memprof.analysis.hlo.liveness import replay
from memprof.analysis.memory.checks import replay_totals
from memprof.analysis.pipeline import analyze
from memprof.analysis.records.capture import ArgumentLeaf, Capture, CompilerTotals
from memprof.analysis.records.categories import Role
from memprof.analysis.records.report import ModuleNode, Report
from memprof.sources.capture_file import read_capture, write_capture
from memprof.untrusted import clean

laws = settings(max_examples=40, derandomize=True)

_PATHS = ("params['a']['w']", "params['b']['w']", "opt.m['a']['w']", "x", "rng", "opt.count")
_SCOPES = ("op", "a/op", "b/op", "dropout/op")
_NAMES = (
    UNNAMED,
    *(prefix.removesuffix("op") + scope for prefix in (FORWARD, BACKWARD, RECOMPUTED, PLAIN) for scope in _SCOPES),
)
_OPCODES = ("add", "multiply", "copy", "convert", "reduce", "transpose", "all-reduce", "dot", "pad", "divide")


@st.composite
def steps(draw: st.DrawFn) -> Step:
    """A straight-line program: any operations on any values, in memory of their own, shared, or of arguments."""
    step = Step()
    frame = step.frame("model.py", 1)
    available: list[Node] = []
    for number in range(draw(st.integers(1, 4))):
        shape = f32(draw(st.integers(1, 8)))
        role = draw(st.sampled_from(list(Role)))
        available.append(
            step.argument(f"{draw(st.sampled_from(_PATHS))}[{number}]", role, shape, donated=draw(st.booleans()))
        )
    living: list[Node] = []  # what may still be freed
    mortal: set[Node] = set()  # what is freed
    for number in range(draw(st.integers(1, 12))):
        node = _operation(draw, step, available, number, frame)
        available.append(step.element(node, draw(st.integers(0, 1))) if node.shape.elements else node)
        if node.opcode != "constant":
            living.append(node)
        if living and draw(st.booleans()):
            dead = draw(st.sampled_from(living))
            living.remove(dead)
            mortal.add(dead.memory)
            step.free(dead, after=node)
    immortal = [node for node in available if node.memory not in mortal]
    step.result(*draw(st.lists(st.sampled_from(immortal), min_size=1, max_size=3, unique_by=id)))
    return step


def _operation(draw: st.DrawFn, step: Step, available: Sequence[Node], number: int, frame: int) -> Node:
    operands = draw(st.lists(st.sampled_from(available), min_size=1, max_size=3))
    op_name, name = draw(st.sampled_from(_NAMES)), f"op{number}"
    size = draw(st.integers(0, 8))
    kind = draw(st.sampled_from(["plain", "plain", "plain", "shared", "library", "fusion", "constant"]))
    if kind == "constant":
        return step.op(name, "constant", f32(size))
    if kind == "library":
        shape = tuple_of(f32(size), array("u8", draw(st.integers(0, 64))))
        return step.op(name, "custom-call", shape, operands, op_name, target="gemm", table=draw(st.booleans()))
    if kind == "fusion":
        fused = step.computation(f"fused{number}", fused=True)
        parameters = [fused.parameter(operand.shape) for operand in operands]
        factors = [parameters[0], parameters[-1]]
        inner = fused.op(f"inner{number}", "multiply", f32(size), factors, draw(st.sampled_from(_NAMES)))
        fused.tuple(inner, fused.op(f"root{number}", "add", f32(size), [inner], op_name))
        return step.op(name, "fusion", tuple_of(f32(size), f32(size)), operands, op_name, called=[fused])
    owners = [node for node in step.nodes if node.opcode in _OPCODES and node.memory is node]  # dead ones too
    shares = draw(st.sampled_from(owners)) if kind == "shared" and owners else None
    shape = shares.shape if shares else array(draw(st.sampled_from(["f32", "bf16"])), size)
    opcode = draw(st.sampled_from(_OPCODES))
    if opcode in ("multiply", "divide"):
        operands = [operands[0], operands[-1]]
    return step.op(name, opcode, shape, operands, op_name, frame=frame, shares=shares)


def _without_time(report: Report) -> Report:
    return replace(report, analysis_seconds=0.0)


def _nodes(node: ModuleNode) -> list[ModuleNode]:
    return [node, *(inner for child in node.children for inner in _nodes(child))]


@laws
@given(steps())
def test_every_breakdown_adds_up_to_the_footprint(step: Step) -> None:
    capture = step.capture()
    report = analyze(capture)
    fragmentation = report.footprint_bytes - report.live_peak_bytes
    assert report.footprint_bytes == capture.compiler.total_allocation_bytes
    assert report.live_peak_bytes == capture.compiler.peak_memory_bytes
    assert fragmentation >= 0
    for breakdown in (report.categories, report.by_source, report.by_dtype, report.by_phase):
        assert sum(breakdown.values()) == report.footprint_bytes
    assert sum(buffer.size_bytes for buffer in report.buffers) + fragmentation == report.footprint_bytes
    assert report.modules.size_bytes == report.footprint_bytes
    assert report.modules.categories == {category: size for category, size in report.categories.items() if size}
    for node in _nodes(report.modules):
        assert sum(child.size_bytes for child in node.children) <= node.size_bytes


@laws
@given(steps(), st.integers(1, 100))
def test_the_peak_is_the_highest_slice_of_the_timeline(step: Step, num_slices: int) -> None:
    report = analyze(step.capture())
    slices = report.timeline.slices(num_slices)
    assert max(each.live_bytes for each in slices) == report.live_peak_bytes
    assert all(size >= 0 for each in slices for size in each.categories.values())
    # Whatever comes alive in the temp block dies in it.
    assert sum(change.delta_bytes for change in report.timeline.changes) == 0
    places = [place for span in report.timeline.phases for place in range(span.start, span.end + 1)]
    assert places in ([], list(range(report.timeline.num_positions)))


@laws
@given(steps(), st.randoms(use_true_random=False))
def test_the_order_of_rows_in_the_proto_does_not_matter(step: Step, random: Any) -> None:
    capture = step.capture()
    proto = parse_proto(capture.hlo_proto)
    for rows in (proto.buffer_assignment.buffer_allocations, proto.buffer_assignment.logical_buffers):
        shuffled = list(rows)
        random.shuffle(shuffled)
        del rows[:]
        rows.extend(shuffled)
    shuffled_report = analyze(replace(capture, hlo_proto=proto.SerializeToString()))
    assert _without_time(shuffled_report) == _without_time(analyze(capture))


@laws
@given(steps())
def test_analysing_twice_gives_the_same_report(step: Step) -> None:
    capture = step.capture()
    assert _without_time(analyze(capture)) == _without_time(analyze(capture))


# Traces


@st.composite
def traces(draw: st.DrawFn) -> tuple[tuple[Event, ...], dict[int, int], list[int]]:
    """Any valid trace, the size of each buffer, and the bytes that are live after each event."""
    events: list[Event] = []
    sizes: dict[int, int] = {}
    owner: dict[int, int] = {}  # the buffer whose memory each buffer uses
    live: list[int] = []
    sums: list[int] = []
    for _ in range(draw(st.integers(1, 30))):
        kind = draw(st.sampled_from(list(EventKind)))
        if kind is EventKind.FREE and live:
            buffer = draw(st.sampled_from(live))
            live.remove(buffer)
            events.append(Event(kind, buffer, 0, ""))
        elif kind is EventKind.SHARE_WITH and owner:
            buffer, canonical = len(owner), draw(st.sampled_from(sorted(owner)))
            sizes[buffer] = draw(st.integers(0, 100))
            owner[buffer] = owner[canonical]
            live.append(buffer)
            events.append(Event(kind, buffer, canonical, ""))
        else:
            buffer = len(owner)
            sizes[buffer] = draw(st.integers(0, 100))
            owner[buffer] = buffer
            live.append(buffer)
            events.append(Event(EventKind.ALLOC, buffer, 0, ""))
        sums.append(sum(sizes[used] for used in {owner[buffer] for buffer in live}))
    return tuple(events), sizes, sums


@laws
@given(traces())
def test_a_replay_has_live_what_a_live_value_uses(drawn: tuple[tuple[Event, ...], dict[int, int], list[int]]) -> None:
    events, sizes, sums = drawn
    buffers = {
        number: LogicalBuffer(id=number, size_bytes=size, instruction=0, shape_index=(), allocation=0, offset=0)
        for number, size in sizes.items()
    }
    liveness = replay(
        HeapTrace(allocation=0, events=events), BufferTable(logical_buffers=buffers, allocations=(), traces=())
    )
    assert [
        sum(span.size_bytes for span in liveness.spans if span.start <= event < span.end)
        for event in range(len(events))
    ] == sums
    assert liveness.peak_bytes == max(sums)
    assert sums[liveness.peak_event] == liveness.peak_bytes
    # Each value lives once, within the time that its memory is taken.
    taken = Counter(lifetime.buffer_id for lifetime in liveness.lifetimes)
    assert taken == Counter(event.buffer_id for event in events if event.kind is not EventKind.FREE)
    for lifetime in liveness.lifetimes:
        assert any(
            span.canonical_id == lifetime.canonical_id and span.start <= lifetime.start <= lifetime.end <= span.end
            for span in liveness.spans
        )


# Captures

_numbers = st.integers(0, 2**62)
_texts = st.text(max_size=200).map(clean)  # what steers a terminal is an escape once it was read
_scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | _texts


@st.composite
def captures(draw: st.DrawFn) -> Capture:
    leaves = st.builds(
        ArgumentLeaf,
        path=_texts,
        role=st.sampled_from(Role),
        shape=st.lists(st.integers(0, 2**20), max_size=3).map(tuple),
        dtype=_texts,
        size_bytes=_numbers,
        donated=st.booleans(),
        parameter_number=st.none(),
    )
    totals = st.builds(
        CompilerTotals,
        argument_bytes=_numbers,
        output_bytes=_numbers,
        alias_bytes=_numbers,
        temp_bytes=_numbers,
        peak_memory_bytes=st.none() | _numbers,
        total_allocation_bytes=st.none() | _numbers,
    )
    program = Step()
    program.result(program.op("y", "iota", f32(4)))
    capture = capture_of(program.proto(), draw(st.lists(leaves, max_size=3)), draw(totals))
    return replace(
        capture,
        label=draw(_texts),
        techniques=tuple(draw(st.lists(_texts, max_size=3))),
        config=draw(st.dictionaries(_texts, _scalars, max_size=5)),
        source_lines=draw(st.dictionaries(_texts, st.dictionaries(st.integers(1, 10**6), _texts), max_size=2)),
        replay=replay_totals(capture.hlo_proto, capture.target.platform),
    )


@laws
@given(captures())
def test_a_capture_survives_its_file(capture: Capture) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "step.memprof"
        write_capture(capture, path)
        read = read_capture(path)
        assert read == capture
        assert list(map(type, read.config.values())) == list(map(type, capture.config.values()))
