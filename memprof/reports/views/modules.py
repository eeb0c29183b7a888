"""The module tree: parameters as in Flax's `nn.tabulate`, beside the bytes of each module."""

from __future__ import annotations

from dataclasses import replace

from memprof.analysis.records.categories import Category
from memprof.analysis.records.live_buffer import array_type
from memprof.analysis.records.report import ModuleNode, Report
from memprof.reports.document import Align, Cell, Column, Document, Heading, Row, Shorten, Table
from memprof.reports.units import format_bytes, format_count, format_flops
from memprof.reports.views.cells import (
    CATEGORY_GROUPS,
    CategoryGroups,
    aside_cell,
    facts_of,
    more_label,
    size_cell,
    sum_of_group,
)
from memprof.reports.views.layers import add_categories, fold_equal_siblings

_PRIORITIES = {"params": 3, "optim": 1, "cache": 1, "grads": 1, "acts": 0, "temps": 2, "other": 4, "count": 1}


def module_table(root: ModuleNode, *, depth: int, top: int) -> Table:
    """Build a table of the tree down to `depth` levels, largest first; equal layers share a row.

    Args:
        root: the root of the tree. Its bytes add up to the footprint, which is the total row.
        depth: the number of levels below the root.
        top: the number of modules under one parent; the rest is summed up in one row.
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
    """Make rows for the children of a node and for its own bytes, which add up to the node."""
    if depth < 1 or not node.children:
        return ()
    parts = [(Cell(text=child.name, link=f"module={child.path}"), child) for child in node.children]
    own = without_children(node)
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
    parameters = ", ".join(f"{name} {array_type(dtype, shape)}" for name, shape, dtype in node.params)
    sizes = [size_cell(sum_of_group(node.categories, group)) for group in groups.values()]
    count = Cell(text=format_count(node.num_params)) if node.num_params else aside_cell("-")
    return Row(cells=(label, aside_cell(parameters), count, *sizes, size_cell(node.size_bytes)), children=children)


def without_children(node: ModuleNode) -> ModuleNode:
    """Return a module without its submodules: its totals less theirs."""
    under = add_categories(node.children)
    return replace(
        node,
        num_params=node.num_params - sum(child.num_params for child in node.children),
        forward_flops=node.forward_flops - sum(child.forward_flops for child in node.children),
        categories={category: size - under.get(category, 0) for category, size in node.categories.items()},
        children=(),
    )


def _together(nodes: list[ModuleNode]) -> ModuleNode:
    """Merge several modules into one without a name."""
    return ModuleNode(
        path="",
        num_params=sum(node.num_params for node in nodes),
        params=(),
        categories=add_categories(nodes),
        children=(),
        forward_flops=sum(node.forward_flops for node in nodes),
    )


def model_summary_document(report: Report, *, depth: int) -> Document:
    """Build a table of the modules down to `depth` levels, in the order of the model; equal layers share a row."""
    root = fold_equal_siblings(report.modules)
    params = format_bytes(root.categories.get(Category.PARAMS, 0))
    facts = facts_of(
        {
            "parameters": (f"{report.num_params:,}", f"{params} on {report.target.name}"),
            "operations": (f"{format_flops(report.flops)} in all",),
            "footprint": (format_bytes(report.footprint_bytes),),
        }
    )
    table = Table(
        columns=(
            Column(title="module", shorten=Shorten.MIDDLE, min_width=18),
            *(
                Column(title=title, align=Align.RIGHT, priority=priority)
                for title, priority in (("parameters", 0), ("bytes", 2), ("forward", 1), ("activations", 1))
            ),
        ),
        rows=(
            *(_summary_row(child, depth - 1) for child in root.children),
            _summary_row(without_children(root), 0, "(no module)"),
        ),
        total=_summary_row(root, 0, "all"),
    )
    return Document(blocks=(Heading(text=report.label, level=1), facts, table))


def _summary_row(node: ModuleNode, depth: int, name: str = "") -> Row:
    return Row(
        cells=(
            Cell(text=name or node.name),
            Cell(text=format_count(node.num_params)) if node.num_params else aside_cell("-"),
            size_cell(node.categories.get(Category.PARAMS, 0)),
            Cell(text=format_flops(node.forward_flops)) if node.forward_flops else aside_cell("-"),
            size_cell(node.categories.get(Category.ACTIVATIONS, 0)),
        ),
        children=tuple(_summary_row(child, depth - 1) for child in node.children) if depth > 0 else (),
    )
