"""How long `memprof run` takes, the first time and again, beside the plain compile of the same step by JAX.

    python -m benchmarks.time_to_answer [-o RESULT.json] [--only TEXT]... [--repeats N]

Each program is compiled for an H100 by four whole processes in turn: one that imports JAX, lowers the step and
compiles it to the end, and nothing more; one that does the same with XLA's options as memprof sets them, and ends as
soon as XLA's plan is there; `memprof run` with an empty cache of plans; and `memprof run` again. The ratios are of
their wall times, the fastest of each in N turns. `plan/plain` is about the least that `first/plain` can be. Of the
plain process the time until its step is lowered is given as well: what nobody can be spared. All have their modules as
bytecode, as installed ones are. Needs the `deviceless` extra and a machine that does nothing else; takes six minutes
with jax 0.10.2, and nine with jax 0.12.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

TARGET = "h100-80gb"


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A built-in workload with its techniques."""

    label: str
    workload: str
    preset: str
    technique: str = ""
    overrides: tuple[str, ...] = ()

    @property
    def arguments(self) -> list[str]:
        """What names it on the command line."""
        technique = ("-t", self.technique) if self.technique else ()
        overrides = [part for override in self.overrides for part in ("--set", override)]
        return [self.workload, "--preset", self.preset, "--target", TARGET, *technique, *overrides]


PROGRAMS = (
    Program(label="gpt2", workload="transformer", preset="gpt2"),
    Program(label="gpt2, bf16, scan", workload="transformer", preset="gpt2", technique="bf16+scan"),
    Program(label="gpt2, 4 layers", workload="transformer", preset="gpt2", overrides=("num_layers=4",)),
    Program(label="mlp", workload="mlp", preset="tiny"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """One process from its start to its end."""

    wall_seconds: float
    processor_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The fastest of each, and the plain process until its step is lowered."""

    label: str
    plain: Times
    plain_lowered_seconds: float
    to_the_plan: Times
    first: Times
    again: Times

    @property
    def least_ratio(self) -> float:
        """What waiting for XLA's plan takes without memprof, as a share of the plain compile."""
        return self.to_the_plan.wall_seconds / self.plain.wall_seconds

    @property
    def ratio(self) -> float:
        """The whole command as a share of the plain compile."""
        return self.first.wall_seconds / self.plain.wall_seconds

    @property
    def beyond_lowering_seconds(self) -> float:
        """What the second time takes beyond importing JAX and lowering the step."""
        return self.again.wall_seconds - self.plain_lowered_seconds


def compile_plainly(program: Program, *, to_the_plan: bool) -> None:
    """Compile a step as JAX does, for the same device, and say on stdout when it was lowered.

    Args:
        to_the_plan: end this process as soon as XLA's plan is in its dump.
    """
    import jax

    from memprof.sources.jax.targets.choose import devices_of
    from memprof.sources.jax.targets.resolve import resolve
    from memprof.workloads.build import build_step

    spec = build_step(
        workload=program.workload,
        preset=program.preset,
        overrides=program.overrides,
        techniques=(program.technique,) if program.technique else (),
    )
    sharding = devices_of(resolve(TARGET)).on_device
    args = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), spec.args)
    lowered = jax.jit(spec.fn, donate_argnums=spec.donate_argnums).lower(*args)
    print(time.time(), flush=True)
    if not to_the_plan:
        lowered.compile()
        return
    from memprof.sources.jax.targets.nvidia.options import options_for_gpu
    from memprof.sources.jax.xla.plan import compile_to_plan
    from memprof.sources.jax.xla.xla_adapter import dump_options

    dump = Path("dump").absolute()
    options = {**options_for_gpu((), to_the_plan=True), **dump_options(dump)}
    compile_to_plan(lambda: lowered.compile(compiler_options=options), dump)
    os._exit(0)


