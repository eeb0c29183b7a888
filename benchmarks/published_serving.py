"""Memory that engines of others log before they serve, and published tables of it, beside decode steps of those sizes.

    python -m benchmarks.published_serving engines
    python -m benchmarks.published_serving paged-attention
    python -m benchmarks.published_serving llama-3.1

Compiles a decode step with the published model, devices and pages of cache, and prints a markdown table.
docs/published-tables.md explains the differences. Sources: "Fix auto KV-cache num-blocks calculation when tp>1" and
"VMEM OOM on v7x running Qwen3-VL-8B" (vllm-project/tpu-inference, issues 145 and 2803); "[core] overhaul memory
profiling", "What's the relationship between KV cache and MAX_SEQUENCE_LENGTH", a question about tokens in the cache and
"Add max request concurrency log to V1" (vllm-project/vllm, issues 10511, 10517, 12330 and 12569); a log of llama.cpp
(Jeffser/Alpaca, issue 572); Kwon et al. 2023 (arXiv:2309.06180), table 1; "How much memory does Llama 3.1 need?"
(huggingface/blog, llama31.md). Needs the `deviceless` and `tpu` extras.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from memprof.analysis.pipeline import analyze
from memprof.analysis.records.categories import Category
from memprof.analysis.records.report import Report
from memprof.sources.jax.processes.launch import compile_all
from memprof.sources.jax.targets.resolve import resolve, topology_of
from memprof.studies.subject import find_subject

_GIB = 2**30
_BATCH = {"batch_size": 8, "context_len": 2048}


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What was published of a model on its devices.

    Attributes:
        fields: of the workload `decoder`, as `--set` takes them.
        weights: of one device, as the source writes them.
        cache: of one device, likewise.
        num_pages, page_size: of the cache, over all devices; without `paged-kv` pages are tokens of one sequence.
        technique: of the step.
    """

    name: str
    target: str
    weights: str
    cache: str
    num_pages: int
    page_size: int
    preset: str = "llama-8b"
    fields: Mapping[str, object] = field(default_factory=dict)
    num_devices: int = 1
    technique: str = "bf16-params+kv-list+paged-kv"

    @property
    def num_tokens(self) -> int:
        return self.num_pages * self.page_size

    def compiled(self) -> Report:
        """The decode step of the model with that cache."""
        pages = {"num_pages": self.num_pages, "page_size": self.page_size}
        is_paged = "paged-kv" in self.technique
        fields = {**(_BATCH | pages if is_paged else {"batch_size": 1, "context_len": self.num_pages}), **self.fields}
        overrides = ("phase=decode", *(f"{name}={value}" for name, value in fields.items()))
        mesh = "+tp" if self.num_devices > 1 else ""
        task = find_subject("decoder", preset=self.preset, overrides=overrides).task(
            f"{self.technique}{mesh}",
            target=resolve(self.target, topology_of({"tp": self.num_devices}, 1)) if mesh else resolve(self.target),
            label=self.name,
        )
        (result,) = compile_all([task], num_jobs=1, progress=lambda label, stage: print(label, stage, file=sys.stderr))
        if result.fresh is None:
            assert result.error is not None
            raise result.error
        return analyze(result.fresh.capture, result.fresh.decoded).unpressed


def _opt(
    name: str, target: str, num_devices: int, sizes: tuple[int, int, int], published: tuple[str, str, int]
) -> Published:
    """A row of table 1. Args: sizes: layers, heads, width. published: weights, cache, slots of cache."""
    num_layers, num_heads, hidden_size = sizes
    fields = {
        "vocab_size": 50272, "num_layers": num_layers, "num_heads": num_heads, "hidden_size": hidden_size,
        "num_kv_heads": num_heads, "mlp_size": 4 * hidden_size, "gated_mlp": "false", "activation": "gelu",
        "norm": "layer", "positions": "learned", "biases": "true", "tied_embeddings": "true",
    }  # fmt: skip
    weights, cache, slots = published
    return Published(
        name=f"{name}, {num_devices} x {target}",
        target=target,
        weights=weights,
        cache=cache,
        num_pages=slots // 16,
        page_size=16,
        fields=fields,
        num_devices=num_devices,
    )


