"""The sizes and choices of a Transformer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from memprof.workloads.train_config import BlockSizes, require, require_positive, require_rates


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerConfig(BlockSizes):
    """Sizes and choices of a Transformer.

    Attributes:
        batch_size: number of sequences in a step.
        seq_len: number of tokens in a sequence.
        max_seq_len: number of rows of the position table; only the first `seq_len` are used.
        vocab_size: number of tokens in the vocabulary.
        num_layers, num_heads, hidden_size: sizes of the stack of blocks.
        num_kv_heads: number of key/value heads, which groups of query heads share (Ainslie et al. 2023,
            arXiv:2305.13245); None means `num_heads`.
        mlp_size: width of the MLP blocks; None means four times `hidden_size`.
        head_size: width of one attention head; None means `hidden_size / num_heads`.
        gated_mlp: whether a second projection gates the MLP's hidden units (Shazeer 2020, arXiv:2002.05202).
        activation: activation function of the MLP blocks.
        norm: LayerNorm, or RMSNorm without a mean.
        positions: `learned` adds a table of `max_seq_len` rows; `rotary` rotates queries and keys.
        biases: whether projections have biases.
        causal: whether a token attends only to itself and earlier tokens.
        padding_mask: whether sequences are padded. The batch then marks the real tokens; the others are not attended
            to, and their loss does not count.
        custom_mask: whether the batch carries its own attention mask, in addition to the other masks.
        task: `next_token` predicts each token from those before it; `classification` the class of the sequence.
        num_experts: number of experts in each block; a token uses `experts_per_token` of them. 0 means a single MLP
            that all tokens use.
        capacity_factor: capacity of an expert, as a multiple of its share if tokens were spread equally; tokens beyond
            it are dropped.
        balance_loss_weight: weight of the loss term for unequal use of the experts, for each layer.
        num_classes: number of classes; unused for next-token prediction.
        tied_embeddings: whether the output layer uses the token embedding (next token only). An untied output layer has
            a bias if `biases`.
        dropout_rate: dropout rate of the attention's and the MLP block's results.
        attention_dropout_rate: dropout rate of the attention probabilities.
        embedding_dropout_rate: dropout rate of the sum of token and position embeddings.
        phase: `inference` runs only the forward pass, without dropout.
    """

    batch_size: int
    seq_len: int
    max_seq_len: int
    vocab_size: int
    num_layers: int
    num_heads: int
    hidden_size: int
    mlp_size: int | None = None
    head_size: int | None = None
    num_kv_heads: int | None = None
    gated_mlp: bool = False
    activation: Literal["gelu", "silu"] = "gelu"
    norm: Literal["layer", "rms"] = "layer"
    positions: Literal["learned", "rotary"] = "learned"
    biases: bool = True
    num_experts: int = 0
    experts_per_token: int = 2
    capacity_factor: float = 1.25
    balance_loss_weight: float = 0.01
    causal: bool = True
    padding_mask: bool = False
    custom_mask: bool = False
    task: Literal["next_token", "classification"] = "next_token"
    num_classes: int = 2
    tied_embeddings: bool = False
    dropout_rate: float = 0.1
    attention_dropout_rate: float = 0.1
    embedding_dropout_rate: float = 0.1
    phase: Literal["training", "inference"] = "training"

    def __post_init__(self) -> None:
        require_positive(self, "batch_size", "seq_len", "max_seq_len", "vocab_size", "num_layers", "num_heads")
        require_positive(self, "hidden_size", "num_classes", "experts_per_token", "capacity_factor")
        for name in ("mlp_size", "head_size", "num_kv_heads"):
            if getattr(self, name) is not None:
                require_positive(self, name)
        require_rates(self, "dropout_rate", "attention_dropout_rate", "embedding_dropout_rate")
        require(self.num_experts >= 0, f"num_experts is {self.num_experts}, but it must be 0 (none) or more.")
        require(
            self.num_experts == 0 or self.experts_per_token <= self.num_experts,
            f"experts_per_token is {self.experts_per_token}, but it must be at most num_experts = {self.num_experts}.",
        )
        require(
            self.balance_loss_weight >= 0,
            f"balance_loss_weight is {self.balance_loss_weight}, but it must not be negative.",
        )
        require(
            self.positions == "rotary" or self.seq_len <= self.max_seq_len,
            f"seq_len is {self.seq_len}, but the position table has max_seq_len = {self.max_seq_len} rows: set both.",
        )
        self.check_heads()
        require(
            not (self.tied_embeddings and self.task == "classification"),
            "tied_embeddings is true, but a classifier has no output layer over the vocabulary: set it to false.",
        )

    @property
    def tensor_sizes(self) -> dict[str, int]:
        """The sizes that tensor parallelism divides, by field."""
        grouped = {} if self.kv_heads == self.num_heads else {"num_kv_heads": self.kv_heads}
        return {"num_heads": self.num_heads, **grouped, "mlp_size": self.mlp_width}
