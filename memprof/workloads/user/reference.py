"""References to objects in the user's code: `PATH.py:NAME` and `package.module:NAME`.

Importing runs the user's code, so only the child process calls `load`. `parse` is quick and finds mistakes earlier.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from memprof.errors import MemprofError, unknown_name

_DEFAULT_NAME = "step_spec"
SCRIPT = "__main__"
_STEP_SPEC = "StepSpec"
_SPECS = {_STEP_SPEC, "TrainSpec"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A file or a module, and the name of an object in it; the name is `__main__` if it runs as a script."""

    module: str
    path: Path | None
    name: str

    def __str__(self) -> str:
        return str(self.path or self.module) if self.is_script else f"{self.path or self.module}:{self.name}"

    @property
    def is_script(self) -> bool:
        """Whether it runs as a script, until it calls its training step."""
        return self.name == SCRIPT

    @property
    def label(self) -> str:
        """Its name in reports: `train:step_spec`."""
        place = self.path.stem if self.path else self.module
        return place if self.is_script else f"{place}:{self.name}"


def is_reference(text: str) -> bool:
    """Whether a text names an object in the user's code, not a workload of memprof."""
    return ":" in text or text.endswith(".py")


def parse(text: str, *, default: str = _DEFAULT_NAME) -> Reference:
    """Read a reference. A file without a name means its `step_spec`, or the script itself if it has none.

    Args:
        default: the name that is used instead of `step_spec`.

    Raises:
        MemprofError: there is no such file, or the text is not a reference.
    """
    place, _, name = text.rpartition(":") if ":" in text else (text, "", default)
    if not name.isidentifier():
        raise MemprofError(
            f"'{text}' does not name an object in your code: write path/to/file.py:NAME or package.module:NAME"
        )
    if not place.endswith(".py"):
        if not all(part.isidentifier() for part in place.split(".")):
            raise MemprofError(f"'{text}' is neither path/to/file.py:NAME nor package.module:NAME")
        return Reference(module=place, path=None, name=name)
    path = Path(place)
    if not os.path.isfile(place):  # `Path` raises an error for a name that is too long
        raise MemprofError(f"there is no file {place}; give the path of the Python file that defines {name}")
    if ":" not in text and not _has(path, default):
        name = SCRIPT
    return Reference(module=path.stem, path=path.resolve(), name=name)


def _has(path: Path, name: str) -> bool:
    """Whether a file seems to define a name. A file that Python cannot read is reported when it is imported."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return True
    return not {name, "*"}.isdisjoint(
        getattr(node, field, None) for node in ast.walk(tree) for field in ("id", "name", "asname")
    )


def names_step(reference: Reference) -> bool:
    """Whether a reference names a finished step: a script, a `StepSpec`, or a function that seems to make one."""
    if reference.is_script or reference.path is None:
        return reference.is_script
    try:
        body = ast.parse(reference.path.read_bytes()).body
    except (OSError, SyntaxError, ValueError):  # reported when it is imported
        return False
    for statement in body:
        if isinstance(statement, ast.FunctionDef) and statement.name == reference.name:
            names = _identifiers(statement.returns) & _SPECS or _identifiers(statement) & _SPECS
            return names == {_STEP_SPEC}
        if isinstance(statement, ast.Assign) and reference.name in map(ast.unparse, statement.targets):
            made = statement.value
            return isinstance(made, ast.Call) and _identifiers(made.func) & _SPECS == {_STEP_SPEC}
    return False


def _identifiers(node: ast.AST | None) -> set[str]:
    """Return the names and attributes in a piece of code, including those in string annotations."""
    parts = [] if node is None else ast.walk(node)
    texts = (getattr(part, "id", getattr(part, "attr", getattr(part, "value", None))) for part in parts)
    return {text.rpartition(".")[2] for text in texts if isinstance(text, str)}


def load(reference: Reference, arguments: Sequence[str]) -> Any:
    """Import the user's code, as `python PATH.py ARGUMENTS` would find it, and return the object.

    Args:
        arguments: the entries of `sys.argv` after the program's name.

    Raises:
        MemprofError: the module has no such object.
        Exception: any error of the import.
    """
    sys.argv = [str(reference.path or reference.module), *arguments]
    sys.path.insert(0, str(reference.path.parent if reference.path else Path.cwd()))
    module = _import_file(reference) if reference.path else importlib.import_module(reference.module)
    if not hasattr(module, reference.name):
        place = reference.path.name if reference.path else reference.module
        raise unknown_name(f"object of {place} called", reference.name, _candidates(module))
    return getattr(module, reference.name)


def _import_file(reference: Reference) -> ModuleType:
    assert reference.path is not None
    specification = importlib.util.spec_from_file_location(reference.module, reference.path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[reference.module] = module  # dataclasses and pickle look a class's module up there
    specification.loader.exec_module(module)
    return module


def _candidates(module: ModuleType) -> list[str]:
    """Return the names in the module's own code that a reference can use: functions and specs."""
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (type(value).__name__ in ("StepSpec", "TrainSpec") or getattr(value, "__module__", None) == module.__name__)
        and (callable(value) or type(value).__name__.endswith("Spec"))
        and not isinstance(value, type)
    ]
