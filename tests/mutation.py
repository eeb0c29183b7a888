"""Whether the fast tests notice a planted fault: a random sample of mutations of one package, by Cosmic Ray.

    pip install cosmic-ray
    python tests/mutation.py analysis --sample 60 --seed 1 --at-least 0.9

First it runs every file of the fast tests in a process of its own and records the lines of the package that run. Then
it changes one place of the package at a time (a comparison, a number, a condition), in this working tree. It runs the
test files that reach the changed statement, the fastest first, until a test fails. It prints the count after each
mutation, and a diff of each mutation that no test notices: either it is equivalent to the original, or a test is
missing. The exit code is 0 if at least the given share is noticed, 1 otherwise, and 2 if the tests fail without a
mutation or no mutation ran. It leaves out the flags of dataclasses and structs (`frozen`, `slots`, `kw_only`): without
one, most correct programs do the same. It needs Python 3.12 or later, on Linux or macOS. CI runs it every week with
a new seed.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import multiprocessing
import os
import random
import re
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import CodeType

import cosmic_ray.plugins
import pytest
from cosmic_ray.commands import init
from cosmic_ray.modules import filter_paths, find_modules
from cosmic_ray.mutating import use_mutation
from cosmic_ray.work_db import use_db
from cosmic_ray.work_item import MutationSpec

# All that the fast tests are, as `.ci/run` has them.
_FAST = (
    "tests/unit/analysis",
    "tests/unit/sources/test_memory_snapshot.py",
    "tests/unit/sources/test_tensorrt_log.py",
    "tests/unit/sources/test_torch_categories.py",
    "tests/unit/sources/test_torch_trace.py",
    "tests/unit/sources/test_varying_model.py",
    "tests/unit/studies",
    "tests/unit/reports",
    "tests/unit/profiler_cli",
    "tests/unit/test_records.py",
    "tests/golden",
    "tests/property",
)
# Without the operators on `|` and on decorators: `|` also writes types, and no decorator here is a condition. `is` does
# not become `==`, since the two agree on enums and None.
_COMPARISONS = "Eq|NotEq|Lt|LtE|Gt|GtE"
_OPERATORS = re.compile(
    rf"core/(ReplaceComparisonOperator_(({_COMPARISONS})_({_COMPARISONS})|Is_IsNot|IsNot_Is)"
    r"|NumberReplacer|AddNot|ReplaceAndWithOr|ReplaceOrWithAnd|ReplaceTrueWithFalse|ReplaceFalseWithTrue"
    r"|ReplaceBinaryOperator_(Add|Sub|Mul|Div|FloorDiv)_(Add|Sub|Mul|FloorDiv)"
    r"|ReplaceUnaryOperator_(Delete_Not|USub_UAdd)|ReplaceContinueWithBreak|ZeroIterationForLoop)"
)
_PASSED = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)  # without torch, whole files are skipped
_FORK = multiprocessing.get_context("fork")
_Line = tuple[str, int]  # the path of a module and the number of a line


@dataclass(frozen=True, slots=True, kw_only=True)
class TestFile:
    """A file of tests that passed: its seconds, and the lines of the package that it ran."""

    path: str
    seconds: float
    lines: frozenset[_Line]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", choices=("analysis", "studies", "reports"))
    parser.add_argument("--sample", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-least", type=float, default=0.0, metavar="SHARE")
    asked = parser.parse_args()
    _prepare()
    test_files = [_measured(file, Path("memprof", asked.package)) for file in _files()]
    num_run = num_noticed = 0
    for mutation in _sample(asked.package, random.Random(asked.seed), asked.sample):
        place = f"{mutation.module_path}:{mutation.start_pos[0]}"
        tests = _reaching(test_files, mutation)
        operator = cosmic_ray.plugins.get_operator(mutation.operator_name)(**mutation.operator_args)
        with use_mutation(mutation.module_path, operator, mutation.occurrence) as (before, after):
            if after is None:
                continue
            is_noticed = bool(tests) and not _passes(tests)
        num_run += 1
        num_noticed += is_noticed
        print(f"{num_noticed} of {num_run}: {place}", flush=True)
        if not is_noticed:
            lines = before.splitlines(), after.splitlines()
            print(*difflib.unified_diff(*lines, place, mutation.operator_name, lineterm=""), sep="\n", flush=True)
    if not num_run:
        print(f"Cosmic Ray ran no mutation of {asked.package}.", file=sys.stderr)
        return 2
    noticed = num_noticed / num_run
    print(f"{asked.package}: {num_noticed} of {num_run} mutations noticed ({noticed:.0%})")
    return 1 if noticed < asked.at_least else 0


def _prepare() -> None:
    """Import what is slow to import and is not mutated, once for all forks; no bytecode of a mutation stays."""
    sys.path.insert(0, os.getcwd())
    sys.dont_write_bytecode = True
    os.environ |= {"PYTHONDONTWRITEBYTECODE": "1", "JAX_PLATFORMS": "cpu"}
    import jax  # noqa: F401

    warnings.filterwarnings("ignore", message="os.fork", category=RuntimeWarning)  # no thread of JAX runs yet


def _files() -> list[str]:
    return [str(file) for each in _FAST for file in sorted(Path(each).rglob("test_*.py")) or [Path(each)]]


def _measured(file: str, package: Path) -> TestFile:
    start = time.monotonic()
    code, lines, output = _in_fork([file], package=package, timeout=None)
    if code not in _PASSED:
        print(output, f"The tests of {file} fail without a mutation.", sep="\n", file=sys.stderr)
        raise SystemExit(2)
    return TestFile(path=file, seconds=time.monotonic() - start, lines=lines)


def _reaching(test_files: Sequence[TestFile], mutation: MutationSpec) -> list[TestFile]:
    """Return the test files that run the statement of a mutation, the fastest first."""
    wanted = {(str(mutation.module_path), line) for line in _statement(mutation.module_path, mutation.start_pos[0])}
    return sorted((file for file in test_files if file.lines & wanted), key=lambda file: file.seconds)


def _statement(module: Path, line: int) -> range:
    """Return the lines of the innermost statement at a line, without the statements within it."""
    found = range(line, line + 1)
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):  # what is within comes later
        if isinstance(node, ast.stmt | ast.ExceptHandler):
            first = min((each.lineno for each in getattr(node, "decorator_list", ())), default=node.lineno)
            body = getattr(node, "body", None)
            end = max(first + 1, body[0].lineno) if body else (node.end_lineno or first) + 1
            found = range(first, end) if first <= line < end else found
    return found


def _passes(tests: Sequence[TestFile]) -> bool:
    timeout = 60 + 5 * sum(file.seconds for file in tests)  # a mutation can make a loop endless
    code, _, _ = _in_fork([file.path for file in tests], package=None, timeout=timeout)
    return code in _PASSED


def _in_fork(files: Sequence[str], *, package: Path | None, timeout: float | None) -> tuple[int, frozenset[_Line], str]:
    """Run test files in a fork of this process.

    Args:
        package: the package whose lines are recorded.
        timeout: in seconds.

    Returns:
        The exit code of pytest (-1 if the fork was killed), the lines that ran, and the output.
    """
    with tempfile.TemporaryDirectory(prefix="cache-of-tests-") as folder:
        receiver, sender = _FORK.Pipe(duplex=False)
        process = _FORK.Process(target=_test, args=(files, package, Path(folder), sender))
        process.start()
        sender.close()
        code, lines = -1, frozenset[_Line]()
        with contextlib.suppress(EOFError):
            if receiver.poll(timeout):
                code, lines = receiver.recv()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.join()
        return code, lines, Path(folder, "output").read_text(encoding="utf-8", errors="replace")


def _test(files: Sequence[str], package: Path | None, folder: Path, sender: Connection) -> None:
    os.setsid()
    output = os.open(folder / "output", os.O_CREAT | os.O_WRONLY)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ["MEMPROF_CACHE_DIR"] = str(folder / "cache")
    lines = _record_lines(package) if package else set()
    code = pytest.main(["-q", "-x", "-p", "no:cacheprovider", f"--basetemp={folder / 'tmp'}", *files])
    sender.send((int(code), frozenset(lines)))


def _record_lines(package: Path) -> set[_Line]:
    """Return a set that gets each line of a package that runs from now on."""
    lines: set[_Line] = set()
    folder, root = f"{package.absolute()}{os.sep}", len(f"{Path.cwd()}{os.sep}")
    monitoring = sys.monitoring

    def on_line(code: CodeType, line: int) -> object:
        if code.co_filename.startswith(folder):
            lines.add((code.co_filename[root:], line))
        return monitoring.DISABLE

    callback: Callable[[CodeType, int], object] = on_line
    monitoring.use_tool_id(monitoring.COVERAGE_ID, "mutation")
    monitoring.register_callback(monitoring.COVERAGE_ID, monitoring.events.LINE, callback)
    monitoring.set_events(monitoring.COVERAGE_ID, monitoring.events.LINE)
    return lines


def _sample(package: str, rng: random.Random, size: int) -> list[MutationSpec]:
    with tempfile.TemporaryDirectory() as folder, use_db(str(Path(folder) / "session.sqlite")) as database:
        init(filter_paths(find_modules([Path("memprof", package)]), []), database, {})
        mutations = [mutation for item in database.work_items for mutation in item.mutations]
    possible = [each for each in mutations if _OPERATORS.fullmatch(each.operator_name) and not _is_of_record(each)]
    # Folders are read in no order, and one seed is to give one sample.
    possible.sort(key=lambda each: (each.module_path, each.operator_name, each.occurrence))
    return rng.sample(possible, min(size, len(possible)))


def _is_of_record(mutation: MutationSpec) -> bool:
    """Return whether it changes a flag of a dataclass or of msgspec's `Struct`."""
    lines = Path(mutation.module_path).read_text(encoding="utf-8").splitlines()
    return bool(re.match(r"\s*(@dataclass\(|class \w+\(Struct\b)", lines[mutation.start_pos[0] - 1]))


if __name__ == "__main__":
    raise SystemExit(main())
