"""Two publications about vision transformers in PyTorch, made again without their GPUs.

    python -m benchmarks.published_vits [deit | optimizer-in-backward]

It needs the extra `torch`. Both publications say what PyTorch's allocator had allocated, so that is what is predicted.

- deit: the training memory of DeiT (https://github.com/HubHop/deit-mesa), measured with PyTorch 1.7.1 by
  `torch.cuda.max_memory_allocated()`: autocast to float16, 128 images of 224 x 224, stochastic depth of 0.1, and an
  average of the weights on the GPU, as DeiT's training script has it by default.
- optimizer-in-backward: PyTorch's tutorial "How to save memory by fusing the optimizer step into the backward pass":
  ViT-L/16, one image, Adam, PyTorch 2.1. It reads its numbers from snapshots, and rounds them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name that all of PyTorch uses
from torch import Tensor, nn

from memprof.analysis.pipeline import analyze
from memprof.analysis.records.capture import Target
from memprof.sources.torch.step_spec import TorchStepSpec
from memprof.sources.torch.trace_step import trace_step

_IMAGE, _PATCH, _CLASSES = 224, 16, 1000
_TARGET = Target(
    name="rtx-3090",
    description="NVIDIA GeForce RTX 3090",
    platform="cuda",
    memory_bytes=24 << 30,
    compute_capability="8.6",
    reason="the publication's",
)


class _Attention(nn.Module):
    def __init__(self, width: int, num_heads: int, *, is_fused: bool) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self._num_heads, self._is_fused = num_heads, is_fused

    def forward(self, hidden: Tensor) -> Tensor:
        batch, length, width = hidden.shape
        by_head = self.qkv(hidden).reshape(batch, length, 3, self._num_heads, width // self._num_heads)
        query, key, value = by_head.permute(2, 0, 3, 1, 4)
        if self._is_fused:
            attended = F.scaled_dot_product_attention(query, key, value)
        else:
            scores = (query @ key.transpose(-2, -1)) * (width // self._num_heads) ** -0.5
            attended = scores.softmax(dim=-1) @ value
        result: Tensor = self.proj(attended.transpose(1, 2).reshape(batch, length, width))
        return result


class _Block(nn.Module):
    def __init__(self, width: int, num_heads: int, drop: float, *, is_fused: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = _Attention(width, num_heads, is_fused=is_fused)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self._kept = 1 - drop

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = hidden + self._dropped(self.attn(self.norm1(hidden)))
        return hidden + self._dropped(self.mlp(self.norm2(hidden)))

    def _dropped(self, branch: Tensor) -> Tensor:
        """Leave the branch out for some examples, as timm's DropPath."""
        if self._kept == 1:
            return branch
        mask = (self._kept + torch.rand(len(branch), 1, 1, dtype=branch.dtype)).floor_()
        return branch.div(self._kept) * mask


class _VisionTransformer(nn.Module):
    def __init__(self, width: int, num_heads: int, num_layers: int, *, drop: float = 0.0, is_fused: bool) -> None:
        super().__init__()
        num_patches = (_IMAGE // _PATCH) ** 2
        self.patches = nn.Conv2d(3, width, _PATCH, _PATCH)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.zeros(1, num_patches + 1, width))
        drops = [drop * number / max(num_layers - 1, 1) for number in range(num_layers)]
        self.blocks = nn.Sequential(*(_Block(width, num_heads, each, is_fused=is_fused) for each in drops))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, _CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.patches(images).flatten(2).transpose(1, 2)
        hidden = torch.cat((self.token.expand(len(images), -1, -1), hidden), dim=1) + self.positions
        result: Tensor = self.head(self.norm(self.blocks(hidden))[:, 0])
        return result


def _deit(width: int) -> TorchStepSpec:
    model, average = (_VisionTransformer(width, width // 64, 12, drop=0.1, is_fused=False) for _ in range(2))

    def loss_fn(models: Any, batch: Any) -> Tensor:
        with torch.autocast("cuda", dtype=torch.float16):
            logits = models[0](batch["images"])
            return torch.sum(-batch["targets"] * F.log_softmax(logits, dim=-1), dim=-1).mean()

    return TorchStepSpec(
        model=[model, average.requires_grad_(False)],
        optimizer=torch.optim.AdamW(model.parameters(), foreach=False),
        loss_fn=loss_fn,
        batch={"images": torch.empty(128, 3, _IMAGE, _IMAGE), "targets": torch.empty(128, _CLASSES)},
        scaler=torch.amp.GradScaler("cuda"),
        zero_grads=True,
        softmax_input=True,
        label=f"deit {width}",
    )


def _vit_large(*, foreach: bool | None, in_backward: bool) -> TorchStepSpec:
    model = _VisionTransformer(1024, 16, 24, is_fused=True)
    image = torch.empty(1, 3, _IMAGE, _IMAGE)
    if not in_backward:
        optimizer = torch.optim.Adam(model.parameters(), foreach=foreach)
        return TorchStepSpec(model=model, optimizer=optimizer, loss_fn=lambda m, x: m(x).sum(), batch=image)
    optimizers = {each: torch.optim.Adam([each], foreach=False) for each in model.parameters()}

    def update(parameter: Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for each in model.parameters():
        each.register_post_accumulate_grad_hook(update)
    return TorchStepSpec(
        model=model, optimizer=list(optimizers.values()), step=lambda: model(image).sum().backward(), batch=image
    )


def _deit_rows() -> Iterator[tuple[str, float, Callable[[], TorchStepSpec]]]:
    for name, width, measured in (("DeiT-Ti", 192, 4171), ("DeiT-S", 384, 8459), ("DeiT-B", 768, 17691)):
        yield name, measured * 2**20, partial(_deit, width)


def _tutorial_rows() -> Iterator[tuple[str, float, Callable[[], TorchStepSpec]]]:
    yield "Adam", 6e9, lambda: _vit_large(foreach=None, in_backward=False)
    yield "Adam without foreach", 4.8e9, lambda: _vit_large(foreach=False, in_backward=False)
    yield "Adam in the backward pass", 4e9, lambda: _vit_large(foreach=False, in_backward=True)


_TABLES = {"deit": _deit_rows, "optimizer-in-backward": _tutorial_rows}


def main(names: list[str]) -> None:
    """Print the published and the predicted peak of each row."""
    for name in names or _TABLES:
        print(f"{name}\n| row | published MB | allocated at the peak, MB | error |\n|---|---:|---:|---:|")
        for row, published, make_spec in _TABLES[name]():
            predicted = analyze(trace_step(make_spec, target=_TARGET)).live_peak_bytes
            unit = 2**20 if name == "deit" else 10**6
            cells = row, f"{published / unit:,.0f}", f"{predicted / unit:,.0f}", f"{predicted / published - 1:+.1%}"
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
