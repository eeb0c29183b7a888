"""Compute a step's losses and attentions in chunks. Data flow identifies them (see `regions.py`)."""

from __future__ import annotations

from collections.abc import Iterator

from memprof.analysis.records.rewrites import InChunks
from memprof.sources.jax.checkpointing.chunks import chunked
from memprof.sources.jax.checkpointing.regions import Kind, Region
from memprof.sources.jax.compile import traced_jaxpr
from memprof.studies.advice.step_kind import has_backward_pass
from memprof.studies.changes.change import Change, Step
from memprof.studies.changes.own_jit import changed_step, with_rewrite
from memprof.workloads.intents import Aim, Intent

_MIN_SHARE = 0.005  # of the footprint: smaller arrays are not worth a compile; gradients and copies lie beside them
_NUM_PARTS = 8
_MAX_PART_BYTES = 256 << 20  # of the first product
_MAX_PARTS = 64
_WHAT = {
    Kind.LOSS: ("chunked_loss", Aim.CHUNK_LOSS, "Compute the logits and their loss in {} chunks"),
    Kind.ATTENTION: ("chunked_attention", Aim.CHUNK_ATTENTION, "Attend with one of {} blocks of queries at a time"),
}


def in_chunks(step: Step) -> Iterator[Change]:
    """Yield the step with its loss in chunks, and with its attentions in blocks of queries."""
    if step.is_composed:
        return
    found: list[Region] = []
    whole = InChunks(loss=_NUM_PARTS, attention=_NUM_PARTS)
    changed = changed_step(step.spec, lambda fn: chunked(fn, whole, found))
    if changed is None:
        return
    traced_jaxpr(changed, step.target)
    for kind, (rule, aim, what) in _WHAT.items():
        regions = [each for each in found if each.kind is kind]
        sizes = [each.large_bytes // step.target.topology.num_devices for each in regions]
        if not sizes or sum(sizes) < least_bytes(step):
            continue
        num_parts = max(_NUM_PARTS, min(_MAX_PARTS, -(-max(sizes) // _MAX_PART_BYTES)))
        loss, attention = (num_parts, 1) if kind is Kind.LOSS else (1, num_parts)
        rewrite = InChunks(loss=loss, attention=attention, interleaved=step.target.topology.num_devices > 1)
        applied = with_rewrite(step.spec, rewrite)
        assert applied is not None
        code, changed = applied
        yield Change(
            rule=rule,
            intent=Intent(aim=aim, num_parts=num_parts),
            what=what.format(num_parts),
            evidence=_evidence(regions, kind),
            cost=_cost(regions, recomputes=has_backward_pass(step.report)),
            code=code,
            spec=changed,
            rewrite=rewrite,
            is_proved=True,
        )


def least_bytes(step: Step) -> float:
    """Return the least size of arrays that are worth a compile. A loop over layers may keep one for each layer."""
    num_iterations = max((loop.trip_count or 1 for loop in step.report.program.loops), default=1)
    return _MIN_SHARE * step.report.unpressed.footprint_bytes / num_iterations


def _cost(regions: list[Region], *, recomputes: bool) -> str:
    if not recomputes:
        return "computes them in a loop"
    collectives = " and collectives" if any(each.has_collectives for each in regions) else ""
    return f"recomputes their matrix products{collectives} of the forward pass, in a loop"


def _evidence(regions: list[Region], kind: Kind) -> str:
    largest = max(regions, key=lambda each: each.large_bytes)
    name = "losses of logits" if kind is Kind.LOSS else "attentions"
    return f"{name} found by data flow: {len(regions)}; the largest makes {largest.large_bytes:,} bytes at once"
