"""Sums of the memory at the peak: by category, by any key, and by module as a tree. Each adds up to the footprint."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeVar

from memprof.analysis.records.capture import ArgumentLeaf, Capture
from memprof.analysis.records.categories import Category, Phase, Role
from memprof.analysis.records.live_buffer import LiveBuffer
from memprof.analysis.records.report import ModuleNode

_Key = TypeVar("_Key", bound=str)


class ParameterPaths(Protocol):
    """Interprets the paths of parameters, as a framework writes them."""

    def of_argument(self, path: str) -> str:
        """Return the module that owns a parameter, like `layers_0/mlp`."""

    def leaf_name(self, path: str) -> str:
        """Return the name of a parameter within its module, like `kernel`."""


_OF_CAPTURE = (
    *("label", "workload", "techniques", "config", "target", "toolchain", "compiler", "timings"),
    *("num_params", "flops", "recomputed_flops", "arguments"),
)


def common_fields(
    capture: Capture,
    buffers: tuple[LiveBuffer, ...],
    modules: ParameterPaths,
    footprint_bytes: int,
    forward_flops: Mapping[str, int],
) -> dict[str, Any]:
    """Return the fields of a report that every analysis fills alike: facts of the capture, and sums of the buffers.

    Args:
        buffers: the buffers that are live at the peak, largest first.
        forward_flops: as for `module_tree`.
    """
    live_bytes = sum(buffer.size_bytes for buffer in buffers)
    rest = footprint_bytes - live_bytes
    return {
        **{name: getattr(capture, name) for name in _OF_CAPTURE},
        "footprint_bytes": footprint_bytes,
        "live_peak_bytes": live_bytes,
        "buffers": buffers,
        "categories": sum_by_category(buffers, fragmentation_bytes=rest),
        "by_source": sum_by(buffers, lambda buffer: buffer.source, rest=("", rest)),
        "by_dtype": sum_by(buffers, lambda buffer: buffer.dtype, rest=("", rest)),
        "by_phase": sum_by(buffers, lambda buffer: buffer.phase, rest=(Phase.NONE, rest)),
        "modules": module_tree(
            buffers, capture.arguments, modules, fragmentation_bytes=rest, forward_flops=forward_flops
        ),
        "forward_flops": forward_flops,
    }


def sum_by(
    buffers: Iterable[LiveBuffer], key: Callable[[LiveBuffer], _Key], *, rest: tuple[_Key, int]
) -> dict[_Key, int]:
    """Sum bytes by key, largest first.

    Args:
        rest: the key and the bytes of memory outside all buffers (fragmentation).
    """
    sums: dict[_Key, int] = defaultdict(int)
    for buffer in buffers:
        sums[key(buffer)] += buffer.size_bytes
    sums[rest[0]] += rest[1]
    return dict(sorted(((k, size) for k, size in sums.items() if size), key=lambda item: -item[1]))


def sum_by_category(buffers: Iterable[LiveBuffer], *, fragmentation_bytes: int) -> dict[Category, int]:
    """Sum bytes of every category, including empty ones, in the order of `Category`."""
    sums = sum_by(buffers, lambda buffer: buffer.category, rest=(Category.FRAGMENTATION, fragmentation_bytes))
    return {category: sums.get(category, 0) for category in Category}


def module_tree(
    buffers: Iterable[LiveBuffer],
    arguments: Iterable[ArgumentLeaf],
    modules: ParameterPaths,
    *,
    fragmentation_bytes: int,
    forward_flops: Mapping[str, int],
) -> ModuleNode:
    """Return the modules that own parameters, as a tree, with the bytes of all their values.

    The root is the whole step and owns the values without a module.

    Args:
        forward_flops: FLOPs of the forward pass by module. If a module holds no memory, its FLOPs go to the nearest
            enclosing module in the tree.
    """
    own: dict[str, dict[Category, int]] = defaultdict(lambda: defaultdict(int))
    for buffer in buffers:
        own[buffer.module][buffer.category] += buffer.size_bytes
    own[""][Category.FRAGMENTATION] += fragmentation_bytes
    params: dict[str, list[ArgumentLeaf]] = defaultdict(list)
    for leaf in arguments:
        if leaf.role is Role.PARAMS:
            params[modules.of_argument(leaf.path)].append(leaf)

    children: dict[str, list[str]] = defaultdict(list)
    seen = {""}
    for path in [*params, *own]:  # parameters first, to keep the order of the model
        parts = path.split("/") if path else []
        for depth in range(1, len(parts) + 1):
            child = "/".join(parts[:depth])
            if child not in seen:
                seen.add(child)
                children["/".join(parts[: depth - 1])].append(child)
    flops: dict[str, int] = defaultdict(int)
    for path, number in forward_flops.items():
        while path not in seen:
            path = path.rpartition("/")[0]
        flops[path] += number
    return _node("", own, params, flops, children, modules)


def _node(
    path: str,
    own: Mapping[str, Mapping[Category, int]],
    params: Mapping[str, list[ArgumentLeaf]],
    flops: Mapping[str, int],
    children: Mapping[str, list[str]],
    modules: ParameterPaths,
) -> ModuleNode:
    nodes = tuple(_node(child, own, params, flops, children, modules) for child in children.get(path, ()))
    leaves = params.get(path, [])
    sums: dict[Category, int] = defaultdict(int)
    for categories in (own.get(path, {}), *(node.categories for node in nodes)):
        for category, size in categories.items():
            sums[category] += size
    return ModuleNode(
        path=path,
        num_params=sum(leaf.num_elements for leaf in leaves) + sum(node.num_params for node in nodes),
        params=tuple((modules.leaf_name(leaf.path), leaf.shape, leaf.dtype) for leaf in leaves),
        categories={category: sums[category] for category in Category if sums.get(category)},
        children=nodes,
        forward_flops=flops.get(path, 0) + sum(node.forward_flops for node in nodes),
    )
