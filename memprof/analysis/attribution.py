"""From values to claims: the first rule that explains a value decides its category.

The rules are the modules of `memprof.analysis.rules`, one idea each; each exposes a `RULE`. A new file there is found
by itself.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from memprof.analysis import rules as rules_package
from memprof.analysis.categories import Category
from memprof.analysis.rule import Claim, Rule
from memprof.analysis.values import Value


@cache
def attribution_rules() -> tuple[Rule, ...]:
    """All rules, in the order in which they are asked."""
    modules = [
        importlib.import_module(f"{rules_package.__name__}.{module.name}")
        for module in pkgutil.iter_modules(rules_package.__path__)
    ]
    return tuple(sorted((module.RULE for module in modules), key=lambda rule: rule.order))


def attribute(value: Value, rules: tuple[Rule, ...] | None = None) -> Claim:
    """The claim of the first rule that explains `value`; `unattributed` where none does."""
    for rule in attribution_rules() if rules is None else rules:
        explained = rule.explain(value)
        if explained is not None:
            category, evidence = explained
            return Claim(category=category, rule=rule.name, evidence=evidence)
    return Claim(category=Category.UNATTRIBUTED, rule="none", evidence="no rule explains it")
