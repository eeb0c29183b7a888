"""The least time of collectives: 96 bytes over links of 10 bytes a second."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hlo import Step, program_of
from hlo_nodes import f32

from memprof.analysis.roofline.links import seconds_of_collective

PAIRS, FOURS = ((0, 1), (2, 3), (4, 5), (6, 7)), ((0, 1, 2, 3), (4, 5, 6, 7))


def _seconds(opcode: str, groups: Sequence[Sequence[int]]) -> float | None:
    step = Step()
    step.op("sent", opcode, f32(24), [step.op("x", "constant", f32(24))], groups=groups)
    program = program_of(step.proto())
    (instruction,) = (each for each in program.instructions if each.name == "sent")
    return seconds_of_collective(program, instruction, num_devices=8, bytes_per_second=10.0)


@pytest.mark.parametrize(
    ("opcode", "groups", "seconds"),
    [
        # Around a ring of n devices, each sends (n - 1) / n of the payload.
        ("all-gather", PAIRS, 4.8),
        ("all-gather", FOURS, 7.2),
        ("reduce-scatter", FOURS, 7.2),
        ("all-to-all", FOURS, 7.2),
        ("all-reduce", PAIRS, 9.6),
        ("all-reduce", FOURS, 14.4),
        ("all-reduce", (), 16.8),  # no list: all 8 devices
        ("all-reduce", ((0, 1, 2, 3), (4, 5)), 9.6),  # a lower bound: the smallest group
        ("all-reduce", ((0,), (1,)), 0.0),
        # The whole payload, if anything is sent at all.
        ("collective-permute", ((0, 1), (1, 0)), 9.6),
        ("collective-permute", ((0, 0), (1, 1)), 0.0),
        ("collective-permute", ((0, 0), (1, 2)), 9.6),
        ("collective-broadcast", (), 9.6),
        # How much each device sends is known only at run time.
        ("ragged-all-to-all", FOURS, None),
    ],
)
def test_a_collective_takes_its_part_of_the_payload(
    opcode: str, groups: Sequence[Sequence[int]], seconds: float | None
) -> None:
    assert _seconds(opcode, groups) == (None if seconds is None else pytest.approx(seconds))
