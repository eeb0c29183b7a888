"""The module tree: parameters as `nn.tabulate` lists them, beside the bytes that each module holds.

The equal layers of a model are folded into one node, so that a tree of 96 layers reads like a tree of one. Siblings are
equal when their names differ in their number alone and their parameters have the same names and shapes. Their bytes may
differ (the last layer often holds more at the peak): a folded node carries the sum.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from memprof.analysis.categories import Category
from memprof.analysis.report import ModuleNode
from memprof.reports.document import Align, Cell, Column, Row, Shorten, Table
from memprof.reports.units import format_array_type, format_count
from memprof.reports.views.cells import CATEGORY_GROUPS, CategoryGroups, aside_cell, more_label, size_cell, sum_of_group

_PRIORITIES = {"params": 3, "optim": 1, "grads": 1, "acts": 0, "temps": 2, "other": 4, "count": 1}
_NUMBERED = re.compile(r"(.*?)(\d+)")
_FEWEST_FOLDED = 4  # three are still read one by one
_Parameters = tuple[tuple[str, str, tuple[int, ...], str], ...]


def module_table(root: ModuleNode, *, depth: int, top: int) -> Table:
    """The tree down to `depth` levels, largest first; equal layers are one row.

    Args:
        root: its bytes add up to the footprint, which is the total row.
        depth: levels below the root.
        top: modules under one parent; the rest is one row.
    """
    folded = fold_equal_siblings(root)
    groups = {name: group for name, group in CATEGORY_GROUPS.items() if sum_of_group(root.categories, group)}
    return Table(
        columns=(
            Column(title="module", shorten=Shorten.MIDDLE, min_width=18),
            Column(title="own parameters", priority=5, shorten=Shorten.MIDDLE, min_width=24),
            _number_column("count"),
            *(_number_column(name) for name in groups),
            Column(title="total", align=Align.RIGHT),
        ),
        rows=_child_rows(folded, groups, depth=depth, top=top, own_label="(no module)"),
        total=_row(Cell(text="footprint"), root, groups),
    )


def _number_column(name: str) -> Column:
    return Column(title=name, align=Align.RIGHT, priority=_PRIORITIES[name])


def _child_rows(node: ModuleNode, groups: CategoryGroups, *, depth: int, top: int, own_label: str) -> tuple[Row, ...]:
    """The children of a node and what it holds itself: together, all of it."""
    if depth < 1 or not node.children:
        return ()
    parts = [(Cell(text=child.name), child) for child in node.children]
    own = _without_children(node)
    if own.size_bytes or own.num_params:
        parts.append((aside_cell(own_label), own))
    parts.sort(key=lambda part: -part[1].size_bytes)
    rows = [
        _row(label, part, groups, _child_rows(part, groups, depth=depth - 1, top=top, own_label="(itself)"))
        for label, part in parts[:top]
    ]
    rest = [part for _, part in parts[top:]]
    if rest:
        rows.append(_row(aside_cell(more_label(len(rest))), _together(rest), groups))
    return tuple(rows)


def _row(label: Cell, node: ModuleNode, groups: CategoryGroups, children: tuple[Row, ...] = ()) -> Row:
    parameters = ", ".join(f"{name} {format_array_type(dtype, shape)}" for name, shape, dtype in node.params)
    sizes = [size_cell(sum_of_group(node.categories, group)) for group in groups.values()]
    count = Cell(text=format_count(node.num_params)) if node.num_params else aside_cell("-")
    return Row(cells=(label, aside_cell(parameters), count, *sizes, size_cell(node.size_bytes)), children=children)


def _without_children(node: ModuleNode) -> ModuleNode:
    """What a module holds itself: its total less what is under it."""
    under = add_categories(node.children)
    return replace(
        node,
        num_params=node.num_params - sum(child.num_params for child in node.children),
        categories={category: size - under.get(category, 0) for category, size in node.categories.items()},
        children=(),
    )


def _together(nodes: list[ModuleNode]) -> ModuleNode:
    """Several modules as one, without names."""
    return ModuleNode(
        path="",
        num_params=sum(node.num_params for node in nodes),
        params=(),
        categories=add_categories(nodes),
        children=(),
    )


def fold_equal_siblings(node: ModuleNode) -> ModuleNode:
    """The same tree with each run of equal siblings as one node called `layers_{0..11}`."""
    groups: dict[tuple[str, _Parameters | None], list[ModuleNode]] = {}
    for child in node.children:
        match = _NUMBERED.fullmatch(child.name)
        # None, which no numbered sibling has: a name without a number stays by itself.
        key = (match[1], _parameters(child, child.path)) if match else (child.name, None)
        groups.setdefault(key, []).append(child)
    children: list[ModuleNode] = []
    for (stem, _), members in groups.items():
        if len(members) < _FEWEST_FOLDED:
            children.extend(fold_equal_siblings(member) for member in members)
        else:
            name = f"{stem}{{{_ranges(int(member.name[len(stem) :]) for member in members)}}}"
            children.append(fold_equal_siblings(merge_nodes(members, path=f"{node.path}/{name}".lstrip("/"))))
    return replace(node, children=tuple(children))


def add_categories(nodes: Iterable[ModuleNode]) -> dict[Category, int]:
    """The bytes of several nodes together."""
    total: dict[Category, int] = {}
    for node in nodes:
        for category, size_bytes in node.categories.items():
            total[category] = total.get(category, 0) + size_bytes
    return total


def merge_nodes(members: list[ModuleNode], *, path: str) -> ModuleNode:
    """One node that carries the sums of all; children meet by name, and parameters are those of the first."""
    children: dict[str, list[ModuleNode]] = {}
    for member in members:
        for child in member.children:
            children.setdefault(child.name, []).append(child)
    return ModuleNode(
        path=path,
        num_params=sum(member.num_params for member in members),
        params=members[0].params,
        categories=add_categories(members),
        children=tuple(merge_nodes(same, path=f"{path}/{name}") for name, same in children.items()),
    )


def _parameters(node: ModuleNode, prefix: str) -> _Parameters:
    """All parameters in and under a node, by their path below `prefix`."""
    own = [(node.path[len(prefix) :], name, shape, dtype) for name, shape, dtype in node.params]
    return tuple(sorted(own + [leaf for child in node.children for leaf in _parameters(child, prefix)]))


def _ranges(numbers: Iterable[int]) -> str:
    """`0..11`, or `0,2..5` where some are missing."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}..{last}" for first, last in runs)
