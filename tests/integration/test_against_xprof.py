"""An independent check: XProf's memory viewer, fed with the same program, finds the same peak and the same buffers.

XProf replays the heap trace with code of its own. What it shows differs from a report in four ways, none in the bytes:

- sizes are MiB as floating-point numbers: exact, since they are a power of two away from whole bytes;
- buffers under 16 KiB are one row;
- where several values share a piece of memory, XProf names the one that had it first, a report the one that has it at
  the peak; and of the values that lie in the block of a result one after the other, XProf names the largest. So the
  names of temporaries and results are compared by the piece of memory that they stand for;
- elements of a tuple have their index after the name (`fusion.3{1}`).
"""

from __future__ import annotations

import json
from collections import Counter

import jax
import pytest
from integration.steps import Step
from xprof.convert import raw_to_tool_data

from memprof.analysis.hlo.buffer_table import EventKind, decode_buffer_table
from memprof.analysis.hlo.hlo_proto import parse_proto
from memprof.analysis.hlo.program_decoding import decode_program
from memprof.analysis.records.categories import Phase

MIB = 2**20
SMALL_BYTES = 16 * 1024  # what is smaller is not shown one by one
MODULE_NAME = "step(1)"

STEPS = [
    Step(workload="mlp", preset="base", target="h100-80gb"),
    Step(workload="transformer", preset="tiny", target="h100-80gb"),
    Step(workload="transformer", preset="tiny", techniques=("bf16", "donate"), target="l4"),
    Step(workload="transformer", preset="tiny", target="cpu"),  # where the compiler itself tells no peak
    Step(workload="transformer", preset="gpt2", target="h100-80gb", overrides=("num_layers=2",)),
]
# So many examples that XLA recomputes values on its own to fit.
RECOMPUTING = Step(workload="transformer", preset="uva", target="l4", overrides=("num_layers=2", "batch_size=256"))
# XProf and what it is compared with do not come with jax: an older one's programs are seen in two steps.
WITH_EACH_JAX = (STEPS[1], STEPS[3])
PARAMS = [
    pytest.param(step, marks=pytest.mark.with_each_jax if step in WITH_EACH_JAX else pytest.mark.slow)
    for step in (*STEPS, RECOMPUTING)
]


@pytest.fixture(scope="module", params=PARAMS, ids=str)
def step(request) -> Step:
    return request.param


@pytest.fixture(scope="module")
def viewed(compiler, step, tmp_path_factory) -> dict:
    """What XProf's memory viewer shows of a program that never ran: its log directory is made of the proto alone."""
    proto = compiler.capture(step).hlo_proto
    folder = tmp_path_factory.mktemp("xprof")
    (folder / f"{MODULE_NAME}.hlo_proto.pb").write_bytes(proto)
    escaped = "".join(f"\\{byte:03o}" for byte in proto)
    xspace = f"""
      planes {{
        name: "/host:metadata"
        event_metadata {{
          key: 1
          value {{ id: 1 name: "{MODULE_NAME}" stats {{ metadata_id: 1 bytes_value: "{escaped}" }} }}
        }}
        stat_metadata {{ key: 1 value {{ id: 1 name: "Hlo Proto" }} }}
      }}"""
    path = folder / "host.xplane.pb"
    path.write_bytes(jax.profiler.ProfileData.text_proto_to_serialized_xspace(xspace))
    data, _ = raw_to_tool_data.xspace_to_tool_data([str(path)], "memory_viewer", {"module_name": MODULE_NAME})
    return json.loads(data)


def in_bytes(mib: float) -> int:
    size_bytes = mib * MIB
    assert size_bytes == int(size_bytes)
    return int(size_bytes)


def shown(viewed, group=None) -> list[dict]:
    """XProf's buffers at the peak that it shows one by one."""
    return [each for each in viewed["maxHeap"] if each["logicalBufferId"] != -1 and group in (None, each["groupName"])]


def large(report) -> list:
    """The report's buffers of the size that XProf shows one by one."""
    return [buffer for buffer in report.buffers if buffer.size_bytes >= SMALL_BYTES]


def place_of_each_buffer(capture) -> tuple[dict, dict]:
    """Where each logical buffer lies.

    Returns:
        The piece of memory by logical buffer: the allocation, and in a temp block also the logical buffer that took it
        first (the one that a SHARE_WITH of the trace leads to). And the logical buffers by (instruction, size).
    """
    proto = parse_proto(capture.hlo_proto)
    program = decode_program(proto)
    table = decode_buffer_table(proto, program)
    first_of, traced = {}, set()
    for trace in table.traces:
        traced.add(trace.allocation)
        for event in trace.events:
            if event.kind is EventKind.SHARE_WITH:
                first_of[event.buffer_id] = event.canonical_id
    places, by_name = {}, {}
    for buffer in table.logical_buffers.values():
        first = buffer.id
        while first in first_of:
            first = first_of[first]
        places[buffer.id] = (buffer.allocation, first if buffer.allocation in traced else None)
        name = program.instructions[buffer.instruction].name
        by_name.setdefault((name, buffer.size_bytes), []).append(buffer)
    return places, by_name


@pytest.mark.slow_cases
def test_the_peak_is_the_same(compiler, step, viewed):
    report = compiler.report(step)
    assert in_bytes(viewed["peakHeapMib"]) == report.live_peak_bytes


def test_the_footprint_is_the_same(compiler, step, viewed):
    report = compiler.report(step)
    assert in_bytes(viewed["totalBufferAllocationMib"]) == report.footprint_bytes


def test_the_sizes_at_the_peak_are_the_same(compiler, step, viewed):
    report = compiler.report(step)
    theirs = Counter(in_bytes(each["logicalBufferSizeMib"]) for each in shown(viewed))
    assert theirs == Counter(buffer.size_bytes for buffer in large(report))
    the_rest = sum(
        in_bytes(each["logicalBufferSizeMib"]) for each in viewed["maxHeap"] if each["logicalBufferId"] == -1
    )
    assert the_rest == sum(buffer.size_bytes for buffer in report.buffers if buffer.size_bytes < SMALL_BYTES)


def test_the_arguments_are_the_same(compiler, step, viewed):
    report = compiler.report(step)
    theirs = Counter(
        (each["instructionName"], each["tfOpName"], in_bytes(each["logicalBufferSizeMib"]))
        for each in shown(viewed, "Parameter")
    )
    ours = [buffer for buffer in large(report) if buffer.phase is Phase.ARGUMENT]
    assert theirs == Counter((buffer.name, buffer.op, buffer.size_bytes) for buffer in ours)


def test_the_pieces_of_memory_at_the_peak_are_the_same(compiler, step, viewed):
    report = compiler.report(step)
    places, by_name = place_of_each_buffer(compiler.capture(step))
    theirs = {places[each["logicalBufferId"]] for each in shown(viewed)}
    assert len(theirs) == len(shown(viewed))
    found = set()
    for buffer in large(report):
        # Elements of one tuple have one name; those of one size are told apart by their offset in the temp block.
        same_name = [each for each in by_name[buffer.name, buffer.size_bytes] if buffer.offset in (None, each.offset)]
        same_memory = {places[each.id] for each in same_name} & theirs
        assert same_memory, f"XProf does not hold {buffer.name} ({buffer.size_bytes:,} bytes) to be live"
        found |= same_memory
    assert found == theirs
