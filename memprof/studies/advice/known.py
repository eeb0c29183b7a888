"""Store compiled savings on disk, keyed by the program.

`memprof advise` compiles changes of a step and stores the outcomes here. Every later report of the same program shows
them, even one of a saved capture on a machine without JAX. The files are in the cache of plans and are removed with it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from memprof.analysis.records.report import Report
from memprof.errors import MemprofError
from memprof.sources.jax.xla.plan_cache import PlanCache
from memprof.studies.advice.advice import Advice, Compiled, Proposal
from memprof.studies.advice.advise import advise
from memprof.untrusted import convert
from memprof.version import __version__
from memprof.workloads.intents import Intent

_VERSION = "memprof.changes/4"


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoredAdvice:
    """The stored form of a piece of advice."""

    rule: str
    intent: Intent
    what: str
    evidence: str
    cost: str
    code: str
    compiled: Compiled


def known_advice(report: Report) -> tuple[Advice, ...]:
    """Return the advice on a report, with stored savings."""
    return advise(report, known_changes(report))


def known_changes(report: Report) -> tuple[Advice, ...]:
    """Return the stored advice for a report's program; empty if there is none."""
    note = _note(report)
    if note is None:
        return ()
    try:
        return tuple(map(_advice, convert(msgspec.json.decode(note), tuple[_StoredAdvice, ...])))
    except msgspec.MsgspecError:
        return ()


def are_known(report: Report) -> bool:
    """Whether the savings for a report's program are stored."""
    return _note(report) is not None


def keep_changes(report: Report, advice: Sequence[Advice]) -> None:
    """Store compiled advice for later reports of the same program."""
    stored = [_stored(each, each.compiled) for each in advice if each.compiled is not None]
    with suppress(MemprofError):
        PlanCache.of_user().keep_note(_key(report), msgspec.json.encode(stored))


def _note(report: Report) -> bytes | None:
    with suppress(MemprofError):  # an environment variable sets an invalid cache path
        return PlanCache.of_user().find_note(_key(report))
    return None


def _key(report: Report) -> str:
    """Return a digest of a program's buffers and live ranges, equal in all processes that compiled the same step."""
    digest = hashlib.sha256(
        repr((_VERSION, __version__, report.toolchain.jaxlib, report.target.name, report.target.topology)).encode()
    )
    digest.update(repr(report.arguments).encode())
    for each in (*report.buffers, *report.temp_buffers):
        fields = (each.op, each.source, each.shape, each.dtype, each.size_bytes, each.offset, each.start, each.end)
        digest.update(repr(fields).encode())
    return digest.hexdigest()


def _stored(advice: Advice, compiled: Compiled) -> _StoredAdvice:
    proposal = advice.proposal
    return _StoredAdvice(
        rule=advice.rule,
        intent=proposal.intent,
        what=proposal.what,
        evidence=proposal.evidence,
        cost=proposal.cost,
        code=proposal.code,
        compiled=compiled,
    )


def _advice(stored: _StoredAdvice) -> Advice:
    proposal = Proposal(
        intent=stored.intent,
        what=stored.what,
        evidence=stored.evidence,
        cost=stored.cost,
        code=stored.code,
        without=lambda buffer: None,
    )
    return Advice(
        rule=stored.rule, proposal=proposal, bound_bytes=stored.compiled.saving_bytes, compiled=stored.compiled
    )
