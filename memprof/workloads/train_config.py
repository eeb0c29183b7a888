"""The training configuration: the record that techniques change.

`--set` rejects fields that a technique owns (`compute_dtype`, `donate`, ...), so that their label always shows that
they are on. The other fields are plain settings. Some owned fields are for the model, and each workload lists those
that its model honours; the step itself honours the rest for every workload.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from memprof.errors import MemprofError

ComputeDtype = Literal["float32", "bfloat16", "float16"]
ParamDtype = Literal["float32", "bfloat16"]

_READ_BY: Final = "read_by"
_MODEL: Final = {_READ_BY: "model"}
_STEP: Final = {_READ_BY: "step"}
_INFERENCE: Final = {_READ_BY: "inference"}
_MAX_SEED: Final = 2**31 - 1  # `jax.random.PRNGKey` takes an int32 if 64-bit types are off, which is the default


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """The configuration of the training step, except for the model.

    The defaults are the baseline: float32 throughout, nothing donated.

    Attributes:
        optimizer: a name from `registry.optimizers()`.
        learning_rate: constant over the steps.
        weight_decay: weight decay, for optimizers that have one.
        seed: seed of the parameters, of dropout and of the synthetic batches.
        compute_dtype: dtype of matrix products and activations. Softmax, logits and loss stay float32.
        param_dtype: dtype of the parameters and, as optax decides, of the optimizer state.
        loss_scaling: whether the loss is multiplied by a dynamic scale before it is differentiated.
        donate: whether the new state may reuse the buffers of the old one.
        num_minibatches: number of parts that the batch is processed in.
        accumulation: whether the program loops over these parts or contains one copy of the step for each.
        scan_layers: whether a loop goes through the layers, whose parameters are then stacked.
        remat_modules: the modules that are checkpointed.
        remat_policy: what their checkpoint keeps: nothing, matrix products, or the residuals in `remat_names`, in
            device or host memory.
        remat_names: names of residuals (see `scopes.RESIDUALS`), joined by commas.
        remat_activation: whether the activation function of the MLP blocks is checkpointed.
        attention_kernel: `plain` holds all attention probabilities, `flash` never does.
        num_loss_chunks: number of parts in which logits and loss are computed.
        offload_optimizer: whether the optimizer state lives in host memory between steps.
        pruned_fraction: the part of each weight matrix that masks set to zero.
        structurally_pruned_fraction: the part of the attention heads and hidden units that is removed.
        data_parallel: whether the batch is divided over the mesh axis `dp`, alone or with the optimizer state (`zero1`)
            and the gradients (`zero2`).
        fully_sharded: whether parameters, gradients, optimizer state and batch are divided over the axis `fsdp`.
        tensor_parallel: whether heads, hidden units and vocabulary are divided over the axis `tp`.
        sequence_parallel: whether sequences are divided over the axis `sp`.
        expert_parallel: whether the experts of a mixture, and the batch, are divided over the axis `ep`.
        pipelined: whether the layers are divided over the mesh axis `pp`, so that each device has some of them.
        num_microbatches: number of parts in which the batch passes through the pipeline; 0 means one for each of its
            devices.
        kv_heads: number of key/value heads; 0 means the model's own. This field and the following ones are for
            inference.
        cache_window: number of tokens that the KV cache keeps of each sequence; 0 means all.
        weight_dtype: dtype of the kernels of projections; `param` means `param_dtype`.
        cache_dtype: dtype of keys and values in the cache.
        cache_list: whether the cache is a list of arrays, one for each layer, and the layers are unrolled.
        cache_paged: whether the cache is a pool of pages, which a table assigns to sequences.
        prefill_chunk: number of tokens of each prompt that one call of a prefill reads; 0 means the whole prompt.
        compiler_options: XLA options of this compile, `flag=value` joined by spaces.
    """

    optimizer: str = "adamw"
    learning_rate: float = 1e-3
    weight_decay: float = 1e-2
    seed: int = 0
    compute_dtype: ComputeDtype = field(default="float32", metadata=_MODEL)
    param_dtype: ParamDtype = field(default="float32", metadata=_MODEL)
    loss_scaling: bool = field(default=False, metadata=_STEP)
    donate: bool = field(default=False, metadata=_STEP)
    num_minibatches: int = field(default=1, metadata=_STEP)
    accumulation: Literal["scan", "unrolled"] = field(default="scan", metadata=_STEP)
    scan_layers: bool = field(default=False, metadata=_MODEL)
    remat_modules: Literal["none", "block", "mlp", "attention", "mlp,attention"] = field(
        default="none", metadata=_MODEL
    )
    remat_policy: Literal["nothing", "products", "names", "offload"] = field(default="nothing", metadata=_MODEL)
    remat_names: str = field(default="", metadata=_MODEL)
    remat_activation: bool = field(default=False, metadata=_MODEL)
    attention_kernel: Literal["plain", "flash"] = field(default="plain", metadata=_MODEL)
    num_loss_chunks: int = field(default=1, metadata=_MODEL)
    offload_optimizer: bool = field(default=False, metadata=_STEP)
    pruned_fraction: float = field(default=0.0, metadata=_STEP)
    structurally_pruned_fraction: float = field(default=0.0, metadata=_MODEL)
    data_parallel: Literal["none", "batch", "zero1", "zero2"] = field(default="none", metadata=_STEP)
    fully_sharded: bool = field(default=False, metadata=_STEP)
    tensor_parallel: bool = field(default=False, metadata=_MODEL)
    sequence_parallel: bool = field(default=False, metadata=_MODEL)
    expert_parallel: bool = field(default=False, metadata=_MODEL)
    pipelined: bool = field(default=False, metadata=_MODEL)
    num_microbatches: int = field(default=0, metadata=_MODEL)
    kv_heads: int = field(default=0, metadata=_INFERENCE)
    cache_window: int = field(default=0, metadata=_INFERENCE)
    weight_dtype: Literal["param", "int8", "int4", "float8"] = field(default="param", metadata=_INFERENCE)
    cache_dtype: Literal["compute", "int8", "float8"] = field(default="compute", metadata=_INFERENCE)
    cache_list: bool = field(default=False, metadata=_INFERENCE)
    cache_paged: bool = field(default=False, metadata=_INFERENCE)
    prefill_chunk: int = field(default=0, metadata=_INFERENCE)
    compiler_options: str = field(default="", metadata=_STEP)

    def __post_init__(self) -> None:
        require_positive(self, "learning_rate", "num_minibatches", "num_loss_chunks")
        require_rates(self, "pruned_fraction", "structurally_pruned_fraction")
        require(self.weight_decay >= 0, f"weight_decay is {self.weight_decay}, but it must not be negative.")
        require(0 <= self.seed <= _MAX_SEED, f"seed is {self.seed}, but it must be between 0 and {_MAX_SEED}.")

    def compiler_option_values(self) -> dict[str, str]:
        """Return the XLA options by name. JAX takes booleans as Python writes them, XLA_FLAGS in lower case."""
        options = dict(option.split("=", 1) for option in self.compiler_options.split())
        return {name: {"true": "True", "false": "False"}.get(value, value) for name, value in options.items()}


def technique_fields() -> dict[str, Any]:
    """Return the fields of `TrainConfig` that techniques own, each with its baseline value."""
    return {spec.name: spec.default for spec in dataclasses.fields(TrainConfig) if _READ_BY in spec.metadata}


def model_fields() -> frozenset[str]:
    """Return the technique-owned fields that only take effect if the model honours them."""
    return frozenset(spec.name for spec in dataclasses.fields(TrainConfig) if spec.metadata == _MODEL)


def inference_fields() -> frozenset[str]:
    """Return the technique-owned fields that only take effect in inference."""
    return frozenset(spec.name for spec in dataclasses.fields(TrainConfig) if spec.metadata == _INFERENCE)


def require(condition: bool, sentence: str) -> None:
    """Raise `MemprofError(sentence)` unless the condition holds."""
    if not condition:
        raise MemprofError(sentence)


def require_positive(config: Any, *names: str) -> None:
    """Raise `MemprofError` unless each of the named sizes is positive."""
    for name in names:
        value = getattr(config, name)
        require(value > 0, f"{name} is {value}, but it must be a number above zero.")


def require_rates(config: Any, *names: str) -> None:
    """Raise `MemprofError` unless each named dropout rate is at least 0 and below 1 (1 would drop everything)."""
    for name in names:
        value = getattr(config, name)
        require(0 <= value < 1, f"{name} is {value}, but a rate must be at least 0 and below 1.")


class BlockSizes:
    """Sizes of a transformer's blocks that follow from the fields of its configuration."""

    __slots__ = ()
    hidden_size: int
    num_heads: int
    num_kv_heads: int | None
    head_size: int | None
    mlp_size: int | None
    positions: str

    @property
    def kv_heads(self) -> int:
        """Number of key/value heads."""
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads

    @property
    def head_width(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_heads if self.head_size is None else self.head_size

    @property
    def mlp_width(self) -> int:
        """Width of the MLP blocks."""
        return 4 * self.hidden_size if self.mlp_size is None else self.mlp_size

    def check_heads(self) -> None:
        """Raise `MemprofError` unless the width of the heads is whole, and their groups are equal."""
        require(
            self.head_size is not None or self.hidden_size % self.num_heads == 0,
            f"hidden_size is {self.hidden_size}, but it must be a multiple of num_heads = {self.num_heads}, unless"
            " head_size is set.",
        )
        require(
            self.num_heads % self.kv_heads == 0,
            f"num_heads is {self.num_heads}, but it must be a multiple of num_kv_heads = {self.kv_heads}.",
        )
        require(
            self.positions != "rotary" or self.head_width % 2 == 0,
            f"the heads are {self.head_width} wide, but rotary positions need an even width: set head_size.",
        )
