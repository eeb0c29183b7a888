"""The live peak of five models of transformers, beside that of PyTorch's own MemTracker.

    python -m benchmarks.mem_tracker [MODEL ...]

It needs the extra `torch`, and transformers. Both count storages under fake tensors, in two steps of AdamW without
foreach and without dropout. Two differences are expected:

- memprof counts AdamW's step counters, 4 bytes a parameter tensor, as host memory, where PyTorch keeps them.
- MemTracker changes what it measures: it waits with `register_multi_grad_hook` for all gradients of a module, and these
  hooks keep those that have arrived. So memprof traces each model twice: alone, and with MemTracker in the same step.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.distributed._tools.mem_tracker import MemTracker
from torch.utils._python_dispatch import _disable_current_modes

from memprof.analysis.pipeline import analyze
from memprof.analysis.records.capture import Capture, Target
from memprof.sources.torch.step_spec import TorchStepSpec, fake_copy
from memprof.sources.torch.trace_step import trace_step

_TARGET = Target(
    name="h100-80gb",
    description="NVIDIA H100",
    platform="cuda",
    memory_bytes=80 << 30,
    compute_capability=None,  # MemTracker counts no workspaces of cuBLAS
    reason="any: shapes alone count",
)


def _tokens(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int64)


def _gpt2() -> tuple[Any, Mapping[str, Any]]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=4, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, attn_implementation="eager")
    return GPT2LMHeadModel(config), {"input_ids": _tokens(2, 512), "labels": _tokens(2, 512)}


def _llama() -> tuple[Any, Mapping[str, Any]]:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
        attn_implementation="eager",
    )
    return LlamaForCausalLM(config), {"input_ids": _tokens(2, 256), "labels": _tokens(2, 256)}


def _bert() -> tuple[Any, Mapping[str, Any]]:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        num_hidden_layers=4,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        attn_implementation="eager",
    )
    batch = {"input_ids": _tokens(4, 512), "attention_mask": torch.zeros(4, 1, 1, 512), "labels": _tokens(4)}
    return BertForSequenceClassification(config), batch


def _t5() -> tuple[Any, Mapping[str, Any]]:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(d_model=512, num_layers=2, dropout_rate=0.0, decoder_start_token_id=0)
    return T5ForConditionalGeneration(config), {"input_ids": _tokens(2, 256), "labels": _tokens(2, 64)}


def _vit() -> tuple[Any, Mapping[str, Any]]:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, attn_implementation="eager")
    return ViTForImageClassification(config), {"pixel_values": torch.zeros(8, 3, 224, 224), "labels": _tokens(8)}


MODELS: dict[str, Callable[[], tuple[Any, Mapping[str, Any]]]] = {
    "GPT-2, 4 layers": _gpt2,
    "Llama, 4 layers": _llama,
    "BERT, 4 layers": _bert,
    "T5, 2 layers": _t5,
    "ViT, base, 8 images": _vit,
}


def _spec(make: Callable[[], tuple[Any, Mapping[str, Any]]]) -> TorchStepSpec:
    """Return the step on fake tensors. Call it under `FakeTensorMode`.

    The model is made from real tensors, because the constructor of ViT reads values.
    """
    with _disable_current_modes():
        model, batch = make()
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    return fake_copy(TorchStepSpec(model=model, optimizer=optimizer, loss_fn=loss, batch=batch))


def loss(model: Any, batch: Mapping[str, Any]) -> Any:
    return model(**batch).loss


def traced(make: Callable[[], tuple[Any, Mapping[str, Any]]], compute_capability: str | None = None) -> Capture:
    """Return memprof's trace of a model's step."""
    return trace_step(lambda: _spec(make), target=replace(_TARGET, compute_capability=compute_capability))


def together(make: Callable[[], tuple[Any, Mapping[str, Any]]]) -> tuple[int, int, int]:
    """Return the peaks of memprof and of MemTracker in one step under both, and the size of AdamW's step counters."""
    tracker, optimizers = MemTracker(), []

    def make_spec() -> TorchStepSpec:
        spec = _spec(make)
        optimizers.append(spec.optimizer)
        tracker.track_external(spec.model, spec.optimizer, *spec.batch.values())

        def step() -> None:
            with tracker:
                loss(spec.model, spec.batch).backward()
                spec.optimizer.step()
                spec.optimizer.zero_grad()
                tracker.reset_mod_stats()

        return replace(spec, loss_fn=None, step=step)

    peak = analyze(trace_step(make_spec, target=_TARGET)).live_peak_bytes
    (tracked,) = tracker.get_tracker_snapshot("peak").values()
    return peak, int(tracked["Total"]), sum(state["step"].nbytes for state in optimizers[0].state.values())


def main(names: list[str]) -> None:
    """Print a row for each model."""
    columns = "model", "memprof alone", "memprof, together", "MemTracker, together", "difference", "step counters"
    print(f"| {' | '.join(columns)} |\n|---|{'---:|' * (len(columns) - 1)}")
    for name in names or MODELS:
        peak, tracked, counters = together(MODELS[name])
        numbers = analyze(traced(MODELS[name])).live_peak_bytes, peak, tracked
        shown = " | ".join(f"{each:,}" for each in numbers)
        print(f"| {name} | {shown} | {peak - tracked:+,} | {counters:,} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
