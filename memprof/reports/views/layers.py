"""The equal layers of a model, which differ in their number alone: what makes them equal, and what they are called.

A tree of 96 layers reads like a tree of one: siblings are folded into one node when their names differ in their number
alone and their parameters have the same names and shapes. Their bytes may differ (the last layer often holds more at
the peak): a folded node carries the sum.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from memprof.analysis.records.categories import Category
from memprof.analysis.records.report import ModuleNode

# The name of one module: `layers_3`, `Dense3`, `3`, and folded `layers_{0..11}`.
_NUMBERED = re.compile(r"(?P<stem>.*?)(?:(?P<number>\d+)|(?P<folded>\{[^{}]+\}))")
# In a path that may end in an operation: `conv2d` or `Dense3` there is no layer, so the number must stand by itself.
_NUMBER_IN_PATH = re.compile(r"(?<=[_/])\d+(?=/|$)")
_FEWEST_FOLDED = 4  # three are still read one by one
_Parameters = tuple[tuple[str, str, tuple[int, ...], str], ...]


def fold_equal_siblings(node: ModuleNode) -> ModuleNode:
    """The same tree with each run of equal siblings as one node called `layers_{0..11}`."""
    groups: dict[tuple[str, _Parameters | None], list[ModuleNode]] = {}
    for child in node.children:
        match = _NUMBERED.fullmatch(child.name)
        if match and match["number"]:
            key: tuple[str, _Parameters | None] = (match["stem"], _parameters(child, child.path))
        else:
            key = (child.name, None)  # None, which no numbered sibling has: a name without a number stays by itself
        groups.setdefault(key, []).append(child)
    children: list[ModuleNode] = []
    for (stem, _), members in groups.items():
        if len(members) < _FEWEST_FOLDED:
            children.extend(fold_equal_siblings(member) for member in members)
        else:
            name = f"{stem}{{{_ranges(int(member.name[len(stem) :]) for member in members)}}}"
            children.append(fold_equal_siblings(merge_nodes(members, path=f"{node.path}/{name}".lstrip("/"))))
    return replace(node, children=tuple(children))


def folded_paths(root: ModuleNode) -> dict[str, str]:
    """What each module's path is in the folded tree: `layers_3/mlp` is `layers_{0..11}/mlp`."""
    paths: dict[str, str] = {}

    def walk(node: ModuleNode, folded: ModuleNode) -> None:
        paths[node.path] = folded.path
        for child in node.children:
            walk(child, next(each for each in folded.children if _stands_for(each.name, child.name)))

    walk(root, fold_equal_siblings(root))
    return paths


def _stands_for(folded: str, name: str) -> bool:
    """Whether a name in the folded tree is this one, or that of several layers of which it is one."""
    several, one = _NUMBERED.fullmatch(folded), _NUMBERED.fullmatch(name)
    if folded == name or several is None or several["folded"] is None:
        return folded == name
    if one is None or one["number"] is None or one["stem"] != several["stem"]:
        return False
    ranges = (run.split("..") for run in several["folded"][1:-1].split(","))
    return any(int(run[0]) <= int(one["number"]) <= int(run[-1]) for run in ranges)


def family(name: str) -> str:
    """What the layers of one kind are called together: `layers` for `layers_3` and `layers_{0..11}`, else nothing."""
    match = _NUMBERED.fullmatch(name)
    return match["stem"].removesuffix("_") if match else ""


def is_folded(name: str) -> bool:
    """Whether it is the name of several layers, as `fold_equal_siblings` gives it."""
    match = _NUMBERED.fullmatch(name)
    return match is not None and match["folded"] is not None


def any_layer(path: str) -> str:
    """`layers_3/mlp` and `layers_11/mlp` both become `layers_*/mlp`."""
    return _NUMBER_IN_PATH.sub("*", path)


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
        forward_flops=sum(member.forward_flops for member in members),
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
