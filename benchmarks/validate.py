"""Predictions beside what a device measures: one command, for a machine with one GPU.

    python -m benchmarks.validate [-o RESULT.json] [--markdown RESULT.md] [--minutes 8.5] [ROW ...]

Each configuration is compiled on the device and run there for a few steps, in a process of its own, one after another.
Then each is compiled once more for the catalogue's GPU of the same kind, without the device, as one would on a laptop;
these compiles run in parallel. A row sets side by side:

    deviceless    footprint predicted without the device (none where what that takes is not installed)
    compiled      footprint of the program compiled on the device
    measured      peak of XLA's allocator over the steps, in JAX's own pool

Errors are (predicted - measured) / measured, of the rows that have both. A step that runs out of memory, or fails, is a
row too. What does not fit into the time is listed as skipped, never dropped. The files are written anew after each row,
so that what ends the command early takes no row with it.

Without a GPU this is a rehearsal on small configurations: then nothing counts the bytes of the steps, `measured` is the
growth of the whole process, and the result says so. C's allocator is told to give back what is freed: by itself it
keeps freed blocks of up to 32 MiB, and the process grows by them too.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from memprof.analysis.pipeline import analyze
from memprof.analysis.records.capture import Capture
from memprof.errors import MemprofError
from memprof.reports.units import format_bytes, format_short_seconds
from memprof.sources.jax.processes.launch import compile_all, compile_in_child, default_num_jobs
from memprof.sources.jax.processes.task import Task
from memprof.sources.jax.targets.nvidia.catalogue import gpu_of_kind
from memprof.sources.jax.targets.resolve import has_accelerator_device, resolve_or_local
from memprof.sources.jax.xla.portable_program import CompileSettings
from memprof.studies.subject import find_subject

NUM_STEPS = 5
SECONDS_PER_ROW = 120.0
SECONDS_PER_DEVICELESS_ROW = 25.0  # on one core; what is kept free for these compiles
_GIVE_BACK_FREED, _GIVE_BACK_ABOVE_BYTES = "MALLOC_MMAP_THRESHOLD_", 65536  # glibc's


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """What is compiled and run: in a table, a preset with overrides has a star."""

    workload: str
    preset: str
    techniques: str
    overrides: tuple[str, ...] = ()

    @property
    def model(self) -> str:
        return f"{self.workload} {self.preset}{'*' if self.overrides else ''}"

    @property
    def label(self) -> str:
        return f"{self.model} {self.techniques}"

    def task(self, target: str, *, num_steps: int = 0) -> Task:
        """The compile for a target, and the steps to run.

        Raises:
            MemprofError: a name or a value is wrong.
        """
        return find_subject(self.workload, preset=self.preset, overrides=self.overrides).task(
            self.techniques,
            target=resolve_or_local(target),
            label=self.label,
            num_steps=num_steps,
            settings=CompileSettings(timeout_seconds=SECONDS_PER_ROW),
        )


_TRANSFORMER_ROWS = (
    *("baseline", "donate", "bf16", "bf16+donate", "fp16+donate", "bf16+donate+remat", "bf16+donate+remat-dots"),
    *("bf16+donate+scan", "bf16+donate+scan+remat", "bf16+donate+accum4", "bf16+donate+scan+remat+accum4"),
    *("donate+opt=adafactor", "donate+opt=lion", "donate+opt=adam8bit", "bf16+donate+chunked-loss=8"),
)
_MLP_ROWS = ("baseline", "donate", "bf16+donate", "donate+opt=sgd", "bf16-params+donate")

# Up to about 30 GiB each, in float32 without any technique. The cheapest to compile come first.
ON_A_GPU = (
    *(
        Configuration(workload="mlp", preset="base", techniques=row, overrides=("hidden_size=16384",))
        for row in _MLP_ROWS
    ),
    *(Configuration(workload="transformer", preset="gpt2", techniques=row) for row in _TRANSFORMER_ROWS),
    Configuration(workload="transformer", preset="uva", techniques="bf16+donate+scan+remat"),
    Configuration(workload="transformer", preset="uva", techniques="bf16+donate"),
    Configuration(workload="transformer", preset="bert-large", techniques="bf16+donate+remat"),
    Configuration(workload="transformer", preset="bert-large", techniques="donate"),
)
# A few hundred MiB each, so that the step is most of what the process grows by, in steps of a second or two.
_SMALL_TRANSFORMER = (
    *("batch_size=16", "seq_len=128", "max_seq_len=128", "vocab_size=8192", "num_layers=4", "hidden_size=256"),
    "num_heads=8",
)
REHEARSAL = (
    *(Configuration(workload="mlp", preset="base", techniques=row) for row in _MLP_ROWS),
    *(
        Configuration(workload="transformer", preset="tiny", techniques=row, overrides=_SMALL_TRANSFORMER)
        for row in _TRANSFORMER_ROWS
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One configuration, with None for what there is no number for and the reason in `note`."""

    label: str
    deviceless_bytes: int | None = None
    compiled_bytes: int | None = None
    measured_bytes: int | None = None
    deviceless_error_percent: float | None = None
    compiled_error_percent: float | None = None
    step_seconds_median: float | None = None
    first_loss: float | None = None
    last_loss: float | None = None
    device: Mapping[str, Any] | None = None
    note: str = ""


