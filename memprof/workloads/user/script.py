"""The training step of a script that names none: the script runs until it calls that step.

It runs in a greenlet of its own, which then stands still for good, as if its step took forever: no `except`, `finally`
or `atexit` of the script sees that memprof goes on alone. Whoever has called `training_call` ends its process with
`os._exit`.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from greenlet import greenlet

from memprof.capture.own_attributes import own
from memprof.capture.tracing import jit_adapter
from memprof.capture.tracing.flops import has_backward_pass
from memprof.capture.tracing.step import StepSpec
from memprof.errors import MemprofError, WorkloadError
from memprof.workloads.overrides import parse_value
from memprof.workloads.user.reference import Reference

_Plain = str | int | float | bool | None
_standing_still: list[greenlet] = []  # Python raises an error in a greenlet that nothing refers to any more


def is_standing_still() -> bool:
    """Whether a script of this process was left in the middle of a call, so that Python must not end by itself."""
    return bool(_standing_still)


def training_call(where: Reference, arguments: Sequence[str], overrides: Sequence[tuple[str, str]]) -> StepSpec:
    """Run a script until it calls a jitted function that differentiates, and return that call.

    Args:
        where: the file, or the module as for `python -m`.
        arguments: for its `sys.argv`.
        overrides: names and texts: of constants at its top level, or else of its own options.

    Raises:
        MemprofError: it has no such constant and no such option.
        WorkloadError: it has ended, or ended itself, without such a call.
        Exception: whatever it raises.
    """
    source, path, specification = _source(where)
    tree = ast.parse(source, path)
    more = [*_set(tree, source, overrides, str(where))]
    sys.argv = [path, *arguments, *more]
    module = _as_main(path, specification)
    main = greenlet.getcurrent()
    parsed: dict[str, _Plain] = {}
    ours = _contexts()

    def called(fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if not jit_adapter.is_of_jax(fn) and has_backward_pass(fn.trace(*args, **kwargs).jaxpr):
            outer = jit_adapter.outer_call(fn)
            shown, given, named = outer if outer and jit_adapter.is_framework_jit(outer[0]) else (fn, args, kwargs)
            config = {**_constants(tree, module), **parsed, **_of_absl(path)}
            for context in _contexts():
                if context not in ours:
                    config |= _plain_values(context.params)
            main.switch(StepSpec(shown, tuple(given), kwargs=dict(named), config=config))

    code = compile(tree, path, "exec")
    script = greenlet(lambda: exec(code, module.__dict__))
    try:
        with jit_adapter.watch_calls(called, with_lowered=True), _noted(parsed):
            found = script.switch()
    except SystemExit as ended:
        raise WorkloadError(f"{where} has ended itself with {ended.code!r} before it called a training step") from ended
    if not isinstance(found, StepSpec):
        raise WorkloadError(
            f"{where} has ended without a call of a jitted function that differentiates, so it has no training step to"
            f" find: memprof watch {_watched(where)} shows all that it compiles, and a function that returns"
            " memprof.StepSpec(step, args) names the step"
        )
    _standing_still.append(script)
    return replace(found, workload=where.label)


def _watched(where: Reference) -> str:
    return str(where.path) if where.path else f"-m {where.module}"


def _source(where: Reference) -> tuple[bytes, str, ModuleSpec | None]:
    """The source of a script, its file, and for a module what Python knows of it."""
    if where.path is not None:
        sys.path.insert(0, str(where.path.parent))
        return where.path.read_bytes(), str(where.path), None
    sys.path.insert(0, str(Path.cwd()))
    found = importlib.util.find_spec(where.module)
    if found is not None and found.submodule_search_locations:
        found = importlib.util.find_spec(f"{where.module}.__main__")
    if found is None or found.origin is None or not found.origin.endswith(".py"):
        raise MemprofError(f"Python finds no source of a script {where.module}")
    return Path(found.origin).read_bytes(), found.origin, found


def _as_main(path: str, specification: ModuleSpec | None) -> ModuleType:
    """A module that is `__main__`, as Python makes it for a script."""
    module = ModuleType("__main__")
    module.__file__, module.__spec__ = path, specification
    if specification is not None:
        module.__package__ = specification.parent
    sys.modules["__main__"] = module
    return module


def _literals(tree: ast.Module) -> Iterator[tuple[str, ast.Assign | ast.AnnAssign, _Plain]]:
    """The assignments of numbers, texts and truth values to a name at the top level."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            target = node.target
        else:
            continue
        if isinstance(target, ast.Name) and isinstance(node.value, ast.Constant | ast.UnaryOp):
            try:
                value = ast.literal_eval(node.value)
            except ValueError:
                continue
            if isinstance(value, str | int | float | None):
                yield target.id, node, value


def _set(tree: ast.Module, source: bytes, overrides: Sequence[tuple[str, str]], where: str) -> Iterator[str]:
    """Set constants of a script to other values; what is none of them is an option, and is returned for `sys.argv`."""
    for name, text in overrides:
        found = [(node, value) for each, node, value in _literals(tree) if each == name]
        for node, value in found:
            node.value = ast.copy_location(ast.Constant(parse_value(name, text, type(value))), node)
        if not found:
            yield f"{_option(name, source.decode(errors='replace'), where)}={text}"


def _option(name: str, source: str, where: str) -> str:
    """How a script spells an option, by its source."""
    spellings = (name, name.replace("_", "-"))
    for spelling in spellings:
        if re.search(rf"""["']--{re.escape(spelling)}\b(?![-_])""", source):
            return f"--{spelling}"
    if re.search(rf"""DEFINE_\w+\(\s*["']{re.escape(name)}["']""", source):  # absl
        return f"--{name}"
    if "typer" in source and re.search(rf"\b{re.escape(name)}\s*:", source):
        return f"--{spellings[-1]}"
    raise MemprofError(
        f"{where} has no constant {name} at its top level and no option --{spellings[-1]} that --set could change; give"
        " its own arguments after --"
    )


def _constants(tree: ast.Module, module: ModuleType) -> dict[str, _Plain]:
    return {name: _plain(vars(module).get(name)) for name, _, _ in _literals(tree)}


@contextmanager
def _noted(parsed: dict[str, _Plain]) -> Iterator[None]:
    """Note what `argparse` parses meanwhile."""
    parse = argparse.ArgumentParser.parse_known_args

    def parse_known_args(parser: argparse.ArgumentParser, *args: Any, **kwargs: Any) -> Any:
        found = parse(parser, *args, **kwargs)
        parsed.update(_plain_values(vars(found[0])))
        return found

    argparse.ArgumentParser.parse_known_args = parse_known_args  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        argparse.ArgumentParser.parse_known_args = parse  # type: ignore[method-assign]


def _contexts() -> list[Any]:
    """The commands that run: Click's, and those of the Click that is a part of Typer (0.29)."""
    modules = (sys.modules.get(name) for name in ("click", "typer._click.globals"))
    found = [module.get_current_context(silent=True) for module in modules if module is not None]
    return [each for each in found if each is not None]


def _of_absl(path: str) -> dict[str, _Plain]:
    """The flags of absl that the script itself defines."""
    flags: Any = own(sys.modules.get("absl.flags"), "FLAGS")
    defined = () if flags is None else flags.flags_by_module_dict().get(path, ())
    return _plain_values({each.name: each.value for each in defined})


def _plain_values(values: Mapping[str, Any]) -> dict[str, _Plain]:
    return {name: value for name, value in values.items() if isinstance(value, str | int | float | None)}


def _plain(value: Any) -> _Plain:
    return value if isinstance(value, str | int | float | None) else repr(value)
