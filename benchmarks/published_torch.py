"""Hugging Face's table of single-GPU training memory, made again from PyTorch's own steps without the GPU.

    python -m benchmarks.published_torch [ROW ...]

It needs the extra `torch`, and transformers. The authors measured BERT-large on a V100 with 16 GB through NVML, so the
CUDA context, which they measured alone, is added to what the caching allocator reserves. Each row is predicted twice:
from transformers' model, and from the built-in one (`memprof run transformer --framework torch --preset bert-large`).

The table is of January 2022, so the steps are those of that time: gradients zeroed in place, an optimizer without
foreach, eager attention with an additive float32 mask, and autograd of PyTorch 1.10, which keeps the input of softmax.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from memprof.analysis.pipeline import analyze
from memprof.analysis.records.capture import Target
from memprof.sources.torch.step_spec import TorchStepSpec
from memprof.workloads.torch.build import build
from memprof.workloads.torch.plan import NO_FOREACH, OPTIMIZERS, SOFTMAX_INPUT, ZERO_GRADS, plan

CONTEXT_MIB = 1343  # "GPU memory occupied" after the first kernel, in the guide
_SEQUENCE = 512
_V100 = Target(
    name="v100-16gb",
    description="Tesla V100-SXM2-16GB",
    platform="cuda",
    memory_bytes=16160 << 20,
    compute_capability="7.0",
    reason="the publication's",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of the table: how it was trained, and what NVML said, in MiB."""

    name: str
    measured_mib: int
    batch_size: int = 4
    num_minibatches: int = 1
    checkpointing: bool = False
    fp16: bool = False
    optimizer: str = "adamw"

    @property
    def techniques(self) -> str:
        """The same for the built-in Transformer."""
        parts = ["fp16"] * self.fp16 + ["remat"] * self.checkpointing + [f"opt={self.optimizer}"]
        if self.num_minibatches > 1:
            parts.append(f"accum{self.num_minibatches}")
        return "+".join([*parts, ZERO_GRADS, NO_FOREACH, SOFTMAX_INPUT])


ROWS = (
    Row(name="vanilla", measured_mib=14949),
    Row(name="accumulation", measured_mib=8681, batch_size=1, num_minibatches=4),
    Row(name="checkpointing", measured_mib=6775, batch_size=1, num_minibatches=4, checkpointing=True),
    Row(name="fp16", measured_mib=13939, fp16=True),
    Row(name="all", measured_mib=7275, batch_size=1, num_minibatches=4, checkpointing=True, fp16=True),
    Row(name="adafactor", measured_mib=12295, optimizer="adafactor"),
    Row(
        name="all-adafactor",
        measured_mib=4847,
        batch_size=1,
        num_minibatches=4,
        checkpointing=True,
        fp16=True,
        optimizer="adafactor",
    ),
    Row(name="adam8bit", measured_mib=13085, optimizer="adam8bit"),
    Row(
        name="all-adam8bit",
        measured_mib=5363,
        batch_size=1,
        num_minibatches=4,
        checkpointing=True,
        fp16=True,
        optimizer="adam8bit",
    ),
)


def of_transformers(row: Row) -> TorchStepSpec:
    """The step of a row, as transformers' Trainer ran it in 2022."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification
    from transformers.optimization import Adafactor

    config = BertConfig(
        hidden_size=1024,
        num_hidden_layers=24,
        num_attention_heads=16,
        intermediate_size=4096,
        attn_implementation="eager",
    )
    model = BertForSequenceClassification(config)
    model.train()
    if row.checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": True})
    optimizer: Any
    if row.optimizer == "adafactor":
        optimizer = Adafactor(model.parameters(), scale_parameter=False, relative_step=False, lr=1e-5)
    elif row.optimizer == "adam8bit":
        optimizer = _adam8bit(model)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)

    def minibatch() -> dict[str, Any]:
        return {
            "input_ids": torch.zeros(row.batch_size, _SEQUENCE, dtype=torch.int64),
            "labels": torch.zeros(row.batch_size, dtype=torch.int64),
            # What transformers made of a mask of ones, and added to the scores: in float32, so they became float32.
            "attention_mask": torch.zeros(row.batch_size, 1, 1, _SEQUENCE),
        }

    def loss_fn(model: Any, batch: Any) -> Any:
        with torch.autocast("cuda", dtype=torch.float16, enabled=row.fp16):
            return model(**batch).loss

    return TorchStepSpec(
        model=model,
        optimizer=optimizer,
        loss_fn=loss_fn,
        batch=[minibatch() for _ in range(row.num_minibatches)] if row.num_minibatches > 1 else minibatch(),
        scaler=torch.amp.GradScaler("cuda") if row.fp16 else None,
        num_minibatches=row.num_minibatches,
        zero_grads=True,
        softmax_input=True,
        label=f"bert-large {row.name}",
    )


def _adam8bit(model: Any) -> Any:
    """What bitsandbytes 0.26 kept: its kernel updates in place, so its state is all the memory that it takes."""
    import torch

    block_size, smallest = 2048, 4096  # smaller parameters have state in float32

    class Adam8bit(torch.optim.Optimizer):
        def step(self, closure: Any = None) -> None:
            del closure
            for parameter in self.param_groups[0]["params"]:
                is_small = parameter.numel() < smallest
                dtype, num_blocks = (
                    (torch.float32, 0) if is_small else (torch.uint8, -(-parameter.numel() // block_size))
                )
                if not self.state[parameter]:
                    for moment in "12":
                        self.state[parameter][f"state{moment}"] = torch.zeros_like(parameter, dtype=dtype)
                        self.state[parameter][f"absmax{moment}"] = torch.zeros(num_blocks)

    return Adam8bit(model.parameters(), {})


def built_in(row: Row) -> TorchStepSpec:
    """The step of a row with memprof's own Transformer."""
    overrides = [f"batch_size={row.batch_size * row.num_minibatches}"]
    return build(plan("transformer", preset="bert-large", overrides=overrides, techniques=row.techniques))


def predicted_mib(make_spec: Callable[[], TorchStepSpec]) -> float:
    """What NVML would say."""
    from memprof.sources.torch.trace_step import trace_step

    return analyze(trace_step(make_spec, target=_V100)).footprint_bytes / 2**20 + CONTEXT_MIB


def main(names: list[str]) -> None:
    """Print each row with its errors, and the median and the worst of all."""
    errors: dict[Callable[[Row], TorchStepSpec], list[float]] = {of_transformers: [], built_in: []}
    print("| row | measured MiB | transformers | error | built-in | error |\n|---|---:|---:|---:|---:|---:|")
    for row in ROWS:
        if names and row.name not in names:
            continue
        cells = []
        for make, sizes in errors.items():
            if make is built_in and row.optimizer not in OPTIMIZERS:
                cells.append("| ")
                continue
            predicted = predicted_mib(partial(make, row))
            sizes.append(predicted / row.measured_mib - 1)
            cells.append(f"{predicted:,.0f} | {sizes[-1]:+.1%}")
        print(f"| {row.name} | {row.measured_mib:,} | {' | '.join(cells)} |", flush=True)
    for make, signed in errors.items():
        if not signed:
            continue
        sizes = [abs(error) for error in signed]
        print(f"{make.__name__}: median {statistics.median(sizes):.1%}, worst {max(sizes):.1%}")


if __name__ == "__main__":
    main(sys.argv[1:])
