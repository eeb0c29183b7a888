"""Code pasted into the user's program temporarily: it is executed, and the values that it assigns replace the old ones.

    with pasted("block = jax.checkpoint(block)", [find_bound("block", "train.py")]):
        ...                                      # each call of `block` calls the new function

So the compiled step includes the code, and the user's files stay unchanged.
"""

from __future__ import annotations

import gc
import inspect
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from memprof.errors import MemprofError
from memprof.sources.jax.own_attributes import own
from memprof.sources.jax.tracing import jit_adapter

_LOCALS = "<locals>."


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A value of the user's program, and the places that hold it.

    Attributes:
        name: its name in code at its place, such as `block`; the class name for a method.
        value: the function, the class, or whatever has the name.
        method: the name of the method that the code replaces; empty if the code replaces the name itself.
        places: functions that put another value in its place.
    """

    name: str
    value: Any
    method: str = ""
    places: tuple[Callable[[Any], None], ...] = ()


def find_bound(qualified_name: str, file: str) -> Bound | None:
    """Return the function that a file defines under a name, with the places that hold it.

    Returns:
        None if it does not exist outside a call, such as a function defined within the step.
    """
    owner, _, name = qualified_name.rpartition(".")
    if owner and not owner.endswith("<locals>"):
        cls = _find_class(owner, file, name)
        return None if cls is None else Bound(name=owner.rpartition(_LOCALS)[2], value=cls, method=name)
    functions = [
        each
        for each in gc.get_objects()
        if type(each) is types.FunctionType
        and each.__code__.co_filename == file
        and _qualified_name(each) == qualified_name
    ]
    if len(functions) != 1:
        return None
    return bound_places(name, functions[0])


def bound_places(name: str, function: Any, *, globals_of: Any = None) -> Bound | None:
    """Return the modules and closures that hold a value, or its jitted form, under a name; None if there are none.

    Args:
        globals_of: the function whose module holds it, if it is not a function itself.
    """

    def is_it(value: Any) -> bool:
        return value is function or (callable(value) and own(value, "__wrapped__") is function)

    places: list[Callable[[Any], None]] = []
    value: Any = None
    modules = [
        own(globals_of or function, "__globals__"),
        *(own(module, "__dict__") for module in list(sys.modules.values())),
    ]
    for names in {id(each): each for each in modules if isinstance(each, dict)}.values():
        if is_it(names.get(name)):
            value = names[name]
            places.append(_setter(names, name))
    holders = [function, *([value] if value is not None and value is not function else [])]
    holders += [each for each in gc.get_referrers(function) if own(each, "__wrapped__") is function]
    for holder in holders:
        for cell in gc.get_referrers(holder):
            if isinstance(cell, types.CellType) and is_it(cell.cell_contents):
                value = cell.cell_contents
                places.append(_cell_setter(cell))
    return Bound(name=name, value=value, places=tuple(places)) if places else None


@contextmanager
def pasted(code: str, bound: Sequence[Bound], **more: Any) -> Iterator[dict[str, Any]]:
    """Execute code, and put the values that it assigns in the old values' places within a `with` block.

    Args:
        more: names that the code uses but does not assign.

    Yields:
        The names that the code can use, and the names that it assigned.

    Raises:
        MemprofError: the code assigns nothing to one of these names.
        Exception: whatever the code raises.
    """
    names: dict[str, Any] = more | {each.name: each.value for each in bound}
    methods = [(each.value, each.method, each.value.__dict__[each.method]) for each in bound if each.method]
    try:
        exec(compile(code, "<advice>", "exec"), names)
        for each in bound:
            if each.method:
                continue
            if names[each.name] is each.value:
                raise MemprofError(f"the code does not assign {each.name}")
            for put in each.places:
                put(names[each.name])
        yield names
    finally:
        for cls, method, original in methods:
            setattr(cls, method, original)
        for each in bound:
            for put in each.places:
                put(each.value)


@contextmanager
def pasted_anew(code: str, bound: Sequence[Bound]) -> Iterator[None]:
    """Paste code as `pasted` does, and retrace steps that JAX may have cached."""
    with pasted(code, bound), jit_adapter.traced_anew():
        yield


def _find_class(qualified_name: str, file: str, method: str) -> Any:
    """Return the class of that name whose own method is defined in a file, or None."""
    for each in gc.get_objects():
        if not issubclass(type(each), type) or each.__qualname__ != qualified_name or method not in each.__dict__:
            continue
        function = inspect.unwrap(each.__dict__[method])
        with suppress(AttributeError):
            if function.__code__.co_filename == file:
                return each
    return None


def _qualified_name(function: types.FunctionType) -> str:
    return getattr(function.__code__, "co_qualname", function.__qualname__)


def _setter(names: dict[str, Any], name: str) -> Callable[[Any], None]:
    return lambda value: names.__setitem__(name, value)


def _cell_setter(cell: types.CellType) -> Callable[[Any], None]:
    return lambda value: setattr(cell, "cell_contents", value)
