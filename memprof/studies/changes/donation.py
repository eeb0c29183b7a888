"""Donation of the arguments that come back: their next values take their memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax

from memprof.capture.own_attributes import own
from memprof.capture.tracing import jit_adapter
from memprof.capture.tracing.jitting import framework_of, is_array_like
from memprof.capture.tracing.rebinding import Bound, pasted
from memprof.capture.tracing.step import StepSpec
from memprof.studies.changes.change import Change, Step
from memprof.workloads.intents import Intent

_OF_FRAMEWORK = {"equinox": "eqx.filter_jit", "flax": "nnx.jit"}
_IMPORTS = {"equinox": "import equinox as eqx", "flax": "from flax import nnx", "jax": "import jax"}


def donations(step: Step) -> Iterator[Change]:
    """The step with its state donated, by its own jit."""
    for advice in step.advice:
        if advice.rule != "donate_state" or step.with_technique is not None:
            continue
        proposal, spec = advice.proposal, step.spec
        code = donating_code(spec, proposal.intent)
        yield Change(
            rule=advice.rule,
            intent=proposal.intent,
            what=proposal.what,
            evidence=proposal.evidence,
            cost=proposal.cost,
            code=code,
            spec=_donating(spec, code, proposal.intent),
        )


def donating_code(spec: StepSpec, intent: Intent) -> str:
    """The line that jits the step again, with donation."""
    fn, name = spec.fn, _name(spec.fn)
    is_jitted = callable(own(fn, "lower"))
    framework = type(fn).__module__.partition(".")[0] if is_jitted else framework_of(spec)
    if _has_shardings(fn):
        return f"donate_argnums = {intent.positions}  # for the jax.jit of {name}"
    inner = f"{name}.__wrapped__" if is_jitted else name
    head = _IMPORTS[framework if framework in _IMPORTS else "jax"]
    if framework == "equinox":
        return f'{head}\n\n{name} = eqx.filter_jit({inner}, donate="all")'
    options = jit_adapter.jit_options(own(fn, "jitted_fn") or fn) if is_jitted else None
    static = spec.static_argnums if options is None else options.static_argnums
    names = () if options is None else options.static_argnames
    before = spec.donate_argnums if options is None else options.donate_argnums
    arguments = {
        "donate_argnums": tuple(sorted({*before, *intent.positions})),
        "donate_argnames": intent.names,
        "static_argnums": tuple(static),
        "static_argnames": tuple(names),
    }
    given = "".join(f", {option}={value!r}" for option, value in arguments.items() if value)
    return f"{head}\n\n{name} = {_OF_FRAMEWORK.get(framework, 'jax.jit')}({inner}{given})"


def _donating(spec: StepSpec, code: str, intent: Intent) -> StepSpec:
    """The spec of the step that the code makes."""
    if _has_shardings(spec.fn):
        return replace(spec, fn=jit_adapter.jitted_with_donation(spec.fn, intent.positions))
    bound = Bound(name=_name(spec.fn), value=spec.fn)
    with pasted(code, [bound]) as names:
        changed = names[bound.name]
    if callable(own(spec.fn, "lower")) or framework_of(spec) == "equinox" or _takes_arrays_alone(spec):
        return replace(spec, fn=changed, donate_argnums=(), static_argnums=())
    return replace(spec, donate_argnums=tuple(sorted({*spec.donate_argnums, *intent.positions})))


def _has_shardings(fn: Any) -> bool:
    """Whether a function is jitted with shardings, which a line of code would have to repeat."""
    return any(isinstance(each, jax.sharding.Sharding) for each in jit_adapter.jit_shardings(fn))


def _takes_arrays_alone(spec: StepSpec) -> bool:
    dynamic = [each for number, each in enumerate(spec.args) if number not in spec.static_argnums]
    return all(map(is_array_like, jax.tree.leaves((dynamic, dict(spec.kwargs)))))


def _name(fn: Any) -> str:
    name = str(own(fn, "__name__") or "step")
    return name if name.isidentifier() else "step"
