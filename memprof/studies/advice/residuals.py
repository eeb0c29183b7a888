"""Modules that a model repeats, and what recomputing their activations would leave of them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from memprof.analysis.categories import Category, Phase
from memprof.analysis.report import LiveBuffer, Report
from memprof.studies.advice.what_if import Instead, Without

_NUMBER = re.compile(r"\d+")
# Means, scales and masks are this much smaller than the arrays that they are made of.
_STATISTIC = 1 / 50


def repeated_modules(report: Report) -> dict[str, tuple[str, ...]]:
    """Paths of modules that differ in numbers alone, by the path with `*` for those: `layers_*/mlp`."""
    paths: dict[str, dict[str, None]] = defaultdict(dict)
    for buffer in report.temp_buffers:
        parts = buffer.module.split("/") if buffer.module else []
        for depth in range(1, len(parts) + 1):
            path = "/".join(parts[:depth])
            paths[_NUMBER.sub("*", path)][path] = None
    return {family: tuple(found) for family, found in paths.items() if len(found) > 1}


def is_within(module: str, path: str) -> bool:
    """Whether a module is the one at `path`, or inside it."""
    return module == path or module.startswith(f"{path}/")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Instance:
    """One of the repeated modules.

    Attributes:
        forward_end, backward_start: the last position of its forward pass, and the first of its backward pass.
        input_bytes: size of its input, from which everything can be computed again.
        longest: the activation that stays longest; the input is held for that time.
    """

    forward_end: int
    backward_start: int
    input_bytes: int
    longest: LiveBuffer


def without_residuals(
    report: Report, paths: Iterable[str], *, keep: Callable[[LiveBuffer], bool] = lambda buffer: False
) -> Without:
    """What is left if each of these modules forgets its activations and computes them again.

    An activation is then held while its module's forward pass runs, and again from the beginning of its backward pass.
    What stays is each module's input, from which it is computed again. Programs do not say which array that is; its
    size follows from the module's matrices, the narrowest side of which is taken to read it.

    Args:
        keep: activations that the modules do not forget.
    """
    members: dict[str, list[LiveBuffer]] = defaultdict(list)
    wanted = set(paths)
    for buffer in report.temp_buffers:
        path = next((path for path in _prefixes(buffer.module) if path in wanted), None)
        if path is not None:
            members[path].append(buffer)
    matrices = matrices_by_module(report)
    instances = {
        path: found for path, buffers in members.items() if (found := _instance(path, buffers, matrices)) is not None
    }

    def without(buffer: LiveBuffer) -> Instead | None:
        instance = next((instances[path] for path in _prefixes(buffer.module) if path in instances), None)
        if instance is None or buffer.category is not Category.ACTIVATIONS or keep(buffer):
            return None
        kept_bytes = instance.input_bytes if buffer is instance.longest else 0
        again = max(buffer.start, instance.backward_start)
        first = [(buffer.start, max(buffer.start, instance.forward_end))] if buffer.start < again else []
        return Instead(size_bytes=buffer.size_bytes, spans=[*first, (again, buffer.end)], kept_bytes=kept_bytes)

    return without


def _prefixes(module: str) -> list[str]:
    parts = module.split("/")
    return ["/".join(parts[:depth]) for depth in range(1, len(parts) + 1)]


def matrices_by_module(report: Report) -> dict[str, list[tuple[int, ...]]]:
    """Shapes of the parameters with two dimensions or more, by the module that owns them."""
    found = {}
    stack = [report.modules]
    while stack:
        node = stack.pop()
        stack.extend(node.children)
        found[node.path] = [shape for _, shape, _ in node.params if len(shape) > 1]
    return found


def _instance(path: str, buffers: list[LiveBuffer], matrices: Mapping[str, list[tuple[int, ...]]]) -> _Instance | None:
    activations = [buffer for buffer in buffers if buffer.category is Category.ACTIVATIONS]
    backward = min((b.start for b in buffers if b.phase in (Phase.BACKWARD, Phase.RECOMPUTE)), default=None)
    if backward is None or not activations:
        return None
    # XLA puts some of the forward pass off until the backward pass asks for it.
    forward = max((b.start for b in buffers if b.phase is Phase.FORWARD and b.start < backward), default=None)
    if forward is None:
        return None
    sides = {side for owner, shapes in matrices.items() if is_within(owner, path) for shape in shapes for side in shape}
    return _Instance(
        forward_end=forward,
        backward_start=backward,
        input_bytes=max(_input_bytes(buffer, sides) for buffer in activations),
        longest=max(activations, key=lambda buffer: buffer.end),
    )


def _input_bytes(product: LiveBuffer, sides: set[int]) -> int:
    """Size of an array with the rows of a matrix product's result, and as many columns as the narrowest matrix side."""
    if not product.shape or product.shape[-1] not in sides:
        return 0
    return product.size_bytes // product.shape[-1] * min(sides)


def smallest_array(activations: Iterable[LiveBuffer]) -> LiveBuffer:
    """The smallest of them that is no statistic of a larger one."""
    by_size = sorted(activations, key=lambda buffer: buffer.size_bytes)
    return next(buffer for buffer in by_size if buffer.size_bytes >= _STATISTIC * by_size[-1].size_bytes)


def forward_flops_within(flops: Mapping[str, int], paths: Iterable[str]) -> int:
    """Operations of the forward pass of these modules and all inside them."""
    wanted = set(paths)
    return sum(number for module, number in flops.items() if any(path in wanted for path in _prefixes(module)))
