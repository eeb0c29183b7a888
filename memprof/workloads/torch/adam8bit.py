"""AdamW with both moments in 8 bits, block by block, for PyTorch: the state of `workloads/optimizers/adam8bit.py`.

Each block of 256 elements has a scale. The first moment and the root of the second are stored as integers times that
scale. They are rounded at random, so that a change smaller than one integer is not lost. Tensors of less than 4096
elements stay float32. Like the kernel of bitsandbytes, the update is one operation that allocates no memory on a GPU.

Reference: Dettmers et al. 2021, 8-bit Optimizers via Block-wise Quantization, arXiv:2110.02861.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from memprof.workloads.torch.by_parameter import OptimizerByParameter

_BLOCK = 256
_SMALLEST = 4096  # as published: smaller tensors use little memory, and are the most fragile
_HIGHEST = {torch.int8: 127.0, torch.uint8: 255.0}


class Adam8bit(OptimizerByParameter):
    """AdamW that keeps about 2.03 bytes of state per parameter instead of 8."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    def _update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state: dict[str, Any] = self.state[parameter]
        if not state:
            state["step"] = 0
            for name, dtype in (("mu", torch.int8), ("nu", torch.uint8)):
                if parameter.numel() < _SMALLEST:
                    state[name] = torch.zeros_like(parameter, dtype=torch.float32)
                else:
                    state[name] = torch.zeros_like(parameter, dtype=dtype)
                    state[f"{name}_scale"] = parameter.new_zeros(-(-parameter.numel() // _BLOCK), dtype=torch.float32)
        state["step"] += 1
        scales = state.get("mu_scale"), state.get("nu_scale")
        factors = group["lr"], *group["betas"], group["eps"], group["weight_decay"]
        _update_in_place(parameter, gradient, state["mu"], state["nu"], *scales, state["step"], *factors)


@torch.library.custom_op("memprof::adam8bit", mutates_args=("parameter", "mu", "nu", "mu_scale", "nu_scale"))
def _update_in_place(
    parameter: Tensor,
    gradient: Tensor,
    mu: Tensor,
    nu: Tensor,
    mu_scale: Tensor | None,
    nu_scale: Tensor | None,
    step: int,
    lr: float,
    first_decay: float,
    second_decay: float,
    eps: float,
    weight_decay: float,
) -> None:
    gradient = gradient.float()
    first = _load(mu, mu_scale).lerp_(gradient, 1 - first_decay)
    squared = _load(nu, nu_scale).square_()
    root = squared.mul_(second_decay).addcmul_(gradient, gradient, value=1 - second_decay).sqrt_()
    divisor = (root / (1 - second_decay**step) ** 0.5).add_(eps)
    parameter.mul_(1 - lr * weight_decay)
    parameter.addcdiv_(first, divisor, value=-lr / (1 - first_decay**step))
    _save(mu, mu_scale, first)
    _save(nu, nu_scale, root)


@_update_in_place.register_fake
def _allocate_nothing(*args: Any) -> None:
    """Do what the kernel does to memory."""


def _load(kept: Tensor, scale: Tensor | None) -> Tensor:
    """Return a moment as float32."""
    if scale is None:
        return kept.clone()
    return kept.float().mul_(scale.repeat_interleave(_BLOCK)[: kept.numel()].view_as(kept))


def _save(kept: Tensor, scale: Tensor | None, moment: Tensor) -> None:
    """Store a moment in place of the previous one."""
    if scale is None:
        kept.copy_(moment)
        return
    flat = torch.nn.functional.pad(moment.flatten(), (0, -moment.numel() % _BLOCK)).view(-1, _BLOCK)
    scale.copy_(flat.abs().amax(dim=1).div_(_HIGHEST[kept.dtype]))
    codes = flat.div(scale.clamp(min=torch.finfo(torch.float32).tiny)[:, None])
    codes.add_(torch.rand_like(codes)).floor_().clamp_(-_HIGHEST[kept.dtype], _HIGHEST[kept.dtype])
    kept.copy_(codes.flatten()[: kept.numel()].view_as(kept))
