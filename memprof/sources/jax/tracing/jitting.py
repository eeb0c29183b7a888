"""Tracing of the user's function through the jit of its own framework, on shapes alone.

A jitted step (`jax.jit`, `flax.nnx.jit`, `equinox.filter_jit`, a bound method of these) is traced through that very
object, because it knows its donation, its static arguments and its framework's handling of modules. A step that is not
jitted is jitted by the framework that its arguments belong to.

The jits of the frameworks flatten their arguments and call an inner `jax.jit` with the parts: state shared by two
modules is passed once, and static parts are left out. An `_Observer` replaces that inner jit while the step is traced.
There, after the framework's own work, arrays become shapes on the target, and each array is matched with its leaf of
the user's arguments.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax.extend import core

from memprof.errors import MemprofError, WorkloadError
from memprof.sources.jax.own_attributes import has_own, is_defined_in, is_equinox_module, own
from memprof.sources.jax.tracing import jit_adapter
from memprof.sources.jax.tracing.step import StepSpec
from memprof.sources.jax.user_traceback import is_of_user_code

# Maps the path of an array and the array to its shape on the target (on no device if the step names its own).
Place = Callable[[str, Any, bool], jax.ShapeDtypeStruct]


@dataclass(frozen=True, slots=True, kw_only=True)
class JittedStep:
    """A jitted function and its arguments.

    Attributes:
        fn: has `trace`, or is one of Equinox's wrappers.
        args, kwargs: arrays, shapes or static values.
        names: JAX's names of the positional arguments.
        arguments: the user's arguments by name; `args` may group them differently.
        inner_names: if `fn` is the `jax.jit` inside a framework's jit, the names of its `args` that are not known as
            the user's own; otherwise None.
    """

    fn: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    names: tuple[str, ...]
    arguments: Mapping[str, Any]
    inner_names: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedStep:
    """A step as its jit traced it.

    Attributes:
        traced: JAX's trace, with the donated leaves and the results.
        jaxpr: the program, in the primitives that JAX lowers.
        names: the names of the user's positional arguments.
        arguments: the user's arguments by name.
        paths: the paths of the program's argument leaves in the user's arguments, in the program's order.
        given: the positional and the keyword arguments of the program, without static ones, with the user's leaves.
        abstract: the same arguments as shapes on the target.
        names_devices: the step itself names the device that it runs on (`jax.jit(..., backend="cpu")`, a mesh).
    """

    traced: Any
    jaxpr: core.ClosedJaxpr
    names: tuple[str, ...]
    arguments: Mapping[str, Any]
    paths: tuple[str, ...]
    given: tuple[tuple[Any, ...], Mapping[str, Any]]
    abstract: tuple[tuple[Any, ...], Mapping[str, Any]]
    names_devices: bool


def jit_step(spec: StepSpec) -> JittedStep:
    """Return the jitted step of a spec, with the arguments to trace it with.

    Raises:
        MemprofError: the step cannot be jitted, or is jitted already and the spec asks for other options.
    """
    _check_function(spec.fn)
    fn, args, kwargs = _unbound(spec.fn, tuple(spec.args), dict(spec.kwargs))
    names = _names(fn, args, kwargs)
    arguments = {**dict(zip(names, args, strict=True)), **kwargs}
    step = JittedStep(fn=fn, args=args, kwargs=kwargs, names=names, arguments=arguments)
    if not _is_jitted(fn):
        num_given = len(spec.args)
        first = len(args) - num_given  # the object that a method is bound to precedes these
        donated = tuple(first + number % num_given for number in spec.donate_argnums)
        return _jit(step, donated, tuple(first + number % num_given for number in spec.static_argnums))
    if spec.donate_argnums or spec.static_argnums:
        raise MemprofError(
            "the step is jitted already, so donate_argnums and static_argnums belong to that jit: leave them out "
            "here, or give the function without jit"
        )
    if is_defined_in("equinox", fn) and is_equinox_module(fn.__wrapped__):
        return replace(step, arguments={"self": fn.__wrapped__, **arguments})  # its arrays are arguments, too
    return step


def inside_of(step: JittedStep, inner: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> JittedStep:
    """Return the `jax.jit` inside a framework's jitted function, with the framework's arguments for it."""
    # Equinox regroups the arguments; all of its arrays are known by their identity.
    is_grouped = not has_own(step.fn, "trace") or len(args) != len(step.names)
    names = tuple(f"args[{number}]" for number in range(len(args))) if is_grouped else step.names
    return replace(step, fn=inner, args=args, kwargs=kwargs, inner_names=names)


def shardings_of_jit(spec: StepSpec) -> tuple[Any, ...]:
    """Return the shardings that the step's own jit received, if it has one."""
    return jit_adapter.jit_shardings(_unbound(spec.fn, (), {})[0])


