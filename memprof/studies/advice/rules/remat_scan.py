"""Activations that a scan over layers stacks up."""

from __future__ import annotations

from memprof.analysis.categories import Category, Phase
from memprof.analysis.report import LiveBuffer, Report
from memprof.studies.advice.advice import AdviceRule, Proposal
from memprof.studies.advice.residuals import smallest_array
from memprof.studies.advice.what_if import Instead, amount, changed_at_peak


def _propose(report: Report) -> tuple[Proposal, ...]:
    lengths = {loop.trip_count for loop in report.program.loops if loop.phase is Phase.FORWARD and loop.trip_count}
    proposals = (_of_length(report, length) for length in sorted(lengths) if length > 1)
    return tuple(proposal for proposal in proposals if proposal is not None)


def _of_length(report: Report, length: int) -> Proposal | None:
    stacks = [
        buffer
        for buffer in report.temp_buffers
        if buffer.is_stacked
        and buffer.category is Category.ACTIVATIONS
        and len(buffer.shape) > 1
        and buffer.shape[0] == length
    ]
    if len(stacks) < 2:  # one is what the loop carries along: what all others can be made of again
        return None
    carried = smallest_array(stacks)
    forgotten = {id(buffer) for buffer in stacks if buffer is not carried}

    def without(buffer: LiveBuffer) -> Instead | None:
        return Instead(size_bytes=buffer.size_bytes // length) if id(buffer) in forgotten else None

    return Proposal(
        what="Recompute the activations of a scan's body in the backward pass",
        evidence=f"a scan stacks activations of {length} layers up, each of which its body can make again: "
        f"{amount(changed_at_peak(report, without), 'arrays')} at the peak",
        cost="the forward pass of its body again",
        how_to="x, _ = jax.lax.scan(jax.checkpoint(body, prevent_cse=False), x, layers)",
        without=without,
        technique="remat",
    )


RULE = AdviceRule(name="remat_scan", propose=_propose)
