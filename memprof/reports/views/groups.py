"""Groups of categories, where seventeen columns would not fit. Their names are JAX's short words."""

from __future__ import annotations

from collections.abc import Mapping

from memprof.analysis.categories import Category
from memprof.reports.document import Note, Tone

CategoryGroups = Mapping[str, frozenset[Category]]

_TEMPS = frozenset(
    {
        Category.RECOMPUTED,
        Category.PARAM_COPIES,
        Category.COTANGENTS,
        Category.FORWARD_TEMPS,
        Category.UPDATE_TEMPS,
        Category.WORKSPACE,
        Category.COLLECTIVES,
    }
)
_OWN_COLUMN = frozenset({Category.PARAMS, Category.OPTIMIZER_STATE, Category.GRADIENTS, Category.ACTIVATIONS})

CATEGORY_GROUPS: CategoryGroups = {
    "params": frozenset({Category.PARAMS}),
    "optim": frozenset({Category.OPTIMIZER_STATE}),
    "grads": frozenset({Category.GRADIENTS}),
    "acts": frozenset({Category.ACTIVATIONS}),
    "temps": _TEMPS,
    "other": frozenset(Category) - _TEMPS - _OWN_COLUMN,
}


def sum_of_group(categories: Mapping[Category, int], group: frozenset[Category]) -> int:
    """The bytes of a group; categories that are not there hold none."""
    return sum(size_bytes for category, size_bytes in categories.items() if category in group)


def group_legend() -> Note:
    """Which categories the groups `temps` and `other` hold."""
    members = (
        f"{name}: {', '.join(category.value for category in Category if category in CATEGORY_GROUPS[name])}"
        for name in ("temps", "other")
    )
    return Note(tone=Tone.MUTED, text=f"{'; '.join(members)}.")
