"""Write the line of code that changes a step and jits it again with its own options."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import jax

from memprof.analysis.records.rewrites import Rewrite
from memprof.sources.jax.own_attributes import own
from memprof.sources.jax.tracing import jit_adapter
from memprof.sources.jax.tracing.jitting import framework_of
from memprof.sources.jax.tracing.rebinding import Bound, pasted
from memprof.sources.jax.tracing.step import StepSpec

_FRAMEWORK_JITS = {"equinox": "eqx.filter_jit", "flax": "nnx.jit"}
_IMPORTS = {"equinox": "import equinox as eqx", "flax": "from flax import nnx", "jax": "import jax"}
_CHANGE = "_change"
_EQUINOX_DONATIONS = {(True, True): "all", (False, True): "all-except-first"}


def name_of_step(spec: StepSpec) -> str:
    """Return the name of the step in code."""
    name = str(own(spec.fn, "__name__") or "step")
    return name if name.isidentifier() else "step"


def place_of_step(spec: StepSpec, *, jits_again: bool = True) -> str:
    """Return a comment on where code for the step goes; empty if that is unknown.

    Args:
        jits_again: whether the code needs the step with its jit, not the function within it.
    """
    name = name_of_step(spec)
    maker, _, _ = str(own(spec.fn, "__qualname__") or "").rpartition(".<locals>")
    maker = maker.rpartition(".")[2]
    if maker.isidentifier():
        return f"# after {maker} has made the step, under the name that it has there\n"
    if own(spec.fn, "__name__") != name:
        return ""
    defined = _globals_of(spec.fn).get(name, spec.fn)
    if defined is spec.fn or (not jits_again and defined is own(spec.fn, "__wrapped__")):
        return f"# after the definition of {name}\n"
    return "# after the step is made, under the name that it has there\n"


def _globals_of(fn: Any) -> dict[str, Any]:
    """Return the names of the module that defines a function."""
    while inner := own(fn, "__wrapped__") or (fn.func if isinstance(fn, functools.partial) else None):
        fn = inner
    return own(fn, "__globals__") or {}


def has_shardings(fn: Any) -> bool:
    """Whether a function is jitted with shardings, which a line of code would have to repeat."""
    return any(isinstance(each, jax.sharding.Sharding) for each in jit_adapter.jit_shardings(fn))


def framework_of_jit(spec: StepSpec) -> str:
    """Return the framework whose jit the step uses, or would use."""
    fn = spec.fn
    return type(fn).__module__.partition(".")[0] if callable(own(fn, "lower")) else framework_of(spec)


def jitted_code(spec: StepSpec, *, change: str = "", positions: Sequence[int] = (), names: Sequence[str] = ()) -> str:
    """Return the line that jits the step again, with the options of its jit.

    Args:
        change: an expression that changes the function without jit.
        positions, names: arguments to donate in addition; not for Equinox, see `donation.py`.
    """
    fn, name = spec.fn, name_of_step(spec)
    is_jitted = callable(own(fn, "lower"))
    framework = framework_of_jit(spec)
    inner = f"{name}.__wrapped__" if is_jitted else name
    inner = f"{change}({inner})" if change else inner
    head = _IMPORTS[framework if framework in _IMPORTS else "jax"]
    if change:
        head += "\nimport memprof"
    if framework == "equinox":
        before = (bool(own(fn, "donate_first")), bool(own(fn, "donate_rest")))
        kind = _EQUINOX_DONATIONS.get(before)
        option = f', donate="{kind}"' if kind else ""
        return f"{head}\n\n{place_of_step(spec)}{name} = eqx.filter_jit({inner}{option})"
    options = jit_adapter.jit_options(own(fn, "jitted_fn") or fn) if is_jitted else None
    arguments = {
        "donate_argnums": tuple(
            sorted({*(spec.donate_argnums if options is None else options.donate_argnums), *positions})
        ),
        "donate_argnames": tuple(names),
        "static_argnums": tuple(spec.static_argnums if options is None else options.static_argnums),
        "static_argnames": () if options is None else tuple(options.static_argnames),
    }
    given = "".join(f", {option}={value!r}" for option, value in arguments.items() if value)
    return f"{head}\n\n{place_of_step(spec)}{name} = {_FRAMEWORK_JITS.get(framework, 'jax.jit')}({inner}{given})"


def applied_code(spec: StepSpec, change: str) -> str | None:
    """Return code that applies a `memprof.apply` expression to the step; None if a framework's jit has shardings."""
    if not jit_adapter.is_framework_jit(spec.fn):
        name = name_of_step(spec)
        return f"import memprof\n\n{place_of_step(spec, jits_again=False)}{name} = {change}({name})"
    return None if has_shardings(spec.fn) else jitted_code(spec, change=change)


def with_rewrite(spec: StepSpec, rewrite: Rewrite) -> tuple[str, StepSpec] | None:
    """Return code that applies a rewrite to the step, and the step that it defines; None as for `applied_code`."""
    given = [field for field in fields(rewrite) if getattr(rewrite, field.name) != field.default]
    options = ", ".join(f"{field.name}={getattr(rewrite, field.name)!r}" for field in given)
    code = applied_code(spec, f"memprof.apply(memprof.{type(rewrite).__name__}({options}))")
    return None if code is None else (code, step_of_code(spec, code))


def changed_step(spec: StepSpec, change: Callable[[Callable[..., Any]], Callable[..., Any]]) -> StepSpec | None:
    """Return the spec of a step whose function without jit is changed; None as for `applied_code`."""
    code = applied_code(spec, _CHANGE)
    return None if code is None else step_of_code(spec, code, **{_CHANGE: change})


def step_of_code(spec: StepSpec, code: str, **more: Any) -> StepSpec:
    """Return the spec of the step that such code defines.

    Args:
        more: names that the code uses.
    """
    bound = Bound(name=name_of_step(spec), value=spec.fn)
    with pasted(code, [bound], **more) as names:
        return replace(spec, fn=names[bound.name])
