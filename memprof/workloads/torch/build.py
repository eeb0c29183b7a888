"""Build a built-in workload as a PyTorch step from a plan: model, optimizer, batch and loss."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name that all of PyTorch uses
from torch import Tensor
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint

from memprof.sources.torch.step_spec import TorchStepSpec
from memprof.workloads.models.transformer.config import TransformerConfig
from memprof.workloads.torch.networks import MLP, Transformer
from memprof.workloads.torch.optimizers import Adam8bit, GaLore
from memprof.workloads.torch.plan import FUSED, NO_FOREACH, SAVE_ON_CPU, SOFTMAX_INPUT, ZERO_GRADS, TorchPlan

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
Batch = Mapping[str, Tensor]


def build(plan: TorchPlan) -> TorchStepSpec:
    """Return the step. This makes its model, so it must be called under fake tensors."""
    train_config = plan.train_config
    is_transformer = isinstance(plan.config, TransformerConfig)
    model: Any = (Transformer if is_transformer else MLP)(plan.pruned_config(), train_config)
    model.to(_DTYPES[train_config.param_dtype])
    if train_config.pruned_fraction:
        for module in [each for each in model.modules() if isinstance(each, torch.nn.Linear)]:
            prune.l1_unstructured(module, "weight", train_config.pruned_fraction)
    num_minibatches = train_config.num_minibatches
    batch_size = plan.config.batch_size // plan.num_devices // num_minibatches
    minibatches = [_batch(plan, batch_size) for _ in range(num_minibatches)]
    return TorchStepSpec(
        model=model,
        optimizer=_optimizer(plan, model),
        loss_fn=_Loss(plan),
        batch=minibatches if num_minibatches > 1 else minibatches[0],
        scaler=torch.amp.GradScaler("cuda") if train_config.loss_scaling else None,
        num_minibatches=num_minibatches,
        zero_grads=ZERO_GRADS in plan.techniques,
        softmax_input=SOFTMAX_INPUT in plan.techniques,
        offload_optimizer=train_config.offload_optimizer,
        label=plan.workload,
        techniques=plan.techniques,
        config=plan.flat_config(),
    )


class _Loss:
    """The mean cross-entropy of a batch."""

    def __init__(self, plan: TorchPlan) -> None:
        self._plan = plan

    def __call__(self, model: Any, batch: Batch) -> Tensor:
        train_config = self._plan.train_config
        autocast: Any = contextlib.nullcontext()
        if train_config.compute_dtype != train_config.param_dtype:
            autocast = torch.autocast("cuda", dtype=_DTYPES[train_config.compute_dtype])
        offload: Any = contextlib.nullcontext()
        if SAVE_ON_CPU in self._plan.techniques:
            offload = torch.autograd.graph.save_on_cpu(pin_memory=True)
        with autocast, offload:
            if isinstance(self._plan.config, TransformerConfig):
                return self._of_transformer(model, batch)
            inputs = batch["inputs"].to(next(model.parameters()).dtype)
            return F.nll_loss(model(inputs), batch["labels"])

    def _of_transformer(self, model: Any, batch: Batch) -> Tensor:
        hidden = model.encode(batch["inputs"], batch.get("input_mask"), batch.get("attention_mask"))
        if self._plan.config.task == "classification":
            return F.cross_entropy(model.decode(hidden), batch["labels"])
        labels = batch["labels"]
        if "input_mask" in batch:
            labels = labels.masked_fill(~batch["input_mask"], _IGNORED)
        hidden, labels = hidden.flatten(0, 1), labels.flatten()
        num_chunks = self._plan.train_config.num_loss_chunks
        if num_chunks == 1:
            return F.cross_entropy(model.decode(hidden), labels, ignore_index=_IGNORED)
        parts = zip(hidden.chunk(num_chunks), labels.chunk(num_chunks), strict=True)
        sums = [checkpoint(_summed, model.decode, *part, use_reentrant=False) for part in parts]
        return torch.stack(sums).sum() / (labels != _IGNORED).sum()


_IGNORED = -100


def _summed(decode: Any, hidden: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(decode(hidden), labels, ignore_index=_IGNORED, reduction="sum")


def _batch(plan: TorchPlan, batch_size: int) -> dict[str, Tensor]:
    """Return the shapes of a batch of the workload."""
    config = plan.config
    if not isinstance(config, TransformerConfig):
        return {"inputs": torch.empty(batch_size, config.input_size), "labels": _integers(batch_size)}
    by_token = batch_size, config.seq_len
    is_classifier = config.task == "classification"
    batch = {"inputs": _integers(*by_token), "labels": _integers(batch_size) if is_classifier else _integers(*by_token)}
    if config.padding_mask:
        batch["input_mask"] = torch.empty(by_token, dtype=torch.bool)
    if config.custom_mask:
        batch["attention_mask"] = torch.empty((*by_token, config.seq_len), dtype=torch.bool)
    return batch


def _integers(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.int64)  # PyTorch's index type


def _optimizer(plan: TorchPlan, model: Any) -> Any:
    config = plan.train_config
    if config.optimizer == "adam8bit":
        return Adam8bit(model.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay)
    if config.optimizer == "galore":
        return GaLore(model, lr=config.learning_rate, weight_decay=config.weight_decay)
    optimizers = {
        "adafactor": torch.optim.Adafactor,
        "adagrad": torch.optim.Adagrad,
        "adam": torch.optim.Adam,
        "adamw": torch.optim.AdamW,
        "rmsprop": torch.optim.RMSprop,
        "sgd": torch.optim.SGD,
    }
    decay = {"weight_decay": config.weight_decay} if config.optimizer in ("adamw", "adafactor") else {}
    kernels: dict[str, bool | None] = {"fused": True}
    if FUSED not in plan.techniques:
        # None leaves the choice to PyTorch, which uses foreach on a GPU.
        kernels = {"foreach": False if NO_FOREACH in plan.techniques else None}
    return optimizers[config.optimizer](model.parameters(), lr=config.learning_rate, **kernels, **decay)
