"""From the user's function to one that `jax.jit` traces on shapes alone.

A function that he jitted keeps its options. Frameworks that jit in their own way (`equinox.filter_jit`, `flax.nnx.jit`)
are unwrapped: what they do is to jit the arrays among the arguments and to take the rest as static, which is done here
for any function. NNX modules are changed in place; what they hold after the call is a result of the step.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax

from memprof.capture import xla_adapter
from memprof.capture.step import StepSpec
from memprof.errors import MemprofError


@dataclass(frozen=True, slots=True, kw_only=True)
class JittedStep:
    """A jitted function and the arguments to trace it with: arrays as they are given, static ones by their values."""

    fn: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


def jit_step(spec: StepSpec) -> JittedStep:
    """Jit the step of a spec, unless that has been done.

    Raises:
        MemprofError: it is jitted, and the spec asks for other options.
    """
    jitted = JittedStep(fn=spec.fn, args=spec.args, kwargs=spec.kwargs)
    if not is_jitted(spec.fn):
        return _jit(jitted, donate_argnums=spec.donate_argnums, static_argnums=spec.static_argnums)
    if spec.donate_argnums or spec.static_argnums:
        raise MemprofError(
            "the step is jitted already, so donate_argnums and static_argnums belong to its own jit:"
            " leave them out here, or give the function without jit"
        )
    fn: Any = spec.fn
    framework = type(fn).__module__.partition(".")[0]
    if framework == "equinox":
        donated = (*((0,) if fn.donate_first else ()), *(range(1, len(spec.args)) if fn.donate_rest else ()))
        # `filter_jit` takes Python's numbers as static, as a module's `inference: bool` has to be.
        return _jit(replace(jitted, fn=fn.__wrapped__), donate_argnums=donated, static_argnums=(), is_dynamic=is_array)
    if framework == "flax":
        options = xla_adapter.jit_options(fn.jitted_fn)
        return _jit(
            replace(jitted, fn=fn.fun),
            donate_argnums=options.donate_argnums,
            static_argnums=options.static_argnums,
        )
    return _without_shardings(jitted)


def _without_shardings(step: JittedStep) -> JittedStep:
    """A step jitted with shardings on one device, jitted again without: they name a device, and the target is another.

    Raises:
        MemprofError: they are on several devices.
    """
    options = xla_adapter.jit_options(step.fn)
    if not options.user_specified_in_shardings:
        return step
    num_devices = max((getattr(leaf, "num_devices", 1) for leaf in options.in_shardings_leaves), default=1)
    if num_devices > 1:
        raise several_devices("the step is jitted with in_shardings", num_devices)
    fn = jax.jit(
        step.fn.__wrapped__,
        static_argnums=options.static_argnums,
        static_argnames=options.static_argnames,
        donate_argnums=options.donate_argnums,
    )
    return replace(step, fn=fn)


def several_devices(what: str, num_devices: int) -> MemprofError:
    """The error for a step on several devices."""
    return MemprofError(
        f"{what} over {num_devices} devices, and memprof looks at the memory of one: give the step without shardings,"
        " with the shapes that one device holds"
    )


def is_jitted(fn: Callable[..., Any]) -> bool:
    """Whether a function has been jitted, by JAX or by a framework."""
    return hasattr(fn, "lower") and callable(fn.lower)


def argument_names(step: JittedStep) -> tuple[list[str], dict[str, str]]:
    """What JAX calls the positional and the keyword arguments: by the names in the function's signature."""
    try:
        signature = inspect.signature(step.fn)
        bound = signature.bind(*step.args, **step.kwargs).arguments
    except (ValueError, TypeError):  # a builtin, or arguments that do not fit: tracing will tell
        return [f"args[{number}]" for number in range(len(step.args))], {name: name for name in step.kwargs}
    names: list[str] = []
    for name, value in bound.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            names.extend(f"{name}[{number}]" for number in range(len(value)))
        elif kind is not inspect.Parameter.VAR_KEYWORD:
            names.append(name)
    return names[: len(step.args)], {name: name for name in step.kwargs}


def is_array(leaf: Any) -> bool:
    """Whether a leaf is an array, or the shape of one."""
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def is_array_like(leaf: Any) -> bool:
    """Whether `jax.jit` takes a leaf as an array: arrays, their shapes, and Python's numbers."""
    return is_array(leaf) or isinstance(leaf, (int, float, complex))


def _jit(
    step: JittedStep,
    *,
    donate_argnums: tuple[int, ...],
    static_argnums: tuple[int, ...],
    is_dynamic: Callable[[Any], bool] = is_array_like,
) -> JittedStep:
    dynamic = {number: value for number, value in enumerate(step.args) if number not in static_argnums}
    leaves = jax.tree.leaves((dynamic, dict(step.kwargs)))
    if all(map(is_dynamic, leaves)) and not any(map(_is_nnx, dynamic.values())):
        fn = jax.jit(step.fn, donate_argnums=donate_argnums, static_argnums=static_argnums)
        return replace(step, fn=fn)

    def arrays(tree: Any) -> Any:
        """The tree with nothing in place of leaves that are static."""
        return jax.tree.map(lambda leaf: leaf if is_dynamic(leaf) else None, tree)

    static = (step.args, dict(step.kwargs))

    @functools.wraps(step.fn)
    def arrays_alone(*args: Any, **kwargs: Any) -> Any:
        all_args, all_kwargs = jax.tree.map(
            lambda given, fixed: fixed if given is None else given, (args, kwargs), static, is_leaf=lambda x: x is None
        )
        result = step.fn(*all_args, **all_kwargs)
        changed = [argument for argument in all_args if _is_nnx(argument)]
        return arrays((result, changed)) if changed else arrays(result)

    args, kwargs = arrays(static)
    return JittedStep(fn=jax.jit(arrays_alone, donate_argnums=donate_argnums), args=args, kwargs=kwargs)


def _is_nnx(tree: Any) -> bool:
    return any(cls.__module__.startswith("flax.nnx") for cls in type(tree).__mro__)
