"""Whether a compile for a GPU that is not there makes the same plan without autotuning, and in what time.

    python -m benchmarks.plan_identity [-o RESULT.json] [--only TEXT]... [--every N] [--minutes M]

Built-in workloads under their techniques are compiled for four GPUs, twice each: without autotuning, and with it as
XLA does it by itself and memprof has it. The two buffer assignments (allocations,
logical buffers, offsets, heap traces, buffers at the peak) are compared as bytes, and so are XLA's totals. The larger
presets have 2 to 4 layers, so that many of them can be compiled. Needs the `deviceless` extra.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from hashlib import sha256
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # no device is looked for

from memprof.analysis.capture import Capture
from memprof.analysis.hlo_proto import HloProto
from memprof.capture.compile import compile_step
from memprof.capture.targets.resolve import resolve
from memprof.errors import MemprofError
from memprof.workloads import registry
from memprof.workloads.build import build_step

TARGETS = ("h100-80gb", "a100-40gb", "l4")
WITHOUT_AUTOTUNING = {"xla_gpu_autotune_level": "0"}
AS_XLA_DOES = {"xla_gpu_autotune_level": "4"}  # its default (jaxlib 0.10.2 to 0.12)
# Random numbers are most of what is left to compile, and nothing of what is tuned: one of the presets keeps them.
_NO_DROPOUT = ("dropout_rate=0", "attention_dropout_rate=0", "embedding_dropout_rate=0")
_TINY = {"transformer": _NO_DROPOUT, "mlp": ("dropout_rate=0",)}
_BY_CUBLAS = "xla:xla_gpu_enable_triton_gemm=false"
_WITHOUT_TRITON = "t4"  # its compute capability is below the least that XLA's Triton kernels take
_FEW_LAYERS = ("num_layers=2", *_NO_DROPOUT)
# Techniques that change which matrix products there are, and in which precision.
_LABELS = (
    *("baseline", "bf16+donate", "bf16+donate+scan+remat", "fp16+accum2", "donate+chunked-loss=8", "bf16+remat-dots"),
    *("opt=adafactor", "bf16-params+donate"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One program to compile."""

    workload: str
    preset: str
    technique: str
    target: str
    overrides: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return " ".join((self.workload, self.preset, *self.overrides, self.technique, self.target))


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What came of one program: its totals with our options, and whether XLA's own way gives the same."""

    label: str
    same_assignment: bool
    same_totals: bool
    temp_bytes: int
    peak_memory_bytes: int | None
    assignment_sha256: str
    quick_seconds: float
    xla_seconds: float


def programs() -> list[Program]:
    """Each technique on a tiny workload, and what differs most on the larger presets, over all targets."""
    found = []
    for number, technique in enumerate(registry.techniques()):
        for offset, workload in enumerate(("transformer", "mlp")):
            label = "+".join((*technique.needs, *technique.shows_with, technique.example))
            target = TARGETS[(number + offset) % len(TARGETS)]
            found.append(
                Program(workload=workload, preset="tiny", technique=label, target=target, overrides=_TINY[workload])
            )
    for preset, overrides in (
        ("gpt2", _FEW_LAYERS),
        ("bert-large", _FEW_LAYERS),
        ("uva", _FEW_LAYERS),
        ("gpt2", ("num_layers=4",)),
    ):
        for number, label in enumerate(_LABELS):
            target = TARGETS[(number + len(found)) % len(TARGETS)]
            found.append(
                Program(workload="transformer", preset=preset, technique=label, target=target, overrides=overrides)
            )
    for target in TARGETS:
        found += [
            Program(workload="mlp", preset="base", technique=label, target=target)
            for label in ("baseline", "bf16+donate")
        ]
    # Where matrix products go to cuBLAS, autotuning is what gives them their scratch.
    for label in ("donate", "bf16", "fp16+scan"):
        found += [
            Program(workload="transformer", preset="tiny", technique=technique, target=target, overrides=_NO_DROPOUT)
            for target, technique in (*((each, f"{label}+{_BY_CUBLAS}") for each in TARGETS), (_WITHOUT_TRITON, label))
        ]
    return found


