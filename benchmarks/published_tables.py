"""Two published tables of single-GPU training memory, reproduced without the GPU.

    python -m benchmarks.published_tables uva
    python -m benchmarks.published_tables hugging-face

Prints a markdown table with the published number beside memprof's footprint. docs/published-tables.md explains the
differences. Sources: "Training Models at Scale, Part 1: Training on a single GPU" (UvA Deep Learning tutorials,
P. Lippe), and "Methods and tools for efficient training on a single GPU" (Hugging Face, transformers).
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass

from memprof.analysis.records.categories import Category
from memprof.analysis.records.report import Report
from memprof.sources.jax.processes.launch import default_num_jobs
from memprof.sources.jax.targets.resolve import resolve
from memprof.studies.side_by_side import Rows, SideBySide, compile_rows
from memprof.studies.subject import find_subject


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRow:
    """One line of a published table: what the authors call it, our techniques, and the bytes that they measured."""

    name: str
    techniques: str
    published_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedTable:
    """A published table and the workload that makes it again."""

    workload: str
    preset: str
    target: str
    rows: tuple[PublishedRow, ...]


_GB, _MB = 10**9, 10**6

TABLES = {
    "uva": PublishedTable(
        workload="transformer",
        preset="uva",
        target="rtx-a5000",
        rows=(
            PublishedRow(name="float32, scan", techniques="fp32+scan+accum4", published_bytes=20.6 * _GB),
            PublishedRow(name="bfloat16, scan", techniques="bf16+scan+accum4", published_bytes=14.6 * _GB),
            PublishedRow(name="bfloat16, unrolled", techniques="bf16+accum4", published_bytes=8.8 * _GB),
            PublishedRow(
                name="bfloat16, scan, remat of MLP and attention",
                techniques="bf16+scan+remat-mlp-attn+accum4",
                published_bytes=3.9 * _GB,
            ),
            PublishedRow(
                name="bfloat16, scan, remat of the block",
                techniques="bf16+scan+remat+accum4",
                published_bytes=3.8 * _GB,
            ),
            PublishedRow(
                name="bfloat16, scan, remat of MLP and attention, 1 minibatch",
                techniques="bf16+scan+remat-mlp-attn",
                published_bytes=6.2 * _GB,
            ),
        ),
    ),
    # The V100 needs the cuda12 plugin (ptxas 13 rejects its machine code), so the table is made on the T4, the other
    # 16 GB card.
    "hugging-face": PublishedTable(
        workload="transformer",
        preset="bert-large",
        target="t4",
        rows=(
            PublishedRow(name="vanilla, 4 x 1", techniques="fp32+donate", published_bytes=14949 * _MB),
            PublishedRow(name="accumulation, 1 x 4", techniques="fp32+donate+accum4", published_bytes=8681 * _MB),
            PublishedRow(
                name="accumulation, checkpointing, 1 x 4",
                techniques="fp32+donate+accum4+remat",
                published_bytes=6775 * _MB,
            ),
            PublishedRow(name="fp16, 4 x 1", techniques="fp16+donate", published_bytes=13939 * _MB),
            PublishedRow(
                name="accumulation, checkpointing, fp16, 1 x 4",
                techniques="fp16+donate+accum4+remat",
                published_bytes=7275 * _MB,
            ),
            PublishedRow(name="Adafactor, 4 x 1", techniques="fp32+donate+opt=adafactor", published_bytes=12295 * _MB),
            PublishedRow(
                name="all with Adafactor, 1 x 4",
                techniques="fp16+donate+accum4+remat+opt=adafactor",
                published_bytes=4847 * _MB,
            ),
            PublishedRow(name="8-bit Adam, 4 x 1", techniques="fp32+donate+opt=adam8bit", published_bytes=13085 * _MB),
            PublishedRow(
                name="all with 8-bit Adam, 1 x 4",
                techniques="fp16+donate+accum4+remat+opt=adam8bit",
                published_bytes=5363 * _MB,
            ),
        ),
    ),
}


def main() -> int:
    """Compile the rows of a table and print it beside the published numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=sorted(TABLES))
    parser.add_argument("--jobs", type=int, default=None)
    arguments = parser.parse_args()
    table = TABLES[arguments.table]
    rows = Rows(
        subject=find_subject(table.workload, preset=table.preset),
        techniques=tuple(row.techniques for row in table.rows),
    )
    tasks, _ = rows.tasks(resolve(table.target))
    compared = SideBySide([task.label for task in tasks])
    compile_rows(
        tasks,
        compared,
        num_jobs=arguments.jobs or default_num_jobs(),
        progress=lambda label, stage: print(f"{label}: {stage}", file=sys.stderr),
        keep=lambda capture: None,
    )
    print(_markdown(table, {report.label.removeprefix(f"{table.workload} "): report for report in compared.reports}))
    for failure in compared.failures:
        print(f"{failure.label} failed: {failure.reason}", file=sys.stderr)
    return 1 if compared.failures else 0


def _markdown(table: PublishedTable, reports: dict[str, Report]) -> str:
    toolchain = next(iter(reports.values())).toolchain
    lines = [
        f"`{table.workload} --preset {table.preset}` on `{table.target}`, jax {toolchain.jax}:",
        "",
        "| published row | techniques | published GB | footprint GB | live peak GB | ratio | unattributed |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for row in table.rows:
        report = reports.get(row.techniques)
        if report is None:
            lines.append(f"| {row.name} | `{row.techniques}` | {row.published_bytes / _GB:.2f} | failed | | | |")
            continue
        lines.append(
            f"| {row.name} | `{row.techniques}` | {row.published_bytes / _GB:.2f}"
            f" | {report.footprint_bytes / _GB:.2f} | {report.live_peak_bytes / _GB:.2f}"
            f" | {report.footprint_bytes / row.published_bytes:.2f}"
            f" | {report.categories[Category.UNATTRIBUTED] / report.footprint_bytes:.2%} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
