"""Reports under the switches of JAX that are to become defaults. `tests/upcoming_defaults.py` makes the whole table."""

from __future__ import annotations

from functools import cache

import pytest
from upcoming_defaults import STEPS, Compiled, Outcome, compiled, differences, outcome, upcoming_switches

# XLA compiles another program under these; without derivatives of its own, `jax_scan3` is refused by JAX 0.12.
_OTHER_PROGRAMS = ("jax_remat3", "jax_scan3", "jax_softmax_custom_jvp")

pytestmark = [pytest.mark.usefixtures("quick_compiles"), pytest.mark.with_one_jax]


@cache
def without_switches(step: str) -> Compiled:
    plain = compiled(STEPS[step], ())
    assert plain is not None
    return plain


def test_the_announced_switches_are_found():
    assert {"jax_remat3", "jax_scan3", "jax_custom_vjp3"} <= set(upcoming_switches())


@pytest.mark.slow
def test_a_checkpoint_of_tomorrow_recomputes_as_much():
    plain, changed = (
        without_switches("transformer remat+scan"),
        compiled(STEPS["transformer remat+scan"], ["jax_remat3"]),
    )
    assert changed is not None
    assert differences(plain, changed) == []
    assert changed.facts["recomputed_flops"] > 0


@pytest.mark.parametrize("step", ["own step", "transformer baseline"])
@pytest.mark.slow
def test_switches_that_leave_the_program_as_it_is_leave_the_report(step):
    changed = compiled(STEPS[step], [name for name in upcoming_switches() if name not in _OTHER_PROGRAMS])
    assert outcome(without_switches(step), changed) is Outcome.EQUAL


@pytest.mark.slow
def test_scans_of_tomorrow_are_refused_by_jax_or_reported_alike():
    changed = compiled(STEPS["transformer remat+scan"], ["jax_scan3"])
    assert outcome(without_switches("transformer remat+scan"), changed) is not Outcome.DIFFERS
