"""How true advice is: the numbers of each program's advice, and the footprints of its code pasted by hand.

    python -m benchmarks.compiled_advice [--target cpu] [-o RESULT.json] [PROGRAM ...]

A PROGRAM is one of `tests/libraries/judged`, written by somebody who had not seen memprof's rules. Code is pasted where
its comments say: after the definition of the function, class or optimizer in a copy of the program's file, or around
the step that the program gives. A program whose library is missing is skipped.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import json
import re
import sys
import tempfile
import time
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

import memprof

_PROGRAMS = Path(__file__).parents[1] / "tests" / "libraries" / "judged"
_PLACE = re.compile(r"# (?:in \S+, )?after the definition of (?P<name>\w+)(?: \(line (?P<line>\d+)\))?.*\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*", default=sorted(path.stem for path in _PROGRAMS.glob("*.py")))
    parser.add_argument("--target", default="cpu")
    parser.add_argument("-o", "--output", type=Path)
    asked = parser.parse_args()
    warnings.filterwarnings("ignore", "Some donated buffers were not usable")
    rows: list[dict[str, Any]] = []
    for name in asked.programs:
        try:
            rows += _advised(name, asked.target)
        except ImportError as error:
            print(f"{name}: skipped ({error})", flush=True)
    compiled = [row for row in rows if row["is_compiled"]]
    num_equal = sum(row["pasted_bytes"] == row["footprint_after_bytes"] for row in compiled)
    print(
        f"{len({row['program'] for row in rows})} programs with {len(rows)} pieces of advice: {len(compiled)} compiled,"
        f" of which {num_equal} equal the footprint of the pasted code; {len(rows) - len(compiled)} upper bounds"
    )
    if asked.output:
        found = {"jax": version("jax"), "memprof": memprof.__version__, "target": asked.target}
        asked.output.write_text(json.dumps({"versions": found, "rows": rows}, indent=1) + "\n")
    return 0


def _advised(name: str, target: str) -> list[dict[str, Any]]:
    source = (_PROGRAMS / f"{name}.py").read_text()
    with tempfile.TemporaryDirectory() as folder:
        step, args = _made(source, Path(folder) / f"{name}.py")
        started = time.perf_counter()
        advice = memprof.advise(step, *args, target=target)
        seconds = time.perf_counter() - started
        rows = []
        for each in advice:
            pasted_bytes, error = None, ""
            if each.compiled is not None:
                try:
                    pasted_bytes = _pasted_bytes(source, each.proposal.how_to, Path(folder) / f"{name}.py", target)
                except Exception as raised:  # of code that does not run as printed
                    error = f"{type(raised).__name__}: {raised}"[:200]
            rows.append({
                "program": name, "rule": each.rule, "is_compiled": each.is_compiled, "saving_bytes": each.saving_bytes,
                "footprint_after_bytes": None if each.compiled is None else each.compiled.footprint_bytes,
                "pasted_bytes": pasted_bytes, "error": error,
                "meaning": "" if each.compiled is None else each.compiled.meaning.value, "seconds": round(seconds, 1),
            })  # fmt: skip
            print(json.dumps(rows[-1]), flush=True)
        if not rows:
            print(f"{name}: no advice", flush=True)
        return rows


def _pasted_bytes(source: str, code: str, path: Path, target: str) -> int:
    places = list(_PLACE.finditer(code))
    step, args = _made(_pasted(source, code, places) if places else source, path)
    if not places:
        names = {step.__name__: step}
        exec(code, names)
        step = names[step.__name__]
    return memprof.profile(step, *args, target=target).report.unpressed.footprint_bytes


def _pasted(source: str, code: str, places: list[re.Match[str]]) -> str:
    """The program with each line of the code after what it changes, and the code's head below the imports."""
    lines = source.splitlines(keepends=True)
    ends = [each.start() for each in places[1:]] + [len(code)]
    inserted: list[tuple[int, str]] = []
    for place, end in zip(places, ends, strict=True):
        node = _definition(ast.parse(source), place["name"], int(place["line"] or 0))
        assert node.end_lineno is not None
        line = code[place.end() : end].strip("\n")
        inserted.append((node.end_lineno, f"{' ' * node.col_offset}{line}\n"))
    last_import = max(
        each.end_lineno or 0 for each in ast.parse(source).body if isinstance(each, ast.Import | ast.ImportFrom)
    )
    inserted.append((last_import, code[: places[0].start()]))
    for number, text in sorted(inserted, reverse=True):
        lines.insert(number, text)
    return "".join(lines)


def _definition(tree: ast.Module, name: str, line: int) -> ast.stmt:
    found = [
        node
        for node in ast.walk(tree)
        if (isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name)
        or (isinstance(node, ast.Assign) and name in map(ast.unparse, node.targets))
    ]
    return next((node for node in found if node.lineno <= line <= (node.end_lineno or 0)), found[0])


def _made(source: str, path: Path) -> tuple[Any, tuple[Any, ...]]:
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    step, args = module.make()[:2]
    return step, tuple(args)


if __name__ == "__main__":
    sys.exit(main())
