"""From a training step of PyTorch to a capture.

    capture = trace_step(torch_spec, target=target)
    report = analyze(capture)

The step runs twice under fake tensors, on shapes alone: in the first run the optimizer makes its state, in the second
the state exists.
"""

from __future__ import annotations

import contextlib
import gc
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._pytree import keystr, tree_flatten_with_path

from memprof.analysis.records.capture import NO_COMPILER, ArgumentLeaf, Capture, Target, Timings, Toolchain
from memprof.analysis.records.categories import Phase, Role
from memprof.analysis.records.live_buffer import StackFrame
from memprof.analysis.records.timeline import ModuleSpan, PhaseSpan
from memprof.analysis.records.trace import Trace, TracedValue, TraceEvent
from memprof.errors import MemprofError
from memprof.sources.torch.categories import Facts, claim
from memprof.sources.torch.cuda_semantics import cuda_semantics
from memprof.sources.torch.earlier_versions import softmax_keeps_input
from memprof.sources.torch.places import Places
from memprof.sources.torch.step_spec import TorchStepSpec
from memprof.sources.torch.tracer import Storage, StorageTracer
from memprof.version import __version__

_NUM_STEPS = 2  # later ones are like the second: the optimizer has its state, and gradients exist if they are kept
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


def trace_step(make_spec: Callable[[], TorchStepSpec], *, target: Target) -> Capture:
    """Trace two training steps on shapes alone.

    Args:
        make_spec: makes the model, the optimizer and the batch. It is called under fake tensors.
        target: the device that the step is for. Its memory decides whether the step fits, nothing else.

    Raises:
        MemprofError: the shapes of the step depend on the values of its tensors, or it is no TorchStepSpec.
        Exception: whatever the user's code raises.
    """
    started = time.perf_counter()
    places = Places()
    tracer = StorageTracer(places)
    with FakeTensorMode(), cuda_semantics(tracer.move_to_device), tracer, places.watching():
        try:
            spec = make_spec()
            if not isinstance(spec, TorchStepSpec):
                raise MemprofError(f"a memprof.TorchStepSpec was expected, but got a {type(spec).__name__}")
            owners = _Owners(spec, tracer)
            gc.collect()
            tracer.begin(owners.assign())
            with owners.watching(), softmax_keeps_input() if spec.softmax_input else contextlib.nullcontext():
                for number in range(_NUM_STEPS):
                    if number:
                        tracer.begin_step()
                    _run(spec)
            owners.assign()
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            raise MemprofError(
                f"the shapes of this step depend on the values of its tensors ({error.func}), which a trace on shapes"
                " alone does not have"
            ) from error
        return _capture(spec, tracer, owners, target, time.perf_counter() - started)


def _run(spec: TorchStepSpec) -> None:
    """One step: forward and backward pass of each minibatch, and the update."""
    if spec.step is not None:
        spec.step()
        return
    assert spec.loss_fn is not None
    scaler, optimizers = spec.scaler, _several(spec.optimizer)
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


