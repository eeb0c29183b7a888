"""Private and unstable APIs of the jits of JAX, Flax and Equinox, as small functions with the versions seen.

`xla_adapter.py` holds the private APIs of JAX and XLA that a compile needs.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from math import prod
from pathlib import Path
from types import FrameType
from typing import Any

import jax
from jax.extend import core
from jax.sharding import AbstractMesh, Mesh, NamedSharding

from memprof.sources.jax.own_attributes import has_own, own
from memprof.sources.jax.xla.xla_adapter import PROCESS_WIDE

_NO_SUCH_AXIS = re.compile(r"Resource axis: (?P<axis>.+?) of (?P<spec>.+?) is not found in mesh: \((?P<axes>.*?),?\)")
_DOES_NOT_DIVIDE = re.compile(
    r"spec=(?P<spec>P.*?\))[,)].* array axis (?P<dimension>\d+) is partitioned (?P<parts>\d+) times, but the dimension"
    r" size is (?P<length>\d+) \(full shape: (?P<shape>\(.*?\))"
)
_INNER_JIT = {"flax": "jitted_fn", "equinox": "_cached"}  # the attribute of a framework's jit that holds its `jax.jit`
CHECKPOINTS = frozenset({"checkpoint", "remat", "remat2"})  # names that the primitive of `jax.checkpoint` has had
_CALLBACKS = frozenset({"debug_callback", "debug_print", "io_callback", "pure_callback"})
_PMAP = "jax._src.pmap"
_MAX_FRAMES = 40  # between a call of a framework's jit and the call of its inner `jax.jit`


def is_framework_jit(fn: Any) -> bool:
    """Whether a function was jitted by Flax or Equinox, with a `jax.jit` inside (flax 0.12, equinox 0.13)."""
    return any(has_own(fn, attribute) for attribute in _INNER_JIT.values())


@contextmanager
def inner_jit_replaced(fn: Any, replacement: Any) -> Iterator[Any]:
    """Replace the `jax.jit` inside a framework's jit within a `with` block (flax 0.12, equinox 0.13).

    Equinox treats arrays as dynamic and everything else as static; here the shapes of arrays are dynamic, too.

    Yields:
        The `jax.jit` inside.
    """
    attribute = next(attribute for attribute in _INNER_JIT.values() if has_own(fn, attribute))
    equinox_jit: Any = sys.modules.get("equinox._jit")
    with PROCESS_WIDE:
        inner = getattr(fn, attribute)
        is_array = getattr(equinox_jit, "is_array", None)
        object.__setattr__(fn, attribute, replacement)
        if is_array is not None:
            equinox_jit.is_array = lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct) or is_array(leaf)
        try:
            yield inner
        finally:
            object.__setattr__(fn, attribute, inner)
            if is_array is not None:
                equinox_jit.is_array = is_array


def jit_options(jitted: Any) -> Any:
    """Return the options of a jitted function: `donate_argnums`, `static_argnums`, ...."""
    return jitted._jit_info


def jitted_with_donation(jitted: Any, positions: tuple[int, ...]) -> Any:
    """Return the same function with the same options, but more donated arguments."""
    from jax._src import pjit

    options = jitted._jit_info
    donated = tuple(sorted({*options.donate_argnums, *positions}))
    return pjit._cpp_pjit(jitted._fun, options._replace(donate_argnums=donated))


def jitted_as(jitted: Any, fn: Callable[..., Any]) -> Any:
    """Jit a function with all options of another one that takes the same arguments."""
    from jax._src import pjit

    return pjit._cpp_pjit(fn, jitted._jit_info)


def jit_shardings(jitted: Any) -> tuple[Any, ...]:
    """Return the shardings that a jit received for its arguments and results."""
    inner = next((getattr(jitted, name) for name in _INNER_JIT.values() if has_own(jitted, name)), jitted)
    options = own(inner, "_jit_info")  # `jax.pmap` has none
    return () if options is None else (*options.in_shardings_leaves, *options.out_shardings_leaves)


def sharding_mistake(error: ValueError) -> str | None:
    """Describe a sharding that does not fit its mesh or its array, or return None for any other error.

    The function matches the text of JAX's messages.
    """
    message = str(error)
    if found := _NO_SUCH_AXIS.search(message):
        return f"{found['spec']} names the axis {found['axis']}, but the axes of the mesh are {found['axes']}"
    if found := _DOES_NOT_DIVIDE.search(message):
        return (
            f"{found['spec']} divides dimension {found['dimension']} into {found['parts']} parts, but its length is "
            f"{found['length']} in an array of shape {found['shape']}: pad it, or shard another dimension"
        )
    return None


def context_meshes() -> tuple[Mesh | AbstractMesh, ...]:
    """Return the active meshes: from `jax.set_mesh`, and from `with mesh:`."""
    from jax._src.mesh import thread_resources

    around: Mesh = thread_resources.env.physical_mesh
    return tuple(mesh for mesh in (jax.sharding.get_mesh(), around, jax.sharding.get_abstract_mesh()) if not mesh.empty)


def argument_avals(traced: Any) -> list[Any]:
    """Return the abstract values of a traced function's arguments.

    JAX's own lists of arguments and results are pytrees of the user's classes, some of which refuse its leaves: for
    example, a `jmp.DynamicLossScale` asks a leaf for its dtype.
    """
    return list(traced.jaxpr.in_avals[traced._num_consts :])


def donated_arguments(traced: Any) -> list[bool]:
    """Return which arguments of a traced function are donated."""
    return list(traced._params["donated_invars"])


class _ArgumentInfo(jax.ShapeDtypeStruct):  # type: ignore[misc]
    """In place of JAX's own description of an argument, which has no dtype for the user's classes to look at."""

    def __init__(self, aval: Any, donated: bool) -> None:
        super().__init__(aval.shape, aval.dtype)
        self._aval, self.donated = aval, donated


@contextmanager
def arguments_with_dtypes() -> Iterator[None]:
    """Lower functions also if a class among their arguments looks at the dtypes of its leaves.

    `jax.jit(step).lower` fails for such classes (jax 0.10 to 0.12), although the step runs.
    """
    from jax._src import stages

    describe = stages.make_args_info

    def described(structure: Any, avals: Any, donated: Any) -> Any:
        try:
            return describe(structure, avals, donated)
        except Exception:  # a class of the user refuses its leaves
            infos = [_ArgumentInfo(aval, number in {*donated}) for number, aval in enumerate(jax.tree.leaves(avals))]
            return jax.tree.unflatten(structure, infos)

    stages.make_args_info = described
    try:
        yield
    finally:
        stages.make_args_info = describe


def argument_structure(traced: Any) -> Any:
    """Return the structure of the arguments of a traced function."""
    return traced._in_tree


def argument_tree(traced: Any) -> Any:
    """Return the arguments of a traced function as a pytree of placeholders."""
    return _with_placeholders(argument_structure(traced))


def result_tree(traced: Any) -> Any:
    """Return the results of a traced function as a pytree of placeholders."""
    return _with_placeholders(traced.out_tree)


def _with_placeholders(structure: Any) -> Any:
    """Return a pytree of plain objects, which JAX asks every class to accept as leaves."""
    return jax.tree.unflatten(structure, [object() for _ in range(structure.num_leaves)])


def returned_state(traced: Any) -> dict[int, int]:
    """Return the result that holds the next value of each leaf of NNX state, by leaf (flax 0.12).

    The jit of NNX returns the state of all arguments in the same form as its inputs.
    """

    def leaves(tree: Any) -> dict[str, int]:
        found = enumerate(jax.tree_util.tree_leaves_with_path(tree))
        return {jax.tree_util.keystr(keys): number for number, (keys, _) in found}

    def is_state(node: Any) -> bool:
        return type(node).__module__ == "flax.nnx.extract"

    tree = result_tree(traced)
    states = jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_state)
    prefixes = tuple(jax.tree_util.keystr(keys) for keys, node in states if is_state(node))
    results = {path: number for path, number in leaves(tree).items() if path.startswith(prefixes)}
    return {number: results[path] for path, number in leaves(argument_tree(traced)).items() if path in results}


def options_name_devices(options: Any) -> bool:
    """Whether the options of a jit name the device that it runs on."""
    shardings = (*options.in_shardings_leaves, *options.out_shardings_leaves)
    return bool(options.device or options.backend or any(isinstance(each, jax.sharding.Sharding) for each in shardings))


def named_devices(traced: Any) -> tuple[int, frozenset[jax.Device]]:
    """Return the devices in the shardings and meshes of a traced step and of its arguments.

    Returns:
        The largest number of devices in one sharding or mesh (1 if there is none), and all devices. An abstract mesh
        contributes no devices.
    """
    spans = [1]
    devices: set[jax.Device] = set()
    pending = [traced._params, *(equation.params for equation in all_equations(jaxpr_of(traced).jaxpr))]
    while pending:
        value = pending.pop()
        if isinstance(value, Mapping):
            pending.extend(value.values())
        elif isinstance(value, (tuple, list)):
            pending.extend(value)
        elif isinstance(value, NamedSharding):
            pending.append(value.mesh)
        elif isinstance(value, AbstractMesh):
            spans.append(value.size)
        elif isinstance(value, (Mesh, jax.sharding.Sharding)):
            found = set(value.devices.flat) - {None} if isinstance(value, Mesh) else value.device_set  # an empty mesh
            spans.append(len(found))
            devices |= found
        elif isinstance(value, jax.Device):
            devices.add(value)
    return max(spans), frozenset(devices)


def jaxpr_of(traced: Any) -> core.ClosedJaxpr:
    """Return the jaxpr of a traced step in the primitives that JAX lowers to StableHLO.

    `jax_remat3` and similar settings trace to higher-level primitives, whose jaxprs are not parameters of equations.
    """
    from jax._src.interpreters import partial_eval

    jaxpr: core.ClosedJaxpr = traced.jaxpr
    return partial_eval.lower_jaxpr2(jaxpr) if jaxpr.jaxpr.is_high else jaxpr


def all_equations(jaxpr: core.Jaxpr) -> Iterator[Any]:
    """Yield each equation of a jaxpr and of all jaxprs inside it once."""
    pending, seen = [jaxpr], {id(jaxpr)}
    while pending:
        for equation in pending.pop().eqns:
            yield equation
            for inner in core.jaxprs_in_params(equation.params):
                if id(inner) not in seen:
                    seen.add(id(inner))
                    pending.append(inner)


def scan_layout(equation: Any) -> tuple[int, int]:
    """Return the number of constant inputs of a scan, and the number of carried ones.

    They are inferred from the shapes, because jax 0.12 has no parameters for them. A stacked input or result has one
    more axis outside the body than inside.
    """
    body = equation.params["jaxpr"].jaxpr

    def num_whole(outside: Sequence[Any], inside: Sequence[Any]) -> int:
        return sum(each.aval.ndim == own.aval.ndim for each, own in zip(outside, inside, strict=True))

    num_carried = num_whole(equation.outvars, body.outvars)
    return num_whole(equation.invars, body.invars) - num_carried, num_carried


def callbacks(traced: Any) -> tuple[str, ...]:
    """Return the Python callbacks of a traced step, with the source lines that make them."""
    from jax._src import source_info_util

    def place(equation: Any) -> str:
        text = source_info_util.summarize(equation.source_info)  # /home/me/train.py:12:8 (step)
        return Path(text.partition(" (")[0].rpartition(":")[0]).name

    found = [each for each in all_equations(jaxpr_of(traced).jaxpr) if each.primitive.name in _CALLBACKS]
    return tuple(dict.fromkeys(f"{each.primitive.name} {place(each)}".strip() for each in found))


def has_pallas_kernels(traced: Any) -> bool:
    """Whether a traced step calls Pallas kernels."""
    return any(equation.primitive.name == "pallas_call" for equation in all_equations(jaxpr_of(traced).jaxpr))


def mesh_around(mesh: Mesh) -> AbstractContextManager[Any]:
    """Return a context that tells kernels traced inside it their target device."""
    around: AbstractContextManager[Any] = jax.sharding.use_abstract_mesh(mesh.abstract_mesh)
    return around


def outer_call(inner: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]] | None:
    """Return the running call of a wrapper whose inner `jax.jit` is `inner`.

    The wrapper is the jit of a framework (flax 0.12, equinox 0.13), or `jax.pmap`.

    Returns:
        The framework's jitted function or the function given to `jax.pmap`, and its arguments; None if `inner` was
        called directly.
    """
    wanted = inner._fun
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_MAX_FRAMES):
        frame = frame and frame.f_back
        module = "" if frame is None else str(frame.f_globals.get("__name__"))
        package = module.partition(".")[0]
        if frame is None or (package not in _INNER_JIT and module != _PMAP):
            continue  # reading `f_locals` keeps a frame's variables alive until it returns (up to Python 3.12)
        found = frame.f_locals
        if getattr(found.get("jitted_f"), "_fun", None) is wanted:
            return function_of_pmap(inspect.unwrap(inner._fun)), found["args"], found["kwargs"]
        if "self" not in found or "args" not in found:
            continue
        fn = found["self"]
        if getattr(getattr(fn, _INNER_JIT.get(package, ""), None), "_fun", None) is wanted:
            return fn, found["args"], found["kwargs"]
    return None


def function_of_pmap(fn: Any) -> Any:
    """Return the function given to `jax.pmap`, from the function that pmap jits, or None."""
    if own(fn, "__module__") != _PMAP:
        return None
    cells = dict(zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True))
    return getattr(cells["fun"].cell_contents, "f", None) if "fun" in cells else None


def function_of(fn: Any) -> Any:
    """Return a jitted function without its wrappers."""
    while True:
        inner = own(fn, "__wrapped__") or own(fn, "func") or function_of_pmap(fn)
        if inner is None:
            return fn
        fn = inner


def is_of_jax(fn: Any) -> bool:
    """Whether a function belongs to JAX itself, such as the operations of `jax.numpy`."""
    return str(own(function_of(fn), "__module__")).split(".")[0] == "jax"


def hide_from_tracebacks(file: str) -> None:
    """Make JAX leave the frames of a file, and of this one, out of its tracebacks."""
    from jax._src import traceback_util

    for each in (file, __file__):
        traceback_util.register_exclusion(each)


class _Traces:
    """The hook in JAX's tracing that `watch_compiles` and `watch_calls` share.

    JAX traces a jit with `_infer_params` if it is called with new types, or lowered ahead of time. It looks this
    function up by name at each call.

    Args:
        traced: see `watch_compiles`.
        calls_alone: report calls only, not functions that are lowered or evaluated for their shapes.
    """

    def __init__(
        self, traced: Callable[[Any, tuple[Any, ...], Mapping[str, Any]], str | None], calls_alone: bool
    ) -> None:
        from jax._src import pjit

        self._traced = traced
        self._calls_alone = calls_alone
        self._infer = pjit._infer_params
        self._within = threading.local()  # marks the work of `traced`, which is not watched
        # A jaxpr or a module, and the value that stands for it.
        self._known: dict[int, tuple[weakref.ref[Any], list[str | None]]] = {}

    @property
    def is_in_ours(self) -> bool:
        """Whether `traced` is running."""
        return getattr(self._within, "ours", False)

    def begin(self) -> None:
        from jax._src import pjit

        pjit._infer_params = self._infer_params

    def end(self) -> None:
        from jax._src import pjit

        pjit._infer_params = self._infer

    def remember(self, thing: Any, stands_for: list[str | None]) -> None:
        number, known = id(thing), self._known
        known[number] = weakref.ref(thing, lambda _: known.pop(number, None)), stands_for

    def recall(self, thing: Any) -> list[str | None]:
        return self._known[id(thing)][1] if id(thing) in self._known else [None]

    def _infer_params(self, fun: Any, info: Any, args: Any, kwargs: Any) -> Any:
        from jax._src import core, pjit

        found = self._infer(fun, info, args, kwargs)
        jaxpr = found[0].params["jaxpr"]
        if self.is_in_ours or not core.trace_state_clean() or id(jaxpr) in self._known:
            return found
        if self._calls_alone and sys._getframe(1).f_code.co_name != "cache_miss":  # the caller during a call
            return found
        self._within.ours = True
        stands_for: list[str | None] = [None]
        self.remember(jaxpr, stands_for)  # before `traced`, which may lower the same jaxpr
        try:
            stands_for[0] = self._traced(pjit._cpp_pjit(fun, info), args, kwargs)
        finally:
            self._within.ours = False
        return found


@contextmanager
def watch_calls(
    called: Callable[[Any, tuple[Any, ...], Mapping[str, Any]], None], *, with_lowered: bool = False
) -> Iterator[None]:
    """Report calls of jitted functions within a `with` block: the first call for each combination of argument types.

    JAX calls compiled functions without Python. The cache of this fast path is cleared, so that each function is seen
    once; nothing is retraced or recompiled.

    Args:
        called: called with a jitted function and its arguments, before the call is made.
        with_lowered: also report functions that are lowered ahead of time, or evaluated for their shapes.
    """
    from jax._src.lib import _jax

    def traced(fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        called(fn, args, kwargs)

    traces = _Traces(traced, calls_alone=not with_lowered)
    _jax.PjitFunctionCache.clear_all()
    traces.begin()
    try:
        yield
    finally:
        traces.end()


def watch_compiles(
    traced: Callable[[Any, tuple[Any, ...], Mapping[str, Any]], str | None],
    compiled: Callable[[str, str | None, Callable[[Mapping[str, Any]], Any]], Any],
) -> None:
    """Report all compiles of this process from now on, whether or not the persistent cache contains them.

    JAX lowers a traced function (see `_Traces`) with `lower_sharding_computation` and compiles it with
    `compile_or_get_cached`, and looks both up by name. Calls on the fast path use neither.

    Args:
        traced: called with a jitted function and its arguments as soon as it has been traced, from outside any other
            trace. The value that it returns stands for that trace.
        compiled: called with the name of each program, the value that `traced` returned for it, and a function that
            compiles the program with additional XLA options. It returns the result of that function.
    """
    from jax._src import compiler
    from jax._src.interpreters import pxla

    traces = _Traces(traced, calls_alone=False)
    lower = pxla.lower_sharding_computation

    def lower_computation(jaxpr: Any, *args: Any, **kwargs: Any) -> Any:
        computation = lower(jaxpr, *args, **kwargs)
        traces.remember(computation.stablehlo(), traces.recall(jaxpr))
        return computation

    def compile_module(
        backend: Any, module: Any, devices: Any, options: Any, callbacks: Any, on: Any, profiler: Any = None
    ) -> Any:
        def compile_it(more: Mapping[str, Any]) -> Any:
            options.env_option_overrides = [*options.env_option_overrides, *more.items()]
            return compiler.backend_compile_and_load(backend, module, on, options, callbacks)

        if traces.is_in_ours:
            return compile_it({})
        name = str(module.operation.attributes["sym_name"]).strip('"')
        return compiled(name, traces.recall(module)[0], compile_it)

    traces.begin()
    pxla.lower_sharding_computation = lower_computation
    compiler.compile_or_get_cached = compile_module


@contextmanager
def name_of(equation: Any) -> Iterator[None]:
    """Give operations traced inside the name, the traceback and the settings of an equation.

    If JAX had traced a jit before, the equations inside it may lack a traceback in the user's code. The traceback of
    the code around them is used then. Equations from within a `shard_map` can be traced outside of it: the names of the
    axes of its mesh are known.
    """
    from jax._src import source_info_util

    info, around = equation.source_info, source_info_util.current()
    calls = info.traceback if any(source_info_util.user_frames(info.traceback)) else around.traceback
    with (
        source_info_util.user_context(calls, name_stack=around.name_stack + info.name_stack),
        equation.ctx.manager,
        _in_shard_map(equation),
    ):
        yield


@contextmanager
def _in_shard_map(equation: Any) -> Iterator[None]:
    """Name the axes over which the `shard_map` around an equation runs, as it does itself (jax 0.10 to 0.12)."""
    from jax._src import config
    from jax._src.core import extend_axis_env_nd, get_axis_env

    mesh, known = equation.ctx.cur_abstract_mesh, get_axis_env()
    missing = [(axis, mesh.shape[axis]) for axis in mesh.manual_axes if not known.axis_exists(axis)]
    if not missing:
        yield
        return
    checks_types = any(atom.aval.mat.varying for atom in (*equation.invars, *equation.outvars))
    with extend_axis_env_nd(missing), config._check_vma(checks_types):
        yield


def bound(equation: Any, values: list[Any], params: Mapping[str, Any]) -> list[Any]:
    """Bind the primitive of an equation to values and other parameters."""
    results = equation.primitive.bind(*values, **equation.primitive.get_bind_params(params))
    return list(results) if equation.primitive.multiple_results else [results]


def bound_shards(equation: Any, function: Callable[..., Sequence[Any]], values: Sequence[Any]) -> list[Any]:
    """Return the results of a `shard_map` equation with another function of the shards (jax 0.10 to 0.12)."""
    params = equation.params
    mapped = jax.shard_map(
        lambda *shards: tuple(function(*shards)),
        mesh=params["mesh"],
        in_specs=tuple(params["in_specs"]),
        out_specs=tuple(params["out_specs"]),
        check_vma=params["check_vma"],
        axis_names={*params["newly_manual_axes"]},
    )
    return list(mapped(*values))


def strong_type(atom: Any) -> Any:
    """Return the type of an atom, which is not weak; in an explicit mesh, with its sharding (jax 0.10 to 0.12)."""
    return atom.aval.update(weak_type=False)


def zeros_of(atom: Any) -> jax.Array:
    """Return zeros of the type of an atom (jax 0.10 to 0.12)."""
    from jax._src.ad_util import zeros_like_aval

    return zeros_like_aval(strong_type(atom))


def num_shards(atom: Any, axis: int) -> int:
    """Return the number of parts into which an explicit mesh divides an axis of an atom."""
    sharding = atom.aval.sharding
    names = sharding.spec[axis] if axis < len(sharding.spec) else None
    return prod(int(sharding.mesh.shape[name]) for name in ((names,) if isinstance(names, str) else names or ()))


def maker_of(value: Any) -> Any | None:
    """Return the equation that makes a value in the running trace of a jit (jax 0.10 to 0.12); None if none does.

    It has the attributes of an equation, and `in_tracers`, its inputs.
    """
    maker = getattr(value, "parent", None) if isinstance(value, jax.core.Tracer) else None
    return maker if hasattr(maker, "in_tracers") else None


def atom_of(tracer: Any) -> Any:
    """Return the variable or the literal of a value in the running trace of a jit."""
    return tracer.val


def as_equation(maker: Any) -> core.JaxprEqn:
    """Return an equation of a running trace as one of a jaxpr."""
    from jax._src.core import new_jaxpr_eqn

    inputs = [*map(atom_of, maker.in_tracers)]
    equation: core.JaxprEqn = new_jaxpr_eqn(
        inputs, maker.outvars, maker.primitive, maker.params, maker.effects, maker.source_info, maker.ctx
    )
    return equation


def is_concrete(value: Any) -> bool:
    """Whether a value is an array with known entries."""
    return not isinstance(value, jax.core.Tracer)


def computed_here(function: Callable[[], Any]) -> Any:
    """Return the result of a function of constants, even while something is traced for absent devices or a mesh."""
    try:
        device = jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # JAX_PLATFORMS excludes it
        device = None
    with jax.ensure_compile_time_eval(), jax.default_device(device), _no_mesh():
        return jax.device_get(jax.jit(function)())


@contextmanager
def _no_mesh() -> Iterator[None]:
    """Leave all meshes (jax 0.10 to 0.12: `jax.set_mesh` cannot be called within a jit)."""
    from jax._src import mesh, sharding_impls

    with (
        jax.sharding.use_abstract_mesh(mesh.empty_abstract_mesh),
        sharding_impls._internal_use_concrete_mesh(mesh.empty_concrete_mesh),
    ):
        yield


def expansion_of(equation: Any) -> core.ClosedJaxpr:
    """Return the operations behind a `call_hi_primitive` (jax 0.12), such as those of `jnp.searchsorted`."""
    primitive = equation.params["_prim"]

    def expanded(*values: Any) -> list[Any]:
        return [*jax.tree.leaves(primitive.expand(*jax.tree.unflatten(primitive.in_tree, values)))]

    return jax.make_jaxpr(expanded)(*(atom.aval for atom in equation.invars))


def has_no_shardings(params: Mapping[str, Any]) -> bool:
    """Whether a call leaves the shardings of its arguments and results unspecified."""
    from jax._src.sharding_impls import UnspecifiedValue

    shardings = (*params.get("in_shardings", ()), *params.get("out_shardings", ()))
    return all(isinstance(each, UnspecifiedValue) for each in shardings)


def has_no_side_effects(equation: Any) -> bool:
    """Whether an equation only computes its results, also if these depend on the axes of a mesh (jax 0.12)."""
    from jax._src.core import NamedAxisEffect

    return all(isinstance(each, NamedAxisEffect) for each in equation.effects)


def settings_of(equation: Any) -> tuple[Any, ...]:
    """Return the settings of JAX that an equation was traced with, such as its kind of random numbers (jax 0.12)."""
    names = sorted(set(type(equation.ctx).__slots__) - {"__weakref__", "configs"})
    return tuple((name, getattr(equation.ctx, name)) for name in names)


@contextmanager
def calls_inlined() -> Iterator[None]:
    """Trace the operations of jits and checkpoints in their place, for this thread within a `with` block.

    So derivatives are taken of the operations alone, whatever calls are around them. A jit with shardings stays.
    """
    from jax._src import ad_checkpoint, pjit

    with PROCESS_WIDE, _inlined(pjit.jit_p), _inlined(ad_checkpoint.remat_p), traced_anew():
        yield


@contextmanager
def _inlined(primitive: Any) -> Iterator[None]:
    from jax._src import core as jax_core

    thread, is_own, original = threading.get_ident(), "bind" in vars(primitive), primitive.bind

    def bind(*args: Any, **params: Any) -> Any:
        is_traced = any(isinstance(arg, jax.core.Tracer) for arg in args)
        if not is_traced or threading.get_ident() != thread or not has_no_shardings(params):
            return original(*args, **params)
        jaxpr = params["jaxpr"]
        inner, consts = (jaxpr.jaxpr, jaxpr.consts) if isinstance(jaxpr, core.ClosedJaxpr) else (jaxpr, ())
        return jax_core.eval_jaxpr(inner, consts, *args)

    primitive.bind = bind
    try:
        yield
    finally:
        if is_own:
            primitive.bind = original
        else:
            del primitive.bind


@contextmanager
def differentiation_replaced(stand_in: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    """Route all reverse-mode differentiation of this thread through a replacement of `jax.vjp` within a `with` block.

    `jax.grad` and all functions built on it look `vjp` up by name. Functions traced inside have
    separate keys in JAX's caches.

    Args:
        stand_in: maps `jax.vjp` to its replacement.
    """
    from jax._src import api

    thread = threading.get_ident()
    with PROCESS_WIDE:
        original, of_jax = api.vjp, jax.vjp
        changed = stand_in(original)

        def vjp(fun: Callable[..., Any], *primals: Any, **options: Any) -> Any:
            return (changed if threading.get_ident() == thread else original)(fun, *primals, **options)

        vjp.replaces = original  # type: ignore[attr-defined]
        api.vjp = vjp
        if of_jax is original:
            jax.vjp = vjp
        try:
            with traced_anew():
                yield
        finally:
            api.vjp, jax.vjp = original, of_jax


def plain_vjp() -> Callable[..., Any]:
    """Return JAX's own `jax.vjp`, whatever replaces it."""
    from jax._src import api

    vjp: Callable[..., Any] = api.vjp
    while hasattr(vjp, "replaces"):
        vjp = vjp.replaces
    return vjp


def traced_anew() -> AbstractContextManager[Any]:
    """Return a context in which functions are retraced even if JAX's caches contain them."""
    around: AbstractContextManager[Any] = _trace_key()(object())
    return around


@functools.cache
def _trace_key() -> Any:
    """Return a JAX setting that is part of the keys of its trace caches."""
    from jax._src import config

    return config.string_or_object_state(
        "memprof_differentiation",
        None,
        "Set while memprof replaces jax.vjp.",
        include_in_jit_key=True,
        include_in_trace_context=True,
    )


def calls_to(equation: Any) -> tuple[tuple[str, str, int], ...]:
    """Return the calls in the user's code that led to an equation, outermost first.

    Returns:
        The qualified name, the file and the line of each.
    """
    from jax._src import source_info_util

    frames = tuple(source_info_util.user_frames(equation.source_info.traceback))
    return tuple((each.function_name, each.file_name, each.start_line) for each in reversed(frames))
