"""transformer: a pre-LayerNorm Transformer, as a decoder (gpt2, uva) or as an encoder that classifies (bert-large).

The networks are in `networks/`; this file holds the choices that they can be built with, and imports no jax.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from memprof.workloads.checks import require, require_positive, require_rates
from memprof.workloads.train_config import TrainConfig, model_fields
from memprof.workloads.workload import Workload

if TYPE_CHECKING:
    from memprof.workloads.model import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerConfig:
    """Sizes and choices of a Transformer.

    Attributes:
        batch_size: number of sequences in a step.
        seq_len: number of tokens in a sequence.
        max_seq_len: number of rows of the position table; only the first `seq_len` are used.
        vocab_size: number of tokens that there are.
        num_layers, num_heads, hidden_size: of the stack of blocks.
        mlp_size: width of the MLP blocks; None means four times `hidden_size`.
        head_size: width of one attention head; None means `hidden_size / num_heads`.
        causal: whether a token attends to itself and earlier tokens only.
        padding_mask: whether sequences are padded: the batch says which tokens are real, and nothing attends to,
            or counts the loss of, the others.
        custom_mask: whether the batch carries an attention mask of its own, on top of the other masks.
        task: `next_token` predicts each token from those before it; `classification` the class of the sequence.
        num_classes: number of classes; of no effect on the prediction of the next token.
        tied_embeddings: whether the output layer is the token embedding (next token only). An untied one has a bias.
        dropout_rate: of the attention's and the MLP block's results.
        attention_dropout_rate: of the attention probabilities.
        embedding_dropout_rate: of the sum of token and position embeddings.
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
    causal: bool = True
    padding_mask: bool = False
    custom_mask: bool = False
    task: Literal["next_token", "classification"] = "next_token"
    num_classes: int = 2
    tied_embeddings: bool = False
    dropout_rate: float = 0.1
    attention_dropout_rate: float = 0.1
    embedding_dropout_rate: float = 0.1

    def __post_init__(self) -> None:
        require_positive(self, "batch_size", "seq_len", "max_seq_len", "vocab_size", "num_layers", "num_heads")
        require_positive(self, "hidden_size", "num_classes")
        for name in ("mlp_size", "head_size"):
            if getattr(self, name) is not None:
                require_positive(self, name)
        require_rates(self, "dropout_rate", "attention_dropout_rate", "embedding_dropout_rate")
        require(
            self.seq_len <= self.max_seq_len,
            f"seq_len is {self.seq_len}, but the position table has max_seq_len = {self.max_seq_len} rows: set both.",
        )
        require(
            self.head_size is not None or self.hidden_size % self.num_heads == 0,
            f"hidden_size is {self.hidden_size}, but it must be a multiple of num_heads = {self.num_heads}, unless"
            " head_size is set.",
        )
        require(
            not (self.tied_embeddings and self.task == "classification"),
            "tied_embeddings is true, but a classifier has no output layer over the vocabulary: set it to false.",
        )

    @property
    def mlp_width(self) -> int:
        """Width of the MLP blocks."""
        return 4 * self.hidden_size if self.mlp_size is None else self.mlp_size

    @property
    def head_width(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_heads if self.head_size is None else self.head_size


def build(config: TransformerConfig, train_config: TrainConfig) -> Model:
    """Returns the model. jax is imported here, not above, so that listing workloads stays quick."""
    from memprof.workloads.models.transformer.model import build_transformer

    return build_transformer(config, train_config)


# One dropout a sublayer: each costs the compiler a random generator, and this one should compile in a second.
TINY = TransformerConfig(
    batch_size=4,
    seq_len=16,
    max_seq_len=24,
    vocab_size=64,
    num_layers=2,
    num_heads=2,
    hidden_size=32,
    attention_dropout_rate=0.0,
    embedding_dropout_rate=0.0,
)

# GPT-2 small (Radford et al. 2019): 124,439,808 parameters.
GPT2 = TransformerConfig(
    batch_size=8,
    seq_len=1024,
    max_seq_len=1024,
    vocab_size=50257,
    num_layers=12,
    num_heads=12,
    hidden_size=768,
    tied_embeddings=True,
)

# BERT large, uncased (Devlin et al. 2018), with two labels: 335,141,890 parameters. The published model has 2,048 more,
# its two segment embeddings; it normalises after each sublayer where this one normalises before.
BERT_LARGE = TransformerConfig(
    batch_size=4,
    seq_len=512,
    max_seq_len=512,
    vocab_size=30522,
    num_layers=24,
    num_heads=16,
    hidden_size=1024,
    causal=False,
    padding_mask=True,
    task="classification",
    num_classes=2,
)

# The Transformer of the UvA Deep Learning Tutorials, "Training Models at Scale": 155,877,376 parameters. It drops out
# the results of attention and MLP blocks alone.
UVA = TransformerConfig(
    batch_size=64,
    seq_len=512,
    max_seq_len=512,
    vocab_size=2048,
    num_layers=12,
    num_heads=8,
    hidden_size=1024,
    attention_dropout_rate=0.0,
    embedding_dropout_rate=0.0,
)

WORKLOAD = Workload(
    name="transformer",
    summary="pre-LayerNorm Transformer: next token (causal, tied or untied) or classification (padding mask)",
    config_type=TransformerConfig,
    presets={"tiny": TINY, "gpt2": GPT2, "bert-large": BERT_LARGE, "uva": UVA},
    default_preset="gpt2",
    honours=model_fields(),
    build=build,
)