def run_on_device(configuration: Configuration, target: str) -> Capture | str:
    """The capture of a run, or the reason why there is none."""
    try:
        return compile_in_child(configuration.task(target, num_steps=NUM_STEPS), progress=lambda stage: None).capture
    except MemprofError as error:
        return str(error)


def predict(
    configurations: Sequence[Configuration], target: str, num_jobs: int
) -> Iterator[tuple[Configuration, int | str]]:
    """Footprints, compiled without the device, or the reasons why there are none, as they are ready."""
    tasks = [each.task(target) for each in configurations]
    of_label = {each.label: each for each in configurations}
    for result in compile_all(tasks, num_jobs=num_jobs, progress=lambda label, stage: None):
        footprint = (
            str(result.error)
            if result.fresh is None
            else analyze(result.fresh.capture, result.fresh.decoded).footprint_bytes
        )
        yield of_label[result.task.label], footprint


def row_of(configuration: Configuration, ran: Capture | str) -> Row:
    """What a run, or the reason why there is none, comes to."""
    if isinstance(ran, str):
        return Row(label=configuration.label, note=ran)
    report, measured = analyze(ran), ran.measured
    assert measured is not None
    measured_bytes, note = None, ""
    if measured.out_of_memory is not None:
        note = f"out of memory while {measured.out_of_memory.doing}: {measured.out_of_memory.message}"
    elif measured.pool is not None:
        measured_bytes = measured.pool.peak_bytes
        if measured_bytes is None:
            note = "the peak is hidden: something before the steps took more"
    elif measured.resident is not None:
        measured_bytes = measured.resident.growth_bytes
    return Row(
        label=configuration.label,
        compiled_bytes=report.footprint_bytes,
        measured_bytes=measured_bytes,
        compiled_error_percent=error_percent(report.footprint_bytes, measured_bytes),
        step_seconds_median=measured.median_seconds,
        first_loss=measured.losses[0] if measured.losses else None,
        last_loss=measured.losses[-1] if measured.losses else None,
        device={"pool": measured.pool and asdict(measured.pool), "driver": measured.driver and asdict(measured.driver)},
        note=note,
    )


def with_prediction(row: Row, deviceless: int | str) -> Row:
    """A row with the footprint predicted without the device, or the reason why there is none."""
    if isinstance(deviceless, str):
        return replace(row, note="; ".join(filter(None, (row.note, f"deviceless: {deviceless}"))))
    return replace(
        row,
        deviceless_bytes=deviceless,
        deviceless_error_percent=error_percent(deviceless, row.measured_bytes),
    )


def error_percent(predicted: int | None, measured: int | None) -> float | None:
    """By how much a prediction is too high (positive) or too low; None where a number is missing."""
    return None if predicted is None or not measured else 100 * (predicted - measured) / measured


