"""`--set field=value`: texts that change fields of the configuration records, typed by the records' annotations.

    config, train_config = apply_overrides(("batch_size=16", "learning_rate=3e-4"), config, train_config)

All changes to one record are made together, so that the record checks the values together: `hidden_size=96` and
`num_heads=6` may each be wrong without the other.
"""

from __future__ import annotations

import dataclasses
import math
import re
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from memprof.errors import MemprofError, unknown_name
from memprof.workloads import registry
from memprof.workloads.train_config import TrainConfig, technique_fields
from memprof.workloads.workload import ModelConfig

ConfigT = TypeVar("ConfigT", bound=ModelConfig)


def apply_overrides(
    overrides: Sequence[str], config: ConfigT, train_config: TrainConfig, *, trains: bool = True
) -> tuple[ConfigT, TrainConfig]:
    """Return the two records with the overrides applied.

    Args:
        overrides: `field=value` texts. A field is looked up in the model's configuration, then among the settings of
            the training configuration that no technique owns.
        config: the model's configuration.
        train_config: the training configuration.
        trains: whether the step trains. Otherwise the training settings are unknown, except for the seed.

    Raises:
        MemprofError: for a text that is not `field=value`, an unknown field, a field that is set twice or belongs to
            a technique, a value of the wrong type, or values that the records reject.
    """
    model_types = typing.get_type_hints(type(config))
    train_types = typing.get_type_hints(TrainConfig)
    for name in technique_fields():
        del train_types[name]
    if not trains:
        train_types = {"seed": train_types["seed"]}
    model_changes: dict[str, Any] = {}
    train_changes: dict[str, Any] = {}
    for text in overrides:
        name, value_text = split_override(text)
        if name in model_changes or name in train_changes:
            raise MemprofError(f"Field '{name}' is set twice: give it one value.")
        if name in model_types:
            model_changes[name] = parse_value(name, value_text, model_types[name])
        elif name in train_types:
            train_changes[name] = parse_value(name, value_text, train_types[name])
        elif name in technique_fields():
            owners = [technique.usage for technique in registry.techniques() if name in technique.sets]
            raise MemprofError(
                f"Field '{name}' cannot be set, because techniques decide it: choose from {', '.join(owners)}."
            )
        else:
            raise unknown_name("field", name, [*model_types, *train_types])
    return dataclasses.replace(config, **model_changes), dataclasses.replace(train_config, **train_changes)


def split_override(text: str) -> tuple[str, str]:
    """Return field and value of a text `field=value`; raise `MemprofError` if it has another form."""
    name, equals, value = text.partition("=")
    name, value = name.strip(), value.strip()
    if not (name and equals and value):
        raise MemprofError(f"'{text}' is not a setting: write field=value, for example batch_size=16.")
    return name, value


def parse_value(name: str, text: str, annotation: Any) -> Any:
    """Return the value of `text` for a field of that annotation; raise `MemprofError` if it has none."""
    alternatives = _alternatives(annotation)
    if types.NoneType in alternatives and text.lower() == "none":
        return None
    value_types = [alternative for alternative in alternatives if alternative is not types.NoneType]
    value_type = value_types[0]
    if len(value_types) > 1 or not (value_type in _PARSERS or typing.get_origin(value_type) is typing.Literal):
        raise MemprofError(f"{name} is a {annotation}, which cannot be written as text: set it in the code.")
    if typing.get_origin(value_type) is typing.Literal:
        choices = typing.get_args(value_type)
        expected = f"one of {', '.join(choices)}"
        value = text if text in choices else None
    else:
        expected, parse = _PARSERS[value_type]
        value = parse(text)
    if value is None:
        optional = ", or none" if types.NoneType in alternatives else ""
        raise MemprofError(f"{name}={text} has no valid value: {name} expects {expected}{optional}.")
    return value


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        return typing.get_args(annotation)
    return (annotation,)


_MAX_INT = 2**63  # XLA has no larger dimension
_MAX_INT_DIGITS = 19


def _parse_int(text: str) -> int | None:
    if not re.fullmatch(r"[+-]?[0-9]+(_[0-9]+)*", text) or len(text) > 2 * _MAX_INT_DIGITS:
        return None
    value = int(text)
    return value if abs(value) < _MAX_INT else None


def _parse_float(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _parse_bool(text: str) -> bool | None:
    return {"true": True, "false": False}.get(text.lower())


# What each type of field expects, in words, and its parser. A parser returns None if the type has no such value.
_PARSERS: dict[type, tuple[str, Callable[[str], Any]]] = {
    bool: ("true or false", _parse_bool),
    int: ("a whole number below 2**63, for example 1024 or 1_024", _parse_int),
    float: ("a number, for example 0.1 or 3e-4", _parse_float),
    str: ("a text", str),
}
