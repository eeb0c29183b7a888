"""A scan in groups of iterations: the same results and gradients as the scan, and no more carries than groups."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from hypothesis import given, settings
from hypothesis import strategies as st

import memprof
from memprof.analysis.records.checkpoints import Checkpoints
from memprof.errors import MemprofError
from memprof.sources.jax.checkpointing.apply import checkpointed
from memprof.sources.jax.checkpointing.scan_in_groups import scan_in_groups
from memprof.sources.jax.tracing.jit_adapter import all_equations
from memprof.studies.plan.code import code_of


def _body(carry: Any, row: Any) -> tuple[Any, Any]:
    carry = {"state": carry["state"] * row[0] + row[1], "count": carry["count"] + 1}
    return carry, (carry["state"] * 2, row[0] + carry["count"])


@settings(max_examples=25)  # each compiles three loops
@given(st.integers(1, 12), st.integers(2, 6), st.booleans(), st.integers(1, 2))
@pytest.mark.with_one_jax
def test_the_results_are_those_of_the_scan(length: int, size: int, reverse: bool, unroll: int) -> None:
    init = {"state": jnp.float32(0.5), "count": jnp.int32(0)}
    rows = (jnp.linspace(0.5, 1.5, length), jnp.linspace(-1.0, 1.0, length))
    expected = jax.lax.scan(_body, init, rows, reverse=reverse, unroll=unroll)
    found = scan_in_groups(_body, init, rows, length=length, size=size, reverse=reverse, unroll=unroll)
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    pasted: dict[str, Any] = {}
    exec(code_of(Checkpoints(kept=frozenset(), group_size=size), is_loop=True), pasted)
    found = pasted["scan_in_groups"](_body, init, rows, reverse=reverse, unroll=unroll)
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_a_scan_without_rows_has_a_length() -> None:
    pasted: dict[str, Any] = {}
    exec(code_of(Checkpoints(kept=frozenset(), group_size=3), is_loop=True), pasted)
    for found in (
        pasted["scan_in_groups"](lambda carry, _: (carry * 2.0, carry), 1.0, length=7),
        scan_in_groups(lambda carry, _: (carry * 2.0, carry), 1.0, None, length=7, size=3),
    ):
        assert found[0] == 2.0**7
        np.testing.assert_array_equal(found[1], 2.0 ** np.arange(7))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [12, 14])
def test_a_step_keeps_one_carry_per_group_and_its_gradients(length: int, reverse: bool) -> None:
    """Of 12 or 14 iterations in groups of 4, three groups keep their carry; two more iterations keep their own."""
    weights, x = jnp.linspace(-1.0, 1.0, length * 5 * 5).reshape(length, 5, 5), jnp.linspace(0.0, 1.0, 5)

    def loss(weights: jax.Array, x: jax.Array) -> jax.Array:
        carry, rows = jax.lax.scan(lambda x, w: (jnp.sin(x @ w), jnp.sum(x)), x, weights, reverse=reverse)
        return jnp.sum(carry) + jnp.sum(rows**2)

    step = jax.value_and_grad(loss, argnums=(0, 1))
    expected = jax.jit(step)(weights, x)
    with checkpointed(Checkpoints(kept=frozenset(), group_size=4)):
        traced = jax.make_jaxpr(step)(weights, x)
        found = jax.jit(lambda *args: step(*args))(weights, x)
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-6), found, expected)
    lengths = [each.params["length"] for each in all_equations(traced.jaxpr) if each.primitive.name == "scan"]
    assert sorted(set(lengths)) == sorted({3, 4, *([2] if length == 14 else [])})
    carries = {
        var.aval.shape
        for each in traced.jaxpr.eqns
        if each.primitive.name == "scan"
        for var in each.outvars
        if var.aval.shape[1:] == (5,)
    }
    assert carries == {(3, 5), *([(2, 5)] if length == 14 else [])}


@pytest.mark.parametrize("size", [1, 2.0, "8"])
def test_a_group_has_at_least_two_iterations(size: Any) -> None:
    with pytest.raises(MemprofError, match=f"InGroups needs an integer of at least 2, not {size!r}"):
        memprof.InGroups(size=size)


def test_the_scan_of_a_framework_is_put_into_groups_too() -> None:
    """`nn.RNN` scans 12 steps: in groups of 3, four carries are stacked, in place of twelve."""
    model = nn.RNN(nn.SimpleCell(4))
    x = jnp.linspace(-1.0, 1.0, 2 * 12 * 4).reshape(2, 12, 4)
    params = model.init(jax.random.key(0), x)

    def loss(params: Any) -> jax.Array:
        return jnp.sum(model.apply(params, x) ** 2)

    step = jax.jit(jax.grad(loss))
    changed = memprof.apply(memprof.InGroups(size=3))(step)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4), changed(params), step(params))
    stacked = [
        {var.aval.shape for each in all_equations(jax.make_jaxpr(one)(params).jaxpr) for var in each.outvars}
        for one in (step, changed)
    ]
    assert [(4, 2, 4) in each for each in stacked] == [False, True]
