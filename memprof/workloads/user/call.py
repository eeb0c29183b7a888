"""The subject of a call of the API as a `StepSpec`: a function with its arguments, a `StepSpec` or a `TrainSpec`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from memprof.analysis.records.categories import Role
from memprof.errors import MemprofError
from memprof.sources.jax.own_attributes import own
from memprof.sources.jax.tracing.step import StepSpec
from memprof.sources.jax.tracing.step_checks import argument_numbers
from memprof.workloads.composition import parse_techniques
from memprof.workloads.user.build import step_around
from memprof.workloads.user.train_spec import TrainSpec


def spec_of_call(
    step: Callable[..., Any] | StepSpec | TrainSpec,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    donate_argnums: Sequence[int] | int = (),
    static_argnums: Sequence[int] | int = (),
    roles: Mapping[str, Role | str] | None = None,
    label: str | None = None,
    compiler_options: Mapping[str, str] | None = None,
) -> StepSpec:
    """Return the spec of a call of the API, which names a function with its arguments, or a spec alone.

    Raises:
        MemprofError: an argument is invalid, or repeats what the spec has.
    """
    if not isinstance(step, (StepSpec, TrainSpec)):
        return StepSpec(
            step,
            args,
            donate_argnums=argument_numbers("donate_argnums", donate_argnums, num_args=len(args)),
            static_argnums=argument_numbers("static_argnums", static_argnums, num_args=len(args)),
            roles={} if roles is None else roles,
            kwargs=kwargs,
            workload=label or str(own(step, "__name__") or "step"),
            compiler_options={} if compiler_options is None else compiler_options,
        )
    given = {
        "donate_argnums": donate_argnums != (),
        "static_argnums": static_argnums != (),
        "roles": roles is not None,
        "compiler_options": compiler_options is not None,
    }
    more = ["positional arguments"] * bool(args) + [*kwargs, *(name for name, is_given in given.items() if is_given)]
    if more:
        kind = type(step).__name__
        raise MemprofError(f"a memprof.{kind} holds its own arguments and options, so leave out {', '.join(more)}")
    spec = step if isinstance(step, StepSpec) else spec_of_loss(step)
    return spec if label is None else replace(spec, workload=label)


def spec_of_loss(loss: TrainSpec, techniques: str = "") -> StepSpec:
    """Return the step around a loss.

    Args:
        techniques: labels joined by `+`.

    Raises:
        MemprofError: a technique does not exist, or does not apply to the loss.
    """
    name = str(own(loss.loss_fn, "__name__") or "step")
    return replace(step_around(loss, parse_techniques(techniques), name, None), workload=name)


def techniques_of(step: object) -> Callable[[str], StepSpec] | None:
    """Return a function from techniques to the step with them; None if the subject is a finished step."""
    if not isinstance(step, TrainSpec):
        return None
    return lambda techniques: spec_of_loss(step, techniques)
