"""What a user gives for a step, looked at before JAX does: each mistake is one sentence that says what was expected."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

from memprof.errors import MemprofError

_LONGEST_QUOTE = 60
_SCALARS = (str, bool, int, float)


def shown(value: object) -> str:
    """A value in a message: no more than a line of it, and its type."""
    try:
        text = repr(value)
    except Exception:  # a user's class may do anything here, and the mistake is another one
        text = "..."
    text = " ".join(text.split())
    if len(text) > _LONGEST_QUOTE:
        text = f"{text[:_LONGEST_QUOTE]}..."
    return text if value is None else f"{text} ({type(value).__name__})"


def check_callable(step: object) -> None:
    """Raises `MemprofError` for a step that is no function."""
    if not callable(step):
        raise MemprofError(
            f"the step is {shown(step)}, but a function was expected: profile(train_step, state, batch) profiles"
            " train_step(state, batch)"
        )


def argument_numbers(name: str, given: object, *, num_args: int) -> tuple[int, ...]:
    """The numbers of arguments that `donate_argnums` or `static_argnums` mean.

    Raises:
        MemprofError: they are none, or there are not so many arguments.
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
    """Raises `MemprofError` for what does not map names to values of some kind."""
    if not isinstance(given, Mapping) or not all(isinstance(key, str) and of(value) for key, value in given.items()):
        raise MemprofError(f"{name} is {shown(given)}, but a mapping was expected: {name}={example}")


def check_label(name: str, given: object) -> None:
    """Raises `MemprofError` for a label that is no text, or an empty one."""
    if not isinstance(given, str) or not given.strip():
        raise MemprofError(f"{name} is {shown(given)}, but a text was expected")


def check_step(spec: Any) -> None:
    """Look at all fields of a `StepSpec` that a user sets.

    Raises:
        MemprofError: one of them is not what it must be.
    """
    both = set(spec.donate_argnums) & set(spec.static_argnums)
    if both:
        raise MemprofError(
            f"argument {min(both)} is in donate_argnums and in static_argnums, but what is static has no buffer to"
            " donate: leave it out of one of them"
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
        raise MemprofError(f"techniques is {shown(spec.techniques)}, but a tuple of texts was expected: ('bf16',)")