def trace_step(step: JittedStep, place: Place, own_devices: Set[jax.Device], num_devices: int) -> TracedStep:
    """Trace a jitted step through its own jit.

    Args:
        own_devices: the devices where `place` puts arrays. If the step names others, it chooses its devices itself.
        num_devices: the number of devices, also in an abstract mesh.

    Raises:
        MemprofError: the step runs on several devices.
        WorkloadError: the step has no arrays, or uses a leaked tracer.
        Exception: whatever the user's function raises.
    """
    observer = _Observer(step, place, own_devices, num_devices)
    traced = observer.observe()
    structure = jit_adapter.argument_structure(traced)
    if structure.num_leaves == 0:
        raise WorkloadError(
            "The step has no array among its arguments, so a device would hold no memory for it: pass the state and "
            "the batch as arguments"
        )
    if len(traced.jaxpr.jaxpr.invars) != structure.num_leaves:
        raise WorkloadError(
            "The step uses a traced value that another function stored (a tracer leak); return such values instead "
            "of storing them"
        )
    return TracedStep(
        traced=traced,
        jaxpr=jit_adapter.jaxpr_of(traced),
        names=step.names,
        arguments=step.arguments,
        paths=tuple(observer.paths),
        given=jax.tree.unflatten(structure, observer.given),
        abstract=jax.tree.unflatten(structure, observer.abstract),
        names_devices=observer.names_devices,
    )


class _Observer:
    """A stand-in between a framework's jit and its inner `jax.jit`. A plain `jax.jit` is its own inner jit."""

    def __init__(self, step: JittedStep, place: Place, own_devices: Set[jax.Device], num_devices: int) -> None:
        self._step = step
        self._place = place
        self._own_devices = own_devices
        self._num_devices = num_devices
        self._inner: Any = step.fn
        self._traced: Any = None
        self._known_paths: Mapping[int, Iterator[str]] = {}
        self.names_devices = False

    def observe(self) -> Any:
        """Trace the step with its own jit. If it names its own devices, trace it again without a device."""
        self._trace_outer()
        num_devices, devices = jit_adapter.named_devices(self._traced)
        if num_devices not in (1, self._num_devices) or (num_devices > 1 and not devices <= self._own_devices):
            raise MemprofError(
                f"the step itself uses a mesh of {num_devices} devices that its arguments are not on: shard them "
                "over the same mesh, or pass their mesh to the function that makes the step"
            )
        if devices - self._own_devices and not self.names_devices:
            self.names_devices = True
            self._trace_outer()
        return self._traced

    def _trace_outer(self) -> None:
        fn, is_framework_jit = self._step.fn, jit_adapter.is_framework_jit(self._step.fn)
        if is_framework_jit or self._step.inner_names is not None:
            self._known_paths = _paths_by_identity(self._step.arguments)
        if not is_framework_jit:
            self.trace(*self._step.args, **self._step.kwargs)
            return
        with jit_adapter.inner_jit_replaced(fn, self) as self._inner:
            (fn.trace if has_own(fn, "trace") else fn.lower)(*self._step.args, **self._step.kwargs)

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        """Replace `jax.jit(...).trace` for the framework."""
        options = jit_adapter.jit_options(self._inner)
        self.names_devices = self.names_devices or jit_adapter.options_name_devices(options)
        self.paths: list[str] = []
        self.given: list[Any] = []
        self.abstract: list[Any] = []
        static = {number % len(args) for number in options.static_argnums if -len(args) <= number < len(args)}
        # Equinox regroups the arguments; all of its arrays are known by their identity.
        own = self._step.names if has_own(self._step.fn, "trace") else [f"args[{n}]" for n in range(len(args))]
        names = own if self._step.inner_names is None else self._step.inner_names
        abstract_args = tuple(
            value if number in static else self._abstract(name, value)
            for number, (name, value) in enumerate(zip(names, args, strict=True))
        )
        # In JAX's order: dictionaries are sorted by key.
        abstract_kwargs = {
            name: kwargs[name] if name in options.static_argnames else self._abstract(name, kwargs[name])
            for name in sorted(kwargs)
        }
        try:
            self._traced = self._inner.trace(*abstract_args, **abstract_kwargs)
        except ValueError as error:
            mistake = jit_adapter.sharding_mistake(error)
            if mistake is None or is_of_user_code(error):
                raise
            raise MemprofError(f"in_shardings or out_shardings of the step's jit do not match: {mistake}") from error
        return self._traced

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """Replace `jax.jit(...).lower` for the framework."""
        return self.trace(*args, **kwargs).lower()

    def _abstract(self, name: str, tree: Any) -> Any:
        leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
        paths = [
            next(self._known_paths.get(id(leaf), iter(())), name + jax.tree_util.keystr(keys)) for keys, leaf in leaves
        ]
        given = [leaf for _, leaf in leaves]
        abstract = [
            self._place(path, leaf, self.names_devices) if is_array(leaf) else leaf
            for path, leaf in zip(paths, given, strict=True)
        ]
        self.paths += paths
        self.given += given
        self.abstract += abstract
        return jax.tree.unflatten(structure, abstract)


