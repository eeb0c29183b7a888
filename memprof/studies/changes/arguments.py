"""Change the dtypes or shardings of a step's arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from memprof.analysis.records.capture import ArgumentLeaf
from memprof.sources.jax.own_attributes import own
from memprof.studies.changes.change import Step


def changed_args(step: Step, change: Callable[[ArgumentLeaf, Any], Any]) -> tuple[Any, ...] | None:
    """Return a step's positional arguments, with each leaf changed by a function of its record and itself.

    Returns:
        The arguments, or None if the leaves differ from those in the report.
    """
    args: list[Any] = []
    for number, value in enumerate(step.spec.args):
        leaves, structure = jax.tree.flatten(value)
        recorded = [leaf for leaf in step.report.arguments if leaf.position == number]
        if [tuple(leaf.shape) for leaf in recorded] != [tuple(own(leaf, "shape") or ()) for leaf in leaves]:
            return None
        args.append(jax.tree.unflatten(structure, map(change, recorded, leaves)))
    return tuple(args)