def run(command: list[str], environment: Mapping[str, str], folder: str) -> tuple[Times, float, str]:
    """Run a process. Returns its times, when it was started, and what it printed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started, clock = time.time(), time.perf_counter()
    everything = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    ended = subprocess.run(
        [sys.executable, *command], env={**everything, **environment}, cwd=folder, capture_output=True, text=True
    )
    wall_seconds = time.perf_counter() - clock
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if ended.returncode:
        sys.exit(ended.stderr)
    processor_seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Times(wall_seconds=wall_seconds, processor_seconds=processor_seconds), started, ended.stdout


def memprof_run(program: Program) -> list[str]:
    """The command that is measured, for `run`."""
    return ["-m", "memprof.profiler_cli.main", "run", *program.arguments, "--no-save"]


def _environment(folder: str) -> dict[str, str]:
    root = str(Path(__file__).parents[1])
    return {"PYTHONPATH": root, "MEMPROF_CACHE_DIR": str(Path(folder, "cache")), "JAX_PLATFORMS": "cpu"}


def measure(program: Program, num_repeats: int) -> Measurement:
    """All four in turn, several times."""
    plain, lowered, planned, first, again = [], [], [], [], []
    for _ in range(num_repeats):
        with tempfile.TemporaryDirectory() as folder:
            environment = _environment(folder)
            plainly = ["-m", "benchmarks.time_to_answer", "--plainly", program.label]
            times, started, printed = run(plainly, environment, folder)
            plain.append(times)
            lowered.append(float(printed) - started)
            planned.append(run([*plainly, "--to-the-plan"], environment, folder)[0])
            first.append(run(memprof_run(program), environment, folder)[0])
            again.append(run(memprof_run(program), environment, folder)[0])
    fastest = [min(times, key=lambda each: each.wall_seconds) for times in (plain, planned, first, again)]
    return Measurement(
        label=program.label,
        plain=fastest[0],
        plain_lowered_seconds=min(lowered),
        to_the_plan=fastest[1],
        first=fastest[2],
        again=fastest[3],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="also write the result as JSON")
    parser.add_argument("--only", action="append", default=[], metavar="TEXT", help="programs with this in their label")
    parser.add_argument("--repeats", type=int, default=2, metavar="N", help="turns, of which the fastest counts")
    parser.add_argument("--plainly", metavar="LABEL", help="compile one program as JAX does, and nothing else")
    parser.add_argument("--to-the-plan", action="store_true", help="with --plainly: end when XLA's plan is there")
    arguments = parser.parse_args()
    if arguments.plainly:
        program = next(program for program in PROGRAMS if program.label == arguments.plainly)
        compile_plainly(program, to_the_plan=arguments.to_the_plan)
        return
    import jax

    times = "".join(f"{what:>9}" for what in ("plain", "lowered", "plan", "first", "again"))
    print(f"{'program':<18}{times} {'plan/plain':>11} {'first/plain':>12} {'again-lowered':>14}")
    measurements = []
    with tempfile.TemporaryDirectory() as folder:  # what Python compiles of a fresh checkout, it compiles here
        run(memprof_run(PROGRAMS[-1]), _environment(folder), folder)
    for program in PROGRAMS:
        if not arguments.only or any(text in program.label for text in arguments.only):
            measurements.append(found := measure(program, arguments.repeats))
            print(
                f"{found.label:<18} {found.plain.wall_seconds:>8.1f} {found.plain_lowered_seconds:>8.1f}"
                f" {found.to_the_plan.wall_seconds:>8.1f} {found.first.wall_seconds:>8.1f}"
                f" {found.again.wall_seconds:>8.1f} {found.least_ratio:>11.2f} {found.ratio:>12.2f}"
                f" {found.beyond_lowering_seconds:>14.2f}",
                flush=True,
            )
    print(f"\nwall seconds; {TARGET}, jax {jax.__version__}, {os.cpu_count()} processors ({platform.machine()})")
    if arguments.output is not None:
        result = {
            "command": "python -m benchmarks.time_to_answer",
            "date": date.today().isoformat(),
            "target": TARGET,
            "jax": jax.__version__,
            "python": platform.python_version(),
            "machine": {"architecture": platform.machine(), "system": sys.platform, "num_processors": os.cpu_count()},
            "num_repeats": arguments.repeats,
            "measurements": [
                asdict(each)
                | {
                    "least_ratio": each.least_ratio,
                    "ratio": each.ratio,
                    "beyond_lowering_seconds": each.beyond_lowering_seconds,
                }
                for each in measurements
            ],
        }
        arguments.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
