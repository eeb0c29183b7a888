"""Checks of a user's step before JAX sees it. Each mistake gives one sentence that says what was expected."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

from memprof.errors import MemprofError

_LONGEST_QUOTE = 60
_SCALARS = (str, bool, int, float)


def shown(value: object) -> str:
    """Format a value for a message: at most one line, and its type."""
    try:
        text = repr(value)
    except Exception:  # a user's `__repr__` may raise anything, and must not hide the mistake
        text = "..."
    text = " ".join(text.split())
    if len(text) > _LONGEST_QUOTE:
        text = f"{text[:_LONGEST_QUOTE]}..."
    return text if value is None else f"{text} ({type(value).__name__})"


def check_callable(step: object) -> None:
    """Raise `MemprofError` if a step is not callable."""
    if not callable(step):
        raise MemprofError(
            f"the step is {shown(step)}, but a function was expected: profile(train_step, state, batch) profiles"
            " train_step(state, batch)"
        )


def argument_numbers(name: str, given: object, *, num_args: int) -> tuple[int, ...]:
    """Return the argument numbers in `donate_argnums` or `static_argnums`.

    Raises:
        MemprofError: a value is not a number, or the step has fewer arguments.
    """
    try:
        numbers = tuple(map(operator.index, given if isinstance(given, (list, tuple, set, frozenset)) else [given]))
    except TypeError as error:
        raise MemprofError(
            f"{name} is {shown(given)}, but the number of an argument was expected, or several as a tuple: {name}=(0,)"
        ) from error
    for number in numbers:
        if not -num_args <= number < num_args:
            raise MemprofError(
                f"{name} names argument {number}, but the step has {num_args} positional"
                f" argument{'' if num_args == 1 else 's'}, which count from 0"
            )
    return numbers


def check_mapping(name: str, given: object, example: str, of: Callable[[object], bool]) -> None:
    """Raise `MemprofError` unless a value maps names to values of the expected kind."""
    if not isinstance(given, Mapping) or not all(isinstance(key, str) and of(value) for key, value in given.items()):
        raise MemprofError(f"{name} is {shown(given)}, but a mapping was expected: {name}={example}")


def check_label(name: str, given: object) -> None:
    """Raise `MemprofError` if a label is empty or not a text."""
    if not isinstance(given, str) or not given.strip():
        raise MemprofError(f"{name} is {shown(given)}, but a string was expected")


def check_step(spec: Any) -> None:
    """Check all fields of a `StepSpec` that a user sets.

    Raises:
        MemprofError: a field is invalid.
    """
    both = set(spec.donate_argnums) & set(spec.static_argnums)
    if both:
        raise MemprofError(
            f"argument {min(both)} is in donate_argnums and in static_argnums, but a static argument has no buffer "
            "to donate: leave it out of one of them"
        )
    check_mapping("roles", spec.roles, '{"state.params": "params"}', lambda value: isinstance(value, str))
    check_mapping("kwargs", spec.kwargs, '{"train": True}', lambda value: True)
    check_mapping(
        "config", spec.config, '{"batch_size": 8}', lambda value: value is None or isinstance(value, _SCALARS)
    )
    check_mapping(
        "compiler_options", spec.compiler_options, '{"xla_flag": "1"}', lambda value: isinstance(value, _SCALARS)
    )
    check_mapping("memory_kinds", spec.memory_kinds, '{"state": "pinned_host"}', lambda value: isinstance(value, str))
    check_label("workload", spec.workload)
    if not isinstance(spec.techniques, tuple) or not all(isinstance(each, str) for each in spec.techniques):
        raise MemprofError(f"techniques is {shown(spec.techniques)}, but a tuple of strings was expected: ('bf16',)")
