"""Logits, and the gradient of the loss by them, that exist whole."""

from __future__ import annotations

from memprof.analysis.report import LiveBuffer, Report
from memprof.studies.advice.advice import AdviceRule, Proposal
from memprof.studies.advice.logits import is_logits, num_classes
from memprof.studies.advice.passing import made_at
from memprof.studies.advice.what_if import Instead, amount, changed_at_peak

_CHUNKS = 8


def _propose(report: Report) -> tuple[Proposal, ...]:
    classes = num_classes(report)
    if classes is None:
        return ()

    def without(buffer: LiveBuffer) -> Instead | None:
        return Instead(size_bytes=buffer.size_bytes // _CHUNKS) if is_logits(buffer, classes) else None

    logits = changed_at_peak(report, without)
    if not logits:
        return ()
    return (
        Proposal(
            what=f"Compute the logits and their loss in {_CHUNKS} chunks",
            evidence=f"{amount(logits, 'arrays')} at the peak, have {classes:,} columns; the largest holds "
            f"{logits[0].size_bytes:,} bytes and is made at {made_at(logits[0])}",
            cost="the last matrix product of the forward pass again",
            how_to="loss = jax.lax.map(jax.checkpoint(loss_of_chunk), (hidden_chunks, label_chunks)).sum()",
            without=without,
            technique=f"chunked-loss={_CHUNKS}",
        ),
    )


RULE = AdviceRule(name="chunked_loss", propose=_propose)
