"""Whether what a device holds of a sharded step is what arithmetic says, to the byte.

    python -m benchmarks.sharded_arithmetic [-o RESULT.json] [--only TEXT]...

A Transformer whose sizes all divide by 64 is compiled to the end under each technique that needs a mesh, on 8 and on 64
devices of two GPUs. For each program:

- the categories add up to the footprint, and the live peak of the replay is the compiler's own;
- parameters, optimizer state and batch of one device are the bytes that the sizes of the axes make of the whole arrays.

The arithmetic is written down here by the names of the parameters; it asks nothing of the code that shards them.

XLA refuses some of these programs where it makes matrix products itself without measuring them ("Couldn't find output
tile sizes"): those are compiled with products by cuBLAS.

An output file that is there already is gone on with: programs in it are not compiled again.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # no device is looked for

import jax

from memprof.analysis.pipeline import analyze
from memprof.analysis.records.categories import Category
from memprof.analysis.records.report import Report
from memprof.errors import WorkloadError
from memprof.sources.jax.compile import capture_of
from memprof.sources.jax.targets.mesh import target_of_step
from memprof.sources.jax.targets.resolve import resolve_asked
from memprof.sources.jax.xla.portable_program import CompileSettings
from memprof.studies.subject import find_subject

TECHNIQUES = ("dp", "zero1", "zero2", "fsdp", "tp", "fsdp+tp", "sp", "ep", "pp")
TARGETS = ("h100-80gb", "a100-80gb")
SIZES = {
    "batch_size": 64,
    "seq_len": 64,
    "max_seq_len": 64,
    "num_heads": 64,
    "hidden_size": 1024,
    "vocab_size": 1024,
    "num_layers": 2,
    "dropout_rate": 0,
    "attention_dropout_rate": 0,
    "embedding_dropout_rate": 0,
}
# As many experts and layers as there may be devices along the axes that divide them.
SIZES_OF = {"ep": {"num_experts": 64}, "pp": {"num_layers": 64}}
BY_CUBLAS = "xla:xla_gpu_enable_triton_gemm=false"
# What tensor parallelism divides. Norms, the table of positions and the biases of sums over devices are whole.
OF_TENSORS = (
    "['qkv']['kernel']",
    "['qkv']['bias']",
    "['out']['kernel']",
    "['up']['kernel']",
    "['up']['bias']",
    "['down']['kernel']",
    "['token_embedding']['embedding']",
    "['head']['kernel']",
    "['head']['bias']",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What came of one program: bytes of a device as they were found, and as they should be."""

    label: str
    axes: dict[str, int]
    footprint_bytes: int
    live_peak_bytes: int
    compiler_peak_bytes: int | None
    unattributed_bytes: int
    found: dict[str, int]
    expected: dict[str, int]
    adds_up: bool
    seconds: float

    @property
    def is_right(self) -> bool:
        """Whether all of it is as it should be."""
        return self.adds_up and self.found == self.expected and self.live_peak_bytes == self.compiler_peak_bytes


def expected_bytes(report: Report, label: str) -> dict[str, int]:
    """What one device should hold of parameters, of AdamW's state and of the batch, by the sizes of the axes."""
    axes, techniques = report.target.topology.axes, label.split("+")
    over_fsdp, over_tp, over_ep, over_pp = (axes.get(axis, 1) for axis in ("fsdp", "tp", "ep", "pp"))
    params = 0
    for leaf in report.arguments:
        if leaf.path.startswith("state.params"):
            of_tensors = leaf.path.endswith(OF_TENSORS)
            devices = over_fsdp * (over_tp if of_tensors else 1)
            devices *= over_ep if "['experts']" in leaf.path else 1
            devices *= over_pp if "['layers']" in leaf.path else 1
            params += 4 * prod(leaf.shape) // devices
    is_zero = bool({"zero1", "zero2"} & set(techniques))
    tokens = SIZES["batch_size"] * SIZES["seq_len"] // prod(axes[axis] for axis in axes if axis != "tp")
    return {
        "params": params,
        "optimizer_state": 2 * params // (axes["dp"] if is_zero else 1) + 4,  # two moments and a counter
        "batch": 2 * 4 * tokens,  # inputs and labels
    }


def measured(target: str, num_devices: int, label: str) -> Row:
    """Compile one program to the end, if need be with products by cuBLAS."""
    try:
        return _measured(target, num_devices, label)
    except WorkloadError:
        return _measured(target, num_devices, label, f"+{BY_CUBLAS}")


def _measured(target: str, num_devices: int, label: str, company: str = "") -> Row:
    sizes = SIZES | SIZES_OF.get(label, {})
    subject = find_subject("transformer", preset="tiny", overrides=[f"{name}={value}" for name, value in sizes.items()])
    started = time.process_time()
    task = subject.task(label + company, target=resolve_asked(target, mesh=str(num_devices)))
    spec = task.recipe.build(task.target)
    settings = CompileSettings(complete=True, use_cache=False)
    capture = capture_of(
        spec, target_of_step(spec, task.target), progress=lambda stage: None, settings=settings
    ).capture
    report = analyze(capture)
    expected = expected_bytes(report, label)
    return Row(
        label=f"{target} {num_devices} {label}{company}",
        axes=dict(report.target.topology.axes),
        footprint_bytes=report.footprint_bytes,
        live_peak_bytes=report.live_peak_bytes,
        compiler_peak_bytes=report.compiler.peak_memory_bytes,
        unattributed_bytes=report.categories[Category.UNATTRIBUTED],
        found={name: report.categories[Category(name)] for name in expected},
        expected=expected,
        adds_up=sum(report.categories.values()) == report.footprint_bytes,
        seconds=round(time.process_time() - started, 1),
    )


def main() -> None:
    """Compile what is not in the result yet, and say what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--only", action="append", default=[], metavar="TEXT")
    options = parser.parse_args()
    kept = json.loads(options.output.read_text())["rows"] if options.output and options.output.exists() else []
    rows = {row["label"]: row for row in kept}
    for num_devices in (8, 64):
        for target in TARGETS:
            for technique in TECHNIQUES:
                label = f"{target} {num_devices} {technique}"
                if label in rows or not all(text in label for text in options.only):
                    continue
                row = measured(target, num_devices, technique)
                rows[label] = {**asdict(row), "is_right": row.is_right}
                print("right" if row.is_right else "WRONG", label, row.axes, f"{row.footprint_bytes:,}", flush=True)
                if not row.is_right:
                    print(row, flush=True)
                if options.output:
                    found = {"jax": jax.__version__, "sizes": SIZES, "rows": list(rows.values())}
                    options.output.write_text(json.dumps(found, indent=1) + "\n")
    wrong = [label for label, row in rows.items() if not row["is_right"]]
    print(f"{len(rows)} programs, {len(wrong)} wrong")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
