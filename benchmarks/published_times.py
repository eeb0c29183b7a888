"""Published training throughput beside the roofline bound of the same sizes, compiled without a GPU.

    python -m benchmarks.published_times llm-foundry
    python -m benchmarks.published_times bert

Prints a markdown table with the measured time of a step, memprof's bound and their ratio, and the rank correlation of
the two (Spearman's). docs/published-tables.md explains the rows. Sources: the benchmark tables of MosaicML's LLM
Foundry (mosaicml/llm-foundry, scripts/train/benchmarking/README.md), and those of NVIDIA's BERT for PyTorch
(NVIDIA/DeepLearningExamples, PyTorch/LanguageModeling/BERT/README.md; 8x A100 40GB as of July 2020, 8x A100 80GB as of
January 2022). Needs the `deviceless` extra, and nvidia-cudnn-cu13 for fused attention.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass

from memprof.analysis.pipeline import analyze
from memprof.sources.jax.processes.launch import compile_all
from memprof.sources.jax.targets.resolve import resolve, topology_of
from memprof.studies.subject import find_subject


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedTime:
    """One published row, and the workload that has its sizes.

    Attributes:
        per_second: published throughput, of what the batch is counted in (sequences or tokens), over all devices.
        batch: of one step, in the same unit.
        overrides: fields of the workload, as `--set` takes them.
    """

    name: str
    preset: str
    target: str
    techniques: str
    per_second: float
    batch: int
    overrides: tuple[str, ...]
    num_devices: int = 1

    @property
    def measured_seconds(self) -> float:
        return self.batch / self.per_second


def _mpt(
    name: str, gpu: str, sizes: tuple[int, int, int], batch: tuple[int, int, int], tokens_per_second: int
) -> PublishedTime:
    """A row of LLM Foundry. Args: sizes: layers, heads, width. batch: sequences, their length, minibatches."""
    num_layers, num_heads, hidden_size = sizes
    num_sequences, seq_len, num_minibatches = batch
    fields = {
        "batch_size": num_sequences, "seq_len": seq_len, "max_seq_len": seq_len, "vocab_size": 50368,
        "num_layers": num_layers, "num_heads": num_heads, "hidden_size": hidden_size, "tied_embeddings": "true",
        "dropout_rate": 0, "attention_dropout_rate": 0, "embedding_dropout_rate": 0,
    }  # fmt: skip
    return PublishedTime(
        name=f"MPT {name}, {seq_len} tokens, 8 x {gpu}",
        preset="gpt2",
        target=gpu,
        techniques=f"bf16+flash+fsdp+accum{num_minibatches}+donate",
        per_second=tokens_per_second,
        batch=num_sequences * seq_len,
        overrides=tuple(f"{field}={value}" for field, value in fields.items()),
        num_devices=8,
    )


def _bert(what: str, gpu: str, dtype: str, batch: tuple[int, int, int], sequences_per_second: float) -> PublishedTime:
    """A row of NVIDIA's BERT-large. Args: batch: sequences, their length, minibatches."""
    num_sequences, seq_len, num_minibatches = batch
    accumulation = f"+accum{num_minibatches}" if num_minibatches > 1 else ""
    return PublishedTime(
        name=f"BERT-large, {what}, {seq_len} tokens, {'TF32' if dtype == 'fp32' else 'FP16'}, {gpu}",
        preset="bert-large",
        target=gpu,
        techniques=f"{dtype}+donate{accumulation}",
        per_second=sequences_per_second,
        batch=num_sequences,
        overrides=(f"batch_size={num_sequences}", f"seq_len={seq_len}"),
    )


_A100, _A100_40, _H100 = "a100-80gb", "a100-40gb", "h100-80gb"
_125M, _350M, _760M, _1B, _3B = (12, 12, 768), (24, 16, 1024), (24, 12, 1536), (24, 16, 2048), (32, 20, 2560)
TABLES = {
    "llm-foundry": (
        _mpt("125m", _A100, _125M, (512, 2048, 2), 1_133_901),
        _mpt("125m", _A100, _125M, (128, 8192, 2), 723_142),
        _mpt("350m", _A100, _350M, (512, 2048, 2), 470_263),
        _mpt("760m", _A100, _760M, (384, 2048, 2), 259_472),
        _mpt("760m", _H100, _760M, (384, 2048, 2), 505_177),
        _mpt("1b", _A100, _1B, (448, 2048, 4), 164_109),
        _mpt("3b", _A100, _3B, (160, 2048, 2), 86_491),
    ),
    "bert": (
        _bert("pre-training", _A100, "fp32", (8192, 128, 64), 317),
        _bert("pre-training", _A100, "fp16", (8192, 128, 32), 580),
        _bert("pre-training", _A100_40, "fp32", (65232, 128, 1208), 234),
        _bert("pre-training", _A100_40, "fp16", (65536, 128, 1024), 415),
        _bert("pre-training", _A100_40, "fp32", (32768, 512, 4096), 41),
        _bert("pre-training", _A100_40, "fp16", (32768, 512, 2048), 78),
        _bert("fine-tuning", _A100, "fp32", (32, 384, 1), 61.5),
        _bert("fine-tuning", _A100, "fp16", (32, 384, 1), 110.5),
        _bert("fine-tuning", _A100_40, "fp32", (16, 384, 1), 44),
        _bert("fine-tuning", _A100_40, "fp16", (32, 384, 1), 116),
    ),
}


def main() -> int:
    """Compile the rows of a table and print it beside the published times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=sorted(TABLES))
    rows = TABLES[parser.parse_args().table]
    bounds = [_bound(row) for row in rows]
    print("| published row | measured | at least | measured / bound | compute | memory | communication |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for row, (seconds, *shares) in zip(rows, bounds, strict=True):
        cells = (f"{row.measured_seconds:.3f} s", f"{seconds:.3f} s", f"{row.measured_seconds / seconds:.2f}")
        print(f"| {' | '.join((row.name, *cells, *(f'{share:.0%}' for share in shares)))} |")
    correlation = rank_correlation([row.measured_seconds for row in rows], [seconds for seconds, *_ in bounds])
    print(f"\nSpearman's rank correlation: {correlation:.2f}")
    return 0


def _bound(row: PublishedTime) -> tuple[float, float, float, float]:
    """The bound in seconds, and the shares of compute, memory and communication."""
    subject = find_subject("transformer", preset=row.preset, overrides=row.overrides)
    topology = topology_of({"": row.num_devices}, 1)
    task = subject.task(row.techniques, target=resolve(row.target, topology), label=row.name)
    (result,) = compile_all(
        [task], num_jobs=1, progress=lambda label, stage: print(f"{label}: {stage}", file=sys.stderr)
    )
    if result.fresh is None:
        assert result.error is not None
        raise result.error
    found = analyze(result.fresh.capture, result.fresh.decoded).roofline
    assert found is not None, row.name
    return found.at_least_seconds, found.compute_share, found.memory_share, found.communication_share


def rank_correlation(one: list[float], other: list[float]) -> float:
    """Spearman's, of numbers that are all different."""
    ranks = [[sorted(numbers).index(number) for number in numbers] for numbers in (one, other)]
    count = len(one)
    distance = sum((a - b) ** 2 for a, b in zip(*ranks, strict=True))
    return 1 - 6 * float(distance) / (count * (count**2 - 1))


if __name__ == "__main__":
    sys.exit(main())
