"""Conversion of a finished trace to a capture."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import torch

from memprof.analysis.records.capture import NO_COMPILER, ArgumentLeaf, Capture, Target, Timings, Toolchain
from memprof.analysis.records.categories import Phase
from memprof.analysis.records.live_buffer import StackFrame
from memprof.analysis.records.timeline import ModuleSpan, PhaseSpan
from memprof.analysis.records.trace import Trace, TracedValue, TraceEvent
from memprof.sources.torch.categories import Facts, claim
from memprof.sources.torch.places import Places
from memprof.sources.torch.tracer import Storage, StorageTracer
from memprof.version import __version__

_DTYPES = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int64: "s64",
    torch.int32: "s32",
    torch.int16: "s16",
    torch.int8: "s8",
    torch.uint8: "u8",
    torch.bool: "pred",
    torch.complex64: "c64",
    torch.complex128: "c128",
}


def capture_of(
    tracer: StorageTracer,
    arguments: Sequence[ArgumentLeaf],
    *,
    workload: str,
    config: Mapping[str, str | int | float | bool | None],
    techniques: Sequence[str] = (),
    target: Target,
    trace_seconds: float,
    is_compiled: bool = False,
    doubts: Sequence[str] = (),
) -> Capture:
    """Return the capture of a trace.

    Args:
        arguments: the tensors that belong to the step's parts.
        is_compiled: the step calls `torch.compile`.
        doubts: further sentences about uncertain facts.
    """
    return Capture(
        label=" ".join([workload, "+".join(techniques)]).rstrip(),
        workload=workload,
        techniques=tuple(techniques),
        config=config,
        target=target,
        toolchain=_toolchain(),
        compiler=NO_COMPILER,
        arguments=tuple(arguments),
        flops=tracer.work.flops,
        recomputed_flops=tracer.work.recomputed_flops,
        timings=Timings(lower_seconds=trace_seconds, compile_seconds=0.0),
        trace=_trace(tracer),
        doubts=(*doubts, *_doubts(tracer.places, is_compiled=is_compiled)),
    )


def _doubts(places: Places, *, is_compiled: bool) -> Iterator[str]:
    if is_compiled or places.has_compiled_modules:
        yield "the eager step was traced: torch.compile may keep other values for the backward pass"
    if places.has_recurrent_kernels:
        yield "recurrent layers were traced step by step: the reserve space of cuDNN's kernels is unknown"


def _trace(tracer: StorageTracer) -> Trace:
    numbers = {event.value for event in tracer.events}
    storages = [storage for storage in tracer.storages if storage.number in numbers]
    places = {storage.number: place for place, storage in enumerate(storages)}
    on_host = [storage for storage in tracer.live if storage.is_on_host and storage.role is not None]
    stacks: dict[tuple[StackFrame, ...], int] = {(): 0}
    return Trace(
        framework="torch",
        num_positions=len(tracer.phases),
        step_starts=tuple(tracer.step_starts),
        values=tuple(_value(storage, stacks) for storage in storages),
        events=tuple(TraceEvent(each.position, places[each.value], each.is_birth) for each in tracer.events),
        phases=tuple(PhaseSpan(phase=phase, start=start, end=end) for phase, start, end in _spans(tracer.phases)),
        modules=tuple(
            ModuleSpan(path=path, start=start, end=end) for path, start, end in _spans(tracer.modules) if path
        ),
        stacks=tuple(stacks),
        forward_flops=dict(tracer.work.forward_flops),
        calls=dict(tracer.work.calls),
        recomputed=dict(tracer.work.recomputed),
        moved_to_host_bytes=tracer.work.moved_to_host_bytes,
        host_bytes=sum(storage.size_bytes for storage in on_host),
    )


def _value(storage: Storage, stacks: dict[tuple[StackFrame, ...], int]) -> TracedValue:
    claimed = claim(
        Facts(
            role=storage.role,
            is_gradient=storage.is_gradient,
            phase=storage.phase,
            depends=storage.depends,
            is_used_in_backward=storage.is_used_in_backward,
            communicates=storage.communicates,
            is_workspace=storage.is_workspace,
        )
    )
    return TracedValue(
        size_bytes=storage.size_bytes,
        shape=storage.shape,
        dtype=_DTYPES.get(storage.dtype, str(storage.dtype).removeprefix("torch.")),
        category=claimed.category,
        phase=Phase.ARGUMENT if storage.role is not None else storage.phase,
        module=storage.place.module,
        name=storage.path or f"{storage.op}.{storage.position}",
        op=storage.path if storage.role is not None else storage.op,
        source="" if storage.role is not None else storage.place.source,
        library="" if storage.role is not None else storage.place.library,
        stack=stacks.setdefault(() if storage.role is not None else storage.place.stack, len(stacks)),
        rule=claimed.rule,
        evidence=claimed.evidence,
    )


def _spans(items: Iterable[Any]) -> Iterator[tuple[Any, int, int]]:
    """Yield runs of equal items, each with its first and last position."""
    start = 0
    for item, run in groupby(items):
        length = sum(1 for _ in run)
        yield item, start, start + length - 1
        start += length


def _toolchain() -> Toolchain:
    return Toolchain(
        memprof=__version__,
        python=platform.python_version(),
        jax="",
        jaxlib="",
        cuda_plugin=None,
        flax=None,
        optax=None,
        xla_flags="",
        torch=str(torch.__version__),
    )
