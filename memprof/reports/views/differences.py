"""The differences of a comparison: one row for each key, one column for each configuration.

Modules of several programs are matched by path, and unrolled layers are matched with stacked layers. A model that scans
over its layers has one module `layers`; the unrolled model has `layers_0` to `layers_11`. Both are shown as `layers`,
so that their difference is one number instead of two lists.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from memprof.analysis.records.categories import Category
from memprof.analysis.records.report import ModuleNode
from memprof.errors import MemprofError
from memprof.reports.document import Align, Block, Cell, Column, Heading, Row, Shorten, Table
from memprof.reports.options import By, RenderOptions
from memprof.reports.units import format_bytes, format_signed_bytes
from memprof.reports.views.cells import aside_cell, change_cell, more_label, short_names, size_cell
from memprof.reports.views.configurations import (
    ComparedRow,
    reference_row,
)
from memprof.reports.views.layers import family, fold_equal_siblings, is_folded, merge_nodes
from memprof.reports.views.report import phase_name

Key = TypeVar("Key", bound=str)


def difference_blocks(rows: Sequence[ComparedRow], by: By, options: RenderOptions) -> tuple[Block, ...]:
    """Build the section of the reference's sizes by one key, and the changes of the other rows.

    Raises:
        MemprofError: comparisons have no view by this key.
    """
    name = reference_row(rows).name
    # There are few categories, so all are shown.
    top = max(options.top, len(Category)) if by is By.CATEGORY else options.top
    return (
        Heading(text=f"Differences by {by.value}", level=2, aside=f"sizes of {name}, and changes of the other rows"),
        difference_table(by.value, _shares_of(rows, by=by, depth=options.depth), rows, top=top),
    )


def _shares_of(rows: Sequence[ComparedRow], *, by: By, depth: int) -> tuple[Share, ...]:
    reports = [row.report for row in rows]
    match by:
        case By.CATEGORY:
            return shares_by([report.categories for report in reports], label=category_label)
        case By.MODULE:
            return module_shares([report.modules for report in reports], depth=depth)
        case By.SOURCE:
            names = short_names(source for report in reports for source in report.by_source)
            return shares_by(
                [report.by_source for report in reports], label=lambda source: _key_cell(names[source], by)
            )
        case By.DTYPE:
            return shares_by([report.by_dtype for report in reports], label=lambda dtype: _key_cell(dtype, by))
        case By.PHASE:
            return shares_by(
                [report.by_phase for report in reports], label=lambda phase: _key_cell(phase_name(phase), by)
            )
        case By.STACK:
            raise MemprofError("Stacks of several programs cannot be compared. Compare by source.")
        case By.BUFFER | By.PADDING | By.LAYOUT:
            raise MemprofError(
                "Buffers of several programs cannot be compared. Compare by category, module, source, dtype "
                "or phase; `memprof show A.memprof --diff B.memprof` matches the buffers of two captures."
            )


def _key_cell(name: str, by: By) -> Cell:
    return Cell(text=name) if name else aside_cell(f"(no {by.value})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The share of one key: its bytes in each compared row, in their order, and its parts."""

    label: Cell
    sizes: tuple[int, ...]
    children: tuple[Share, ...] = ()


def shares_by(sizes: Sequence[Mapping[Key, int]], *, label: Callable[[Key], Cell]) -> tuple[Share, ...]:
    """Make one share for each key that has bytes in any row.

    Args:
        sizes: for each row, bytes by key.
        label: a function that makes the label of a key.
    """
    keys = dict.fromkeys(key for row in sizes for key in row)
    shares = (Share(label=label(key), sizes=tuple(row.get(key, 0) for row in sizes)) for key in keys)
    return tuple(share for share in shares if any(share.sizes))


