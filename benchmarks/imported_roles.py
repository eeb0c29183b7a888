"""How often the program alone tells what an argument is for: `memprof import` against captures of the same step.

    python -m benchmarks.imported_roles [-o RESULT.json] [--only TEXT]... [--minutes M]
        [--captures FOLDER | --steps-of-tests]

Built-in workloads under every technique, with every optimizer and in every preset, the examples, and steps as people
write them are compiled to their plan. The roles in the capture come from the step: the types of its arguments and its
traced program. The same program is then read as `memprof import` reads what others have compiled: once with the names
that JAX has written into it, and once without them. What counts is bytes: those of arguments with the right role, of
all. An output file that is there already is gone on with.

With `--steps-of-tests` the programs are the steps of `tests/unit/sources/test_roles_of_*`, compiled for the CPU: how
many roles would be wrong if those of steps were inferred from compiled programs, too.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # no device is looked for

from benchmarks.plan_identity import programs
from memprof.analysis.hlo.buffer_table import decode_buffer_table
from memprof.analysis.hlo.hlo_proto import HloProto, parse_proto
from memprof.analysis.hlo.program_decoding import decode_program
from memprof.analysis.records.capture import ArgumentLeaf, Capture
from memprof.errors import MemprofError
from memprof.sources.capture_file import read_capture
from memprof.sources.jax.compile import capture_of
from memprof.sources.jax.processes.launch import compile_in_child
from memprof.sources.jax.roles.by_program import arguments_of_program
from memprof.sources.jax.targets.resolve import resolve
from memprof.sources.jax.tracing.step import StepSpec
from memprof.studies.subject import find_subject

_EXAMPLES = Path(__file__).parents[1] / "examples"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One program.

    Attributes:
        argument_bytes: of all arguments of the program.
        right_bytes, right_without_names_bytes: of those whose role is that of the capture.
        wrong: the arguments that have another one, largest first: `path: recorded, not inferred`.
    """

    label: str
    argument_bytes: int
    right_bytes: int
    right_without_names_bytes: int
    wrong: tuple[str, ...]
    wrong_without_names: tuple[str, ...]


def compare(label: str, capture: Capture) -> Row:
    """Hold the roles that the program tells against those of its capture."""
    recorded = [leaf for leaf in capture.arguments if leaf.parameter_number is not None]
    recorded.sort(key=lambda leaf: leaf.parameter_number or 0)
    named, wrong = _inferred(capture, recorded, with_names=True)
    nameless, wrong_nameless = _inferred(capture, recorded, with_names=False)
    return Row(
        label=label,
        argument_bytes=sum(leaf.size_bytes for leaf in recorded),
        right_bytes=named,
        right_without_names_bytes=nameless,
        wrong=wrong,
        wrong_without_names=wrong_nameless,
    )


def _inferred(capture: Capture, recorded: list[ArgumentLeaf], *, with_names: bool) -> tuple[int, tuple[str, ...]]:
    proto = HloProto.FromString(capture.hlo_proto)
    if not with_names:
        for computation in proto.hlo_module.computations:
            for instruction in computation.instructions:
                if instruction.opcode == "parameter":
                    instruction.metadata.op_name = ""
    program = decode_program(parse_proto(proto.SerializeToString()))
    inferred, _ = arguments_of_program(program, decode_buffer_table(proto, program), {})
    pairs = sorted(zip(recorded, inferred, strict=True), key=lambda pair: -pair[0].size_bytes)
    wrong = [f"{ours.path}: {ours.role}, not {theirs.role}" for ours, theirs in pairs if ours.role != theirs.role]
    return sum(ours.size_bytes for ours, theirs in pairs if ours.role == theirs.role), tuple(wrong[:5])


