"""How many compiles `memprof fit` takes, against plain bisection: `python benchmarks/fit_compiles.py`.

Bisection needs no compiles to be counted: of a monotone footprint, a value fits exactly when it is not above the
answer. It doubles from the same start until a value does not fit, then halves. A case whose measured footprints are not
monotone is marked, since bisection may then end elsewhere.
"""

from __future__ import annotations

import sys

from memprof.workloads.budget import MemoryRequest
from memprof.workloads.fit import FitRequest, fit
from memprof.workloads.subject import find_subject

# workload, preset, techniques, target, memory
CASES = (
    ("mlp", "tiny", "", "cpu", "200KiB"),
    ("mlp", "tiny", "accum4", "cpu", "200KiB"),
    ("transformer", "tiny", "", "l4", "64MiB"),
    ("transformer", "tiny", "bf16+donate", "h100-80gb", "64MiB"),
)


def main() -> None:
    print("| workload | techniques | target | memory | answer | compiles | bisection |")
    print("|---|---|---|---|---:|---:|---:|")
    for workload, preset, techniques, target, memory in CASES:
        subject = find_subject(workload, preset=preset)
        request = FitRequest(
            subject=subject,
            techniques=techniques,
            field="batch_size",
            memory=MemoryRequest(target=target, memory=memory, reserve="0"),
        )
        result = fit(request, progress=lambda stage: None, keep=lambda capture, value: None)
        trials = sorted(result.tried, key=lambda trial: trial.value)
        sizes = [trial.footprint_bytes for trial in trials]
        mark = "" if sizes == sorted(sizes) else " (not monotone)"
        bisection = num_bisections(result.tried[0].value // result.step, result.value // result.step)
        cells = (f"{workload} {preset}", techniques, target, memory, f"{result.value}{mark}", len(trials), bisection)
        print(f"| {' | '.join(map(str, cells))} |", flush=True)
    print(f"\n`python benchmarks/fit_compiles.py`, Python {sys.version.split()[0]}; jax as installed", file=sys.stderr)


def num_bisections(start: int, answer: int) -> int:
    """How many values plain bisection tries to tell `answer` from the number after it."""
    tried = {start}
    if start <= answer:
        fits, exceeds = start, 2 * start
        while exceeds <= answer:
            tried.add(exceeds)
            fits, exceeds = exceeds, 2 * exceeds
        tried.add(exceeds)
    else:
        fits, exceeds = 0, start
    while exceeds - fits > 1:
        middle = (fits + exceeds) // 2
        tried.add(middle)
        fits, exceeds = (middle, exceeds) if middle <= answer else (fits, middle)
    return len(tried)


if __name__ == "__main__":
    main()