def _paths_by_identity(arguments: Mapping[str, Any]) -> dict[int, Iterator[str]]:
    """Return the paths of each array in the user's arguments; an array in several places has several, in order."""
    paths: dict[int, list[str]] = {}
    for name, argument in arguments.items():
        for keys, leaf in jax.tree_util.tree_leaves_with_path(argument):
            if is_array(leaf):
                paths.setdefault(id(leaf), []).append(name + jax.tree_util.keystr(keys))
    return {identity: iter(found) for identity, found in paths.items()}


def is_array(leaf: Any) -> bool:
    """Whether a leaf is an array, or the shape of one."""
    return has_own(leaf, "shape") and has_own(leaf, "dtype")


def is_array_like(leaf: Any) -> bool:
    """Whether `jax.jit` accepts a leaf as an array: arrays, their shapes, and Python numbers."""
    return is_array(leaf) or isinstance(leaf, (int, float, complex))


def several_devices(what: str, num_devices: int) -> MemprofError:
    """Return the error for a step on several devices."""
    return MemprofError(
        f"{what} over {num_devices} devices by a sharding without a mesh: use a NamedSharding on a memprof.mesh of "
        f"{num_devices} devices, or give the step without shardings, with the shapes of one device"
    )


def _check_function(fn: Any) -> None:
    """Raise `MemprofError` for callables that cannot be traced as a step."""
    if isinstance(fn, (type, jax.stages.Traced, jax.stages.Lowered, jax.stages.Compiled)):
        what = f"the class {fn.__name__}" if isinstance(fn, type) else f"{type(fn).__name__.lower()} already"
        raise MemprofError(f"the step is {what}, but a function was expected that makes one training step")
    if _is_jitted(fn) and not has_own(fn, "trace") and not is_defined_in("equinox", fn):
        raise MemprofError(
            "the step is mapped over devices with jax.pmap, but memprof profiles a single device: give the function "
            "that one device runs, with or without jax.jit"
        )


def _is_jitted(fn: Any) -> bool:
    return callable(own(fn, "lower"))


