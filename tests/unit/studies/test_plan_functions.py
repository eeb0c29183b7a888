"""Plans with checkpoints around functions of the user: their calls as blocks, and the code for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from report_builder import H100

from memprof.analysis.records.checkpoints import Checkpoints, Signature
from memprof.sources.jax.compile import traced_jaxpr
from memprof.sources.jax.tracing.rebinding import find_bound
from memprof.sources.jax.tracing.step import StepSpec
from memprof.studies.changes.checkpoint_code import PLAIN, Written
from memprof.studies.plan.functions import blocks_of_functions, checkpointed_functions

# `wide` runs 3 times on 8 rows in a scan, and on 4 rows; `outer` calls it once more, and `frozen` is no function of w.
_SOURCE = """
import jax, jax.numpy as jnp

def wide(w, x):
    return jnp.tanh(x @ w) @ w.T

def outer(w, x):
    return jnp.sin(wide(w, x))

def step(w, x):
    def loss(w):
        y, _ = jax.lax.scan(lambda x, _: (wide(w, x), None), x, None, length=3)
        frozen = wide(jnp.ones((4, 16)), x)
        return jnp.sum(y + frozen + outer(w, x)) + jnp.sum(wide(w, x[:4]))
    return jax.grad(loss)(w)

args = (jax.ShapeDtypeStruct((4, 16), jnp.float32), jax.ShapeDtypeStruct((8, 4), jnp.float32))
"""


@contextmanager
def _program(folder: Path) -> Iterator[tuple[StepSpec, dict[str, Written]]]:
    path = folder / "train.py"
    path.write_text(_SOURCE)
    names: dict[str, Any] = {"__name__": "train"}
    exec(compile(_SOURCE, str(path), "exec"), names)
    functions: dict[str, Written] = {}
    for name in ("wide", "outer"):
        bound = find_bound(name, str(path))
        assert bound is not None
        functions[name] = Written(
            title=name, definition=name, target=name, file=str(path), line=1, is_loop=False, form=PLAIN, bound=bound
        )
    yield StepSpec(names["step"], names["args"]), functions


def test_equal_calls_are_one_block_and_nested_calls_belong_to_the_outer_one(tmp_path: Path) -> None:
    with _program(tmp_path) as (spec, functions):
        alone = blocks_of_functions(spec, H100, [functions["wide"]])
        both = blocks_of_functions(spec, H100, [*functions.values()])
    # 3 iterations and the call of `outer` on 8 rows, and one on 4 rows.
    assert {each.closed.in_avals[1].shape: each.count for each in alone} == {(8, 4): 4, (4, 4): 1}
    found = [(each.closed.in_avals[1].shape, each.count, "sin" in str(each.closed)) for each in both]
    assert sorted(found) == [((4, 4), 1, False), ((8, 4), 1, True), ((8, 4), 3, False)]


def test_the_policy_of_the_code_decides_what_is_kept(tmp_path: Path) -> None:
    kept = Signature("tanh", (((8, 16), "float32"),), "None")
    nothing, something = Checkpoints(kept=frozenset()), Checkpoints(kept=frozenset({kept}))
    num_tanh: list[int] = []
    with _program(tmp_path) as (spec, functions):
        for checkpoints in (nothing, something):
            with checkpointed_functions([functions["wide"]], checkpoints) as policy:
                num_tanh.append(str(traced_jaxpr(spec, H100)).count(" tanh "))
            keeps = policy(jax.lax.tanh_p, jax.ShapeDtypeStruct((8, 16), jnp.float32))
            assert keeps == bool(checkpoints.kept)
    assert num_tanh[1] < num_tanh[0]


def test_the_program_is_as_before_afterwards(tmp_path: Path) -> None:
    with _program(tmp_path) as (spec, functions):
        before = str(traced_jaxpr(spec, H100))
        with checkpointed_functions([*functions.values()], Checkpoints(kept=frozenset())):
            assert str(traced_jaxpr(spec, H100)) != before
        assert str(traced_jaxpr(spec, H100)) == before