class _Owners:
    """Knows which tensors the model, the optimizer, the scaler and the batch keep, and says so to their storages."""

    def __init__(self, spec: TorchStepSpec, tracer: StorageTracer) -> None:
        self._spec = spec
        self._tracer = tracer
        self._paths: dict[torch.Tensor, str] = {}
        self.leaves: dict[str, ArgumentLeaf] = {}
        for network in _several(spec.model):
            tracer.places.name_modules(network)

    def assign(self) -> list[Storage]:
        """Give each storage that is kept its role; returns them in the order in which a loop moves them."""
        return [self._own(tensor, path, role) for tensor, path, role in self._kept()]

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Follow the optimizer: its updates, and the state that it makes in the first one."""

        def before(optimizer: Any, *_: Any) -> None:
            for tensor, path in self._paths.items():
                if tensor.grad is not None:
                    gradient = self._tracer.storage_of(tensor.grad)
                    gradient.is_gradient, gradient.path = True, f"{path}.grad"
            # Counters are on the host, unless the update is to be captured in a CUDA graph or is one kernel.
            on_device = any(group.get("capturable") or group.get("fused") for group in optimizer.param_groups)
            self._tracer.begin_update(counters_on_host=not on_device)

        def after(*_: Any) -> None:
            self._tracer.end_update()
            self.assign()

        hooks = register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _kept(self) -> Iterator[tuple[torch.Tensor, str, Role]]:
        for network in _several(self._spec.model):
            for path, tensor in network.named_parameters():
                self._paths[tensor] = path
                yield tensor, path, Role.PARAMS
            for path, tensor in network.named_buffers():
                yield tensor, path, Role.OTHER_STATE
        for optimizer in _several(self._spec.optimizer):
            for group in optimizer.param_groups:
                for number, tensor in enumerate(group["params"]):
                    if tensor not in self._paths:
                        self._paths[tensor] = f"params.{number}"
                        yield tensor, self._paths[tensor], Role.PARAMS
            for parameter, state in optimizer.state.items():
                owner = self._paths.get(parameter, "") if isinstance(parameter, torch.Tensor) else ""
                for path, tensor in _named_tensors(state):
                    yield tensor, f"{owner}{path}", Role.OPTIMIZER_STATE
        for path, tensor in _named_tensors([getattr(self._spec.scaler, name, None) for name in _SCALES]):
            yield tensor, f"scaler{path}", Role.OTHER_STATE
        for path, tensor in _named_tensors(self._spec.batch):
            if not isinstance(tensor, torch.nn.Parameter):
                yield tensor, f"batch{path}", Role.BATCH

    def _own(self, tensor: torch.Tensor, path: str, role: Role) -> Storage:
        storage = self._tracer.storage_of(tensor)
        if storage.role is not None:
            return storage
        storage.role, storage.path = role, path
        if role is Role.BATCH:
            self._tracer.move_to_device(tensor)
        owner = path.partition("[")[0] if role is Role.OPTIMIZER_STATE else path.rpartition(".")[0]
        if role is Role.OPTIMIZER_STATE:
            owner = owner.rpartition(".")[0]
        storage.place = storage.place.in_module("" if role is Role.BATCH else owner.replace(".", "/"))
        if not storage.is_on_host:
            self.leaves[path] = ArgumentLeaf(
                path=path,
                role=role,
                shape=tuple(tensor.shape),
                dtype=str(tensor.dtype).removeprefix("torch."),
                size_bytes=tensor.numel() * tensor.element_size(),
                donated=role is not Role.BATCH,
                parameter_number=len(self.leaves),
            )
        return storage


_SCALES = ("_scale", "_growth_tracker")


def _several(one_or_more: Any) -> Sequence[Any]:
    return tuple(one_or_more) if isinstance(one_or_more, list | tuple) else (one_or_more,)


def _named_tensors(tree: Any) -> Iterator[tuple[str, torch.Tensor]]:
    for path, leaf in tree_flatten_with_path(tree)[0]:
        if isinstance(leaf, torch.Tensor):
            yield keystr(path), leaf


def _capture(
    spec: TorchStepSpec, tracer: StorageTracer, owners: _Owners, target: Target, trace_seconds: float
) -> Capture:
    return Capture(
        label=" ".join([spec.label, "+".join(spec.techniques)]).rstrip(),
        workload=spec.label,
        techniques=spec.techniques,
        config=spec.config,
        target=target,
        toolchain=_toolchain(),
        compiler=NO_COMPILER,
        arguments=tuple(owners.leaves.values()),
        flops=tracer.work.flops,
        recomputed_flops=tracer.work.recomputed_flops,
        timings=Timings(lower_seconds=trace_seconds, compile_seconds=0.0),
        trace=_trace(tracer),
    )


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
        num_recomputed_operations=tracer.work.num_recomputed_operations,
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
    """Runs of equal items, each with its first and last position."""
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
