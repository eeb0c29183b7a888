"""memprof's own optimizers for PyTorch, which update parameter by parameter: 8-bit AdamW, and GaLore.

They keep the state of `workloads/optimizers/adam8bit.py` and `galore.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from memprof.workloads.torch.plan import RANK_DIVISOR

_BLOCK = 256
_SMALLEST = 4096  # as published: smaller tensors use little memory, and are the most fragile
_HIGHEST = {torch.int8: 127.0, torch.uint8: 255.0}


class _ByParameter(torch.optim.Optimizer):
    """An optimizer that updates each parameter with a gradient by itself, so temporaries are those of one parameter."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Make one update."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)
        return loss

    def _update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        raise NotImplementedError


class Adam8bit(_ByParameter):
    """AdamW that keeps about 2.03 bytes of state per parameter instead of 8.

    Each block of 256 elements has a scale. The first moment and the root of the second are stored as integers times
    that scale. They are rounded at random, so that a change smaller than one integer is not lost. Tensors of less than
    4096 elements stay float32. Like the kernel of bitsandbytes, the update is one operation that allocates no memory on
    a GPU.

    Reference: Dettmers et al. 2021, 8-bit Optimizers via Block-wise Quantization, arXiv:2110.02861.
    """

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
    """Allocate nothing, like the kernel."""


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


class GaLore(_ByParameter):
    """AdamW whose moments of matrices have a quarter of the elements: it is applied to projected gradients.

    The shorter side of each projected matrix is reduced to a quarter. The projection is the leading singular vectors of
    the gradient, recomputed every `interval` updates.

    Reference: Zhao et al. 2024, GaLore: Memory-Efficient LLM Training by Gradient Low-Rank Projection,
    arXiv:2403.03507.

    Args:
        model: the matrices of its `nn.Linear` modules are projected; all other parameters have plain Adam.
        interval: number of updates between two projections.
        scale: factor of the steps of projected matrices, the published alpha.
    """

    def __init__(
        self,
        model: nn.Module,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        interval: int = 200,
        scale: float = 0.25,
    ) -> None:
        linear = {id(each.weight) for each in model.modules() if isinstance(each, nn.Linear)}
        groups = [
            {
                "params": [each for each in model.parameters() if (id(each) in linear) is projected],
                "projected": projected,
            }
            for projected in (True, False)
        ]
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(
            [each for each in groups if each["params"]], {**defaults, "interval": interval, "scale": scale}
        )

    def _update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state: dict[str, Any] = self.state[parameter]
        rank = min(parameter.shape) // RANK_DIVISOR if group["projected"] else 0
        is_wide = rank > 0 and parameter.shape[0] <= parameter.shape[1]
        if not state:
            state["step"] = 0
            if rank:
                state["projection"] = parameter.new_zeros(min(parameter.shape), rank)
        if rank:
            if state["step"] % group["interval"] == 0:
                left, _, right = torch.linalg.svd(gradient.float(), full_matrices=False)
                state["projection"].copy_(left[:, :rank] if is_wide else right[:rank].T)
            projection = state["projection"]
            gradient = projection.T @ gradient if is_wide else gradient @ projection
        for name in ("mu", "nu"):
            if name not in state:
                state[name] = torch.zeros_like(gradient)
        state["step"] += 1
        first_decay, second_decay = group["betas"]
        state["mu"].lerp_(gradient, 1 - first_decay)
        state["nu"].mul_(second_decay).addcmul_(gradient, gradient, value=1 - second_decay)
        divisor = (state["nu"] / (1 - second_decay ** state["step"])).sqrt_().add_(group["eps"])
        step = state["mu"] / divisor.mul_(1 - first_decay ** state["step"])
        if rank:
            step = (projection @ step if is_wide else step @ projection.T).mul_(group["scale"])
        parameter.mul_(1 - group["lr"] * group["weight_decay"]).add_(step, alpha=-group["lr"])
