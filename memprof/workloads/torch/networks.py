"""The models in PyTorch, with the parameters of those in JAX: `layers.0.attention.qkv.weight` for `.../qkv/kernel`.

They compute the same functions as the Flax models. Precision is left to autocast, as PyTorch's users do.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name that all of PyTorch uses
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from memprof.workloads.models.mlp.config import MLPConfig
from memprof.workloads.models.transformer.config import TransformerConfig
from memprof.workloads.train_config import TrainConfig

_PRODUCTS = [torch.ops.aten.mm.default, torch.ops.aten.addmm.default]


def _checkpointed(function: Callable[..., Tensor], *args: Any, products_kept: bool = False) -> Tensor:
    """Call a function whose intermediate values the backward pass recomputes instead of keeping them."""
    kept: dict[str, Any] = {}
    if products_kept:
        kept["context_fn"] = functools.partial(create_selective_checkpoint_contexts, _PRODUCTS)
    result: Tensor = checkpoint(function, *args, use_reentrant=False, **kept)
    return result


class MLP(nn.Module):
    """A classifier with one hidden layer; returns log-probabilities."""

    def __init__(self, config: MLPConfig, train_config: TrainConfig) -> None:
        super().__init__()
        self.hidden = nn.Linear(config.input_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size)
        self.dropout = nn.Dropout(config.dropout_rate)
        self.head = nn.Linear(config.hidden_size, config.num_classes)
        self._remat_activation = train_config.remat_activation

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.norm(self.hidden(inputs))
        hidden = _checkpointed(F.silu, hidden) if self._remat_activation else F.silu(hidden)
        return F.log_softmax(self.head(self.dropout(hidden)).float(), dim=-1)


class Attention(nn.Module):
    """LayerNorm, projections to queries, keys and values, attention, output projection, dropout.

    A decoder has one projection for all three, as GPT-2 has; an encoder has three, as BERT has. Under autocast each of
    them makes and keeps a copy of its input in half precision.
    """

    def __init__(self, config: TransformerConfig, train_config: TrainConfig) -> None:
        super().__init__()
        width = config.num_heads * config.head_width
        self.norm = nn.LayerNorm(config.hidden_size)
        if config.causal:
            self.qkv = nn.Linear(config.hidden_size, 3 * width)
        else:
            self.query, self.key, self.value = (nn.Linear(config.hidden_size, width) for _ in range(3))
        self.out = nn.Linear(width, config.hidden_size)
        self.dropout = nn.Dropout(config.dropout_rate)
        self._config = config
        self._is_fused = train_config.attention_kernel == "flash"

    def forward(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        batch, length, _ = hidden.shape
        config = self._config
        hidden = self.norm(hidden)
        projected = [self.qkv] if config.causal else [self.query, self.key, self.value]
        by_head = batch, length, -1, config.num_heads, config.head_width
        query, key, value = (
            each for part in projected for each in part(hidden).view(by_head).permute(2, 0, 3, 1, 4).unbind()
        )
        rate = config.attention_dropout_rate if self.training else 0.0
        if self._is_fused:
            is_causal = config.causal and mask is None
            attended = F.scaled_dot_product_attention(query, key, value, mask, rate, is_causal)
        else:
            scores = query @ key.transpose(-1, -2) * config.head_width**-0.5
            if mask is not None and mask.dtype is torch.bool:
                scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
            elif mask is not None:
                scores = scores + mask  # float32 even under autocast, if the mask is
            probabilities = F.softmax(scores, dim=-1, dtype=torch.float32).to(value.dtype)
            attended = F.dropout(probabilities, rate, self.training) @ value
        result: Tensor = self.dropout(self.out(attended.transpose(1, 2).reshape(batch, length, -1)))
        return result


class MLPBlock(nn.Module):
    """LayerNorm, up projection, gelu, down projection, dropout."""

    def __init__(self, config: TransformerConfig, train_config: TrainConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.hidden_size)
        self.up = nn.Linear(config.hidden_size, config.mlp_width)
        self.down = nn.Linear(config.mlp_width, config.hidden_size)
        self.dropout = nn.Dropout(config.dropout_rate)
        self._remat_activation = train_config.remat_activation

    def forward(self, hidden: Tensor) -> Tensor:
        gelu = functools.partial(F.gelu, approximate="tanh")
        hidden = self.up(self.norm(hidden))
        hidden = _checkpointed(gelu, hidden) if self._remat_activation else gelu(hidden)
        result: Tensor = self.dropout(self.down(hidden))
        return result


class Block(nn.Module):
    """Pre-LayerNorm block."""

    def __init__(self, config: TransformerConfig, train_config: TrainConfig) -> None:
        super().__init__()
        self.attention = Attention(config, train_config)
        self.mlp = MLPBlock(config, train_config)
        self._checkpoints = train_config.remat_modules.split(",")

    def forward(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        if "attention" in self._checkpoints:
            hidden = hidden + _checkpointed(self.attention, hidden, mask)
        else:
            hidden = hidden + self.attention(hidden, mask)
        if "mlp" in self._checkpoints:
            return hidden + _checkpointed(self.mlp, hidden)
        return hidden + self.mlp(hidden)


class Transformer(nn.Module):
    """A decoder (`task` next_token) or an encoder with a classifier on its first token (`task` classification)."""

    def __init__(self, config: TransformerConfig, train_config: TrainConfig) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position_embedding = nn.Embedding(config.max_seq_len, config.hidden_size)
        self.embedding_dropout = nn.Dropout(config.embedding_dropout_rate)
        self.layers = nn.ModuleList(Block(config, train_config) for _ in range(config.num_layers))
        self.final_norm = nn.LayerNorm(config.hidden_size)
        if config.task == "classification":
            self.pooler = nn.Linear(config.hidden_size, config.hidden_size)
            self.pooler_dropout = nn.Dropout(config.dropout_rate)
            self.head = nn.Linear(config.hidden_size, config.num_classes)
        elif not config.tied_embeddings:
            self.head = nn.Linear(config.hidden_size, config.vocab_size)
        self._config = config
        self._train_config = train_config

    def encode(self, inputs: Tensor, input_mask: Tensor | None, attention_mask: Tensor | None) -> Tensor:
        """Return the normalised residual stream, `(batch, length, hidden_size)`."""
        length = inputs.shape[1]
        hidden = self.token_embedding(inputs) + self.position_embedding.weight[:length]
        hidden = self.embedding_dropout(hidden)
        mask = self._mask(inputs, input_mask, attention_mask)
        products_kept = self._train_config.remat_policy == "products"
        for layer in self.layers:
            if self._train_config.remat_modules == "block":
                hidden = _checkpointed(layer, hidden, mask, products_kept=products_kept)
            else:
                hidden = layer(hidden, mask)
        result: Tensor = self.final_norm(hidden)
        return result

    def decode(self, hidden: Tensor) -> Tensor:
        """Return the logits, float32, of a residual stream or of some of its tokens."""
        if self._config.task == "classification":
            hidden = self.pooler_dropout(torch.tanh(self.pooler(hidden[:, 0])))
        elif self._config.tied_embeddings:
            return F.linear(hidden, self.token_embedding.weight).float()
        logits: Tensor = self.head(hidden).float()
        return logits

    def forward(self, inputs: Tensor, input_mask: Tensor | None = None, attention_mask: Tensor | None = None) -> Tensor:
        return self.decode(self.encode(inputs, input_mask, attention_mask))

    def _mask(self, inputs: Tensor, input_mask: Tensor | None, attention_mask: Tensor | None) -> Tensor | None:
        """Return the mask, `(batch or 1, 1, queries or 1, keys)`; None if all is allowed, or the kernel applies it.

        A mask of padding is added to the scores, in the type of the parameters, as in the models of transformers. Under
        autocast the scores become float32 by that. Other masks are boolean.
        """
        masks = []
        is_fused = self._train_config.attention_kernel == "flash"
        if self._config.causal and not (is_fused and input_mask is None and attention_mask is None):
            length = inputs.shape[1]
            masks.append(torch.ones(1, 1, length, length, dtype=torch.bool, device=inputs.device).tril())
        if input_mask is not None:
            masks.append(input_mask[:, None, None, :])
        if attention_mask is not None:
            masks.append(attention_mask[:, None])
        if not masks:
            return None
        mask = functools.reduce(torch.logical_and, masks)
        if input_mask is None or is_fused:
            return mask
        dtype = self.token_embedding.weight.dtype
        return torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min)
