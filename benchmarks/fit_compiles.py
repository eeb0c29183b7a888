"""How many compiles `memprof fit` takes, against plain bisection: `python -m benchmarks.fit_compiles [FIT.json ...]`.

Bisection needs no compiles to be counted: of a monotone footprint, a value fits exactly when it is not above the
answer. It doubles from the same start until a value does not fit, then halves. A case whose measured footprints are not
monotone is marked, since bisection may then end elsewhere. The cases are small models, which compile in seconds; fits
of large ones that `memprof fit --format json` wrote are counted too when their files are given.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from memprof.reports.json.answers import fit_json
from memprof.sources.jax.targets.resolve import resolve
from memprof.studies.fit.budget import MemoryRequest
from memprof.studies.fit.value import FitRequest, fit
from memprof.studies.subject import find_subject


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A small workload under techniques, for a target of which `memory` is all that there is."""

    workload: str
    techniques: str
    target: str
    memory: str


CASES = (
    Case(workload="mlp", techniques="", target="cpu", memory="200KiB"),
    Case(workload="mlp", techniques="accum4", target="cpu", memory="200KiB"),
    Case(workload="mlp", techniques="", target="l4", memory="8MiB"),
    Case(workload="mlp", techniques="bf16+donate", target="a100-40gb", memory="8MiB"),
    Case(workload="mlp", techniques="accum4+donate", target="h100-80gb", memory="8MiB"),
    Case(workload="transformer", techniques="", target="l4", memory="64MiB"),
    Case(workload="transformer", techniques="donate", target="l4", memory="256MiB"),
    Case(workload="transformer", techniques="bf16+donate", target="h100-80gb", memory="64MiB"),
    Case(workload="transformer", techniques="bf16+donate+accum4", target="h100-80gb", memory="64MiB"),
    Case(workload="transformer", techniques="bf16+scan", target="a100-40gb", memory="64MiB"),
    Case(workload="transformer", techniques="remat", target="a100-40gb", memory="64MiB"),
    Case(workload="transformer", techniques="bf16+remat-dots+donate", target="b200", memory="128MiB"),
    Case(workload="transformer", techniques="opt=adafactor", target="h200", memory="32MiB"),
)
COLUMNS = ("subject", "techniques", "target", "memory_bytes", "value", "num_compiles", "num_bisections", "monotone")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("fits", nargs="*", type=Path, help="what `memprof fit --format json` wrote")
    parser.add_argument("-o", "--output", type=Path, help="file for the results, as JSON")
    options = parser.parse_args()
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    rows = []
    saved = (json.loads(path.read_text()) for path in options.fits)
    for found in itertools.chain(map(measure, CASES), saved):
        rows.append(row(found))
        print(f"| {' | '.join(str(rows[-1][column]) for column in COLUMNS)} |", flush=True)
    compiles, bisections = (sum(each[column] for each in rows) for column in ("num_compiles", "num_bisections"))
    print(f"\n{len(rows)} cases: {compiles} compiles, {bisections} by bisection")
    if options.output:
        result = {"command": "python -m benchmarks.fit_compiles", "python": sys.version.split()[0], "rows": rows}
        options.output.write_text(json.dumps(result, indent=1) + "\n")


def measure(case: Case) -> dict[str, Any]:
    """The fit of a case, as `memprof fit --format json` would print it."""
    subject = find_subject(case.workload, preset="tiny")
    memory = MemoryRequest(target=resolve(case.target), memory=case.memory, reserve="0")
    request = FitRequest(subject=subject, techniques=case.techniques, field="batch_size", memory=memory)
    result = fit(request, progress=lambda stage: None, keep=lambda capture, value: None)
    found: dict[str, Any] = msgspec.to_builtins(fit_json(result))
    return found


def row(found: dict[str, Any]) -> dict[str, Any]:
    """What is compared, of a fit; with all that was tried."""
    trials = sorted(found["tried"], key=lambda trial: trial["value"])
    sizes = [trial["footprint_bytes"] for trial in trials]
    step = found["step"]
    return {
        "subject": found["subject"],
        "techniques": "+".join(found["techniques"]),
        "target": found["target"],
        "memory_bytes": found["memory_bytes"],
        "value": found["value"],
        "num_compiles": found["num_compiles"],
        "num_bisections": num_bisections(max(found["tried"][0]["value"] // step, 1), found["value"] // step),
        "monotone": sizes == sorted(sizes),
        "tried": [[trial["value"], trial["footprint_bytes"]] for trial in found["tried"]],
        "command": found["command"],
    }


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