def _unbound(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Unwrap a bound method or partial whose function is jitted, or that is bound to a framework's module."""
    if isinstance(fn, types.MethodType) and (_is_jitted(fn.__func__) or _is_framework_object(fn.__self__)):
        return fn.__func__, (fn.__self__, *args), kwargs
    if not _is_jitted(fn) and _is_jitted(own(fn, "func")):  # Python's partial, or Equinox's
        return fn.func, (*fn.args, *args), {**fn.keywords, **kwargs}
    return fn, args, kwargs


def _names(fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[str, ...]:
    """Return JAX's names of the positional arguments, from the function's signature."""
    try:
        signature = inspect.signature(fn)
        bound = signature.bind(*args, **kwargs).arguments
    except (ValueError, TypeError):  # a builtin, or arguments that do not fit; tracing reports these
        return tuple(f"args[{number}]" for number in range(len(args)))
    names: list[str] = []
    for name, value in bound.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            names.extend(f"{name}[{number}]" for number in range(len(value)))
        elif kind is not inspect.Parameter.VAR_KEYWORD:
            names.append(name)
    return tuple(names[: len(args)])


def _jit(step: JittedStep, donated: tuple[int, ...], static: tuple[int, ...]) -> JittedStep:
    """Jit a step by the framework that its arguments belong to."""
    given = (step.args, dict(step.kwargs))
    if _contains(given, _is_nnx):
        return _nnx_jit(step, donated, static)
    if _contains((step.fn, given), is_equinox_module):
        return _equinox_jit(step, donated)
    dynamic = [value for number, value in enumerate(step.args) if number not in static]
    if all(map(is_array_like, jax.tree.leaves((dynamic, dict(step.kwargs))))):
        return replace(step, fn=jax.jit(step.fn, donate_argnums=donated, static_argnums=static))
    return _closed_over_static_leaves(step, donated, static)


def framework_of(spec: StepSpec) -> str:
    """Return the package whose jit an unjitted step needs: `flax`, `equinox` or `jax`."""
    given = (spec.args, dict(spec.kwargs))
    if _contains(given, _is_nnx):
        return "flax"
    return "equinox" if _contains((spec.fn, given), is_equinox_module) else "jax"


def _is_nnx(node: Any) -> bool:
    """Whether a node is a module, optimizer or variable of NNX. The results of `nnx.split` are plain array trees."""
    names = {cls.__name__ for cls in type(node).__mro__ if cls.__module__.startswith("flax.nnx")}
    return bool(names) and not _is_split(node)


def nnx_objects(tree: Any) -> list[Any]:
    """Return the modules, optimizers and variables of NNX in a tree. Variables inside an `nnx.State` do not count."""
    nodes = jax.tree.leaves(tree, is_leaf=lambda node: _is_nnx(node) or _is_split(node))
    return [node for node in nodes if _is_nnx(node)]


def _is_split(node: Any) -> bool:
    return type(node).__module__.startswith("flax.nnx") and type(node).__name__ in ("State", "FlatState", "GraphDef")


def _is_framework_object(node: Any) -> bool:
    return _is_nnx(node) or is_equinox_module(node)


def _contains(tree: Any, is_wanted: Callable[[Any], bool]) -> bool:
    """Whether a tree contains a wanted node. Nodes inside an `nnx.State` do not count."""
    return any(map(is_wanted, jax.tree.leaves(tree, is_leaf=lambda node: is_wanted(node) or _is_split(node))))


def _nnx_jit(step: JittedStep, donated: tuple[int, ...], static: tuple[int, ...]) -> JittedStep:
    from flax import nnx

    def is_static(value: Any) -> bool:
        leaves = jax.tree.leaves(value)
        return bool(leaves) and not _contains(value, _is_nnx) and not any(map(is_array_like, leaves))

    fn = nnx.jit(
        step.fn,
        donate_argnums=donated,
        static_argnums=tuple({*static, *(number for number, value in enumerate(step.args) if is_static(value))}),
        static_argnames=tuple(name for name, value in step.kwargs.items() if is_static(value)),
    )
    return replace(step, fn=fn)


def _equinox_jit(step: JittedStep, donated: tuple[int, ...]) -> JittedStep:
    """Jit with `filter_jit`. It can donate all arguments except the first, so the first one holds the kept values."""
    import equinox as eqx

    num_args = len(step.args)

    def regrouped(kept: Any, *donated_values: Any) -> Any:
        fn, kept_values, kwargs = kept
        values = dict(zip(donated, donated_values, strict=True)) | kept_values
        return fn(*(values[number] for number in range(num_args)), **kwargs)

    regrouped.__name__ = regrouped.__qualname__ = str(own(step.fn, "__name__") or type(step.fn).__name__)
    kept = {number: value for number, value in enumerate(step.args) if number not in donated}
    return replace(
        step,
        fn=eqx.filter_jit(regrouped, donate="all-except-first"),
        args=((step.fn, kept, dict(step.kwargs)), *(step.args[number] for number in donated)),
        kwargs={},
        arguments={"self": step.fn, **step.arguments} if is_equinox_module(step.fn) else step.arguments,
    )


def _closed_over_static_leaves(step: JittedStep, donated: tuple[int, ...], static: tuple[int, ...]) -> JittedStep:
    """Jit a step whose arguments contain leaves that `jax.jit` rejects, such as functions and texts."""

    def arrays(tree: Any) -> Any:
        """Return the tree with None in place of static leaves."""
        return jax.tree.map(lambda leaf: leaf if is_array_like(leaf) else None, tree)

    fixed = (step.args, dict(step.kwargs))

    @functools.wraps(step.fn)
    def arrays_alone(*args: Any, **kwargs: Any) -> Any:
        all_args, all_kwargs = jax.tree.map(
            lambda given, own: own if given is None else given, (args, kwargs), fixed, is_leaf=lambda x: x is None
        )
        return arrays(step.fn(*all_args, **all_kwargs))

    args = tuple(
        jax.tree.map(lambda leaf: None, value) if number in static else arrays(value)
        for number, value in enumerate(step.args)
    )
    fn = jax.jit(arrays_alone, donate_argnums=donated)
    return replace(step, fn=fn, args=args, kwargs=arrays(dict(step.kwargs)))
