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
from collections.abc import Callable

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)

from memprof.analysis.records.capture import Capture, Target
from memprof.errors import MemprofError
from memprof.sources.torch.cuda_semantics import cuda_semantics
from memprof.sources.torch.earlier_versions import softmax_keeps_input
from memprof.sources.torch.owners import Owners, parts_of
from memprof.sources.torch.places import Places
from memprof.sources.torch.step_spec import TorchStepSpec
from memprof.sources.torch.trace_capture import capture_of
from memprof.sources.torch.tracer import StorageTracer

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
    with FakeTensorMode(), cuda_semantics(tracer) as compiled, tracer, places.watching():
        try:
            spec = make_spec()
            if not isinstance(spec, TorchStepSpec):
                raise MemprofError(f"a memprof.TorchStepSpec was expected, but this is a {type(spec).__name__}")
            owners = Owners(parts_of(spec), tracer)
            gc.collect()
            tracer.begin(owners.assign())
            with contextlib.ExitStack() as stack:
                stack.enter_context(owners.watching())
                if spec.softmax_input:
                    stack.enter_context(softmax_keeps_input())
                if places.has_compiled_modules:
                    stack.enter_context(torch.compiler.set_stance("force_eager"))
                for number in range(_NUM_STEPS):
                    if number:
                        tracer.begin_step()
                    _run(spec)
            owners.assign()
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
        )


def _run(spec: TorchStepSpec) -> None:
    """Run one step: forward and backward pass of each minibatch, and the update."""
    if spec.step is not None:
        spec.step()
        return
    assert spec.loss_fn is not None
    scaler, optimizers = spec.scaler, parts_of(spec).optimizers
    for part in spec.batch if spec.num_minibatches > 1 else [spec.batch]:
        loss = spec.loss_fn(spec.model, part)
        if spec.num_minibatches > 1:
            loss = loss / spec.num_minibatches
        (loss if scaler is None else scaler.scale(loss)).backward()
    for optimizer in optimizers:
        optimizer.step() if scaler is None else scaler.step(optimizer)
    if scaler is not None:
        scaler.update()
    for optimizer in optimizers:
        optimizer.zero_grad(set_to_none=not spec.zero_grads)
