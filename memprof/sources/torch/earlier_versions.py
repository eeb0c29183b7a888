"""Values that autograd saved in earlier versions of PyTorch, to reproduce numbers measured with them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

_aten = torch.ops.aten


@contextlib.contextmanager
def softmax_keeps_input() -> Iterator[None]:
    """Make softmax and log_softmax save their input beside their result, as up to PyTorch 1.10.

    Their backward kernel took the input only to read its dtype, so autograd saved it. PyTorch 1.11 passes the dtype
    (`SoftmaxBackward0` in torch/csrc/autograd/generated/Functions.h of both versions).
    """
    library = torch.library.Library("aten", "IMPL")
    try:
        for name in ("_softmax", "_log_softmax"):
            kernels = getattr(_aten, name), getattr(_aten, f"{name}_backward_data")
            library.impl(name, _keeping_input(*kernels), "AutogradCPU")
        yield
    finally:
        library._destroy()


def _keeping_input(kernel: Any, backward_kernel: Any) -> Any:
    return partial(_KeepingInput.apply, kernel, backward_kernel)


class _KeepingInput(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *args: Any) -> Any:
        kernel, ctx.backward_kernel, tensor, ctx.dim, half_to_float = args
        with torch._C._AutoDispatchBelowAutograd():
            result = kernel(tensor, ctx.dim, half_to_float)
        ctx.save_for_backward(tensor, result)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        tensor, result = ctx.saved_tensors
        tensor.detach()  # makes the trace see the use; today's kernel no longer takes the input
        gradient = ctx.backward_kernel(gradients[0], result, ctx.dim, tensor.dtype)
        return None, None, gradient, None, None
