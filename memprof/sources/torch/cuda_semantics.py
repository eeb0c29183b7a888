"""CUDA behaviour for tensors on the CPU.

A fake tensor on "cuda" cannot go through autograd in a process without a driver, so a trace has its tensors on the CPU.
PyTorch treats the two differently, with effects on memory. This module follows CUDA (as of PyTorch 2.13):

- Device "cuda": tensors that are moved there stay where they are.
- Autocast: CUDA computes softmax, norms, losses and sums in float32; the CPU's list lacks most of these operations.
- Dropout saves a mask of one byte per element; on the CPU, the mask has the input's type.
- `scaled_dot_product_attention` uses the flash kernel for 16-bit types and the memory-efficient one for float32.
- `AveragedModel` compares its counter of updates, a value of the GPU: its later updates are traced.
- Layer norm and batch norm return their statistics in float32 (in `tracer`).
- Optimizers and gradient clipping work on all parameters at once (foreach) by default.
- cuBLAS has a workspace for each thread that calls it (in `tracer`).
"""

from __future__ import annotations

import contextlib
import copy
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim.swa_utils import AveragedModel
from torch.overrides import TorchFunctionMode

from memprof.analysis.records.capture import Target
from memprof.analysis.records.device_family import family_of
from memprof.sources.torch.tracer import StorageTracer

_aten = torch.ops.aten
_KEY = torch._C.DispatchKey.AutocastCPU
_KEYS = torch._C.DispatchKeySet(_KEY)

# CUDA's lists in aten/src/ATen/autocast_mode.h; PyTorch's "Automatic Mixed Precision" documentation has them, too.
_IN_FLOAT32 = """
    acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar pow.Tensor_Tensor
    pow.Scalar softplus layer_norm native_layer_norm group_norm frobenius_norm.dim nuclear_norm nuclear_norm.dim
    cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss
    smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss triplet_margin_loss
    multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp
""".split()
# Operations that accumulate in float32 without a copy of their input.
_TO_FLOAT32 = """
    prod prod.dim_int cumprod cumsum linalg_vector_norm sum sum.dim_IntList
""".split()
_IN_LOWER_PRECISION = "prelu addmv addr mv chain_matmul linalg_multi_dot".split()
_SOFTMAXES = "softmax.int", "log_softmax.int"


def cublas_workspace_bytes(target: Target, environment: Mapping[str, str] = os.environ) -> int:
    """Return the size of a workspace of cuBLAS on a device: `:SIZE:COUNT` in KiB, several of them added up.

    The sizes are those of `parseChosenWorkspaceSize` in aten/src/ATen/cuda/CublasHandlePool.cpp (PyTorch 2.11 to 2.13).
    """
    if not family_of(target.platform).has_cuda or not target.compute_capability:
        return 0
    is_newer = target.compute_capability.partition(".")[0] in ("9", "10", "12")  # Hopper and Blackwell
    parts = re.findall(r":(\d+):(\d+)", environment.get("CUBLAS_WORKSPACE_CONFIG", ""))
    default_kib = 8 * 4096 if is_newer else 2 * 4096 + 8 * 16
    return 1024 * (sum(int(size) * int(count) for size, count in parts) if parts else default_kib)


@contextlib.contextmanager
def cuda_semantics(tracer: StorageTracer, *, moves: bool = True) -> Iterator[Compiled]:
    """Treat tensors on the CPU as CUDA tensors for the duration of a trace.

    Args:
        tracer: the tracer of the trace.
        moves: let tensors that are moved to "cuda" stay where they are; otherwise `absent_gpu` places them.

    Yields:
        A record of whether the step uses `torch.compile`. Its functions stay eager.
    """
    compiled = Compiled()
    with contextlib.ExitStack() as stack:
        library = torch.library.Library("aten", "IMPL")
        stack.callback(library._destroy)
        _register_autocast(library)
        for name, function in _PATHS.items():
            library.impl(name, function, "AutogradCPU")
        # The kernels of oneDNN for LSTMs have a workspace that is unknown here; without them LSTMs run step by step.
        stack.callback(torch._C._set_mkldnn_enabled, torch._C._get_mkldnn_enabled())
        torch._C._set_mkldnn_enabled(False)
        for patch in (*_patches(), *compiled.patches(), _offload(tracer)):
            stack.enter_context(patch)
        if moves:
            stack.enter_context(_CudaFunctions(tracer.move_to_device))
        yield compiled


