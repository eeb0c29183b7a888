"""Hold memprof against programs that somebody judged by hand before memprof was asked.

    python tests/libraries/hold_judged.py [NAME ...]

`judged/NAME.py` is a training or inference step with another library or none, written by somebody who had not seen
memprof's rules, and `judged/NAME.json` the judgement: the role of every leaf of its arguments (jax 0.12), and category
and module of the largest buffers at the peak on an H100. A judgement can allow several answers. A program whose library
is missing is skipped.
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import memprof
from memprof.analysis.records.categories import Phase
from memprof.analysis.records.live_buffer import LiveBuffer
from memprof.analysis.records.report import Report

_FOLDER = Path(__file__).parent / "judged"


def main() -> None:
    names = sys.argv[1:] or sorted(path.stem for path in _FOLDER.glob("*.json"))
    num_right = dict.fromkeys(("roles", "categories", "modules", "all of them"), 0)
    num_held = 0
    for name in names:
        try:
            step, args = _program(name)
        except ImportError as error:
            print(f"{name}: skipped ({error})")
            continue
        judgement = json.loads((_FOLDER / f"{name}.json").read_text())
        report = memprof.profile(step, *args, target="h100-80gb").report
        found = {
            "roles": list(_wrong_roles(report.arguments, judgement)),
            "categories": list(_wrong(report, judgement, "category")),
            "modules": list(_wrong(report, judgement, "module")),
        }
        num_held += 1
        for kind, wrong in found.items():
            num_right[kind] += not wrong
            print(f"{name}: {kind} {'right' if not wrong else f'{len(wrong)} wrong'}", *wrong, sep="\n    ")
        num_right["all of them"] += not any(found.values())
    print(", ".join(f"{kind} right in {number} of {num_held}" for kind, number in num_right.items()))


def _program(name: str) -> tuple[Any, tuple[Any, ...]]:
    spec = importlib.util.spec_from_file_location(name, _FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module.make()  # type: ignore[no-any-return]


def _wrong_roles(arguments: Any, judgement: dict[str, Any]) -> Iterator[str]:
    doubtful = judgement.get("doubtful_roles", ())
    for leaf, (path, role) in zip(arguments, judgement["roles"].items(), strict=True):
        if leaf.role.value != role and path not in doubtful:
            yield f"{path} is {role}, not {leaf.role.value}"


def _wrong(report: Report, judgement: dict[str, Any], kind: str) -> Iterator[str]:
    for judged in judgement["buffers"]:
        buffer = _found(report, judgement, judged)
        if buffer is None:
            yield f"{judged['bytes']:,} bytes of {judged['instructions'][0]} are not at the peak"
            continue
        allowed = judged[kind] if isinstance(judged[kind], list) else [judged[kind]]
        allowed = [*allowed, *(judged.get("category_alternatives", ()) if kind == "category" else ())]
        given = buffer.category.value if kind == "category" else buffer.module
        if not any(given == each or (kind == "module" and _is_end(given, each)) for each in allowed):
            yield f"{buffer.name} is {' or '.join(map(repr, allowed))}, not {given!r} ({judged['why']})"


def _found(report: Report, judgement: dict[str, Any], judged: dict[str, Any]) -> LiveBuffer | None:
    """The memory of the named argument, else the buffer of a named instruction, else one of the same size and type."""
    if "argument" in judged:
        path = report.arguments[list(judgement["roles"]).index(judged["argument"])].path
        return next(each for each in report.buffers if each.op == path and each.phase is Phase.ARGUMENT)
    places = [
        (name, int(place[:-1]) if place[:-1] else None)
        for name, _, place in (n.partition("{") for n in judged["instructions"])
    ]
    array = re.sub(r"\{.*", "", judged["shape"])
    sized = [each for each in report.buffers if each.size_bytes == judged["bytes"]]
    exact = (each for each in sized if (each.name, each.shape_index[0] if each.shape_index else None) in places)
    named = (each for each in sized if each.name in dict(places))
    made = (each for each in report.buffers if each.phase is not Phase.ARGUMENT)
    alike = (each for each in made if f"{each.dtype}[{','.join(map(str, each.shape))}]" == array)
    return next(chain(exact, named, alike), None)


def _is_end(given: str, judged: str) -> bool:
    """Whether one module path is the end of the other: the name of a model's class may stand before it."""
    return bool(given and judged) and (given.endswith(f"/{judged}") or judged.endswith(f"/{given}"))


if __name__ == "__main__":
    main()
