"""Logits, and the gradient of the loss by them, that exist whole."""

from __future__ import annotations

from memprof.analysis.advice.advice import AdviceRule, Proposal
from memprof.analysis.advice.logits import is_logits, num_classes
from memprof.analysis.advice.passing import made_at
from memprof.analysis.advice.what_if import Instead
from memprof.analysis.report import LiveBuffer, Report

_CHUNKS = 8


def _propose(report: Report) -> tuple[Proposal, ...]:
    classes = num_classes(report)
    if classes is None:
        return ()
    logits = [buffer for buffer in report.temp_buffers if is_logits(buffer, classes)]
    largest = max(logits, key=lambda buffer: buffer.size_bytes)

    def without(buffer: LiveBuffer) -> Instead | None:
        return Instead(size_bytes=buffer.size_bytes // _CHUNKS) if is_logits(buffer, classes) else None

    return (
        Proposal(
            what=f"Compute the logits and their loss in {_CHUNKS} chunks",
            evidence=f"{len(logits)} arrays of {classes:,} columns; the largest holds {largest.size_bytes:,} bytes and "
            f"is made at {made_at(largest)}",
            cost="the last matrix product of the forward pass again",
            how_to="loss = jax.lax.map(jax.checkpoint(loss_of_chunk), (hidden_chunks, label_chunks)).sum()",
            without=without,
            technique=f"chunked-loss={_CHUNKS}",
        ),
    )


RULE = AdviceRule(name="chunked_loss", propose=_propose)
