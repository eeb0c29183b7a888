"""The configuration of a decoder at inference, and of the profiled program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from memprof.workloads.train_config import BlockSizes, TrainConfig, require, require_positive

Phase = Literal["prefill", "decode", "chunked-prefill"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig(BlockSizes):
    """Sizes and choices of a decoder.

    Attributes:
        phase: `prefill` reads whole prompts into an empty cache; `decode` generates one token for each sequence;
            `chunked-prefill` reads one part of each prompt into a cache that holds the parts before it.
        batch_size: number of sequences.
        context_len: number of tokens per sequence that the cache has room for.
        prompt_len: number of tokens of a prompt; None means `context_len`.
        chunk_len: number of tokens in a part of a prompt.
        vocab_size: number of tokens in the vocabulary.
        num_layers, num_heads, hidden_size: sizes of the stack of blocks.
        num_kv_heads: number of key/value heads, which groups of query heads share (Ainslie et al. 2023,
            arXiv:2305.13245); 1 is multi-query attention, and None means `num_heads`.
        head_size: width of one attention head; None means `hidden_size / num_heads`.
        mlp_size: width of the MLP blocks; None means four times `hidden_size`.
        gated_mlp: whether a second projection gates the MLP's hidden units (Shazeer 2020, arXiv:2002.05202).
        activation: activation function of the MLP blocks.
        norm: LayerNorm, or RMSNorm without a mean.
        positions: `rotary` rotates queries and keys (Su et al. 2021, arXiv:2104.09864); `learned` adds a table of
            `context_len` rows.
        biases: whether projections have biases.
        tied_embeddings: whether the output layer uses the token embedding. An untied output layer has a bias if
            `biases`.
        all_logits: whether a prefill returns the logits of every token, not only of the last one.
        page_size: number of tokens in a page of a paged cache (`paged-kv`).
        num_pages: number of pages in its pool; None means enough for all sequences.
        donate_cache: whether the new cache may reuse the memory of the old one.
    """

    phase: Phase = "decode"
    batch_size: int
    context_len: int
    prompt_len: int | None = None
    chunk_len: int = 512
    vocab_size: int
    num_layers: int
    num_heads: int
    hidden_size: int
    num_kv_heads: int | None = None
    head_size: int | None = None
    mlp_size: int | None = None
    gated_mlp: bool = True
    activation: Literal["silu", "gelu"] = "silu"
    norm: Literal["rms", "layer"] = "rms"
    positions: Literal["rotary", "learned"] = "rotary"
    biases: bool = False
    tied_embeddings: bool = False
    all_logits: bool = False
    page_size: int = 16
    num_pages: int | None = None
    donate_cache: bool = True

    def __post_init__(self) -> None:
        require_positive(self, "batch_size", "context_len", "chunk_len", "vocab_size", "num_layers", "num_heads")
        require_positive(self, "hidden_size", "page_size")
        for name in ("prompt_len", "num_kv_heads", "head_size", "mlp_size", "num_pages"):
            if getattr(self, name) is not None:
                require_positive(self, name)
        self.check_heads()
        require(
            self.prompt <= self.context_len,
            f"prompt_len is {self.prompt}, but the cache has room for context_len = {self.context_len} tokens: set"
            " both.",
        )

    @property
    def prompt(self) -> int:
        """Number of tokens of a prompt."""
        return self.context_len if self.prompt_len is None else self.prompt_len

    @property
    def tensor_sizes(self) -> dict[str, int]:
        """The sizes that tensor parallelism divides, by field."""
        return {"num_heads": self.num_heads, "mlp_size": self.mlp_width}

    def chunk(self, train_config: TrainConfig) -> int | None:
        """Return the number of tokens that one chunk of a prefill reads; None for the other phases."""
        if self.phase == "chunked-prefill":
            return min(self.chunk_len, self.prompt)
        is_chunked = self.phase == "prefill" and train_config.prefill_chunk
        return min(train_config.prefill_chunk, self.prompt) if is_chunked else None

    def cache_len(self, train_config: TrainConfig) -> int:
        """Return the number of tokens of each sequence that the cache holds."""
        return min(self.context_len, train_config.cache_window or self.context_len)

    def pages_per_sequence(self, train_config: TrainConfig) -> int:
        """Return the number of pages that the tokens of a sequence occupy in a paged cache."""
        return -(-self.cache_len(train_config) // self.page_size)

    def pool_pages(self, train_config: TrainConfig) -> int:
        """Return the number of pages in the pool of a paged cache."""
        if self.num_pages is not None:
            return self.num_pages
        return self.batch_size * self.pages_per_sequence(train_config)
