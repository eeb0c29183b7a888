"""The user's specification of a PyTorch training step. Only `fake_copy` needs torch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from memprof.errors import MemprofError

# The axes of `--mesh`: DistributedDataParallel, and FSDP2 (`fully_shard`).
DATA, SHARDS = "dp", "fsdp"


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
        batch: tensors in any pytree that `torch.utils._pytree` supports.
        step: runs one whole step without arguments: forward and backward pass, and update. It replaces `loss_fn`. The
            optimizer is still needed, because it identifies its state.
        scaler: a `torch.amp.GradScaler`, used with `loss_fn`.
        num_minibatches: number of minibatches in a batch; their gradients are summed.
        zero_grads: gradients are set to zero in place between steps; otherwise they are set to None.
        softmax_input: autograd saves the input of softmax beside its result, as up to PyTorch 1.10.
        offload_optimizer: the optimizer's state lies in host memory between updates; all of it comes to the device for
            an update.
        label: the step's name in reports.
        techniques, config: the step's techniques and configuration in reports.
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
    offload_optimizer: bool = False
    label: str = "step"
    techniques: tuple[str, ...] = ()
    config: Mapping[str, str | int | float | bool | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.loss_fn is None) == (self.step is None):
            raise MemprofError(
                "a TorchStepSpec needs either loss_fn, which returns the loss, or step, which does one step"
            )


def fake_copy(spec: TorchStepSpec) -> TorchStepSpec:
    """Return the same step on fake tensors, which take no memory. Call it under `FakeTensorMode`.

    Raises:
        MemprofError: the step is a custom function (`step=`), whose tensors cannot be replaced.
    """
    from torch._guards import detect_fake_mode
    from torch._subclasses.fake_tensor import FakeCopyMode
    from torch.utils._python_dispatch import _disable_current_modes

    if spec.step is not None:
        raise MemprofError(
            "a TorchStepSpec with step= must be made under fake tensors: give a function that returns it"
        )
    mode = detect_fake_mode()
    # A trace rejects real tensors, so modes are disabled until these are replaced.
    with _disable_current_modes(), FakeCopyMode(mode):
        model, optimizer, batch, scaler = copy.deepcopy((spec.model, spec.optimizer, spec.batch, spec.scaler))
    return replace(spec, model=model, optimizer=optimizer, batch=batch, scaler=scaler)