def difference_table(title: str, shares: Sequence[Share], rows: Sequence[ComparedRow], *, top: int) -> Table:
    """Build a table of the reference's sizes and the change of each row, the largest change first.

    Args:
        title: the title of the keys.
        shares: the shares; in each compared row, they add up to the footprint, which is the total.
        rows: the compared rows.
        top: the number of keys on each level; the rest is summed up in one row.
    """
    footprints = tuple(row.report.footprint_bytes for row in rows)
    assert _together(shares, len(rows)) == footprints, "shares add up to the footprint"
    reference = next(index for index, row in enumerate(rows) if row.is_reference)
    others = [index for index in range(len(rows)) if index != reference]
    columns = (Column(title=rows[index].name, align=Align.RIGHT) for index in (reference, *others))
    total = (format_signed_bytes(footprints[index] - footprints[reference]) for index in others)
    return Table(
        columns=(Column(title=title, shorten=Shorten.MIDDLE, min_width=16), *columns),
        rows=_rows(shares, reference, others, top=top),
        total=Row(
            cells=(
                Cell(text="footprint"),
                Cell(text=format_bytes(footprints[reference])),
                *(Cell(text=text) for text in total),
            )
        ),
        continued=True,
    )


def category_label(category: Category) -> Cell:
    """Make the cell of a category, with its letter."""
    return Cell(text=category.value, key=category)


def _rows(shares: Sequence[Share], reference: int, others: Sequence[int], *, top: int) -> tuple[Row, ...]:
    def importance(share: Share) -> tuple[int, int]:
        here = share.sizes[reference]
        return max((abs(share.sizes[index] - here) for index in others), default=0), here

    ranked = sorted(shares, key=importance, reverse=True)
    rest = ranked[top:]
    if rest:
        together = _together(rest, len(others) + 1)
        ranked = [*ranked[:top], Share(label=aside_cell(more_label(len(rest))), sizes=together)]
    return tuple(
        Row(
            cells=(
                share.label,
                size_cell(share.sizes[reference]),
                *(change_cell(share.sizes[index] - share.sizes[reference]) for index in others),
            ),
            children=_rows(share.children, reference, others, top=top),
        )
        for share in ranked
    )


def _together(shares: Sequence[Share], num_rows: int) -> tuple[int, ...]:
    return tuple(sum(share.sizes[index] for share in shares) for index in range(num_rows))


def module_shares(roots: Sequence[ModuleNode], *, depth: int) -> tuple[Share, ...]:
    """Return the shares of modules down to `depth` levels (at least one), and of the bytes outside of all modules."""
    return _module_shares([fold_equal_siblings(root) for root in roots], depth=depth, own_label="(no module)")


def _module_shares(nodes: Sequence[ModuleNode | None], *, depth: int, own_label: str) -> tuple[Share, ...]:
    shares = []
    for name, members in _lined_up(nodes).items():
        merged = [_merged(same) for same in members]
        names = {member.name for same in members for member in same}
        shares.append(
            Share(
                # The layer numbers are shown if all programs share them.
                label=Cell(text=names.pop() if len(names) == 1 else name),
                sizes=tuple(node.size_bytes if node else 0 for node in merged),
                children=_children(merged, depth=depth - 1),
            )
        )
    sizes = (node.size_bytes if node else 0 for node in nodes)
    own = tuple(size - sum(share.sizes[index] for share in shares) for index, size in enumerate(sizes))
    if any(own):
        shares.append(Share(label=aside_cell(own_label), sizes=own))
    return tuple(share for share in shares if any(share.sizes))


def _children(nodes: Sequence[ModuleNode | None], *, depth: int) -> tuple[Share, ...]:
    if depth < 1 or not any(node and node.children for node in nodes):
        return ()
    return _module_shares(nodes, depth=depth, own_label="(itself)")


def _lined_up(nodes: Sequence[ModuleNode | None]) -> dict[str, list[list[ModuleNode]]]:
    """Return the modules by their common name: for each name, a list for each program."""
    names = [{child.name for child in node.children} if node else set[str]() for node in nodes]
    anywhere = set().union(*names)
    found: dict[str, list[list[ModuleNode]]] = {}
    for index, node in enumerate(nodes):
        for child in node.children if node else ():
            name = _common_name(child.name, here=names[index], anywhere=anywhere)
            found.setdefault(name, [[] for _ in nodes])[index].append(child)
    return found


def _common_name(name: str, *, here: set[str], anywhere: set[str]) -> str:
    """Return `layers` for `layers_{0..11}`, and for `layers_1` if another program has a module `layers`."""
    common = family(name)
    if not common or common in here:
        return name
    return common if common in anywhere or is_folded(name) else name


def _merged(members: list[ModuleNode]) -> ModuleNode | None:
    if len(members) < 2:
        return members[0] if members else None
    return merge_nodes(members, path=members[0].path)
