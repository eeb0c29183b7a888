"""Fold the equal layers of a model, which differ only in their number, and name them.

A tree of 96 layers then reads like a tree of one. Siblings are folded into one node if their names differ only in
their number and their parameters have the same names, shapes and dtypes. Their bytes may differ (the last layer often
holds more at the peak), so a folded node carries the sum.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from memprof.analysis.records.categories import Category
from memprof.analysis.records.report import ModuleNode

# The name of one module: `layers_3`, `Dense3`, `3`, or folded `layers_{0..11}`.
_NUMBERED = re.compile(r"(?P<stem>.*?)(?:(?P<number>\d+)|(?P<folded>\{[^{}]+\}))")
# A layer number in a path that may end in an operation. There, `conv2d` and `Dense3` are not layers, so the number must
# be separate.
_NUMBER_IN_PATH = re.compile(r"(?<=[_/])\d+(?=/|$)")
_MIN_NUM_FOLDED = 4  # three layers are still readable one by one
_Parameters = tuple[tuple[str, str, tuple[int, ...], str], ...]


def fold_equal_siblings(node: ModuleNode) -> ModuleNode:
    """Return the tree with equal siblings folded into one node, named for example `layers_{0..11}`."""
    groups: dict[tuple[str, _Parameters | None], list[ModuleNode]] = {}
    for child in node.children:
        match = _NUMBERED.fullmatch(child.name)
        if match and match["number"]:
            key: tuple[str, _Parameters | None] = (match["stem"], _parameters(child, child.path))
        else:
            key = (child.name, None)  # no numbered sibling has None, so a name without a number is not folded
        groups.setdefault(key, []).append(child)
    children: list[ModuleNode] = []
    for (stem, _), members in groups.items():
        if len(members) < _MIN_NUM_FOLDED:
            children.extend(fold_equal_siblings(member) for member in members)
        else:
            name = f"{stem}{{{_ranges(int(member.name[len(stem) :]) for member in members)}}}"
            children.append(fold_equal_siblings(merge_nodes(members, path=f"{node.path}/{name}".lstrip("/"))))
    return replace(node, children=tuple(children))


def folded_paths(root: ModuleNode) -> dict[str, str]:
    """Map the path of each module to its path in the folded tree: `layers_3/mlp` to `layers_{0..11}/mlp`."""
    paths: dict[str, str] = {}

    def walk(node: ModuleNode, folded: ModuleNode) -> None:
        paths[node.path] = folded.path
        for child in node.children:
            walk(child, next(each for each in folded.children if _stands_for(each.name, child.name)))

    walk(root, fold_equal_siblings(root))
    return paths


def _stands_for(folded: str, name: str) -> bool:
    """Return whether a name in the folded tree equals a name, or includes its layer."""
    several, one = _NUMBERED.fullmatch(folded), _NUMBERED.fullmatch(name)
    if several and several["folded"] and one and one["number"] and one["stem"] == several["stem"]:
        ranges = (run.split("..") for run in several["folded"][1:-1].split(","))
        return any(int(run[0]) <= int(one["number"]) <= int(run[-1]) for run in ranges)
    return folded == name


def family(name: str) -> str:
    """Return the common name of a layer's siblings: `layers` for `layers_3` and `layers_{0..11}`; otherwise empty."""
    match = _NUMBERED.fullmatch(name)
    return match["stem"].removesuffix("_") if match else ""


def is_folded(name: str) -> bool:
    """Return whether a name stands for several layers that `fold_equal_siblings` has folded."""
    match = _NUMBERED.fullmatch(name)
    return bool(match and match["folded"])


def any_layer(path: str) -> str:
    """Replace layer numbers in a path: `layers_3/mlp` and `layers_11/mlp` both become `layers_*/mlp`."""
    return _NUMBER_IN_PATH.sub("*", path)


def add_categories(nodes: Iterable[ModuleNode]) -> dict[Category, int]:
    """Sum the bytes of several nodes, by category."""
    total: dict[Category, int] = {}
    for node in nodes:
        for category, size_bytes in node.categories.items():
            total[category] = total.get(category, 0) + size_bytes
    return total


def merge_nodes(members: list[ModuleNode], *, path: str) -> ModuleNode:
    """Merge nodes into one with their sums. Children are merged by name; the first node provides the parameters."""
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
        forward_flops=sum(member.forward_flops for member in members),
    )


def _parameters(node: ModuleNode, prefix: str) -> _Parameters:
    """Return all parameters in and below a node, with their paths relative to `prefix`."""
    own = [(node.path[len(prefix) :], name, shape, dtype) for name, shape, dtype in node.params]
    return tuple(sorted(own + [leaf for child in node.children for leaf in _parameters(child, prefix)]))


def _ranges(numbers: Iterable[int]) -> str:
    """Format numbers as ranges: `0..11`, or `0,2..5` if some are missing."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}..{last}" for first, last in runs)
