"""A training step of PyTorch as a user gives it. It needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from memprof.errors import MemprofError


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchStepSpec:
    """A training step: the loss of a batch, its gradients, one update.

        def torch_spec():
            model = Model()
            optimizer = torch.optim.AdamW(model.parameters())
            batch = torch.zeros(8, 1024, dtype=torch.long)
            return memprof.TorchStepSpec(model=model, optimizer=optimizer, loss_fn=loss_fn, batch=batch)

    memprof calls the function under fake tensors, so neither the model nor the batch takes memory.

    Attributes:
        model: a `torch.nn.Module`.
        optimizer: a `torch.optim.Optimizer`, or several.
        loss_fn: `loss_fn(model, batch)` returns the loss, a scalar tensor. None if `step` is given.
        batch: tensors in any container that `torch.utils._pytree` knows.
        step: does one whole step, called without arguments: forward and backward pass, and update. It replaces
            `loss_fn`; the optimizer is still needed, as it says which tensors are its state.
        scaler: a `torch.amp.GradScaler`, used for a `loss_fn`.
        num_minibatches: a batch is a sequence of that many minibatches, whose gradients are added up.
        zero_grads: whether gradients are set to zero in place between steps; else they are set to None.
        softmax_input: whether autograd keeps the input of softmax beside its result, as up to PyTorch 1.10.
        label: what reports call the step.
        techniques, config: what the report says of it.
    """

    model: Any
    optimizer: Any
    loss_fn: Callable[[Any, Any], Any] | None = None
    batch: Any = None
    step: Callable[[], Any] | None = None
    scaler: Any = None
    num_minibatches: int = 1
    zero_grads: bool = False
    softmax_input: bool = False
    label: str = "step"
    techniques: tuple[str, ...] = ()
    config: Mapping[str, str | int | float | bool | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.loss_fn is None) == (self.step is None):
            raise MemprofError(
                "a TorchStepSpec needs either loss_fn, which returns the loss, or step, which does one step"
            )
