"""Puts a hand-made report together from its buffers, so that its sums hold by construction. No compiler made it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TypeVar

from memprof.analysis.memory.verdict import judge
from memprof.analysis.records.capture import ArgumentLeaf, CompilerTotals, Target, Timings, Toolchain
from memprof.analysis.records.categories import Category, Phase, Role
from memprof.analysis.records.live_buffer import LiveBuffer
from memprof.analysis.records.pool import Pieces, PoolSettings
from memprof.analysis.records.report import ModuleNode, ProgramFacts, Report
from memprof.analysis.records.timeline import LiveChange, PhaseSpan, Timeline

Key = TypeVar("Key")

_ITEM_SIZES = {"pred": 1, "f32": 4, "bf16": 2, "s32": 4, "u32": 4, "u8": 1, "s8": 1}
ARGUMENT_CATEGORIES = tuple(Category(role.value) for role in Role)
BASE = (*ARGUMENT_CATEGORIES, Category.CONSTANTS)

H100 = Target(
    name="h100-80gb",
    description="NVIDIA H100 80GB HBM3",
    platform="cuda",
    memory_bytes=84929347584,
    compute_capability="9.0",
    reason="asked for",
)
CPU = Target(
    name="cpu",
    description="the host",
    platform="cpu",
    memory_bytes=None,
    compute_capability=None,
    reason="no local accelerator, and the extra `deviceless` is not installed",
)


def buffer(
    shape: tuple[int, ...],
    dtype: str,
    category: Category,
    *,
    module: str = "",
    op: str = "",
    source: str = "",
    phase: Phase = Phase.FORWARD,
) -> LiveBuffer:
    """One live buffer; its size is what shape and dtype give."""
    size_bytes = _ITEM_SIZES[dtype]
    for length in shape:
        size_bytes *= length
    return LiveBuffer(
        size_bytes=size_bytes,
        shape=shape,
        dtype=dtype,
        category=category,
        phase=phase,
        module=module,
        name=op.rpartition("/")[2],
        op=op,
        source=source,
        rule=category.value,
        evidence="made by hand for a test",
        start=0,
        end=1,
        offset=None if category in BASE else 0,
        at_peak=True,
    )


def report(
    buffers: Iterable[LiveBuffer] = (),
    *,
    fragmentation: int = 0,
    modules: ModuleNode | None = None,
    timeline: Timeline | None = None,
    target: Target = H100,
    label: str = "tiny baseline",
    num_params: int = 0,
    arguments: tuple[ArgumentLeaf, ...] = (),
) -> Report:
    """The report of what is live at the peak, and `fragmentation` bytes that hold nothing then."""
    live = tuple(sorted(buffers, key=lambda item: -item.size_bytes))
    live_peak_bytes = sum(item.size_bytes for item in live)
    categories = dict.fromkeys(Category, 0) | _sum(live, lambda item: item.category)
    categories[Category.FRAGMENTATION] = fragmentation
    argument_bytes = sum(size for category, size in categories.items() if category in ARGUMENT_CATEGORIES)
    temp_bytes = live_peak_bytes + fragmentation - argument_bytes
    pieces = Pieces(held=(live_peak_bytes + fragmentation,))
    return Report(
        label=label,
        workload=label.split(" ", maxsplit=1)[0],
        techniques=tuple(label.split(" ", maxsplit=1)[1].split("+")),
        config={"batch_size": 8, "seq_len": 1024, "grad_clip": float("inf"), "preset": None},
        target=target,
        toolchain=Toolchain(
            memprof="0.1.0",
            python="3.12.3",
            jax="0.12.0",
            jaxlib="0.12.0",
            cuda_plugin="jax-cuda13-plugin 0.12.0" if target.platform == "cuda" else None,
            flax="0.13.0",
            optax="0.3.0",
            xla_flags="",
        ),
        compiler=CompilerTotals(
            argument_bytes=argument_bytes,
            output_bytes=argument_bytes,
            alias_bytes=argument_bytes,
            temp_bytes=temp_bytes,
            peak_memory_bytes=live_peak_bytes if target.platform == "cuda" else None,
            total_allocation_bytes=None,
        ),
        timings=Timings(lower_seconds=0.84, compile_seconds=7.31),
        footprint_bytes=live_peak_bytes + fragmentation,
        live_peak_bytes=live_peak_bytes,
        num_params=num_params,
        flops=6_530_000_000_000,
        recomputed_flops=0,
        categories=categories,
        by_source=_with_nothing("", fragmentation, _sum(live, lambda item: item.source)),
        by_dtype=_with_nothing("", fragmentation, _sum(live, lambda item: item.dtype)),
        by_phase=_with_nothing(Phase.NONE, fragmentation, _sum(live, lambda item: item.phase)),
        modules=modules or node("", live, fragmentation=fragmentation, num_params=num_params),
        buffers=live,
        temp_buffers=_temps(live) if timeline is None else (),
        timeline=timeline or flat_timeline(live),
        arguments=arguments,
        program=ProgramFacts(num_recomputed_operations=0, loops=(), host_bytes=0),
        verdict=judge(pieces, target, PoolSettings()),
        pieces=pieces,
        pool=PoolSettings(),
        analysis_seconds=0.312,
    )


def node(
    path: str,
    buffers: Iterable[LiveBuffer],
    *,
    children: tuple[ModuleNode, ...] = (),
    params: tuple[tuple[str, tuple[int, ...], str], ...] = (),
    fragmentation: int = 0,
    num_params: int | None = None,
) -> ModuleNode:
    """A module that holds `buffers` itself, and its children's bytes on top."""
    own = Counter(_sum(buffers, lambda item: item.category))
    own[Category.FRAGMENTATION] += fragmentation
    for child in children:
        own.update(child.categories)
    if num_params is None:
        num_params = sum(_length(shape) for _, shape, _ in params) + sum(child.num_params for child in children)
    return ModuleNode(path=path, num_params=num_params, params=params, categories=dict(own), children=children)


def flat_timeline(buffers: Iterable[LiveBuffer]) -> Timeline:
    """Three positions; what is no argument lives at the middle one."""
    buffers = tuple(buffers)
    temps = _temps(buffers)
    births = [LiveChange(position=1, category=item.category, delta_bytes=item.size_bytes) for item in temps]
    deaths = [LiveChange(position=2, category=item.category, delta_bytes=-item.size_bytes) for item in temps]
    return Timeline(
        num_positions=3,
        base=_sum((item for item in buffers if not item.is_temp), lambda item: item.category),
        changes=(*births, *deaths),
        temp_changes=tuple((number, number + len(temps)) for number in range(len(temps))),
        phases=(
            PhaseSpan(phase=Phase.FORWARD, start=0, end=1),
            PhaseSpan(phase=Phase.UPDATE, start=2, end=2),
        ),
        peak_position=1 if temps else 0,
    )


def _temps(buffers: Iterable[LiveBuffer]) -> tuple[LiveBuffer, ...]:
    return tuple(item for item in buffers if item.is_temp)


def _sum(buffers: Iterable[LiveBuffer], key: Callable[[LiveBuffer], Key]) -> dict[Key, int]:
    sums: dict[Key, int] = {}
    for item in buffers:
        sums[key(item)] = sums.get(key(item), 0) + item.size_bytes
    return sums


def _with_nothing(nothing: Key, fragmentation: int, sums: dict[Key, int]) -> dict[Key, int]:
    return {**sums, nothing: sums.get(nothing, 0) + fragmentation} if fragmentation else sums


def _length(shape: tuple[int, ...]) -> int:
    length = 1
    for size in shape:
        length *= size
    return length
