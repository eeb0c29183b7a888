"""Give a step other arguments: leaves of another dtype, or with other shardings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from memprof.analysis.records.capture import ArgumentLeaf
from memprof.sources.jax.own_attributes import own
from memprof.studies.changes.change import Step


def changed_args(step: Step, change: Callable[[ArgumentLeaf, Any], Any]) -> tuple[Any, ...] | None:
    """Return the positional arguments of a step with each leaf changed, given what its report says about it.

    Returns:
        The arguments, or None if a leaf is not the argument that its report names.
    """
    args: list[Any] = []
    for number, value in enumerate(step.spec.args):
        leaves, structure = jax.tree.flatten(value)
        known = [leaf for leaf in step.report.arguments if leaf.position == number]
        if [tuple(leaf.shape) for leaf in known] != [tuple(own(leaf, "shape") or ()) for leaf in leaves]:
            return None
        args.append(jax.tree.unflatten(structure, map(change, known, leaves)))
    return tuple(args)