def _llama(name: str, preset: str, weights: str, caches: tuple[str, str, str], **fields: object) -> list[Published]:
    """The rows of a model of Llama 3.1. Args: weights: in three formats. caches: for three lengths."""

    def row(kind: str, published: tuple[str, str], num_tokens: int, technique: str) -> Published:
        return Published(
            name=f"{name}, {kind}",
            target="h100-80gb",
            weights=published[0],
            cache=published[1],
            num_pages=num_tokens,
            page_size=1,
            preset=preset,
            fields=fields,
            technique=technique,
        )

    half, fp8, int4 = weights.split()
    lengths = zip((1024, 16_000, 128_000), caches, strict=True)
    rows = [row(f"FP16, {length:,} tokens", (half, cache), length, "bf16-params") for length, cache in lengths]
    rows += [row("FP8", (fp8, ""), 1024, "bf16-params+fp8-weights")]
    return [*rows, row("INT4", (int4, ""), 1024, "bf16-params+int4-weights")]


_QWEN3_8B = {"vocab_size": 151936, "num_layers": 36, "mlp_size": 12288}
_QWEN2_14B = {"vocab_size": 152064, "num_layers": 48, "num_heads": 40, "hidden_size": 5120, "mlp_size": 13824}
_LLAMA_405B = {"num_layers": 126, "num_heads": 128, "hidden_size": 16384, "mlp_size": 53248}
TABLES = {
    "engines": (
        Published(
            name="Llama 3.1 8B, tpu-inference 145",
            target="v6e",
            num_devices=4,
            weights="3.74",
            cache="24.75",
            num_pages=3168,
            page_size=256,
        ),
        Published(
            name="Qwen3-VL 8B, tpu-inference 2803",
            target="tpu7x",
            weights="16.58",
            cache="63.95",
            num_pages=1819,
            page_size=256,
            fields=_QWEN3_8B,
        ),
        Published(
            name="Llama 3 8B, vllm 10511",
            target="h100-80gb",
            weights="14.96",
            cache="53.29",
            num_pages=27_284,
            page_size=16,
        ),
        Published(
            name="Llama 3.1 8B, vllm 10517",
            target="rtx-3090",
            weights="14.9888",
            cache="3.81",
            num_pages=1952,
            page_size=16,
        ),
        Published(
            name="Llama 3 8B, vllm 12330",
            target="a100-40gb",
            weights="14.9595",
            cache="11.12",
            num_pages=5691,
            page_size=16,
        ),
        Published(
            name="Llama 3.1 70B in 8 bits, vllm 12569",
            target="h100-80gb",
            weights="67.7229",
            cache="",
            num_pages=1381,
            page_size=16,
            preset="llama-70b",
            technique="bf16-params+int8-weights+paged-kv",
        ),
        Published(
            name="Qwen 14B, llama.cpp, Alpaca 572",
            target="cpu",
            weights="",
            cache="1.50",
            num_pages=8192,
            page_size=1,
            fields=_QWEN2_14B,
            technique="bf16-params",
        ),
    ),
    "paged-attention": (
        _opt("OPT-13B", "a100-40gb", 1, (40, 40, 5120), ("26 GB", "12 GB", 15_700)),
        _opt("OPT-66B", "a100-40gb", 4, (64, 72, 9216), ("132 GB", "21 GB", 9_700)),
        _opt("OPT-175B", "a100-80gb", 8, (96, 96, 12288), ("346 GB", "264 GB", 60_100)),
    ),
    "llama-3.1": (
        *_llama("8B", "llama-8b", "16 8 4", ("0.125", "1.95", "15.62")),
        *_llama("70B", "llama-70b", "140 70 35", ("0.313", "4.88", "39.06")),
        *_llama("405B", "llama-70b", "810 405 203", ("0.984", "15.38", "123.05"), **_LLAMA_405B),
    ),
}


def main() -> int:
    """Compile the rows of a table and print it beside the published numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=sorted(TABLES))
    name = parser.parse_args().table
    # The logs are of one device; the paper adds up all of them.
    print("| published row | weights | memprof | tokens | cache | memprof | bytes of a token | fits beside the step |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for row in TABLES[name]:
        print(_line(row, row.compiled(), 1 if name == "engines" else row.num_devices), flush=True)
    return 0


def _line(row: Published, report: Report, num_devices: int) -> str:
    params, cache = report.categories[Category.PARAMS], report.categories[Category.KV_CACHE]
    pool = report.verdict.pool_bytes
    free = None if pool is None else max(0, pool - (report.footprint_bytes - cache))
    cells = (
        row.name,
        row.weights,
        f"{params * num_devices / _GIB:.4f}",
        f"{row.num_tokens:,}",
        row.cache,
        f"{cache * num_devices / _GIB:.4f}",
        f"{cache * row.num_devices // row.num_tokens:,}",
        "" if free is None else f"{free * row.num_tokens // cache:,}",
    )
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
