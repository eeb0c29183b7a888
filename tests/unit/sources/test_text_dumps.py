"""XLA's texts of a program, as it writes them: where values lie and when they live makes the heap-simulator trace."""

from __future__ import annotations

import pytest

from memprof.analysis.hlo.buffer_table import EventKind
from memprof.analysis.hlo.hlo_proto import parse_proto
from memprof.errors import MemprofError
from memprof.sources.dumps.text_dumps import hlo_proto_of_texts

pytestmark = pytest.mark.with_one_jax

PROGRAM = """HloModule jit_f, is_scheduled=true, replica_count=2, num_partitions=4

ENTRY %main (x: f32[4]) -> f32[4] {
  %x = f32[4]{0} parameter(0), metadata={op_name="x"}
  %a = f32[4]{0} negate(%x)
  %b = f32[4]{0} negate(%a)
  %c = f32[4]{0} add(%a, %b)
  ROOT %d = f32[4]{0} add(%c, %x)
}
"""
ASSIGNMENT = """BufferAssignment:
allocation 0: size 16, parameter 0, shape |f32[4]| at ShapeIndex {}:
 value: <0 x @0> (size=16,offset=0): f32[4]{0}
allocation 1: size 16, page 0, maybe-live-out:
 value: <4 d @0> (size=16,offset=0): f32[4]{0}
allocation 2: size 32, page 0, preallocated-temp:
 value: <1 a @0> (size=16,offset=0): f32[4]{0}
 value: <2 b @0> (size=16,offset=16): f32[4]{0}
 value: <3 c @0> (size=16,offset=0): f32[4]{0}
"""
LIVE_RANGES = """HloLiveRange (max 5):
  InstructionSequence:
    0:x
  BufferLiveRange:
    x{}:0-5
    a{}:1-3
    b{}:2-3
    c{}:3-4
    d{}:4-5
  Live ranges at 3 (peak):
"""


def test_the_trace_follows_from_where_values_lie_and_when_they_live() -> None:
    proto = parse_proto(hlo_proto_of_texts(PROGRAM, ASSIGNMENT, LIVE_RANGES))
    (trace,) = proto.buffer_assignment.heap_simulator_traces
    events = [(EventKind(e.kind).name, e.instruction_name, e.share_with_canonical_id) for e in trace.events]
    taken = [("ALLOC", "a", 0), ("ALLOC", "b", 0), ("SHARE_WITH", "c", 1)]
    assert events == [*taken, ("FREE", "a", 0), ("FREE", "b", 0), ("FREE", "c", 0)]
    argument, result, temp = proto.buffer_assignment.buffer_allocations
    assert (argument.is_entry_computation_parameter, result.maybe_live_out, temp.maybe_live_out) == (True, True, False)
    assert [each.offset for each in temp.assigned] == [0, 16, 0]
    devices = proto.hlo_module.device_assignment
    assert (devices.replica_count, devices.computation_count) == (2, 4)


@pytest.mark.parametrize(
    ("texts", "sentence"),
    [
        ((PROGRAM[:150], ASSIGNMENT, LIVE_RANGES), "jaxlib .* cannot parse the text of its program"),
        # an assertion of XLA's parser, which ends its process
        (
            (PROGRAM.replace("parameter(0)", "parameter(8)"), ASSIGNMENT, LIVE_RANGES),
            "cannot parse .*param_no < parameter_count",
        ),
        ((PROGRAM, ASSIGNMENT[:-20], LIVE_RANGES), "its buffer assignment is damaged.*value: <3 c"),
        ((PROGRAM, ASSIGNMENT.rpartition(" value")[0], LIVE_RANGES), "is truncated: c has no place"),
        ((PROGRAM, ASSIGNMENT.replace("<2 b ", "<2 e "), LIVE_RANGES), "names e, which is not in the program"),
        ((PROGRAM, ASSIGNMENT, LIVE_RANGES.replace("    b{}:2-3\n", "")), "does not say when b lives"),
        ((PROGRAM, ASSIGNMENT, LIVE_RANGES[:120]), "its live ranges is truncated"),
        ((PROGRAM, ASSIGNMENT, LIVE_RANGES.replace("b{}:2-3", "b{}:3-2")), "b end at 2, before it starts at 3"),
    ],
)
def test_texts_that_do_not_hold_together_are_refused(texts: tuple[str, str, str], sentence: str) -> None:
    with pytest.raises(MemprofError, match=sentence):
        hlo_proto_of_texts(*texts)
