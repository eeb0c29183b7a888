"""Choose a PyTorch step by names: the same workloads, presets and techniques as in JAX, and PyTorch's own techniques.

    build(plan("transformer", preset="tiny", overrides=(), techniques="bf16+remat"))

`plan` reports every wrong name and value before torch is imported.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from memprof.errors import MemprofError
from memprof.workloads import registry
from memprof.workloads.composition import apply_techniques, parse_techniques
from memprof.workloads.overrides import apply_overrides
from memprof.workloads.train_config import TrainConfig, require, technique_fields

# Zero gradients in place between steps, which keeps their memory; the default sets them to None.
ZERO_GRADS = "zero-grads"
# Update parameter by parameter. The default, foreach, updates all at once and has temporaries of all.
NO_FOREACH = "no-foreach"
# Autograd keeps the input of softmax beside its result, as up to PyTorch 1.10; since 1.11 it keeps only the result.
SOFTMAX_INPUT = "softmax-input"
# Update all parameters in one kernel, which has no temporaries and counts its steps on the device.
FUSED = "fused"
# Copy what autograd saves to pinned host memory, and back for the backward pass (torch.autograd.graph.save_on_cpu).
SAVE_ON_CPU = "save-on-cpu"
OWN_TECHNIQUES = (ZERO_GRADS, NO_FOREACH, SOFTMAX_INPUT, FUSED, SAVE_ON_CPU)
_FUSED_OPTIMIZERS = ("adagrad", "adam", "adamw", "sgd")

# The optimizers of `memprof list optimizers` that PyTorch has too; adam8bit and galore are memprof's own.
OPTIMIZERS = ("adafactor", "adagrad", "adam", "adam8bit", "adamw", "galore", "rmsprop", "sgd")
RANK_DIVISOR = 4  # of galore, as in `optimizers/galore.py`
_MODELS = ("mlp", "transformer")
# Fields that techniques set and PyTorch's step honours. It updates in place, which has the effect of donation.
_SUPPORTED_FIELDS = frozenset(
    {
        *("compute_dtype", "param_dtype", "loss_scaling", "donate", "num_minibatches", "accumulation"),
        *("remat_modules", "remat_policy", "remat_activation", "attention_kernel", "num_loss_chunks", "optimizer"),
        *("pruned_fraction", "structurally_pruned_fraction", "offload_optimizer"),
    }
)
_OF_TRANSFORMER = frozenset({"remat_modules", "remat_policy", "attention_kernel", "num_loss_chunks"})
_POLICIES = ("nothing", "products")


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchPlan:
    """A built-in workload with all its choices made and checked.

    Attributes:
        workload: `mlp` or `transformer`.
        config: the model's configuration, as in JAX.
        train_config: the training configuration; only the fields in `_SUPPORTED_FIELDS` have an effect.
        techniques: techniques as the user wrote them.
        num_devices: the devices that the batch is divided over.
    """

    workload: str
    preset: str
    config: Any
    train_config: TrainConfig
    techniques: tuple[str, ...]
    num_devices: int = 1

    def pruned_config(self) -> Any:
        """Return the configuration of the model that structural pruning leaves."""
        fraction = self.train_config.structurally_pruned_fraction
        if not fraction:
            return self.config
        if self.workload == "mlp":
            return dataclasses.replace(self.config, hidden_size=_left(self.config.hidden_size, fraction))
        return dataclasses.replace(
            self.config,
            num_heads=_left(self.config.num_heads, fraction),
            head_size=self.config.head_width,
            mlp_size=_left(self.config.mlp_width, fraction),
        )

    def flat_config(self) -> dict[str, str | int | float | bool | None]:
        """Return all choices as one flat dictionary, for the report."""
        return {"preset": self.preset, **dataclasses.asdict(self.config), **dataclasses.asdict(self.train_config)}


def plan(
    workload: str, *, preset: str | None, overrides: Sequence[str], techniques: str, num_devices: int = 1
) -> TorchPlan:
    """Make and check all choices.

    Args:
        workload: name of a built-in workload.
        preset: name of one of its presets; None means its default.
        overrides: `field=value` texts.
        techniques: labels joined by `+`; empty for none.
        num_devices: the devices that the batch is divided over.

    Raises:
        MemprofError: a name or a value is wrong, or PyTorch lacks the technique.
    """
    found = registry.workload(workload)
    if found.name not in _MODELS:
        raise MemprofError(f"{found.name} has no PyTorch version: choose from {', '.join(_MODELS)}")
    config, train_config = apply_overrides(overrides, found.preset(preset), TrainConfig())
    labels = tuple(part.strip() for part in techniques.split("+")) if techniques else ()
    repeated = [label for label in OWN_TECHNIQUES if labels.count(label) > 1]
    if repeated:
        raise MemprofError(f"Technique '{repeated[0]}' is given twice.")
    shared = "+".join(label for label in labels if label not in OWN_TECHNIQUES)
    for applied in parse_techniques(shared):
        if applied.technique.name == "no-donate":
            raise MemprofError("PyTorch's optimizers update in place, so 'no-donate' is not possible: leave it out.")
        changed = {
            name for name, value in technique_fields().items() if getattr(applied.apply(TrainConfig()), name) != value
        }
        unknown = changed - _SUPPORTED_FIELDS or (changed & _OF_TRANSFORMER if found.name == "mlp" else frozenset())
        if unknown:
            raise MemprofError(f"Technique '{applied.label}' does not apply to {found.name} in PyTorch: leave it out.")
    train_config = apply_techniques(train_config, parse_techniques(shared))
    _check(config, train_config, num_devices)
    if FUSED in labels:
        require(NO_FOREACH not in labels, f"'{FUSED}' and '{NO_FOREACH}' exclude each other: leave one out")
        require(
            train_config.optimizer in _FUSED_OPTIMIZERS,
            f"PyTorch has no fused {train_config.optimizer}: choose from {', '.join(_FUSED_OPTIMIZERS)}",
        )
    return TorchPlan(
        workload=found.name,
        preset=found.default_preset if preset is None else preset,
        config=config,
        train_config=train_config,
        techniques=labels,
        num_devices=num_devices,
    )


def _left(num_units: int, fraction: float) -> int:
    """Return the number of units that pruning leaves, as `pruning.kept`, which imports jax."""
    return max(1, num_units - math.floor(num_units * fraction))


def _check(config: Any, train_config: TrainConfig, num_devices: int) -> None:
    require(config.phase == "training", "PyTorch steps are training steps: leave out --phase")
    require(not getattr(config, "num_experts", 0), "the PyTorch transformer has no experts: leave num_experts at 0")
    blocks = {"num_kv_heads", "gated_mlp", "activation", "norm", "positions", "biases"}
    fields = [each for each in dataclasses.fields(config) if each.name in blocks]
    odd = [each.name for each in fields if getattr(config, each.name) != each.default]
    require(not odd, f"the PyTorch transformer has the blocks of GPT-2: leave {', '.join(odd)} as they are")
    require(
        train_config.optimizer in OPTIMIZERS,
        f"optimizer '{train_config.optimizer}' has no PyTorch version here: choose from {', '.join(OPTIMIZERS)}",
    )
    require(
        train_config.remat_policy in _POLICIES,
        f"the checkpoint policy '{train_config.remat_policy}' has no PyTorch version here",
    )
    require(
        config.batch_size % num_devices == 0,
        f"batch_size is {config.batch_size}, which is not divisible by {num_devices} devices: change one of them",
    )
    local_size = config.batch_size // num_devices
    require(
        local_size % train_config.num_minibatches == 0,
        f"the batch of a device is {local_size}, which is not divisible by {train_config.num_minibatches} minibatches: "
        "change one of them",
    )
    tokens = local_size // train_config.num_minibatches * getattr(config, "seq_len", 1)
    require(
        tokens % train_config.num_loss_chunks == 0,
        f"a minibatch has {tokens} tokens, which are not divisible by {train_config.num_loss_chunks} chunks: change "
        "one of them",
    )