@dataclass(slots=True)
class Compiled:
    """A record of whether the step calls `torch.compile`. The eager functions are traced instead."""

    is_used: bool = False

    def patches(self) -> Iterator[contextlib.AbstractContextManager[Any]]:
        """Yield patches that leave functions and modules eager, and record that the step would compile them."""

        def compile_function(model: Any = None, **options: Any) -> Any:
            self.is_used = True
            return model if model is not None else lambda function: function

        def compile_module(module: torch.nn.Module, *_: Any, **__: Any) -> None:
            self.is_used = True

        yield mock.patch.object(torch, "compile", compile_function)
        yield mock.patch.object(torch.nn.Module, "compile", compile_module)


def _register_autocast(library: torch.library.Library) -> None:
    """Add the operations that only CUDA's autocast has to the CPU's autocast."""

    def register(name: str, function: Callable[..., Any]) -> None:
        if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "AutocastCPU"):
            library.impl(name, function, "AutocastCPU")

    for name in _IN_FLOAT32:
        register(name, _cast_and_call(_operation(name), torch.float32))
    for name in _IN_LOWER_PRECISION:
        register(name, _cast_and_call(_operation(name), None))
    for name in _TO_FLOAT32:
        register(name, _with_dtype(_operation(name)))
    for name in _SOFTMAXES:
        register(name, _softmax(_operation(name)))


def _operation(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(_aten, packet), overload or "default")


def _cast_and_call(operation: Any, dtype: torch.dtype | None) -> Callable[..., Any]:
    """Return the operation with its floating-point inputs cast to one dtype; None: autocast's own."""

    def function(*args: Any, **kwargs: Any) -> Any:
        wanted = torch.get_autocast_dtype("cpu") if dtype is None else dtype
        with torch._C._ExcludeDispatchKeyGuard(_KEYS):
            args, kwargs = torch.utils._pytree.tree_map(lambda leaf: _cast(leaf, wanted), (args, kwargs))
            return operation(*args, **kwargs)

    return function


