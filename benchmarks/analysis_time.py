"""How long the analysis takes beside the compile that it explains, and how it grows with the program.

    python -m benchmarks.analysis_time [-o RESULT.json] [CAPTURE...]

First GPT-2 small on an H100: seconds of the compile and of the analysis (decode to report), in one run. Then narrower
layers without dropout, 12 to 96 of them, none rolled into a loop: the analysis is linear when its time per layer stays
the same. Each analysis is repeated; the fastest counts, since whatever else the machine does only adds to it. Needs the
`deviceless` extra; takes a few minutes, most of them the compiler's.

Captures that are given are analysed instead, and nothing is compiled: so two versions of memprof can be compared on the
same programs. Times of the analysis are of the processor.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from memprof.analysis.pipeline import analyze
from memprof.analysis.records.capture import Capture
from memprof.sources.capture_file import read_capture
from memprof.sources.jax.processes.launch import compile_in_child
from memprof.sources.jax.targets.resolve import resolve
from memprof.sources.jax.xla.portable_program import CompileSettings
from memprof.studies.subject import find_subject

TARGET = "h100-80gb"
NUM_LAYERS = (12, 24, 48, 96)
# Narrow, so that the compile of many layers stays short: the time of the analysis does not depend on the sizes. For the
# same reason without dropout, whose random numbers are most of what the compiler has to generate code for.
NARROW = (
    *("hidden_size=48", "num_heads=2", "batch_size=1", "seq_len=32", "max_seq_len=32", "vocab_size=64"),
    *("dropout_rate=0.0", "attention_dropout_rate=0.0", "embedding_dropout_rate=0.0"),
)
NUM_REPEATS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One program: its size, and how long compiling it and analysing it took."""

    label: str
    num_layers: int
    num_positions: int
    compile_seconds: float
    analysis_seconds: float

    @property
    def ratio(self) -> float:
        """The analysis as a share of the compile."""
        return self.analysis_seconds / self.compile_seconds

    @property
    def milliseconds_per_layer(self) -> float:
        return 1000 * self.analysis_seconds / self.num_layers


def compiled(num_layers: int, overrides: tuple[str, ...]) -> Capture:
    subject = find_subject("transformer", preset="gpt2", overrides=[f"num_layers={num_layers}", *overrides])
    task = subject.task("", target=resolve(TARGET), settings=CompileSettings(use_cache=False))
    return compile_in_child(task, progress=lambda stage: None).capture


def measure(label: str, capture: Capture) -> Measurement:
    """Analyse a capture several times."""
    seconds = []
    for _ in range(NUM_REPEATS):
        report = None  # the last one is released before the clock starts
        started = time.process_time()
        report = analyze(capture)
        seconds.append(time.process_time() - started)
    assert report is not None
    return Measurement(
        label=label,
        num_layers=int(capture.config.get("num_layers") or 1),
        num_positions=report.timeline.num_positions,
        compile_seconds=capture.timings.compile_seconds,
        analysis_seconds=min(seconds),
    )


def _programs(files: Sequence[Path]) -> Iterator[tuple[str, Capture]]:
    for file in files:
        yield file.stem, read_capture(file)
    if not files:
        yield "gpt2", compiled(12, ())
        for num_layers in NUM_LAYERS:
            yield "gpt2, narrow", compiled(num_layers, NARROW)


def print_row(measurement: Measurement) -> None:
    print(
        f"{measurement.label:<18} {measurement.num_layers:>6} {measurement.num_positions:>9,}"
        f" {measurement.compile_seconds:>9.2f} {measurement.analysis_seconds:>9.3f}"
        f" {measurement.ratio:>7.1%} {measurement.milliseconds_per_layer:>9.2f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="also write the result as JSON")
    parser.add_argument("captures", type=Path, nargs="*", metavar="CAPTURE", help="analyse these instead")
    arguments = parser.parse_args()
    output = arguments.output

    columns = f"{'schedule':>9} {'compile':>9} {'analysis':>9} {'ratio':>7} {'per layer':>9}"
    units = f"{'positions':>9} {'s':>9} {'s':>9} {'':>7} {'ms':>9}"
    print(f"{'program':<18} {'layers':>6} {columns}\n{'':<18} {'':>6} {units}")
    measurements = []
    for label, capture in _programs(arguments.captures):
        measurements.append(measure(label, capture))
        print_row(measurements[-1])

    toolchain = asdict(capture.toolchain)
    print(
        f"\n{TARGET}; jax {toolchain['jax']}, python {toolchain['python']}, {platform.machine()};"
        f" analysis: fastest of {NUM_REPEATS}"
    )
    if output is not None:
        result = {
            "command": "python -m benchmarks.analysis_time",
            "target": TARGET,
            "toolchain": toolchain,
            "machine": {"architecture": platform.machine(), "system": sys.platform},
            "num_repeats": NUM_REPEATS,
            "measurements": [asdict(each) for each in measurements],
        }
        output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
