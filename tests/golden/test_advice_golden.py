"""What every rule of `advise` proposes for the steps by hand of its tests, and for those that only look alike."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from recorded import check_recorded
from unit.studies.test_advice import CASES

from memprof.analysis.records.report import Report
from memprof.studies.advice.advise import RULES, advise
from memprof.studies.advice.what_if import changed_at_peak, footprint_without


def _proposals(report: Report) -> Iterator[str]:
    """Each proposal of each rule, also those whose saving is too small to be shown."""
    for rule in RULES:
        for proposal in rule(report):
            without = footprint_without(report, proposal.without, is_packed=proposal.is_packed)
            num_changed = len(changed_at_peak(report, proposal.without))
            yield f"  {rule.__name__}: {proposal.what}"
            yield f"    {proposal.evidence}; costs {proposal.cost}"
            yield f"    {report.footprint_bytes:,} bytes become {without:,}, by {num_changed} arrays at the peak"
            yield f"    {proposal.how_to} [{proposal.technique}]"
    yield f"  {len(advise(report))} shown: {[(each.rule, each.saving_bytes) for each in advise(report)]}"


@pytest.mark.parametrize("rule", CASES)
def test_the_proposals_are_as_recorded(rule: str) -> None:
    speaks, silent = CASES[rule]
    lines = [line for name, made in ((rule, speaks), *silent.items()) for line in (name, *_proposals(made()))]
    check_recorded("".join(f"{line}\n" for line in lines), f"advice/{rule}.txt")
