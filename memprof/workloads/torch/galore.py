"""GaLore for PyTorch: Adam on projected gradients, with the state of `workloads/optimizers/galore.py`.

The shorter side of each projected matrix is reduced to a quarter. The projection is the leading singular vectors of the
gradient, recomputed every `interval` updates. The update goes parameter by parameter.

Reference: Zhao et al. 2024, GaLore: Memory-Efficient LLM Training by Gradient Low-Rank Projection, arXiv:2403.03507.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from memprof.workloads.torch.by_parameter import OptimizerByParameter
from memprof.workloads.torch.plan import RANK_DIVISOR


class GaLore(OptimizerByParameter):
    """AdamW whose moments of matrices have a quarter of the elements.

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
