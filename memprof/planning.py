"""`memprof.plan` and `memprof.apply`: find a checkpoint policy for a memory budget, and apply it.

For example:

    plan = memprof.plan(train_step, state, batch, target="a100-40gb", memory="30GiB")
    print(plan.code)                                  # code to paste
    step = jax.jit(memprof.apply(plan)(train_step))   # or apply it directly
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from memprof.amounts import parse_bytes
from memprof.analysis.records.checkpoints import Checkpoints
from memprof.analysis.records.rewrites import (
    Donation,
    ExamplesInChunks,
    FusedAttention,
    InChunks,
    InGroups,
    InMinibatches,
    NarrowSums,
    OnlyReadRows,
    Rewrite,
    StepInMinibatches,
    Unrolled,
)
from memprof.errors import MemprofError
from memprof.progress import stages_shown

if TYPE_CHECKING:
    from memprof.sources.jax.tracing.step import StepSpec
    from memprof.studies.plan.plan import CheckpointPlan
    from memprof.workloads.user.train_spec import TrainSpec


def plan(
    step: Callable[..., Any] | StepSpec | TrainSpec,
    /,
    *args: Any,
    memory: int | str | None = None,
    with_curve: bool = False,
    allow: str = "donate",
    offload: bool = False,
    target: str | None = None,
    donate_argnums: Sequence[int] | int = (),
    static_argnums: Sequence[int] | int = (),
    **kwargs: Any,
) -> CheckpointPlan:
    """Choose which forward results to save so that a step fits a memory budget and runs fastest.

    The step is compiled unchanged, then at most four more times with `jax.checkpoint` around its layers, or around
    other user functions if they are estimated to be a better place. The user's files are not modified.

    Args:
        step: the training step, as for `memprof.profile`.
        args, kwargs: the arguments of the step: pytrees of arrays or of `jax.ShapeDtypeStruct`.
        memory: the footprint limit, in bytes or as text ("30GiB"); None: JAX's memory pool on the target.
        with_curve: whether to also compile choices for other budgets, and JAX's built-in policies.
        allow: changes to try before checkpoints, separated by commas: "donate", "only-read-rows", "accumulate",
            "chunked-examples", "chunked-loss", "fused-attention", "chunked-attention"; or "none".
        offload: whether results may be offloaded to host memory. The layers must be in a scan.
        target: as for `memprof.profile`.
        donate_argnums, static_argnums: as for `jax.jit`.

    Raises:
        MemprofError: an argument is invalid.
        Exception: any error that the step raises while it is traced.
    """
    from memprof.sources.jax.targets.mesh import target_of_step
    from memprof.sources.jax.targets.resolve import resolve_asked
    from memprof.studies.plan.allowed import parse_allowed
    from memprof.studies.plan.search import plan_step
    from memprof.workloads.user.call import spec_of_call

    spec = spec_of_call(step, args, kwargs, donate_argnums=donate_argnums, static_argnums=static_argnums)
    budget_bytes = memory if memory is None or isinstance(memory, int) else parse_bytes(memory)
    resolved_target, allowed = target_of_step(spec, resolve_asked(target)), parse_allowed(allow)
    with stages_shown(spec.workload) as progress:
        return plan_step(
            spec,
            resolved_target,
            budget_bytes=budget_bytes,
            with_curve=with_curve,
            allowed=allowed,
            offload=offload,
            progress=progress,
        )


def apply(plan: CheckpointPlan | Rewrite | Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that applies a plan, a checkpoint policy or a rewrite to a step.

    Args:
        plan: a plan, one of `jax.checkpoint_policies`, or a rewrite such as `memprof.InChunks(loss=8)`.

    Returns:
        A function that takes a step and returns the changed step, jitted if the step was. A step without jit donates
        nothing: pass `donate_argnums` to its `jax.jit` (see `plan.code`).

    Raises:
        MemprofError: no point of the plan fits the budget.
    """
    if isinstance(plan, Rewrite):
        return lambda step: _rewritten(step, plan)
    if not callable(plan) and plan.best is None:
        raise MemprofError(
            f"no checkpoints bring {plan.label} to {plan.budget_bytes:,} bytes, so there is no plan to apply"
        )
    checkpoints = plan if callable(plan) else plan.checkpoints

    def decorator(step: Callable[..., Any]) -> Callable[..., Any]:
        from memprof.sources.jax.checkpointing.apply import traced_within, with_checkpointed_blocks
        from memprof.studies.plan.functions import checkpointed_functions

        for rewrite in () if callable(plan) else plan.rewrites:
            step = _rewritten(step, rewrite)
        if checkpoints is None:
            return step
        if callable(checkpoints) or callable(plan) or plan.placement.has_blocks:
            return with_checkpointed_blocks(step, checkpoints)
        return traced_within(step, partial(checkpointed_functions, plan.placement.functions, checkpoints))

    return decorator


def _rewritten(step: Callable[..., Any], rewrite: Rewrite) -> Callable[..., Any]:
    from memprof.sources.jax.checkpointing.accumulators import narrow_sums
    from memprof.sources.jax.checkpointing.apply import traced_within, with_checkpointed_blocks
    from memprof.sources.jax.checkpointing.attention_search import fused
    from memprof.sources.jax.checkpointing.chunks import chunked
    from memprof.sources.jax.checkpointing.divided_step import step_in_minibatches
    from memprof.sources.jax.checkpointing.example_chunks import examples_in_chunks
    from memprof.sources.jax.checkpointing.minibatches import in_minibatches
    from memprof.sources.jax.checkpointing.parts import with_only_read_rows
    from memprof.sources.jax.checkpointing.unrolled import unrolled
    from memprof.sources.jax.tracing import jit_adapter

    match rewrite:
        case Donation():
            is_jitted = hasattr(step, "lower")
            return jit_adapter.jitted_with_donation(step, rewrite.positions) if is_jitted else step
        case ExamplesInChunks():
            return traced_within(step, lambda: examples_in_chunks(rewrite))
        case InChunks():
            return chunked(step, rewrite)
        case InGroups():
            return with_checkpointed_blocks(step, Checkpoints(kept=frozenset(), group_size=rewrite.size))
        case InMinibatches():
            return traced_within(step, lambda: in_minibatches(rewrite))
        case FusedAttention():
            return fused(step, rewrite)
        case NarrowSums():
            return narrow_sums(step)
        case OnlyReadRows():
            return with_only_read_rows(step)
        case StepInMinibatches():
            return step_in_minibatches(step, rewrite)
        case Unrolled():
            return unrolled(step)
