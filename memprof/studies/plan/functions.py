"""A plan's checkpoints around user functions, if the step's blocks are not the best place for them.

The plan's code is executed in the user's program while the step is traced (see `rebinding.py`), so the compiled step is
the same as with pasted code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from jax.extend import core

from memprof.analysis.records.capture import Target
from memprof.analysis.records.checkpoints import Checkpoints
from memprof.sources.jax.checkpointing.apply import differentiated
from memprof.sources.jax.checkpointing.block_programs import BlockProgram
from memprof.sources.jax.checkpointing.blocks import differentiated_equations
from memprof.sources.jax.checkpointing.evaluation import without_calls
from memprof.sources.jax.compile import traced_jaxpr
from memprof.sources.jax.tracing import jit_adapter
from memprof.sources.jax.tracing.rebinding import pasted
from memprof.sources.jax.tracing.step import StepSpec
from memprof.studies.changes.checkpoint_code import Written
from memprof.studies.plan.code import POLICY, code_of_functions


@contextmanager
def checkpointed_functions(functions: Sequence[Written], checkpoints: Checkpoints) -> Iterator[Any]:
    """Put checkpoints around functions within a `with` block, by running the code that a user would paste.

    Yields:
        The policy of these checkpoints.
    """
    code = code_of_functions(checkpoints, functions)
    with pasted(code, [each.bound for each in functions]) as names, jit_adapter.traced_anew():
        yield names[POLICY]


def blocks_of_functions(spec: StepSpec, target: Target, functions: Sequence[Written]) -> list[BlockProgram]:
    """Return the differentiated calls of functions as blocks; equal calls are one block."""
    keep_nothing = Checkpoints(kept=frozenset())
    with checkpointed_functions(functions, keep_nothing) as policy, differentiated() as seen:
        traced_jaxpr(spec, target)
    counts: Counter[str] = Counter()
    programs: dict[str, core.Jaxpr] = {}
    for closed in seen:
        for jaxpr, num_runs in _checkpointed_jaxprs(closed.jaxpr, policy):
            text = str(jaxpr)
            counts[text] += num_runs
            programs[text] = jaxpr
    return [
        BlockProgram(closed=without_calls(core.ClosedJaxpr(jaxpr, ())), count=counts[text])
        for text, jaxpr in programs.items()
    ]


def _checkpointed_jaxprs(jaxpr: core.Jaxpr, policy: Any, num_runs: int = 1) -> Iterator[tuple[core.Jaxpr, int]]:
    """Yield the outermost jaxprs checkpointed with a policy, and how often each runs."""
    for equation, is_reached in zip(jaxpr.eqns, differentiated_equations(jaxpr), strict=True):
        if not is_reached:
            continue
        if equation.params.get("policy") is policy:
            yield equation.params["jaxpr"], num_runs
            continue
        num_inner_runs = num_runs * (int(equation.params["length"]) if equation.primitive.name == "scan" else 1)
        for each in core.jaxprs_in_params(equation.params):
            yield from _checkpointed_jaxprs(each, policy, num_inner_runs)
