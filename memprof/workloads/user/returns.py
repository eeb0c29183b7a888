"""Decide whether a user's function returns a step without calling it.

`memprof run train.py:main` must not train, and only a call shows what a function does. So a function is only called if
its annotation says that it returns a `StepSpec` or a `TrainSpec`, or if its code, or that of a function that it names,
uses one.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from memprof.errors import MemprofError
from memprof.sources.jax.tracing.step import StepSpec
from memprof.workloads.user.serving_spec import ServingSpec
from memprof.workloads.user.train_spec import TrainSpec

_SPECS = (StepSpec, TrainSpec, ServingSpec)
_NAMES = frozenset(spec.__name__ for spec in _SPECS)
_DEEPEST = 5  # depth of calls between functions


def check_returns_step(function: Callable[..., Any], label: str) -> None:
    """Raise `MemprofError`, with one sentence that says what to write, unless a function is known to return a step."""
    says = _says(function)
    if says is None:
        says = _names_spec(function, depth=0, seen=set())
    if not says:
        name = getattr(function, "__name__", "step_spec")
        raise MemprofError(
            f"{label} was not called, because it does not declare that it returns a step: if it does, annotate it "
            f"(def {name}(...) -> memprof.StepSpec); otherwise name a function that returns memprof.StepSpec(step, "
            "arguments)"
        )


def _says(function: Callable[..., Any]) -> bool | None:
    """Return whether the annotation names a spec; None if it is missing or leaves this open."""
    annotation = inspect.signature(function).return_annotation
    if annotation in (inspect.Signature.empty, Any, object):
        return None
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    if text in ("Any", "typing.Any", "object"):
        return None
    return any(name in text for name in _NAMES) or (isinstance(annotation, type) and issubclass(annotation, _SPECS))


def _names_spec(function: Any, *, depth: int, seen: set[CodeType]) -> bool:
    """Whether the code of a function names a spec, or a function whose code does."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    function = getattr(function, "__func__", function)  # a method
    if not isinstance(function, FunctionType):
        is_instance = not isinstance(function, type)
        function = vars(type(function)).get("__call__") if is_instance else None
        if not isinstance(function, FunctionType):
            return False
    if function.__code__ in seen:
        return False
    seen.add(function.__code__)
    names = _names_in(function.__code__)
    if names & _NAMES:
        return True
    values = list(_values(function, names))
    if any(value in _SPECS or isinstance(value, _SPECS) for value in values if isinstance(value, (type, *_SPECS))):
        return True
    return depth < _DEEPEST and any(
        _says(value) or _names_spec(value, depth=depth + 1, seen=seen) for value in values if _is_user_code(value)
    )


def _is_user_code(value: Any) -> bool:
    return isinstance(value, FunctionType) and not value.__module__.startswith(("jax", "flax", "optax", "numpy"))


def _names_in(code: CodeType) -> set[str]:
    """Return the names of globals and attributes, including those in nested functions."""
    inner = (_names_in(each) for each in code.co_consts if isinstance(each, CodeType))
    return {*code.co_names, *code.co_freevars}.union(*inner)


def _values(function: FunctionType, names: set[str]) -> Iterator[Any]:
    """Yield the objects behind names: globals, attributes of modules among them, and closure variables."""
    found = [function.__globals__[name] for name in names if name in function.__globals__]
    yield from found
    for module in found:
        if isinstance(module, ModuleType):
            yield from (vars(module)[name] for name in names if name in vars(module))
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # the cell is still empty
            continue
