"""Hugging Face's table of single-GPU training memory, made again from PyTorch's own steps without the GPU.

    python -m benchmarks.published_torch [--masks-as-inputs] [ROW ...]

It needs the extra `torch`, and transformers. The authors measured BERT-large on a V100 with 16 GB through NVML, so the
CUDA context, which they measured alone, is added to what the caching allocator reserves.

PyTorch's CUDA kernel for dropout keeps a mask of one byte an element. With `--masks-as-inputs` the mask has the type of
the input, as on the CPU: a hypothesis about the authors' software, which fits their numbers better.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

from memprof.analysis.records.capture import Target
from memprof.analysis.traced import analyze_trace
from memprof.sources.torch.step_spec import TorchStepSpec

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
)


def spec(row: Row, *, masks_as_inputs: bool = False) -> TorchStepSpec:
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
    else:
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)

    def dropped(inputs: Any, p: float, training: bool = True, inplace: bool = False) -> Any:
        del training, inplace
        return inputs * torch.empty_like(inputs).bernoulli_(1 - p).div_(1 - p)

    dropout: Any = mock.patch("torch.nn.functional.dropout", dropped) if masks_as_inputs else contextlib.nullcontext()

    def minibatch() -> dict[str, Any]:
        return {
            "input_ids": torch.zeros(row.batch_size, _SEQUENCE, dtype=torch.int64),
            "labels": torch.zeros(row.batch_size, dtype=torch.int64),
        }

    def loss_fn(model: Any, batch: Any) -> Any:
        with torch.autocast("cuda", dtype=torch.float16, enabled=row.fp16), dropout:
            return model(**batch).loss

    return TorchStepSpec(
        model=model,
        optimizer=optimizer,
        loss_fn=loss_fn,
        batch=[minibatch() for _ in range(row.num_minibatches)] if row.num_minibatches > 1 else minibatch(),
        scaler=torch.amp.GradScaler("cuda") if row.fp16 else None,
        num_minibatches=row.num_minibatches,
        zero_grads=True,
        label=f"bert-large {row.name}",
    )


def main(names: list[str]) -> None:
    """Print each row with its error, and the median and the worst of all."""
    from memprof.sources.torch.trace_step import trace_step

    masks_as_inputs = "--masks-as-inputs" in names
    names = [name for name in names if not name.startswith("--")]
    errors = []
    print("| row | predicted MiB | measured MiB | error |\n|---|---:|---:|---:|")
    for row in ROWS:
        if names and row.name not in names:
            continue
        report = analyze_trace(trace_step(partial(spec, row, masks_as_inputs=masks_as_inputs), target=_V100))
        predicted = report.footprint_bytes / 2**20 + CONTEXT_MIB
        errors.append(predicted / row.measured_mib - 1)
        print(f"| {row.name} | {predicted:,.0f} | {row.measured_mib:,} | {errors[-1]:+.1%} |", flush=True)
    sizes = [abs(error) for error in errors]
    print(f"median {statistics.median(sizes):.1%}, worst {max(sizes):.1%}")


if __name__ == "__main__":
    main(sys.argv[1:])
