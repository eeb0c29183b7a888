"""An absent GPU for an unmodified script: the results of `torch.cuda`, and the places of tensors.

`ScriptTracer` knows the place of each tensor. Here `.device`, `.to`, `.cuda` and `.cpu` follow it, `torch.cuda` answers
as if the target were in this machine, and data loaders read their data in this process. Valid for PyTorch 2.13.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from memprof.analysis.records.capture import Target
from memprof.sources.torch.cuda_semantics import convert_module, run_backward
from memprof.sources.torch.script_tracer import GPU, HOST, ScriptTracer, is_gpu

_NOTHING = """
    init synchronize empty_cache ipc_collect reset_peak_memory_stats reset_max_memory_allocated
    reset_accumulated_memory_stats manual_seed manual_seed_all seed seed_all set_device set_rng_state set_rng_state_all
    set_per_process_memory_fraction
""".split()
_ZERO = """
    current_device memory_allocated max_memory_allocated memory_reserved max_memory_reserved memory_cached
    max_memory_cached utilization temperature power_draw clock_rate
""".split()
_MAX_ITEMS = 100_000  # longer lists in a data set are not searched for tensors
_FROM_NUMBERS = torch.tensor, torch.as_tensor, torch.asarray


@contextlib.contextmanager
def absent_gpu(tracer: ScriptTracer, target: Target) -> Iterator[None]:
    """Simulate the target in this machine for the duration of a trace. Enter it inside `cuda_semantics`."""
    with contextlib.ExitStack() as stack:
        for patch in (*_patches_of_cuda(target), *_patches_of_tensors(tracer), *_patches_of_data(tracer)):
            stack.enter_context(patch)
        stack.enter_context(_GpuFunctions(tracer))
        yield


def _patches_of_cuda(target: Target) -> Iterator[contextlib.AbstractContextManager[Any]]:
    total = target.memory_bytes or 80 << 30
    major, _, minor = (target.compute_capability or "9.0").partition(".")
    capability = int(major), int(minor or 0)
    properties = SimpleNamespace(
        name=target.name, total_memory=total, major=capability[0], minor=capability[1], multi_processor_count=100
    )
    answers: dict[str, Any] = {
        "is_available": True,
        "is_initialized": True,
        "device_count": 1,
        "get_device_name": target.name,
        "get_device_properties": properties,
        "get_device_capability": capability,
        "is_current_stream_capturing": False,
        "is_bf16_supported": capability >= (8, 0),
        "mem_get_info": (total, total),
        "get_arch_list": [f"sm_{capability[0]}{capability[1]}"],
        "memory_stats": {},
        "memory_summary": "",
        **dict.fromkeys(_NOTHING),
        **dict.fromkeys(_ZERO, 0),
    }
    for name, answer in answers.items():
        if hasattr(torch.cuda, name):
            yield mock.patch.object(torch.cuda, name, return_value=answer)
    for name in ("Stream", "Event", "current_stream", "default_stream", "stream", "device"):
        yield mock.patch.object(torch.cuda, name, return_value=_Stream())
    yield mock.patch.object(torch.cuda, "nvtx", mock.MagicMock())
    yield mock.patch.object(torch, "Generator", _Generator)
    if hasattr(torch, "accelerator"):
        for name, answer in {
            "is_available": True,
            "current_accelerator": torch.device("cuda"),
            "device_count": 1,
            "current_device_index": 0,
            "synchronize": None,
            "set_device_index": None,
            "current_stream": _Stream(),
        }.items():
            if hasattr(torch.accelerator, name):
                yield mock.patch.object(torch.accelerator, name, return_value=answer)


class _Stream:
    """A stream, an event, or a device context that does nothing."""

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def elapsed_time(self, _: object) -> float:
        """Return 0: no time passes."""
        return 0.0

    def query(self) -> bool:
        """Return True: all work is done."""
        return True

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: None


class _Generator(torch.Generator):
    def __new__(cls, device: Any = None) -> _Generator:
        return super().__new__(cls, "cpu")


def _patches_of_tensors(tracer: ScriptTracer) -> Iterator[contextlib.AbstractContextManager[Any]]:
    inner = FakeTensor.device.fget

    def device(tensor: Any) -> torch.device:
        if tracer.is_inside or not tracer.is_on_gpu(tensor):
            return inner(tensor)
        return GPU

    def move_module(module: torch.nn.Module, function: Any, recurse: bool = True) -> torch.nn.Module:
        def convert(tensor: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = function(tensor)
            if isinstance(tensor, torch.nn.Parameter) and result.dtype is tensor.dtype and tracer.is_on_gpu(result):
                tracer.move_to_device(tensor)  # `to_empty` makes another one
            return result

        with tracer.moving():
            return convert_module(module, convert, recurse)

    make_parameter = torch.nn.Parameter.__new__

    def parameter(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
        return make_parameter(cls, tracer.fake(data), requires_grad)

    yield mock.patch.object(FakeTensor, "device", property(device))
    yield mock.patch.object(torch.nn.Module, "_apply", move_module)
    yield mock.patch.object(torch.nn.Parameter, "__new__", parameter)
    # There is no GPU random state to save.
    yield mock.patch("torch.utils.checkpoint._infer_device_type", return_value="cpu")
    yield mock.patch("torch.utils.checkpoint.get_device_states", return_value=([], []))
    # The placeholder for a number that was not computed would report an infinite gradient.
    yield mock.patch.object(
        torch.amp.GradScaler,
        "_maybe_opt_step",
        lambda _, optimizer, __, *args, **kwargs: optimizer.step(*args, **kwargs),
    )


def _patches_of_data(tracer: ScriptTracer) -> Iterator[contextlib.AbstractContextManager[Any]]:
    from torch.utils.data import DataLoader
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    make_loader, read_next = DataLoader.__init__, _BaseDataLoaderIter.__next__
    signature = inspect.signature(make_loader)

    def initialize(self: Any, *args: Any, **kwargs: Any) -> None:
        given = signature.bind(self, *args, **kwargs).arguments
        for name in ("num_workers", "prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout"):
            given.pop(name, None)
        given["pin_memory"] = False
        del given["self"]
        make_loader(self, **given)
        for tensor in _tensors_of_data(self.dataset, set()):
            tracer.keep_on_host(tensor)

    def read(self: Any) -> Any:
        with _disable_current_modes():
            return read_next(self)

    yield mock.patch.object(DataLoader, "__init__", initialize)
    yield mock.patch.object(_BaseDataLoaderIter, "__next__", read)


def _tensors_of_data(value: Any, seen: set[int]) -> Iterator[torch.Tensor]:
    """Yield the tensors of a data set and of the data sets inside it."""
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, torch.utils.data.Dataset):
        for each in getattr(value, "__dict__", {}).values():
            yield from _tensors_of_data(each, seen)
    elif isinstance(value, list | tuple) and len(value) <= _MAX_ITEMS:
        for each in value:
            yield from _tensors_of_data(each, seen)


class _GpuFunctions(TorchFunctionMode):
    """A mode that puts tensors where the script asks for them."""

    def __init__(self, tracer: ScriptTracer) -> None:
        super().__init__()
        self._tracer = tracer

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        tracer = self._tracer
        if func is torch.Tensor.cuda:
            return tracer.placed(args[0], on_host=False)
        if func is torch.Tensor.cpu:
            return tracer.placed(args[0], on_host=True)
        if func is torch.Tensor.to:
            return self._to(*args, **kwargs)
        if func is torch.Tensor.pin_memory:
            return args[0]
        if func is torch.Tensor.is_pinned:
            return False
        if func is torch.Tensor.is_cuda.__get__:
            return tracer.is_on_gpu(args[0])
        if func is torch.Tensor.is_cpu.__get__:
            return not tracer.is_on_gpu(args[0])
        if func is torch.Tensor.get_device:
            return 0 if tracer.is_on_gpu(args[0]) else -1
        if func is torch.Tensor.backward:  # a checkpoint inside it runs the user's code again
            with self:
                return run_backward(*args, **kwargs)
        if func in _FROM_NUMBERS and kwargs.get("device") is not None:
            on_host = not is_gpu(kwargs.pop("device"))
            return tracer.placed(func(*args, **kwargs), on_host=on_host)
        if kwargs.get("device") is not None and not is_gpu(kwargs["device"]):
            with tracer.placing(on_host=True):
                return func(*args, **kwargs)
        if args and isinstance(args[0], FakeTensor):
            if func in (torch.Tensor.numpy, torch.Tensor.__array__):
                return _array(args[0])
            if func is torch.Tensor.tolist:
                return _array(args[0]).tolist()
            if func is torch.Tensor.__format__ and not args[0].dim():
                return format(args[0].item(), args[1])
        return func(*args, **kwargs)

    def _to(self, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Replace `Tensor.to`: PyTorch handles the dtype, and the tracer the device."""
        first = args[0] if args else kwargs.pop("other", None)
        device, dtype = kwargs.pop("device", None), kwargs.pop("dtype", None)
        rest = args[1:]
        if isinstance(first, torch.Tensor):
            device, dtype = GPU if self._tracer.is_on_gpu(first) else HOST, first.dtype
        elif isinstance(first, torch.dtype):
            dtype = first
        elif first is not None or args:
            device = first
            if rest:
                dtype, rest = rest[0], rest[1:]
        copies = kwargs.get("copy", len(rest) > 1 and rest[1])
        kept = {name: kwargs[name] for name in ("memory_format", "copy") if name in kwargs}
        result = tensor
        if (dtype is not None and dtype is not tensor.dtype) or copies or kept:
            wanted = tensor.dtype if dtype is None else dtype
            goes_to_gpu = device is not None and is_gpu(device) and not self._tracer.is_on_gpu(tensor)
            with self._tracer.placing(on_host=False) if goes_to_gpu else contextlib.nullcontext():
                result = (self._tracer.fake(tensor) if goes_to_gpu else tensor).to(wanted, **kept)
            if goes_to_gpu and not result.requires_grad:
                self._tracer.note_batch(result)
        if device is None or str(device).startswith("meta"):
            return result
        return self._tracer.placed(result, on_host=not is_gpu(device))


def _array(tensor: torch.Tensor) -> Any:
    """Return zeros in place of values that were not computed."""
    import numpy as np

    return np.zeros(tuple(tensor.shape), dtype=str(tensor.dtype).removeprefix("torch.").replace("bfloat16", "float32"))
