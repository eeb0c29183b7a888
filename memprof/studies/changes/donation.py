"""Donate the arguments that the step returns, so that their new values reuse their memory."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import replace
from textwrap import dedent
from typing import Any

import jax

from memprof.analysis.records.rewrites import Donation
from memprof.sources.jax.own_attributes import own
from memprof.sources.jax.tracing import jit_adapter
from memprof.sources.jax.tracing.jitting import is_array_like
from memprof.sources.jax.tracing.step import StepSpec
from memprof.studies.changes.change import Change, Step
from memprof.studies.changes.own_jit import (
    framework_of_jit,
    has_shardings,
    jitted_code,
    name_of_step,
    place_of_step,
    step_of_code,
)
from memprof.workloads.intents import Intent


def donations(step: Step) -> Iterator[Change]:
    """Yield the step with its state donated, by its own jit."""
    for advice in step.advice:
        if advice.rule != "donate_state" or step.with_technique is not None:
            continue
        intent, spec = advice.proposal.intent, step.spec
        code = donating_code(spec, intent)
        yield Change.of_advice(
            advice,
            _donating_spec(spec, code, intent),
            code=code,
            on_cpu=_with_original_arguments(spec, intent),
            rewrite=Donation(positions=intent.positions),
        )


def donating_code(spec: StepSpec, intent: Intent) -> str:
    """Return the code that jits the step again, with donation."""
    if has_shardings(spec.fn):
        return f"donate_argnums = {intent.positions}  # for the jax.jit of {name_of_step(spec)}"
    if framework_of_jit(spec) == "equinox":
        return _equinox_code(spec, intent)
    return jitted_code(spec, positions=intent.positions, names=intent.names)


def _donating_spec(spec: StepSpec, code: str, intent: Intent) -> StepSpec:
    """Return the spec of the step that `code` defines."""
    if has_shardings(spec.fn):
        return replace(spec, fn=jit_adapter.jitted_with_donation(spec.fn, intent.positions))
    changed = step_of_code(spec, code)
    if framework_of_jit(spec) == "equinox":
        kept, donated = _kept_and_donated(spec, intent)
        if not _equinox_can_donate(spec, kept):
            arguments = _arguments(spec)
            together = tuple(arguments[key] for key in kept)
            changed = replace(changed, args=(together, *(arguments[key] for key in donated)), kwargs={})
        return replace(changed, donate_argnums=(), static_argnums=())
    if callable(own(spec.fn, "lower")) or _takes_only_arrays(spec):
        return replace(changed, donate_argnums=(), static_argnums=())
    return replace(spec, donate_argnums=tuple(sorted({*spec.donate_argnums, *intent.positions})))


def _with_original_arguments(spec: StepSpec, intent: Intent) -> StepSpec | None:
    """Return an Equinox step with its original arguments if its code takes others; None otherwise."""
    if has_shardings(spec.fn) or framework_of_jit(spec) != "equinox":
        return None
    kept, donated = _kept_and_donated(spec, intent)
    if _equinox_can_donate(spec, kept):
        return None
    fn = own(spec.fn, "__wrapped__") if callable(own(spec.fn, "lower")) else spec.fn
    return replace(spec, fn=fn, donate_argnums=tuple(key for key in donated if isinstance(key, int)))


def _arguments(spec: StepSpec) -> dict[int | str, Any]:
    """Return the arguments by position or keyword."""
    arguments: dict[int | str, Any] = dict(enumerate(spec.args))
    return arguments | dict(spec.kwargs.items())


def _kept_and_donated(spec: StepSpec, intent: Intent) -> tuple[list[int | str], list[int | str]]:
    """Return the arguments that `filter_jit` keeps and those that it donates, now or by the proposal."""
    before = {True: bool(own(spec.fn, "donate_first")), False: bool(own(spec.fn, "donate_rest"))}
    wanted = {*intent.positions, *intent.names, *spec.donate_argnums}
    kept: list[int | str] = []
    donated: list[int | str] = []
    for key in _arguments(spec):
        (donated if key in wanted or before[key == 0] else kept).append(key)
    return kept, donated


def _equinox_can_donate(spec: StepSpec, kept: Sequence[int | str]) -> bool:
    """Whether `filter_jit` can donate exactly these: all arrays, or all but those of the first argument."""
    arguments = _arguments(spec)
    return all(key == 0 or not any(map(is_array_like, jax.tree.leaves(arguments[key]))) for key in kept)


def _equinox_code(spec: StepSpec, intent: Intent) -> str:
    """Return code with `filter_jit`, which donates all arguments or all but the first.

    A donated array is deleted even if nothing reuses it, so arguments to keep are passed together, as the first one.
    """
    kept, donated = _kept_and_donated(spec, intent)
    name, is_jitted, place = name_of_step(spec), callable(own(spec.fn, "lower")), place_of_step(spec)
    inner = f"{name}.__wrapped__" if is_jitted else name
    if _equinox_can_donate(spec, kept):
        kind = "all-except-first" if 0 in kept else "all"
        return f'import equinox as eqx\n\n{place}{name} = eqx.filter_jit({inner}, donate="{kind}")'
    named = _argument_names(spec)
    together = f"({', '.join(named[key] for key in kept)}{',' if len(kept) == 1 else ''})"
    given = [named[key] if isinstance(key, int) else f"{key}={key}" for key in named]
    rest = ", ".join(named[key] for key in donated)
    head = dedent(f"""\
        import equinox as eqx


        def donating(call):
            def {name}(kept, {rest}):
                {together} = kept
                return call({", ".join(given)})

            return eqx.filter_jit({name}, donate="all-except-first")


        """)
    return f"{head}{place}{name} = donating({inner})  # call it as {name}({together}, {rest})"


def _argument_names(spec: StepSpec) -> dict[int | str, str]:
    """Return a name for each argument: its parameter's, if code can use that."""
    try:
        parameters = list(inspect.signature(spec.fn).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    named: dict[int | str, str] = {}
    for key in _arguments(spec):
        parameter = parameters[key] if isinstance(key, int) and key < len(parameters) else None
        is_plain = parameter is not None and parameter.kind in (
            inspect.Parameter.POSITIONAL_ONLY,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
        )
        name = key if isinstance(key, str) else parameter.name if is_plain and parameter is not None else f"arg{key}"
        named[key] = f"{name}_" if name in ("kept", "call") and not isinstance(key, str) else name
    return named


def _takes_only_arrays(spec: StepSpec) -> bool:
    dynamic = [each for number, each in enumerate(spec.args) if number not in spec.static_argnums]
    return all(map(is_array_like, jax.tree.leaves((dynamic, dict(spec.kwargs)))))
