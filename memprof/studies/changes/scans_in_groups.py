"""Put the iterations of long scans into groups, each under another checkpoint (see `group_size.py`)."""

from __future__ import annotations

from collections.abc import Iterator

from memprof.analysis.records.checkpoints import Checkpoints
from memprof.analysis.records.rewrites import InGroups
from memprof.sources.jax.checkpointing.apply import checkpointed
from memprof.sources.jax.checkpointing.block_programs import BlockProgram, blocks_of
from memprof.sources.jax.checkpointing.blocks import made_bytes
from memprof.sources.jax.checkpointing.layers import layers_of
from memprof.sources.jax.checkpointing.liveness import estimated_peaks
from memprof.sources.jax.compile import traced_jaxpr
from memprof.studies.changes.change import Change, Step
from memprof.studies.changes.checkpoint_places import CLEARLY
from memprof.studies.changes.group_size import best_group_size
from memprof.studies.changes.own_jit import with_rewrite
from memprof.workloads.intents import Aim, Intent

_LONG = 64  # iterations; a scan over the layers of a model is shorter


def scans_in_groups(step: Step) -> Iterator[Change]:
    """Yield the step with its long scans in groups, if its estimate is clearly below those of checkpoints alone."""
    if step.is_built_in or all((loop.trip_count or 0) < _LONG for loop in step.report.program.loops):
        return
    with checkpointed(None) as functions:
        unchanged = traced_jaxpr(step.spec, step.target)
    scans = [each for closed in functions for each in blocks_of(closed) if _is_long(each)]
    if not scans:
        return
    largest = max(scans, key=lambda each: each.count * _carried_bytes(each))
    size = best_group_size(largest.count, _carried_bytes(largest))
    if size is None:
        return
    nothing_kept = Checkpoints(kept=frozenset())
    in_groups = Checkpoints(kept=frozenset(), group_size=size)
    least = min(min(estimated_peaks(unchanged.jaxpr)), _estimate(step, nothing_kept))
    if _estimate(step, in_groups) > CLEARLY * least:
        return
    applied = with_rewrite(step.spec, InGroups(size=size))
    if applied is None:
        return
    code, changed = applied
    layers = {layer.key: layer for closed in functions for layer in layers_of(closed)}.values()
    where = "".join(f"; {layer.place}" for layer in layers)
    yield Change(
        rule="recompute_in_groups",
        intent=Intent(aim=Aim.RECOMPUTE_SCAN),
        what=f"Checkpoint each group of {size} iterations of the scan, and each iteration",
        evidence=f"the backward pass goes through {sum(each.count for each in scans):,} iterations of scans{where}",
        cost="recomputes the iterations twice",
        code=code,
        spec=changed,
        rewrite=InGroups(size=size),
    )


def _is_long(block: BlockProgram) -> bool:
    return block.is_loop and block.inner_count is None and block.count >= _LONG


def _carried_bytes(block: BlockProgram) -> int:
    return made_bytes([block.closed.jaxpr.invars[place] for place in block.carried])


def _estimate(step: Step, checkpoints: Checkpoints) -> int:
    with checkpointed(checkpoints):
        return min(estimated_peaks(traced_jaxpr(step.spec, step.target).jaxpr))
