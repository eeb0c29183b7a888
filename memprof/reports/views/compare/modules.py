"""Modules of several programs lined up: by path, and the unrolled layers of one with the stacked layers of another.

A model that scans over its layers has one module `layers`; unrolled it has `layers_0` to `layers_11`. Here both are
`layers`, so that the difference between them is a number and not two lists.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from memprof.analysis.report import ModuleNode
from memprof.reports.document import Cell
from memprof.reports.views.cells import aside_cell
from memprof.reports.views.compare.differences import Share
from memprof.reports.views.folding import fold_equal_siblings, merge_nodes

_NUMBERED = re.compile(r"(?P<stem>.+?)_?(?P<number>\d+|(?P<folded>\{[^{}]+\}))")


def module_shares(roots: Sequence[ModuleNode], *, depth: int) -> tuple[Share, ...]:
    """The modules of all programs down to `depth` levels (at least one), with what belongs to none."""
    return _shares([fold_equal_siblings(root) for root in roots], depth=depth, own_label="(no module)")


def _shares(nodes: Sequence[ModuleNode | None], *, depth: int, own_label: str) -> tuple[Share, ...]:
    shares = []
    for name, members in _lined_up(nodes).items():
        merged = [_merged(same) for same in members]
        names = {member.name for same in members for member in same}
        shares.append(
            Share(
                # The numbers of the layers are said where all programs have the same.
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
    return _shares(nodes, depth=depth, own_label="(itself)")


def _lined_up(nodes: Sequence[ModuleNode | None]) -> dict[str, list[list[ModuleNode]]]:
    """By common name: for each program its modules of that name."""
    names = [{child.name for child in node.children} if node else set[str]() for node in nodes]
    anywhere = set().union(*names)
    found: dict[str, list[list[ModuleNode]]] = {}
    for index, node in enumerate(nodes):
        for child in node.children if node else ():
            name = _common_name(child.name, here=names[index], anywhere=anywhere)
            found.setdefault(name, [[] for _ in nodes])[index].append(child)
    return found


def _common_name(name: str, *, here: set[str], anywhere: set[str]) -> str:
    """`layers` for `layers_{0..11}`, and for `layers_1` where another program has a module `layers`."""
    match = _NUMBERED.fullmatch(name)
    if match is None or match["stem"] in here:
        return name
    return match["stem"] if match["folded"] or match["stem"] in anywhere else name


def _merged(members: list[ModuleNode]) -> ModuleNode | None:
    if len(members) < 2:
        return members[0] if members else None
    return merge_nodes(members, path=members[0].path)
