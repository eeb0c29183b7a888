"""Rules for recomputation: values kept for the backward pass that the step could recompute, from cheap to costly.

`_without_residuals` models modules that drop their activations.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from memprof.analysis.records.categories import Category, Phase, Role
from memprof.analysis.records.live_buffer import LiveBuffer
from memprof.analysis.records.report import Report
from memprof.studies.advice.advice import Proposal
from memprof.studies.advice.what_if import Instead, Without, amount, changed_at_peak, footprint_without
from memprof.workloads.intents import Aim, Intent

_NUMBER = re.compile(r"\d+")
# Means, scales and masks are at most this share of the arrays that they are computed from.
_MAX_STATISTIC_SHARE = 1 / 50
_PRODUCTS = ("dot_general", "conv_general_dilated")


def remat_elementwise(report: Report) -> Iterator[Proposal]:
    """Propose to recompute activations that need no matrix product: the cheapest recomputation."""
    outermost = [paths for family, paths in repeated_modules(report).items() if "/" not in family]
    if not outermost:
        return
    with_matrices = {module for module, found in _matrices_by_module(report).items() if found}

    def is_product(buffer: LiveBuffer) -> bool:
        """Whether it is a product with weights, perhaps with a fused bias or cast, and not one of attention."""
        if buffer.is_of_attention:
            return False
        return buffer.module in with_matrices or buffer.op.endswith(_PRODUCTS)

    without = _without_residuals(report, [path for paths in outermost for path in paths], keep=is_product)
    yield Proposal(
        intent=Intent(aim=Aim.RECOMPUTE_ALL_BUT_PRODUCTS),
        what="Save only matmul results; recompute the rest",
        evidence=f"{amount(changed_at_peak(report, without), 'activations')} at the peak come from other operations",
        cost="recomputes elementwise operations and the products of attention",
        without=without,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rung:
    """A family of modules, with the saving if they drop their activations and the FLOPs to recompute them."""

    family: str
    paths: tuple[str, ...]
    without: Without
    saving_bytes: int
    flops: int


def remat_modules(report: Report) -> Iterator[Proposal]:
    """Propose to recompute the activations of repeated modules: a ladder from cheap to costly."""
    rungs = []
    matrices = _matrices_by_module(report)
    for family, paths in repeated_modules(report).items():
        if sum(len(found) for module, found in matrices.items() if _is_within(module, paths[0])) < 2:
            continue  # a single layer: its input, which must be kept, is as large
        without = _without_residuals(report, paths)
        saving_bytes = report.footprint_bytes - footprint_without(report, without)
        flops = _forward_flops_within(report.forward_flops, paths)
        rungs.append(_Rung(family=family, paths=paths, without=without, saving_bytes=saving_bytes, flops=flops))
    for rung in _ladder(rungs):
        yield _proposal(report, rung)


def _ladder(rungs: list[_Rung]) -> list[_Rung]:
    """Return the rungs that save at least as much as every cheaper one, cheapest first.

    If two rungs save the same, other values form the peak then. The compiler may move these, so both rungs stay.
    """
    ladder: list[_Rung] = []
    for rung in sorted(rungs, key=lambda rung: (rung.flops, -rung.saving_bytes)):
        if not ladder or rung.saving_bytes >= ladder[-1].saving_bytes:
            ladder.append(rung)
    return ladder


def _proposal(report: Report, rung: _Rung) -> Proposal:
    kept_bytes = sum(buffer.size_bytes for buffer in changed_at_peak(report, rung.without))
    evidence = f"{kept_bytes:,} bytes of activations in {len(rung.paths)} modules are held at the peak"
    cost = "recomputes their forward pass"
    if rung.flops:
        evidence += f"; {kept_bytes / rung.flops:.2g} bytes per recomputed FLOP"
        cost += f": {rung.flops / report.flops:.0%} more FLOPs"
    return Proposal(
        intent=Intent(aim=Aim.RECOMPUTE_MODULES, modules=rung.family),
        what=f"Recompute the activations of {rung.family} in the backward pass",
        evidence=evidence,
        cost=cost,
        without=rung.without,
    )


def remat_scan(report: Report) -> Iterator[Proposal]:
    """Propose to recompute activations that a scan stacks, over layers or time steps."""
    lengths = {loop.trip_count for loop in report.program.loops if loop.phase is Phase.FORWARD and loop.trip_count}
    for length in sorted(length for length in lengths if length > 1):
        stacks = [
            buffer
            for buffer in report.temp_buffers
            if buffer.is_stacked
            and buffer.category is Category.ACTIVATIONS
            and len(buffer.shape) > 1
            and buffer.shape[0] == length
        ]
        # Arrays are counted by their offset: one array is three buffers, before, in and after the loop.
        at_once = max(
            ({each.offset: each for each in stacks if each.start <= one.start <= each.end} for one in stacks),
            key=len,
            default={},
        )
        if len(at_once) > 1:  # one of them is the carry of the loop, from which all others can be recomputed
            yield _scan_proposal(report, stacks, _smallest_array(at_once.values()), length)


def _scan_proposal(report: Report, stacks: list[LiveBuffer], carried: LiveBuffer, length: int) -> Proposal:
    dropped = {id(buffer) for buffer in stacks if buffer.offset != carried.offset}

    def without(buffer: LiveBuffer) -> Instead | None:
        return Instead(size_bytes=buffer.size_bytes // length) if id(buffer) in dropped else None

    is_over_layers = any(leaf.role is Role.PARAMS and leaf.shape[:1] == (length,) for leaf in report.arguments)
    return Proposal(
        intent=Intent(aim=Aim.RECOMPUTE_SCAN),
        what="Recompute the activations of a scan's body in the backward pass",
        evidence=f"a scan stacks the activations of {length} {'layers' if is_over_layers else 'steps'}, which its body"
        " can recompute: "
        f"{amount(changed_at_peak(report, without), 'arrays')} at the peak",
        cost="recomputes the forward pass of its body",
        without=without,
    )


def _smallest_array(activations: Iterable[LiveBuffer]) -> LiveBuffer:
    """Return the smallest activation that is not a statistic of a larger one."""
    by_size = sorted(activations, key=lambda buffer: buffer.size_bytes)
    return next(buffer for buffer in by_size if buffer.size_bytes >= _MAX_STATISTIC_SHARE * by_size[-1].size_bytes)


def repeated_modules(report: Report) -> dict[str, tuple[str, ...]]:
    """Return the paths of modules that differ only in numbers, by the path with `*` for numbers: `layers_*/mlp`."""
    paths: dict[str, dict[str, None]] = defaultdict(dict)
    for buffer in report.temp_buffers:
        parts = buffer.module.split("/") if buffer.module else []
        for depth in range(1, len(parts) + 1):
            path = "/".join(parts[:depth])
            paths[_NUMBER.sub("*", path)][path] = None
    return {family: tuple(found) for family, found in paths.items() if len(found) > 1}


def _is_within(module: str, path: str) -> bool:
    """Whether a module is the one at `path` or within it."""
    return module == path or module.startswith(f"{path}/")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Instance:
    """One of the repeated modules.

    Attributes:
        forward_end, backward_start: the last position of its forward pass, and the first of its backward pass.
        input_bytes: size of its input, from which everything can be recomputed.
        longest: the activation with the longest live range; the input is live for that time.
    """

    forward_end: int
    backward_start: int
    input_bytes: int
    longest: LiveBuffer


def _without_residuals(
    report: Report, paths: Iterable[str], *, keep: Callable[[LiveBuffer], bool] = lambda buffer: False
) -> Without:
    """Return the replacements if each of these modules drops its activations and recomputes them.

    An activation is then live during its module's forward pass, and again from the start of its backward pass. The
    module's input stays live. Programs do not show which array that is, so its size is estimated from the narrowest
    side of the module's matrices.

    Args:
        keep: selects the activations that modules do not drop.
    """
    members: dict[str, list[LiveBuffer]] = defaultdict(list)
    wanted = set(paths)
    for buffer in report.temp_buffers:
        path = next((path for path in _prefixes(buffer.module) if path in wanted), None)
        if path is not None:
            members[path].append(buffer)
    matrices = _matrices_by_module(report)
    instances = {
        path: found for path, buffers in members.items() if (found := _instance(path, buffers, matrices)) is not None
    }

    def without(buffer: LiveBuffer) -> Instead | None:
        instance = next((instances[path] for path in _prefixes(buffer.module) if path in instances), None)
        if instance is None or buffer.category is not Category.ACTIVATIONS or keep(buffer):
            return None
        kept_bytes = instance.input_bytes if buffer is instance.longest else 0
        recomputed_at = max(buffer.start, instance.backward_start)
        first = [(buffer.start, max(buffer.start, instance.forward_end))] if buffer.start < recomputed_at else []
        return Instead(size_bytes=buffer.size_bytes, spans=[*first, (recomputed_at, buffer.end)], kept_bytes=kept_bytes)

    return without


def _prefixes(module: str) -> list[str]:
    parts = module.split("/")
    return ["/".join(parts[:depth]) for depth in range(1, len(parts) + 1)]


def _matrices_by_module(report: Report) -> dict[str, list[tuple[int, ...]]]:
    """Return the shapes of parameters with two or more dimensions, by the module that owns them."""
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
    # XLA delays some operations of the forward pass until the backward pass needs them.
    forward = max((b.start for b in buffers if b.phase is Phase.FORWARD and b.start < backward), default=None)
    if forward is None:
        return None
    sides = {
        side for owner, shapes in matrices.items() if _is_within(owner, path) for shape in shapes for side in shape
    }
    return _Instance(
        forward_end=forward,
        backward_start=backward,
        input_bytes=max(_input_bytes(buffer, sides) for buffer in activations),
        longest=max(activations, key=lambda buffer: buffer.end),
    )


def _input_bytes(product: LiveBuffer, sides: set[int]) -> int:
    """Return the size of an array with the rows of a product and as many columns as the narrowest matrix side."""
    if not product.shape or product.shape[-1] not in sides:
        return 0
    return product.size_bytes // product.shape[-1] * min(sides)


def _forward_flops_within(flops: Mapping[str, int], paths: Iterable[str]) -> int:
    """Return the FLOPs of the forward pass of these modules and all modules within them."""
    wanted = set(paths)
    return sum(number for module, number in flops.items() if any(path in wanted for path in _prefixes(module)))
