"""Compute only those rows of a step's large matrix products that are read (see `early_reads.py`)."""

from __future__ import annotations

from collections.abc import Iterator

from memprof.analysis.records.rewrites import OnlyReadRows
from memprof.sources.jax.checkpointing.early_reads import LateRead
from memprof.sources.jax.checkpointing.parts import with_only_read_rows
from memprof.sources.jax.compile import traced_jaxpr
from memprof.studies.changes.change import Change, Step
from memprof.studies.changes.chunks import least_bytes
from memprof.studies.changes.own_jit import changed_step, with_rewrite
from memprof.workloads.intents import Aim, Intent


def only_read_rows(step: Step) -> Iterator[Change]:
    """Yield the step that computes only the read rows, such as the logits of each prompt's last token."""
    if step.is_composed:
        return
    found: list[LateRead] = []
    changed = changed_step(step.spec, lambda fn: with_only_read_rows(fn, found))
    if changed is None:
        return
    traced_jaxpr(changed, step.target)
    unread = max((each.unread_bytes for each in found), default=0)
    if not found or unread // step.target.topology.num_devices < least_bytes(step):
        return
    applied = with_rewrite(step.spec, OnlyReadRows())
    assert applied is not None
    code, changed = applied
    yield Change(
        rule="whole_prompt_logits",
        intent=Intent(aim=Aim.KEEP_LAST_LOGITS),
        what="Compute only the logits of the tokens that are read",
        evidence=f"matrix products of which few rows are read, found by data flow: {len(found)}; of the largest,"
        f" {unread:,} bytes are never read",
        cost="none: it computes less",
        code=code,
        spec=changed,
        rewrite=OnlyReadRows(),
        is_proved=True,
    )
