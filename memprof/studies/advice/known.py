"""Savings that were compiled before, kept on disk by the program that they are about.

`memprof advise` compiles changes of a step and keeps the outcomes here. Every later report of the same program has
them, be it that of a saved capture, without JAX. Files lie beside the cache of plans and are removed with it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from memprof.analysis.records.report import Report
from memprof.capture.xla.plan_cache import CHANGES_SUFFIX, PlanCache
from memprof.errors import MemprofError
from memprof.files import IfTaken, write_whole
from memprof.studies.advice.advice import Advice, Compiled, Proposal
from memprof.studies.advice.advise import advise
from memprof.untrusted import convert, open_regular
from memprof.version import __version__
from memprof.workloads.intents import Intent

_VERSION = "memprof.changes/1"
_MOST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """A piece of advice as it is on disk."""

    rule: str
    intent: Intent
    what: str
    evidence: str
    cost: str
    code: str
    compiled: Compiled


def known_advice(report: Report) -> tuple[Advice, ...]:
    """The advice for a report, with the savings that are known."""
    return advise(report, known_changes(report))


def known_changes(report: Report) -> tuple[Advice, ...]:
    """The compiled advice that is known of a report's program; empty: nobody compiled any."""
    path = _path(report)
    if path is None:
        return ()
    try:
        with open_regular(path) as file:
            kept = convert(msgspec.json.decode(file.read(_MOST_BYTES)), tuple[_Kept, ...])
        return tuple(map(_advice, kept))
    except (OSError, MemprofError, msgspec.MsgspecError):
        return ()


def are_known(report: Report) -> bool:
    """Whether the changes of a report's program were compiled before."""
    path = _path(report)
    return path is not None and path.is_file()


def keep_changes(report: Report, advice: Sequence[Advice]) -> None:
    """Keep compiled advice for later reports of the same program."""
    path = _path(report)
    if path is None:
        return
    kept = [_kept(each, each.compiled) for each in advice if each.compiled is not None]
    with suppress(OSError, MemprofError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(path, msgspec.json.encode(kept), what="the savings", if_taken=IfTaken.REPLACE)


def _path(report: Report) -> Path | None:
    """The file of a program; None where there is no cache."""
    try:
        cache = PlanCache.of_user()
    except MemprofError:
        return None
    return cache.folder / f"{_key(report)}{CHANGES_SUFFIX}" if cache.limit_bytes else None


def _key(report: Report) -> str:
    """What a program holds, where and when: equal in all processes that have compiled the same step."""
    facts = hashlib.sha256(
        repr((_VERSION, __version__, report.toolchain.jaxlib, report.target.name, report.target.topology)).encode()
    )
    facts.update(repr(report.arguments).encode())
    for each in (*report.buffers, *report.temp_buffers):
        place = (each.op, each.source, each.shape, each.dtype, each.size_bytes, each.offset, each.start, each.end)
        facts.update(repr(place).encode())
    return facts.hexdigest()


def _kept(advice: Advice, compiled: Compiled) -> _Kept:
    proposal = advice.proposal
    return _Kept(
        rule=advice.rule,
        intent=proposal.intent,
        what=proposal.what,
        evidence=proposal.evidence,
        cost=proposal.cost,
        code=proposal.code,
        compiled=compiled,
    )


def _advice(kept: _Kept) -> Advice:
    proposal = Proposal(
        intent=kept.intent,
        what=kept.what,
        evidence=kept.evidence,
        cost=kept.cost,
        code=kept.code,
        without=lambda buffer: None,
    )
    return Advice(rule=kept.rule, proposal=proposal, bound_bytes=kept.compiled.saving_bytes, compiled=kept.compiled)
