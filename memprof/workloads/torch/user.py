"""The user's own PyTorch step: the object of a reference, made under fake tensors."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from memprof.errors import MemprofError, unknown_name
from memprof.sources.torch.step_spec import TorchStepSpec
from memprof.workloads.overrides import parse_value, split_override
from memprof.workloads.user.reference import Reference, load


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchReference:
    """A request for a step in the user's code.

    Attributes:
        reference: names a function that returns a `TorchStepSpec`.
        overrides: `name=value` texts for the parameters of that function.
        arguments: arguments for the code's `sys.argv`.
    """

    reference: Reference
    overrides: Sequence[str] = ()
    arguments: Sequence[str] = ()

    def make_spec(self) -> TorchStepSpec:
        """Import the user's code and call the function. This must be called under fake tensors.

        Raises:
            MemprofError: the reference names another kind of object, or a parameter is wrong.
            Exception: any error of the user's code.
        """
        label = self.reference.label
        found = load(self.reference, self.arguments)
        if not inspect.isfunction(found):
            raise MemprofError(f"{label} is not a function: name one that returns a memprof.TorchStepSpec")
        values = _values(found, self.overrides, label)
        spec = found(**values)
        defaults = {name: each.default for name, each in inspect.signature(found).parameters.items()}
        settings = {name: value for name, value in (defaults | values).items() if isinstance(value, str | int | float)}
        if not isinstance(spec, TorchStepSpec):
            raise MemprofError(f"{label} returns a {type(spec).__name__}, but a memprof.TorchStepSpec was expected")
        return replace(spec, label=label if spec.label == "step" else spec.label, config={**settings, **spec.config})


def _values(function: Any, overrides: Sequence[str], label: str) -> dict[str, Any]:
    """Return the values of the function's parameters that the user sets."""
    parameters = inspect.signature(function).parameters
    annotations = inspect.get_annotations(function, eval_str=True)
    values: dict[str, Any] = {}
    for name, text in map(split_override, overrides):
        if name not in parameters:
            raise unknown_name(f"parameter of {label}", name, parameters)
        default = parameters[name].default
        other = str if default in (inspect.Parameter.empty, None) else type(default)
        values[name] = parse_value(name, text, annotations.get(name, other))
    missing = [n for n, p in parameters.items() if p.default is inspect.Parameter.empty and n not in values]
    if missing:
        raise MemprofError(
            f"{label} takes {', '.join(missing)}, without a default: name a function that returns a"
            f" memprof.TorchStepSpec, or give --set {missing[0]}=VALUE"
        )
    return values
