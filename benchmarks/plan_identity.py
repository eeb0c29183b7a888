"""Whether the plan at which a compile is stopped is the plan of the finished compile, byte for byte.

    python -m benchmarks.plan_identity [-o RESULT.json] [--only TEXT]... [--every N] [--minutes M]
        [--autotuning | --option NAME=VALUE]

Built-in workloads under every technique, with every optimizer, in every preset and for every target are compiled to the
end. The `HloProto` as it is at the moment at which memprof would stop is kept, and compared with the file as it is at
the end, and the totals that memprof takes from it with those of `memory_analysis()`. The larger presets have two
layers, so that many of them can be compiled.

With `--autotuning` it asks another question: each program is compiled twice for a GPU that is not there, without
autotuning, as memprof does, and with it, as XLA does by itself. Then the files differ (they hold what was tuned), and
the buffer assignments (allocations, logical buffers, offsets, heap traces, buffers at the peak) are compared as bytes.
With `--option xla_disable_hlo_passes=config-assigner` it asks the same of any option of XLA's, to the plan alone, in a
process for each of the two, as `memprof run` compiles.

An output file that is there already is gone on with: programs in it are not compiled again.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import platform
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from hashlib import sha256
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # no device is looked for

from memprof.analysis.hlo.hlo_proto import HloProto
from memprof.analysis.memory.checks import plan_totals
from memprof.analysis.records.capture import Capture, CompilerTotals, Target
from memprof.errors import MemprofError
from memprof.sources.jax.compile import compile_step
from memprof.sources.jax.processes.launch import compile_in_child
from memprof.sources.jax.processes.task import Task
from memprof.sources.jax.targets.nvidia.catalogue import gpus
from memprof.sources.jax.targets.resolve import resolve
from memprof.sources.jax.xla.plan import compile_to_plan, decode_plan, read_plan, with_plan
from memprof.sources.jax.xla.portable_program import CompileSettings
from memprof.workloads import registry
from memprof.workloads.build import build_step, plan

# A GPU of each family and the CPU, in turns, so that many programs do not mean as many times the targets.
TARGETS = ("h100-80gb", "cpu", "a100-40gb", "l4", "t4", "b200", "rtx-3090")
WITHOUT_AUTOTUNING = {"xla_gpu_autotune_level": "0"}
AS_XLA_DOES = {"xla_gpu_autotune_level": "4"}  # its default (jaxlib 0.10.2 to 0.12)
# What else memprof sets, as it is by default: else nobody could ask about it.
WITHOUT_OURS = {**WITHOUT_AUTOTUNING, "xla_gpu_force_compilation_parallelism": "0"}
# Random numbers are most of what is left to compile: the smallest programs do without, one of the presets keeps them.
_NO_DROPOUT = {
    "transformer": ("dropout_rate=0", "attention_dropout_rate=0", "embedding_dropout_rate=0"),
    "mlp": ("dropout_rate=0",),
}
_TWO_LAYERS = ("num_layers=2", *_NO_DROPOUT["transformer"])
# The ptxas of CUDA 13 does not know it: nothing can be compiled to the end, and jaxlib 0.12 ends the process over it.
_PLAN_ONLY = "v100-16gb"
_BY_CUBLAS = "xla:xla_gpu_enable_triton_gemm=false"  # autotuning is what gives its products their scratch
# Techniques that change which matrix products there are, in which precision, and how often.
_LABELS = ("baseline", "bf16+donate+scan+remat", "fp16+accum2", "donate+chunked-loss=8", "bf16-params+donate")


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
    """What came of one program: whether two plans of it are the same, and after how many processor seconds each came.

    Attributes:
        is_same: all that is asked for is the same.
        plan_sha256: of what was compared: the file, or with `--autotuning` the buffer assignment.
        seconds: of both. The first is when the compile would be stopped; with `--autotuning` that without it. With
            `--option` they are the wall times of the compiles with it and without.
    """

    label: str
    is_same: bool
    same_file: bool
    same_assignment: bool
    same_totals: bool
    temp_bytes: int
    peak_memory_bytes: int | None
    plan_sha256: str
    seconds: tuple[float, float]


def programs() -> list[Program]:
    """All techniques and optimizers on tiny workloads, what differs most on the larger presets, and all targets."""
    found: list[Program] = []

    def add(workload: str, preset: str, technique: str, overrides: tuple[str, ...], target: str = "") -> None:
        target = target or TARGETS[len(found) % len(TARGETS)]
        program = Program(workload=workload, preset=preset, technique=technique, target=target, overrides=overrides)
        if program not in found:
            found.append(program)

    for workload, without_dropout in _NO_DROPOUT.items():
        for technique in registry.techniques():
            if technique.axis is not None:
                continue  # `sharded_arithmetic.py` has those of several devices
            label = "+".join((*technique.needs, *technique.shows_with, technique.example))
            add(workload, "tiny", label, without_dropout)
    for optimizer in registry.optimizers():
        add("mlp", "tiny", f"donate+opt={optimizer.name}", _NO_DROPOUT["mlp"])
    for optimizer in registry.optimizers()[::2]:
        add("transformer", "tiny", f"scan+donate+opt={optimizer.name}", _NO_DROPOUT["transformer"])
    for target in gpus():
        add("mlp", "tiny", "bf16+donate", _NO_DROPOUT["mlp"], target)
    for target in TARGETS:
        add("mlp", "base", "bf16+donate" if target != "t4" else "fp16+donate", (), target)
        add("mlp", "base", "accum4+donate", (), target)
        add("transformer", "tiny", "scan+accum2", (), target)  # with dropout
        add("transformer", "tiny", f"donate+{_BY_CUBLAS}", _NO_DROPOUT["transformer"], target)
    for preset in ("gpt2", "bert-large", "uva"):
        for label in _LABELS:
            add("transformer", preset, label, _TWO_LAYERS)
    return [program for program in found if program.target != _PLAN_ONLY]


def at_the_stop(program: Program) -> Row:
    """Compile one program to the end, and compare its plan with what it was when memprof would have stopped.

    Raises:
        MemprofError: the technique does not apply, or cannot be compiled here.
    """
    target = resolve(program.target)
    spec = _step(program)
    finished: list[Capture] = []
    started = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        dump_folder = Path(folder) / "dump"

        def compile_to_the_end() -> None:
            compiled = compile_step(spec, target, dump_folder=dump_folder, progress=lambda stage: None)
            finished.append(with_plan(compiled.planned).capture)

        before = set(threading.enumerate())
        compile_to_plan(compile_to_the_end, dump_folder)
        plan = read_plan(dump_folder)
        if finished:
            raise MemprofError("it was finished before its plan could be looked at")
        stopped = time.process_time()
        for thread in set(threading.enumerate()) - before:
            thread.join()
    ended = time.process_time()
    if not finished:
        raise MemprofError("there is a plan, but XLA could not compile it to the end")
    (capture,) = finished
    return _row(
        program,
        (plan.hlo_proto, capture.hlo_proto),
        same_totals=_same_totals(
            plan_totals(decode_plan(plan, target.platform).table, platform=target.platform), capture.compiler
        ),
        capture=capture,
        seconds=(stopped - started, ended - started),
        by_assignment=False,
    )


def without_autotuning(program: Program) -> Row:
    """Compile one program to the end without autotuning and with it.

    Raises:
        MemprofError: as above.
    """
    target, spec = _gpu(program), _step(program)
    captures, seconds = [], []
    for chosen in (WITHOUT_AUTOTUNING, AS_XLA_DOES):
        changed = replace(spec, compiler_options={**spec.compiler_options, **chosen})
        started = time.process_time()
        with tempfile.TemporaryDirectory() as folder:
            compiled = compile_step(changed, target, dump_folder=Path(folder), progress=lambda stage: None)
        captures.append(with_plan(compiled.planned).capture)
        seconds.append(time.process_time() - started)
    return _of_both(program, captures, seconds)


def with_option(program: Program, option: Mapping[str, str]) -> Row:
    """Compile one program to its plan with an option of XLA's, and without it.

    Raises:
        MemprofError: as above.
    """
    target, captures = _gpu(program), []
    own = [program.technique] if program.technique != "baseline" else []  # which goes with no other
    for options in ({**WITHOUT_OURS, **option}, WITHOUT_OURS):
        techniques = [*own, *(f"xla:{name}={value}" for name, value in options.items())]
        chosen = plan(
            workload=program.workload, preset=program.preset, overrides=program.overrides, techniques=techniques
        )
        task = Task(recipe=chosen.recipe, target=target, settings=CompileSettings(use_cache=False))
        captures.append(compile_in_child(task, progress=lambda stage: None).capture)
    return _of_both(program, captures, [capture.timings.compile_seconds for capture in captures])


def _gpu(program: Program) -> Target:
    target = resolve(program.target)
    if target.platform == "cpu":
        raise MemprofError("on a CPU none of this is done")
    return target


def _of_both(program: Program, captures: Sequence[Capture], seconds: Sequence[float]) -> Row:
    quick, xla = captures
    return _row(
        program,
        (quick.hlo_proto, xla.hlo_proto),
        same_totals=quick.compiler == xla.compiler,
        capture=xla,
        seconds=(seconds[0], seconds[1]),
        by_assignment=True,
    )


def _step(program: Program) -> Any:
    return build_step(
        workload=program.workload, preset=program.preset, overrides=program.overrides, techniques=[program.technique]
    )


def _row(
    program: Program,
    plans: tuple[bytes, bytes],
    *,
    same_totals: bool,
    capture: Capture,
    seconds: tuple[float, float],
    by_assignment: bool,
) -> Row:
    first, second = map(_assignment, plans)
    same_file, same_assignment = plans[0] == plans[1], first == second
    return Row(
        label=program.label,
        is_same=same_totals and (same_assignment if by_assignment else same_file),
        same_file=same_file,
        same_assignment=same_assignment,
        same_totals=same_totals,
        temp_bytes=capture.compiler.temp_bytes,
        peak_memory_bytes=capture.compiler.peak_memory_bytes,
        plan_sha256=sha256(first if by_assignment else plans[0]).hexdigest(),
        seconds=(round(seconds[0], 2), round(seconds[1], 2)),
    )


def _assignment(hlo_proto: bytes) -> bytes:
    """The buffer assignment as XLA wrote it, with the fields that memprof does not read."""
    found: bytes = HloProto.FromString(hlo_proto).buffer_assignment.SerializeToString(deterministic=True)
    assert found
    return found


def _same_totals(planned: CompilerTotals, finished: CompilerTotals) -> bool:
    if finished.total_allocation_bytes is None:  # jaxlib 0.10.2
        finished = replace(finished, total_allocation_bytes=planned.total_allocation_bytes)
    return planned == replace(finished, is_complete=False)


def rows(chosen: Sequence[Program], compare: Callable[[Program], Row], has_time: float) -> Iterator[Row | str]:
    """What came of the programs, one after another, or why one cannot be compiled here."""
    end = time.monotonic() + has_time
    for program in chosen:
        if time.monotonic() > end:
            return
        try:
            yield compare(program)
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
    parser.add_argument("--autotuning", action="store_true", help="compare with and without autotuning instead")
    parser.add_argument("--option", metavar="NAME=VALUE", help="compare with and without this option of XLA's instead")
    arguments = parser.parse_args()
    output: Path | None = arguments.output
    before = json.loads(output.read_text("utf-8")) if output and output.exists() else {"rows": [], "not_compiled": []}
    found: list[dict[str, Any]] = before["rows"]
    not_compiled: list[str] = before["not_compiled"]
    known = {row["label"] for row in found} | {sentence.partition(": ")[0] for sentence in not_compiled}
    chosen = [program for program in programs() if all(text in program.label for text in arguments.only)]
    left = [program for program in chosen[:: arguments.every] if program.label not in known]
    compare: Callable[[Program], Row] = without_autotuning if arguments.autotuning else at_the_stop
    if arguments.option:
        name, _, value = arguments.option.partition("=")
        compare = functools.partial(with_option, option={name: value})
    for row in rows(left, compare, 60 * arguments.minutes):
        if isinstance(row, str):
            not_compiled.append(row)
        else:
            found.append(asdict(row))
        print(row, flush=True)
        if output is not None:  # after each one, so that what ends this early loses nothing
            output.write_text(json.dumps(_result(found, not_compiled), indent=1) + "\n", encoding="utf-8")
    different = [row["label"] for row in found if not row["is_same"]]
    print(f"{len(found)} programs, {len(different)} different, {len(not_compiled)} not compiled", *different, sep="\n")
    sys.exit(bool(different))


def _result(found: list[dict[str, Any]], not_compiled: list[str]) -> dict[str, object]:
    from memprof.sources.jax.xla import xla_adapter
    from memprof.sources.jax.xla.flags import xla_flags
    from memprof.sources.jax.xla.toolchain import toolchain

    return {
        "command": " ".join(["python -m benchmarks.plan_identity", *sys.argv[1:]]).split(" -o ")[0],
        "date": date.today().isoformat(),
        "toolchain": asdict(toolchain(xla_adapter.cuda_plugin_version(), xla_flags(), xla_adapter.changed_settings())),
        "machine": {"architecture": platform.machine(), "system": sys.platform},
        "num_programs": len(found),
        "num_different": sum(not row["is_same"] for row in found),
        "rows": found,
        "not_compiled": not_compiled,
    }


if __name__ == "__main__":
    main()
