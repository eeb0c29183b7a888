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

_VERSION = "memprof.changes/5"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stored:
    """All that is stored for a program.

    Attributes:
        is_complete: whether all its changes could be compiled.
    """

    advice: tuple[_StoredAdvice, ...]
    is_complete: bool


def known_advice(report: Report) -> tuple[Advice, ...]:
    """Return the advice on a report, with stored savings."""
    return advise(report, known_changes(report))


def known_changes(report: Report) -> tuple[Advice, ...]:
    """Return the stored advice for a report's program; empty if there is none."""
    stored = _find(report)
    return () if stored is None else tuple(map(_advice, stored.advice))


def are_known(report: Report) -> bool:
    """Whether the savings for a report's program are stored, and none is missing."""
    stored = _find(report)
    return stored is not None and stored.is_complete


def keep_changes(report: Report, advice: Sequence[Advice], *, is_complete: bool = True) -> None:
    """Store compiled advice for later reports of the same program.

    Args:
        is_complete: whether all changes could be compiled.
    """
    each_stored = tuple(_stored(each, each.compiled) for each in advice if each.compiled is not None)
    stored = _Stored(advice=each_stored, is_complete=is_complete)
    with suppress(MemprofError):
        PlanCache.of_user().keep_note(_key(report), msgspec.json.encode(stored))


def _find(report: Report) -> _Stored | None:
    note = _note(report)
    try:
        return None if note is None else convert(msgspec.json.decode(note), _Stored)
    except msgspec.MsgspecError:
        return None


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
