"""Laws of the roofline bound that hold for any program."""

from __future__ import annotations

from dataclasses import replace

from hlo import Step, program_of
from hlo_nodes import Computation, Node, f32, tuple_of
from hypothesis import given
from hypothesis import strategies as st

from memprof.analysis.records.capture import Speeds, Target
from memprof.analysis.records.categories import Role
from memprof.analysis.records.roofline import Roofline
from memprof.analysis.roofline.bound import roofline

_SIZE = 8
_SHAPE = f32(_SIZE, _SIZE)
# What a program does to the last value: `dot`, `add`, or a collective in the background of an addition.
_KERNELS = st.lists(st.sampled_from(["dot", "add", "copy", "all-reduce"]), min_size=1, max_size=6)
_SPEED = st.floats(min_value=1e3, max_value=1e15)
_SPEEDS = st.builds(
    lambda peak, memory, link, host: Speeds(
        operations_per_second={"tf32": peak},
        memory_bytes_per_second=memory,
        link_bytes_per_second=link,
        host_bytes_per_second=host,
    ),
    *(_SPEED,) * 4,
)


def _add(computation: Computation, value: Node, kernels: list[str], prefix: str) -> Node:
    for number, kernel in enumerate(kernels):
        name = f"{prefix}{number}.{kernel}"
        if kernel == "all-reduce":
            start = computation.op(f"{name}.start", "all-reduce-start", _SHAPE, [value], groups=[[0, 1]])
            other = computation.op(name, "add", _SHAPE, [value, value])
            done = computation.op(f"{name}.done", "all-reduce-done", _SHAPE, [start])
            value = computation.op(f"{name}.sum", "add", _SHAPE, [other, done])
        elif kernel == "copy":
            value = computation.op(name, kernel, _SHAPE, [value])
        else:
            contracting = (1,) if kernel == "dot" else ()
            value = computation.op(name, kernel, _SHAPE, [value, value], contracting=contracting)
    return value


def _straight(kernels: list[str], *, times: int = 1) -> Step:
    step = Step()
    value = step.argument("a", Role.OTHER_STATE, _SHAPE)
    for turn in range(times):
        value = _add(step, value, kernels, f"{turn}.")
    return step


def _looped(kernels: list[str], times: int) -> Step:
    step = Step()
    carry = tuple_of(_SHAPE)
    body, condition = step.computation("body"), step.computation("condition")
    body.tuple(_add(body, body.element(body.parameter(carry), 0), kernels, "body."))
    condition.parameter(carry)
    condition.op("true", "constant", f32())
    start = step.tuple(step.argument("a", Role.OTHER_STATE, _SHAPE))
    step.op("loop", "while", carry, [start], called=[body, condition], number=times)
    return step


def _bound(step: Step, speeds: Speeds) -> Roofline:
    target = Target(
        name="any",
        description="",
        platform="cuda",
        memory_bytes=None,
        compute_capability=None,
        reason="",
        speeds=speeds,
    )
    found = roofline(program_of(step.proto()), target)
    assert found is not None
    return found


def _is_close(one: float, other: float) -> bool:
    return abs(one - other) <= 1e-9 * max(one, other)


@given(kernels=_KERNELS, times=st.integers(min_value=1, max_value=5), speeds=_SPEEDS)
def test_a_loop_takes_as_long_as_its_body_written_out(kernels: list[str], times: int, speeds: Speeds) -> None:
    looped, straight = _bound(_looped(kernels, times), speeds), _bound(_straight(kernels, times=times), speeds)
    assert _is_close(looped.at_least_seconds, straight.at_least_seconds)
    assert abs(looped.compute_share - straight.compute_share) < 1e-9


@given(kernels=_KERNELS, speeds=_SPEEDS)
def test_a_slower_device_is_never_faster_and_at_most_slower_in_proportion(kernels: list[str], speeds: Speeds) -> None:
    step = _straight(kernels)
    whole = _bound(step, speeds).at_least_seconds
    slower = (
        replace(speeds, memory_bytes_per_second=speeds.memory_bytes_per_second / 2),
        replace(speeds, link_bytes_per_second=speeds.link_bytes_per_second / 2),
        replace(speeds, operations_per_second={"tf32": speeds.operations_per_second["tf32"] / 2}),
    )
    for each in slower:
        assert whole <= _bound(step, each).at_least_seconds <= 2 * whole * (1 + 1e-9)


@given(kernels=_KERNELS, speeds=_SPEEDS)
def test_the_shares_of_the_time_add_up(kernels: list[str], speeds: Speeds) -> None:
    found = _bound(_straight(kernels), speeds)
    shares = (found.compute_share, found.memory_share, found.communication_share)
    assert all(0 <= share <= 1 + 1e-9 for share in shares)
    assert _is_close(sum(shares), 1.0)


@given(kernels=_KERNELS, more=_KERNELS, speeds=_SPEEDS)
def test_more_kernels_never_take_less_time(kernels: list[str], more: list[str], speeds: Speeds) -> None:
    assert _bound(_straight(kernels), speeds).at_least_seconds <= _bound(
        _straight(kernels + more), speeds
    ).at_least_seconds * (1 + 1e-9)
