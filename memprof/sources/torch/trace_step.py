"""Tracing of a PyTorch training step to a capture.

    capture = trace_step(torch_spec, target=target)
    report = analyze(capture)

The step runs twice under fake tensors, on shapes alone. In the first run the optimizer makes its state; in the second
run the state exists.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode

from memprof.analysis.records.capture import Capture, Target
from memprof.errors import MemprofError
from memprof.sources.torch.bucketed_gradients import GradientBuckets
from memprof.sources.torch.cuda_semantics import cublas_workspace_bytes, cuda_semantics
from memprof.sources.torch.earlier_versions import softmax_keeps_input
from memprof.sources.torch.owners import Owners, parts_of
from memprof.sources.torch.places import Places
from memprof.sources.torch.sharded_step import observed, process_group, shard
from memprof.sources.torch.step_spec import DATA, SHARDS, TorchStepSpec
from memprof.sources.torch.trace_capture import capture_of
from memprof.sources.torch.tracer import StorageTracer

_DOUBTS = {
    DATA: "NCCL's own buffers are not in the trace",
    SHARDS: "NCCL's own buffers are not in the trace, and FSDP's streams have memory pools of their own on a device:"
    " the live peak holds for PyTorch's tensors, the footprint is a lower bound",
}
_NUM_STEPS = 2  # later steps equal the second: the optimizer has its state, and gradients exist if they are kept


def trace_step(make_spec: Callable[[], TorchStepSpec], *, target: Target) -> Capture:
    """Trace two training steps on shapes alone.

    Args:
        make_spec: makes the model, the optimizer and the batch. It is called under fake tensors.
        target: the device that the step is for. Its memory size only decides whether the step fits.

    Raises:
        MemprofError: shapes in the step depend on the values of its tensors, or `make_spec` does not return a
            TorchStepSpec.
        Exception: whatever the user's code raises.
    """
    started = time.perf_counter()
    places = Places()
    tracer = StorageTracer(places)
    tracer.workspace_bytes = cublas_workspace_bytes(target)
    with (
        _group_of(target) as mesh,
        FakeTensorMode(),
        cuda_semantics(tracer) as compiled,
        tracer,
        places.watching(),
        observed(tracer) if mesh is not None else contextlib.nullcontext(),
    ):
        try:
            spec = make_spec()
            if not isinstance(spec, TorchStepSpec):
                raise MemprofError(f"a memprof.TorchStepSpec was expected, but this is a {type(spec).__name__}")
            if mesh is not None and spec.step is not None:
                raise MemprofError(
                    "FSDP needs the forward pass by itself: give loss_fn in place of step, or --mesh dp=8"
                )
            parts = parts_of(spec)
            root = None if mesh is None else shard(_only(parts.networks), parts.optimizers, mesh)
            owners = Owners(parts, tracer)
            buckets = GradientBuckets(_only(parts.networks), tracer) if DATA in target.topology.axes else None
            gc.collect()
            tracer.begin(owners.assign())
            with contextlib.ExitStack() as stack:
                stack.enter_context(owners.watching())
                if buckets is not None:
                    stack.enter_context(buckets.watching())
                if spec.softmax_input:
                    stack.enter_context(softmax_keeps_input())
                if places.has_compiled_modules:
                    stack.enter_context(torch.compiler.set_stance("force_eager"))
                for number in range(_NUM_STEPS):
                    if number:
                        tracer.begin_step()
                    _run(spec, tracer, root, buckets)
            owners.assign()
            owners.find_averages()
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            raise MemprofError(
                f"the shapes of this step depend on the values of its tensors ({error.func}), which a trace of "
                "shapes does not have"
            ) from error
        return capture_of(
            tracer,
            tuple(owners.leaves.values()),
            workload=spec.label,
            config=spec.config,
            techniques=spec.techniques,
            target=target,
            trace_seconds=time.perf_counter() - started,
            is_compiled=compiled.is_used,
            doubts=tuple(_DOUBTS[axis] for axis in target.topology.axes),
        )


def _group_of(target: Target) -> contextlib.AbstractContextManager[Any]:
    axes = target.topology.axes
    return process_group(axes[SHARDS]) if SHARDS in axes else contextlib.nullcontext()


def _only(networks: Mapping[str, torch.nn.Module]) -> torch.nn.Module:
    if len(networks) > 1:
        raise MemprofError("a step with several networks is traced on one device: leave --mesh out")
    return next(iter(networks.values()))


def _run(
    spec: TorchStepSpec, tracer: StorageTracer, root: torch.nn.Module | None, buckets: GradientBuckets | None
) -> None:
    """Run one step: forward and backward pass of each minibatch, and the update."""
    if spec.step is not None:
        if buckets is not None:
            buckets.begin_forward()
        spec.step()
        return
    assert spec.loss_fn is not None
    scaler, optimizers = spec.scaler, parts_of(spec).optimizers
    for part in spec.batch if spec.num_minibatches > 1 else [spec.batch]:
        if buckets is not None:
            buckets.begin_forward()
        forward = partial(spec.loss_fn, spec.model, part)
        loss = forward() if root is None else root(forward)
        if spec.num_minibatches > 1:
            loss = loss / spec.num_minibatches
        (loss if scaler is None else scaler.scale(loss)).backward()
    for optimizer in optimizers:
        if spec.offload_optimizer:
            _move_state(optimizer, tracer, to_host=False)
        optimizer.step() if scaler is None else scaler.step(optimizer)
        if spec.offload_optimizer:
            _move_state(optimizer, tracer, to_host=True)
    if scaler is not None:
        scaler.update()
    for optimizer in optimizers:
        optimizer.zero_grad(set_to_none=not spec.zero_grads)


def _move_state(optimizer: torch.optim.Optimizer, tracer: StorageTracer, *, to_host: bool) -> None:
    """Copy the state of an optimizer to the host or to the device, and free the original. Counters stay."""
    with torch.no_grad(), tracer.placing(on_host=to_host):
        for state in optimizer.state.values():
            for name, value in state.items():
                if isinstance(value, torch.Tensor) and value.dim():
                    state[name] = value.clone()