def captures() -> Iterator[tuple[str, Callable[[], Capture]]]:
    """All programs, by label; each is compiled when it is asked for."""
    for path in sorted(_EXAMPLES.glob("*.py")):
        if path.stem != "sharded":  # its roles are those of one device; its mesh is a target of its own
            yield f"examples/{path.name}", _make(f"{path}:step_spec", None, (), "", "cpu")
    for program in programs():
        target = "cpu" if program.target == "cpu" else "h100-80gb"
        name = (program.workload, program.preset, program.overrides, program.technique, target)
        yield " ".join((program.workload, program.preset, *program.overrides, program.technique, target)), _make(*name)


def _make(what: str, preset: str | None, overrides: tuple[str, ...], technique: str, target: str) -> Any:
    def make() -> Capture:
        subject = find_subject(what, preset=preset, overrides=overrides)
        return compile_in_child(subject.task(technique, target=resolve(target)), progress=lambda stage: None).capture

    return make


def _saved(folder: Path) -> Iterator[tuple[str, Callable[[], Capture]]]:
    for path in sorted(folder.rglob("*.memprof")):
        yield str(path.relative_to(folder)), lambda path=path: read_capture(path)  # type: ignore[misc]


def steps_of_tests() -> Iterator[tuple[str, Callable[[], Capture]]]:
    """The steps of the tests of roles, whose captures have the roles that the tests expect."""
    for name in ("steps", "state", "inference"):
        cases = importlib.import_module(f"tests.unit.sources.test_roles_of_{name}").CASES
        for label, case in cases.items():
            yield f"{name}/{label}", functools.partial(_capture_of_case, case)


def _capture_of_case(case: Callable[[], tuple[Any, ...]]) -> Capture:
    step, args, *_ = case()
    return capture_of(StepSpec(step, args), resolve("cpu"), progress=lambda stage: None).capture


def _summary(rows: list[Row]) -> str:
    total = sum(row.argument_bytes for row in rows)
    right, nameless = (sum(getattr(row, name) for row in rows) for name in ("right_bytes", "right_without_names_bytes"))
    shares = sorted(row.right_bytes / row.argument_bytes for row in rows if row.argument_bytes)
    return (
        f"{len(rows)} programs, {total:,} bytes of arguments: {right / total:.2%} right, {nameless / total:.2%} without"
        f" names; {sum(share >= 0.99 for share in shares)} programs with 99% or more, the worst {shares[0]:.2%};"
        f" every role is right in {sum(not row.wrong for row in rows)}, without names in"
        f" {sum(not row.wrong_without_names for row in rows)}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, help="write or go on with a result")
    parser.add_argument("--only", action="append", default=[], help="programs whose label holds this text")
    parser.add_argument("--captures", type=Path, help="captures that are there, instead of compiling")
    parser.add_argument("--steps-of-tests", action="store_true", help="the steps of the tests of roles instead")
    parser.add_argument("--minutes", type=float, default=60, help="begin no compile after so long")
    options = parser.parse_args()
    rows: list[Row] = []
    if options.output and options.output.exists():
        rows = [Row(**row) for row in json.loads(options.output.read_text())["rows"]]
    known, started = {row.label for row in rows}, time.monotonic()
    sources = steps_of_tests() if options.steps_of_tests else captures()
    for label, make in _saved(options.captures) if options.captures else sources:
        if label in known or not all(text in label for text in options.only):
            continue
        if time.monotonic() - started > 60 * options.minutes:
            break
        try:
            row = compare(label, make())
        except MemprofError as error:
            print(f"{label}: {error}", file=sys.stderr)
            continue
        rows.append(row)
        shares = (right / row.argument_bytes for right in (row.right_bytes, row.right_without_names_bytes))
        print("".join(f"{share:8.2%}" for share in shares), f" {label}", flush=True)
        for text in row.wrong or row.wrong_without_names[:2]:
            print(f"                   {text}")
        if options.output:
            record = {"date": str(date.today()), "summary": _summary(rows), "rows": [asdict(row) for row in rows]}
            options.output.write_text(json.dumps(record, indent=1) + "\n")
    print(_summary(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
