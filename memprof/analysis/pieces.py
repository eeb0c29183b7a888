"""What becomes small if one array is computed in pieces along its first axis, and whether it can be.

Cutting an array cuts what is made of it element by element, and its cotangents: its **family**. An array cannot be cut
where its rows are mixed and the mixture meets the array again in the forward pass, as the statistics of a batch do:
they take all rows, and every row takes them. Statistics of each row (softmax, layer normalization) do not mind, nor
does a loss that sums rows up. What a loop stacks up comes in pieces already.
"""

from __future__ import annotations

from collections.abc import Iterable

from memprof.analysis.elementwise import Step, Steps

# Operations that look at several rows at once, whichever axis they are told.
_MIXING = frozenset({"reduce-window", "scatter", "cholesky", "triangular-solve", "select-and-scatter"})


def families(steps: Steps, arrays: Iterable[int]) -> dict[int, int]:
    """The family of each group that belongs to one of some large arrays; those that cannot be cut have none.

    Args:
        arrays: their groups.
    """
    found: dict[int, int] = {}
    seen: set[int] = set()
    number = 0
    for array in arrays:
        if array in seen or array in steps.is_minor:
            continue
        family = steps.grown([array])
        seen |= family
        if family & steps.stacked or _is_mixed(steps, family):
            continue
        number += 1
        found.update((group, number) for group in family if group not in found)
    return found


def _is_mixed(steps: Steps, family: frozenset[int]) -> bool:
    """Whether a mixture of the family's rows meets the family again in the forward pass."""
    by_row: set[int] = set()  # statistics of single rows, and what is made of them
    mixed: set[int] = set()

    def pass_down() -> bool:
        num_known = len(by_row) + len(mixed)
        for step in steps.all:
            if step.is_backward or step.output in family:
                continue
            groups = {group for _, group in step.inputs}
            of_rows = groups & (family | by_row)
            if groups & mixed or (of_rows and _mixes_rows(step, of_rows)):
                mixed.add(step.output)
            elif of_rows:
                by_row.add(step.output)
        return len(by_row) + len(mixed) != num_known

    steps.flow.repeat(pass_down)
    return any(
        step.output in family and not step.is_backward and any(group in mixed for _, group in step.inputs)
        for step in steps.all
    )


def _mixes_rows(step: Step, of_rows: set[int]) -> bool:
    if step.opcode in ("dot", "custom-call"):
        return len(of_rows) > 1  # a product of rows with rows: the program does not say which with which
    if step.opcode in ("reduce", "sort"):
        return 0 in step.instruction.dimensions
    return step.opcode in _MIXING
