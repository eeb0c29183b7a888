"""Detect the framework that a script is written with, by its imports, without running it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from memprof.errors import MemprofError
from memprof.workloads.user.reference import is_reference, parse

_OF_TORCH = frozenset({"torch", "torchvision", "transformers", "accelerate", "lightning", "pytorch_lightning", "timm"})
_OF_JAX = frozenset({"jax", "flax", "optax", "equinox", "haiku"})
_MAX_FILES = 200


def is_of_torch(text: str) -> bool:
    """Whether a reference, such as `train.py` or `train.py:NAME`, names code that imports PyTorch and not JAX."""
    if not is_reference(text):
        return False
    try:
        where = parse(text)
    except MemprofError:  # reported when the reference is used
        return False
    return trains_with_torch(where.path if where.path is not None else file_of(where.module))


def trains_with_torch(script: Path | None) -> bool:
    """Whether a script, with the files beside it that it imports, imports PyTorch and not JAX."""
    if script is None:
        return False
    found: set[str] = set()
    read: set[Path] = set()
    waiting = [script]
    while waiting and len(read) < _MAX_FILES:
        path = waiting.pop()
        read.add(path)
        for name in _imports(path):
            found.add(name.partition(".")[0])
            local = file_of(name, script.parent)
            if local is not None and local not in read:
                waiting.append(local)
    return bool(found & _OF_TORCH) and not found & _OF_JAX


def file_of(module: str, folder: Path | None = None) -> Path | None:
    """Return the file of a module in a folder (default: the working folder); None if it has no file there."""
    place = (folder or Path.cwd()).joinpath(*module.split("."))
    candidates = place.with_name(f"{place.name}.py"), place / "__main__.py", place / "__init__.py"
    return next((each for each in candidates if each.is_file()), None)


def _imports(path: Path) -> Iterator[str]:
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):  # reported when the script runs
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{each.name}" for each in node.names)
