"""Find the source of a script that runs as `__main__`, change it by `--set`, and describe it by its own choices.

It is independent of the framework: `script.py` runs a script that trains with JAX, `workloads/torch/script.py` one with
PyTorch.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from memprof.errors import MemprofError
from memprof.sources.jax.own_attributes import own
from memprof.workloads.overrides import parse_value
from memprof.workloads.user.reference import Reference

_Plain = str | int | float | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedScript:
    """A script, ready to run as `__main__`.

    Attributes:
        parsed: values that `argparse` has parsed; recorded under `noted`.
    """

    code: CodeType
    module: ModuleType
    parsed: dict[str, _Plain] = field(default_factory=dict)
    _tree: ast.Module
    _path: str
    _contexts_before: tuple[Any, ...]

    def run(self) -> None:
        """Run it, and raise any error of the script."""
        exec(self.code, self.module.__dict__)

    def config(self) -> dict[str, _Plain]:
        """Return its constants and its parsed options, for reports."""
        config = {**_constants(self._tree, self.module), **self.parsed, **_of_absl(self._path)}
        for context in _contexts():
            if context not in self._contexts_before:
                config |= _plain_values(context.params)
        return config

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Record the values that `argparse` parses in this context."""
        parse = argparse.ArgumentParser.parse_known_args

        def parse_known_args(parser: argparse.ArgumentParser, *args: Any, **kwargs: Any) -> Any:
            found = parse(parser, *args, **kwargs)
            self.parsed.update(_plain_values(vars(found[0])))
            return found

        argparse.ArgumentParser.parse_known_args = parse_known_args  # type: ignore[assignment, method-assign]
        try:
            yield
        finally:
            argparse.ArgumentParser.parse_known_args = parse  # type: ignore[method-assign]


def prepare(where: Reference, arguments: Sequence[str], overrides: Sequence[tuple[str, str]]) -> PreparedScript:
    """Read a script, and make it `__main__` of this process.

    Args:
        where: the file, or the module as for `python -m`.
        arguments: arguments for its `sys.argv`.
        overrides: names and texts of constants at its top level, or else of its own options.

    Raises:
        MemprofError: it has no such constant and no such option.
        SyntaxError: the script has a syntax error.
    """
    source, path, specification = _source(where)
    tree = ast.parse(source, path)
    more = [*_set(tree, source, overrides, str(where))]
    sys.argv = [path, *arguments, *more]
    module = _as_main(path, specification)
    return PreparedScript(
        code=compile(tree, path, "exec"), module=module, _tree=tree, _path=path, _contexts_before=tuple(_contexts())
    )


def _source(where: Reference) -> tuple[bytes, str, ModuleSpec | None]:
    """Return the source of a script, its file and, for a module, its spec."""
    if where.path is not None:
        sys.path.insert(0, str(where.path.parent))
        return where.path.read_bytes(), str(where.path), None
    sys.path.insert(0, str(Path.cwd()))
    found = importlib.util.find_spec(where.module)
    if found is not None and found.submodule_search_locations:
        found = importlib.util.find_spec(f"{where.module}.__main__")
    if found is None or found.origin is None or not found.origin.endswith(".py"):
        raise MemprofError(f"Python cannot find the source of a module {where.module}")
    return Path(found.origin).read_bytes(), found.origin, found


def _as_main(path: str, specification: ModuleSpec | None) -> ModuleType:
    """Return a module that is `__main__`, as Python makes it for a script."""
    module = ModuleType("__main__")
    module.__file__, module.__spec__ = path, specification
    if specification is not None:
        module.__package__ = specification.parent
    sys.modules["__main__"] = module
    return module


def _literals(tree: ast.Module) -> Iterator[tuple[str, ast.Assign | ast.AnnAssign, _Plain]]:
    """Yield the top-level assignments of numbers, texts and booleans to a name."""
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
    """Set constants of a script to other values; yield every other override as an option for `sys.argv`."""
    for name, text in overrides:
        found = [(node, value) for each, node, value in _literals(tree) if each == name]
        for node, value in found:
            node.value = ast.copy_location(ast.Constant(parse_value(name, text, type(value))), node)
        if not found:
            yield f"{_option(name, source.decode(errors='replace'), where)}={text}"


def _option(name: str, source: str, where: str) -> str:
    """Return a script's spelling of an option, found in its source."""
    spellings = (name, name.replace("_", "-"))
    for spelling in spellings:
        if re.search(rf"""["']--{re.escape(spelling)}\b(?![-_])""", source):
            return f"--{spelling}"
    if re.search(rf"""DEFINE_\w+\(\s*["']{re.escape(name)}["']""", source):  # absl
        return f"--{name}"
    if "typer" in source and re.search(rf"\b{re.escape(name)}\s*:", source):
        return f"--{spellings[-1]}"
    raise MemprofError(
        f"{where} has no constant {name} at its top level and no option --{spellings[-1]} for --set to change; give "
        "its own arguments after --"
    )


def _constants(tree: ast.Module, module: ModuleType) -> dict[str, _Plain]:
    return {name: _plain(vars(module).get(name)) for name, _, _ in _literals(tree)}


def _contexts() -> list[Any]:
    """Return the current command contexts: Click's, and those of the Click inside Typer (0.29)."""
    modules = (sys.modules.get(name) for name in ("click", "typer._click.globals"))
    found = [module.get_current_context(silent=True) for module in modules if module is not None]
    return [each for each in found if each is not None]


def _of_absl(path: str) -> dict[str, _Plain]:
    """Return the absl flags that the script itself defines."""
    flags: Any = own(sys.modules.get("absl.flags"), "FLAGS")
    defined = () if flags is None else flags.flags_by_module_dict().get(path, ())
    return _plain_values({each.name: each.value for each in defined})


def _plain_values(values: Mapping[str, Any]) -> dict[str, _Plain]:
    return {name: value for name, value in values.items() if isinstance(value, str | int | float | None)}


def _plain(value: Any) -> _Plain:
    return value if isinstance(value, str | int | float | None) else repr(value)
