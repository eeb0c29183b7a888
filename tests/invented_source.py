"""A source that memprof does not know: a text file with the sizes and lifetimes of values becomes a capture.

    # name  size_bytes  category  phase  born  freed
    weight  4096  params       argument  0  -
    hidden  2048  activations  forward   1  3

A value lives from the operation at which it is born until the one at which it is freed; `-`: to the end. Everything
after `capture_of` is memprof's own: the report, every format, comparisons.
"""

from __future__ import annotations

from pathlib import Path

from memprof.analysis.records.capture import NO_COMPILER, Capture, Target, Timings, Toolchain
from memprof.analysis.records.categories import Category, Phase
from memprof.analysis.records.timeline import PhaseSpan
from memprof.analysis.records.trace import Trace, TracedValue, TraceEvent


def capture_of(path: Path, target: Target) -> Capture:
    """The capture of a text file."""
    rows = [line.split() for line in path.read_text().splitlines() if line and not line.startswith("#")]
    ends = [(int(born), number, True) for number, (*_, born, _) in enumerate(rows)]
    ends += [(int(freed), number, False) for number, (*_, freed) in enumerate(rows) if freed != "-"]
    last = max(position for position, *_ in ends)
    return Capture(
        label=path.stem,
        workload=path.stem,
        techniques=(),
        config={"imported_from": str(path)},
        target=target,
        toolchain=Toolchain(
            memprof="0", python="", jax="", jaxlib="", cuda_plugin=None, flax=None, optax=None, xla_flags=""
        ),
        compiler=NO_COMPILER,
        arguments=(),
        flops=0,
        recomputed_flops=0,
        timings=Timings(lower_seconds=0.0, compile_seconds=0.0),
        trace=Trace(
            framework="a text file",
            num_positions=last + 1,
            step_starts=(0,),
            values=tuple(_value(*row) for row in rows),
            events=tuple(TraceEvent(*end) for end in sorted(ends, key=lambda end: (end[0], end[2], end[1]))),
            phases=(PhaseSpan(phase=Phase.FORWARD, start=0, end=last),),
        ),
    )


def _value(name: str, size: str, category: str, phase: str, *_: str) -> TracedValue:
    return TracedValue(
        size_bytes=int(size),
        shape=(int(size),),
        dtype="u8",
        category=Category(category),
        phase=Phase(phase),
        module=name.rpartition("/")[0],
        name=name,
        op=name,
        source="",
        library="",
        rule="text",
        evidence="the file says so",
    )
