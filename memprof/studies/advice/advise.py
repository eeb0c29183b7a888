"""From a report to advice: every rule is asked, and what it proposes is held against the timeline."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from memprof.analysis.report import Report
from memprof.studies.advice import rules as rules_package
from memprof.studies.advice.advice import Advice, AdviceRule
from memprof.studies.advice.what_if import footprint_without

SMALLEST_SHARE = 0.02  # of the footprint: what saves less is not worth a change to the code


@cache
def advice_rules() -> tuple[AdviceRule, ...]:
    """All rules, by name."""
    modules = [
        importlib.import_module(f"{rules_package.__name__}.{module.name}")
        for module in pkgutil.iter_modules(rules_package.__path__)
    ]
    return tuple(module.RULE for module in modules)


def advise(report: Report) -> tuple[Advice, ...]:
    """What could be done about a peak, what saves most first; nothing where nothing would save a share worth having."""
    found = [
        Advice(
            rule=rule.name,
            proposal=proposal,
            saving_bytes=report.footprint_bytes
            - footprint_without(report, proposal.without, is_packed=proposal.is_packed),
        )
        for rule in advice_rules()
        for proposal in rule.propose(report)
    ]
    worthwhile = [advice for advice in found if advice.saving_bytes > SMALLEST_SHARE * report.footprint_bytes]
    return tuple(sorted(worthwhile, key=lambda advice: -advice.saving_bytes))