def _with_dtype(operation: Any) -> Callable[..., Any]:
    """Return the operation with a result in float32, unless its caller asks for a dtype."""

    def function(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if _is_castable(tensor) and kwargs.get("dtype") is None:
            kwargs["dtype"] = torch.float32
        with torch._C._ExcludeDispatchKeyGuard(_KEYS):
            return operation(tensor, *args, **kwargs)

    return function


def _softmax(operation: Any) -> Callable[..., Any]:
    def function(tensor: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> Any:
        if dtype is None and _is_castable(tensor):
            dtype = torch.float32
        with torch._C._ExcludeDispatchKeyGuard(_KEYS):
            return operation(tensor, dim, dtype)

    return function


def _is_fused(tensor: torch.Tensor, dtype: torch.dtype | None) -> bool:
    """Whether CUDA's kernel reads float16 and writes float32 (aten/src/ATen/native/SoftMax.cpp)."""
    return tensor.dtype is torch.float16 and dtype is torch.float32


def _is_castable(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.dtype in (torch.float16, torch.bfloat16, torch.float32)


def _cast(leaf: Any, dtype: torch.dtype) -> Any:
    return leaf.to(dtype) if _is_castable(leaf) else leaf


def _patches() -> Iterator[contextlib.AbstractContextManager[Any]]:
    optimizers = "torch.optim.optimizer"
    types = [torch.Tensor, torch.nn.Parameter, FakeTensor]
    for module in (optimizers, "torch.optim.swa_utils", "torch.utils._foreach_utils"):
        yield mock.patch(f"{module}._get_foreach_kernels_supported_devices", return_value=["cpu", "cuda"])
    yield mock.patch(f"{optimizers}._foreach_supported_types", types)
    yield mock.patch(f"{optimizers}._get_fused_kernels_supported_devices", return_value=["cpu", "cuda"])
    yield mock.patch.object(torch.nn.Module, "_apply", convert_module)
    yield mock.patch.object(FakeTensor, "__deepcopy__", _copied)
    yield mock.patch.object(AveragedModel, "update_parameters", _update_average)
    for each in (torch.autocast, torch.amp.GradScaler):
        yield mock.patch.object(each, "__init__", _on_cpu(each.__init__))


_DEEP_COPY = FakeTensor.__deepcopy__


def _copied(tensor: FakeTensor, memo: dict[int, Any]) -> torch.Tensor:
    """Return a deep copy of a fake tensor. PyTorch's own makes a copy of the whole mode, too (as of 2.13)."""
    if not tensor.is_leaf:  # PyTorch refuses it
        refused: torch.Tensor = _DEEP_COPY(tensor, memo)
        return refused
    if id(tensor) not in memo:
        copied: torch.Tensor = tensor.detach().clone()
        if isinstance(tensor, torch.nn.Parameter):
            copied = torch.nn.Parameter(copied, tensor.requires_grad)
        memo[id(tensor)] = copied.requires_grad_(tensor.requires_grad)
        if tensor.grad is not None:
            copied.grad = copy.deepcopy(tensor.grad, memo)
    found: torch.Tensor = memo[id(tensor)]
    return found


_UPDATE_AVERAGE = AveragedModel.update_parameters


def _update_average(average: AveragedModel, model: torch.nn.Module) -> None:
    """Update an average of a model as in later steps. Its counter is on the GPU, so a trace cannot compare it."""
    counter, average.n_averaged = average.n_averaged, torch.tensor(1)
    try:
        _UPDATE_AVERAGE(average, model)
    finally:
        average.n_averaged = counter


def _offload(tracer: StorageTracer) -> contextlib.AbstractContextManager[Any]:
    """Make `save_on_cpu` copy the values that autograd saves to the host, and back."""

    def copied(tensor: torch.Tensor, *, on_host: bool) -> torch.Tensor:
        with torch.no_grad(), tracer.placing(on_host=on_host):
            return tensor.clone()

    def initialize(hooks: torch.autograd.graph.save_on_cpu, *_: Any, **__: Any) -> None:
        pack, unpack = partial(copied, on_host=True), partial(copied, on_host=False)
        torch.autograd.graph.saved_tensors_hooks.__init__(hooks, pack, unpack)

    return mock.patch.object(torch.autograd.graph.save_on_cpu, "__init__", initialize)


def convert_module(self: torch.nn.Module, function: Callable[[Any], Any], recurse: bool = True) -> torch.nn.Module:
    """Move or cast a module's parameters. PyTorch's own `_apply` cannot replace fake tensors (as of 2.13)."""
    converted: dict[int, torch.nn.Parameter] = {}
    for module in self.modules() if recurse else [self]:
        for name, parameter in module._parameters.items():
            if parameter is None:
                continue
            if id(parameter) not in converted:
                with torch.no_grad():
                    result = function(parameter)
                is_moved_only = result.dtype is parameter.dtype
                converted[id(parameter)] = (
                    parameter if is_moved_only else torch.nn.Parameter(result, parameter.requires_grad)
                )
            module._parameters[name] = converted[id(parameter)]
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = function(buffer)
    return self


def _on_cpu(initialize: Callable[..., None]) -> Callable[..., None]:
    """Return an initializer that makes autocast or a scaler for "cuda" one for "cpu", with CUDA's defaults."""

    def function(self: Any, *args: Any, **kwargs: Any) -> None:
        device = args[0] if args else kwargs.pop("device_type", kwargs.pop("device", "cuda"))
        if str(device).startswith("cuda"):
            if isinstance(self, torch.autocast) and len(args) < 2 and kwargs.get("dtype") is None:
                kwargs["dtype"] = torch.get_autocast_dtype("cuda")
            device = "cpu"
        initialize(self, device, *args[1:], **kwargs)

    return function


class _CudaFunctions(TorchFunctionMode):
    """A mode in which tensors that are moved to "cuda" stay where they are."""

    def __init__(self, moved: Callable[[torch.Tensor], None]) -> None:
        super().__init__()
        self._moved = moved

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.cuda:
            self._moved(args[0])
            return args[0]
        if func is torch.Tensor.is_cuda.__get__:
            return True
        if _names_cuda(args) or _names_cuda(kwargs.values()):
            if func is torch.Tensor.to:
                self._moved(args[0])
            args = tuple(map(_without_cuda, args))
            kwargs = {name: _without_cuda(value) for name, value in kwargs.items()}
        if func is torch.Tensor.backward:  # a checkpoint inside it runs the user's code again
            with self:
                return run_backward(*args, **kwargs)
        return func(*args, **kwargs)


def _names_cuda(values: Any) -> bool:
    return any(_is_cuda(value) for value in values)


def _is_cuda(value: Any) -> bool:
    if isinstance(value, torch.device):
        return value.type == "cuda"
    return isinstance(value, str) and (value == "cuda" or value.startswith("cuda:"))


def _without_cuda(value: Any) -> Any:
    return torch.device("cpu") if _is_cuda(value) else value


def run_backward(
    tensor: torch.Tensor,
    gradient: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Any = None,
) -> None:
    """Run `Tensor.backward`."""
    torch.autograd.backward(tensor, gradient, retain_graph, create_graph, inputs=inputs)


def _composite(operation: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a composite operation as PyTorch defines it for all devices."""
    return operation._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)


def _dropout(tensor: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    if train and 0 < p < 1 and tensor.numel():
        return torch.native_dropout(tensor, p, True)[0]
    return _composite(_aten.dropout.default, tensor, p, train)


def _fused_softmax(operation: Any, kernel: Any) -> Callable[..., Any]:
    def function(tensor: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> Any:
        if _is_fused(tensor, dtype):
            return kernel(tensor, dim, True)
        return _composite(operation, tensor, dim, dtype)

    return function


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **others: Any,
) -> torch.Tensor:
    """Call the kernel that CUDA prefers: flash for 16-bit types without a mask, else the memory-efficient one."""
    if others.get("enable_gqa") or query.dim() != 4:
        operation = _aten.scaled_dot_product_attention.default
        return _composite(operation, query, key, value, attn_mask, dropout_p, is_causal, **others)
    scale = others.get("scale")
    if query.dtype is torch.float32 or attn_mask is not None:
        if attn_mask is not None and attn_mask.dtype is torch.bool:
            attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill(~attn_mask, -torch.inf)
        if attn_mask is not None:
            attn_mask = attn_mask.expand(*query.shape[:-1], key.shape[-2])
        found = _aten._scaled_dot_product_efficient_attention(
            query, key, value, attn_mask, query.requires_grad, dropout_p, is_causal, scale=scale
        )
    else:
        found = _aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, False, scale=scale)
    return found[0]


# Composite operations that take another path on CUDA.
_PATHS: dict[str, Callable[..., Any]] = {
    "dropout": _dropout,
    "softmax.int": _fused_softmax(_aten.softmax.int, _aten._softmax),
    "log_softmax.int": _fused_softmax(_aten.log_softmax.int, _aten._log_softmax),
    "scaled_dot_product_attention": _attention,
}