def compile_both(program: Program) -> Row:
    """Compile one program both ways.

    Raises:
        MemprofError: the technique does not apply, or cannot be compiled here.
    """
    spec = build_step(
        workload=program.workload, preset=program.preset, overrides=program.overrides, techniques=[program.technique]
    )
    target = resolve(program.target)
    captures, seconds = [], []
    for options in (WITHOUT_AUTOTUNING, AS_XLA_DOES):
        changed = replace(spec, compiler_options={**spec.compiler_options, **options})
        with tempfile.TemporaryDirectory() as folder:
            capture = compile_step(changed, target, dump_folder=Path(folder), progress=lambda stage: None).capture
        captures.append(capture)
        seconds.append(round(capture.timings.compile_seconds, 2))
    quick, xla = captures
    return Row(
        label=program.label,
        same_assignment=assignment(quick) == assignment(xla),
        same_totals=quick.compiler == xla.compiler,
        temp_bytes=quick.compiler.temp_bytes,
        peak_memory_bytes=quick.compiler.peak_memory_bytes,
        assignment_sha256=sha256(assignment(quick)).hexdigest(),
        quick_seconds=seconds[0],
        xla_seconds=seconds[1],
    )


def assignment(capture: Capture) -> bytes:
    """The buffer assignment as XLA wrote it, with the fields that memprof does not read."""
    found: bytes = HloProto.FromString(capture.hlo_proto).buffer_assignment.SerializeToString(deterministic=True)
    assert found
    return found


def rows(chosen: Sequence[Program], has_time: float) -> Iterator[Row | str]:
    """What came of the programs, one after another, or why one cannot be compiled here."""
    end = time.monotonic() + has_time
    for program in chosen:
        if time.monotonic() > end:
            yield f"{program.label}: no time was left"
            continue
        try:
            yield compile_both(program)
        except MemprofError as error:
            yield f"{program.label}: {error}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="also write the result as JSON")
    parser.add_argument(
        "--only", action="append", default=[], metavar="TEXT", help="only programs with it in their label"
    )
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only each N-th of them")
    parser.add_argument("--minutes", type=float, default=600.0, help="how long it may take")
    arguments = parser.parse_args()
    found: list[Row] = []
    not_compiled: list[str] = []
    chosen = [program for program in programs() if all(text in program.label for text in arguments.only)]
    for row in rows(chosen[:: arguments.every], 60 * arguments.minutes):
        if isinstance(row, str):
            not_compiled.append(row)
        else:
            found.append(row)
        print(row, flush=True)
        if arguments.output is not None:  # after each one, so that what ends this early loses nothing
            arguments.output.write_text(json.dumps(_result(found, not_compiled), indent=1) + "\n", encoding="utf-8")
    different = [row.label for row in found if not (row.same_assignment and row.same_totals)]
    print(f"{len(found)} programs, {len(different)} different, {len(not_compiled)} not compiled")
    sys.exit(bool(different))


def _result(found: list[Row], not_compiled: list[str]) -> dict[str, object]:
    from memprof.capture import xla_adapter
    from memprof.capture.toolchain import toolchain

    return {
        "command": " ".join(["python -m benchmarks.plan_identity", *sys.argv[1:]]).split(" -o ")[0],
        "date": date.today().isoformat(),
        "toolchain": asdict(toolchain(xla_adapter.cuda_plugin_version(), xla_adapter.changed_settings())),
        "machine": {"architecture": platform.machine(), "system": sys.platform},
        "without_autotuning": WITHOUT_AUTOTUNING,
        "as_xla_does": AS_XLA_DOES,
        "num_programs": len(found),
        "num_different": sum(not (row.same_assignment and row.same_totals) for row in found),
        "rows": [asdict(row) for row in found],
        "not_compiled": not_compiled,
    }


if __name__ == "__main__":
    main()