def accuracy(name: str, errors: Iterable[float | None]) -> str:
    """Return a line with the median and the maximum of the absolute errors in percent; empty if there are none."""
    found = [abs(error) for error in errors if error is not None]
    if not found:
        return ""
    return f"Absolute error of {name}, over {len(found)} rows: median {median(found):.2f}%, maximum {max(found):.2f}%."


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Median and maximum of the absolute errors."""
    found: dict[str, Any] = {"num_rows": len(rows)}
    for name in ("deviceless_error_percent", "compiled_error_percent"):
        errors = [abs(getattr(row, name)) for row in rows if getattr(row, name) is not None]
        found[name] = {
            "num_rows": len(errors),
            "median": median(errors) if errors else None,
            "max": max(errors) if errors else None,
        }
    return found


def markdown(result: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """The result as a table."""
    lines = [f"# {result['title']}", "", result["explanation"], ""]
    lines += [f"`{model}` has {', '.join(overrides)}.\n" for model, overrides in result["overrides"].items()]
    lines.append(
        "| configuration | deviceless | compiled | measured | deviceless error | compiled error | step | note |"
    )
    lines.append("|---|---:|---:|---:|---:|---:|---:|---|")
    for row in rows:
        sizes = (row.deviceless_bytes, row.compiled_bytes, row.measured_bytes)
        errors = (row.deviceless_error_percent, row.compiled_error_percent)
        cells = [
            row.label,
            *("-" if size is None else format_bytes(size) for size in sizes),
            *("-" if error is None else f"{error:+.2f}%" for error in errors),
            "-" if row.step_seconds_median is None else format_short_seconds(row.step_seconds_median),
            row.note.replace("|", "\\|"),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines.append("")
    for kind in ("deviceless", "compiled"):
        lines.append(accuracy(kind, (getattr(row, f"{kind}_error_percent") for row in rows)))
    while not lines[-1]:
        lines.pop()
    return "\n".join(lines) + "\n"


def result_of(configurations: Sequence[Configuration], rows: Sequence[Row], capture: Capture) -> dict[str, Any]:
    """The record of a validation, with what any one of its captures tells of the device and the versions."""
    gpu = gpu_of_kind(capture.target.description)
    is_rehearsal = capture.target.platform == "cpu"
    return {
        "title": "Rehearsal on a CPU: no device was measured" if is_rehearsal else f"On {capture.target.description}",
        "explanation": (
            "Measured is the growth of the whole process, Python, threads and libraries included, since nothing counts"
            " the bytes of a step on a CPU: the errors say little about predictions for a device. C's allocator gave"
            f" back what was freed ({_GIVE_BACK_FREED}={_GIVE_BACK_ABOVE_BYTES}), which makes steps slower."
            if is_rehearsal
            else "Measured is the peak of XLA's allocator over the steps, in JAX's own pool."
        ),
        "command": shlex.join(["python", "-m", "benchmarks.validate", *sys.argv[1:]]),
        "is_rehearsal": is_rehearsal,
        "device": asdict(capture.target),
        "deviceless_target": gpu.name if gpu else None,
        "toolchain": asdict(capture.toolchain),
        "machine": {"architecture": platform.machine(), "system": sys.platform, "num_processors": os.cpu_count()},
        "num_steps": NUM_STEPS,
        "overrides": {each.model: each.overrides for each in configurations if each.overrides},
        "summary": summary(rows),
        "rows": [asdict(row) for row in rows],
    }


class Validation:
    """What has been found so far, and the files that hold it.

    Attributes:
        failures: why the configurations did not run that did not.
        capture: the first one, which tells of the device; None before there is one.
    """

    def __init__(
        self, configurations: Sequence[Configuration], json_file: Path | None, table_file: Path | None
    ) -> None:
        self.failures: list[str] = []
        self.capture: Capture | None = None
        self._configurations = configurations
        self._files = (json_file, table_file)
        self._rows: dict[Configuration, Row] = {}

    def run(self, target: str, has_time: Callable[[], bool]) -> None:
        """Run one configuration after another while there is time."""
        for configuration in self._configurations:
            if not has_time():
                break
            started = time.monotonic()
            ran = run_on_device(configuration, target)
            if isinstance(ran, str):
                self.failures.append(f"{configuration.label}: {ran}")
            else:
                self.capture = self.capture or ran
            self._rows[configuration] = row_of(configuration, ran)
            self._write()
            print(f"{configuration.label}: {time.monotonic() - started:.1f} s", file=sys.stderr, flush=True)

    def predict(self, target: str, num_jobs: int) -> None:
        """Compile what was run once more, without the device."""
        for configuration, footprint in predict(list(self._rows), target, num_jobs):
            self._rows[configuration] = with_prediction(self._rows[configuration], footprint)
            self._write()

    def end(self, reason: str) -> None:
        """Print the table, and write it, with a row for each configuration that some reason kept from running."""
        for each in self._configurations:
            self._rows.setdefault(each, Row(label=each.label, note=f"skipped: {reason}"))
        print(self._write(), end="")

    def _write(self) -> str:
        """Write what there is, once something ran; returns the table."""
        if self.capture is None:
            return ""
        rows = list(self._rows.values())
        result = result_of(self._configurations, rows, self.capture)
        table = markdown(result, rows)
        for path, text in zip(self._files, (json.dumps(result, indent=1) + "\n", table), strict=True):
            if path is not None:
                unfinished = path.with_name(f".{path.name}.unfinished")
                unfinished.write_text(text, encoding="utf-8")
                unfinished.replace(path)
        return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("labels", nargs="*", metavar="ROW", help="rows by their label; all if none is given")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the result as JSON")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the result as a table")
    parser.add_argument("--minutes", type=float, default=8.5, help="how long it may take")
    arguments = parser.parse_args()
    deadline = time.monotonic() + 60 * arguments.minutes
    is_rehearsal = not has_accelerator_device()
    all_rows = {each.label: each for each in (REHEARSAL if is_rehearsal else ON_A_GPU)}
    if unknown := set(arguments.labels).difference(all_rows):
        parser.error(f"no row is named {', '.join(sorted(unknown))}")
    configurations = [all_rows[label] for label in arguments.labels or all_rows]
    num_jobs = default_num_jobs()
    kept_free = 0.0 if is_rehearsal else SECONDS_PER_DEVICELESS_ROW * -(-len(configurations) // num_jobs)

    if is_rehearsal:
        os.environ[_GIVE_BACK_FREED] = str(_GIVE_BACK_ABOVE_BYTES)
    validation = Validation(configurations, arguments.output, arguments.markdown)
    validation.run("cpu" if is_rehearsal else "local", lambda: time.monotonic() < deadline - kept_free)
    if validation.capture is None:
        sys.exit("\n".join(validation.failures))
    gpu = gpu_of_kind(validation.capture.target.description)
    if gpu is not None:
        validation.predict(gpu.name, num_jobs)
    validation.end(f"{arguments.minutes:g} minutes were over")


if __name__ == "__main__":
    main()
