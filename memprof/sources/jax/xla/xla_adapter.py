"""Access to private or unstable parts of JAX and XLA for compiles: small functions, with the tested versions.

`jit_adapter.py` is the adapter for jits and their traces.
"""

from __future__ import annotations

import copy
import importlib
import importlib.metadata
import importlib.util
import math
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import topologies

from memprof.analysis.records.capture import Target
from memprof.sources.jax.xla.compiler_log import muted_stderr
from memprof.sources.jax.xla.partitioned_calls import known_calls, with_portable_calls
from memprof.sources.jax.xla.portable_program import PORTABLE_STABLEHLO, PortableProgram

# Guards changes to process-wide state of JAX and XLA: configuration, backends, plugins. Two threads that register the
# CUDA plugin at once abort the process ("PJRT_Api already exists"), and two threads that turn the compilation cache off
# and on again in an overlapping order leave it off.
PROCESS_WIDE = threading.RLock()
_CUDNN_VERSION: ContextVar[int | None] = ContextVar("_CUDNN_VERSION", default=None)
_CUDNN_OF_TARGET = re.compile(
    r"dnn_version_info\s*:?\s*\{\s*major:\s*(\d+)(?:\s*minor:\s*(\d+))?(?:\s*patch:\s*(\d+))?"
)


def gpu_devices(target: Target) -> list[jax.Device]:
    """Return absent GPUs, as many as the target's topology has.

    The topology cannot be selected by name: JAX needs both the text proto and the topology string.
    """
    counts = target.topology
    hosts, devices = counts.num_hosts // counts.num_slices, counts.num_devices // counts.num_hosts
    arguments = {
        "platform": target.platform,
        "topology_name": "",
        "target_config": target.compiler_config,
        "topology": f"{counts.num_slices}x{hosts}x{devices}",  # slices, hosts of each, devices of each
    }
    with PROCESS_WIDE:
        try:
            topology = topologies.get_topology_desc(**arguments)
        except NotImplementedError:
            _register_cuda_plugin()
            topology = topologies.get_topology_desc(**arguments)
    return list(topology.devices)


def tpu_devices(topology_name: str, options: Mapping[str, Any]) -> list[jax.Device]:
    """Return all devices of one or more absent TPU slices.

    When libtpu loads, it prints warnings about the absent device. It also requests cloud metadata over the network
    unless an environment variable turns this off. It reads these variables once.

    Args:
        topology_name: `v5e:2x4`.
        options: `chips_per_host_bounds`, `num_slices`, `chip_config_name`.
    """
    unasked = {name: value for name, value in _OF_LIBTPU.items() if name not in os.environ}
    with PROCESS_WIDE, muted_stderr():
        os.environ.update(unasked)
        try:
            return list(topologies.get_topology_desc(topology_name, "tpu", **options).devices)
        finally:
            for name in unasked:
                del os.environ[name]


# Lets several processes of a machine load libtpu, which otherwise locks the machine's devices for one process.
_OF_LIBTPU = {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}


def cuda_plugin_version() -> str | None:
    """Return the name and version of the installed plugin, such as `jax-cuda13-plugin 0.12.0`, or None."""
    for name in ("jax-cuda13-plugin", "jax-cuda12-plugin"):
        try:
            return f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def cuda_folder() -> Path | None:
    """Return the folder in which JAX lets XLA search for ptxas and libdevice."""
    from jax._src.lib import cuda_path

    return None if cuda_path is None else Path(cuda_path)


@contextmanager
def no_compilation_cache() -> Iterator[None]:
    """Turn the persistent compilation cache off temporarily, because a hit writes no dump.

    Only one thread may do so at a time, because the setting is process-wide.
    """
    from jax.experimental.compilation_cache import compilation_cache

    with PROCESS_WIDE:
        before = jax.config.jax_enable_compilation_cache
        jax.config.update("jax_enable_compilation_cache", False)
        compilation_cache.reset_cache()
        try:
            yield
        finally:
            jax.config.update("jax_enable_compilation_cache", before)
            compilation_cache.reset_cache()


_OTHER_DUMPS = (
    "xla_dump_compress_protos",
    "xla_dump_include_timestamp",
    "xla_dump_hlo_as_text",
    "xla_dump_hlo_as_long_text",
    "xla_dump_hlo_as_dot",
    "xla_dump_hlo_as_html",
    "xla_dump_hlo_as_url",
    "xla_dump_hlo_snapshots",
    "xla_dump_hlo_unoptimized_snapshots",
    "xla_dump_module_metadata",
    "xla_dump_fusion_visualization",
    "xla_dump_latency_hiding_schedule",
)


def dump_options(folder: Path) -> dict[str, str | bool | int]:
    """Return the compile options for one proto dump of the program, regardless of the dump flags in XLA_FLAGS.

    A compile option overrides the same option in XLA_FLAGS. So the result sets each option that could suppress the
    proto, change its format or add many other files.
    """
    return {
        "xla_dump_to": str(folder),
        "xla_dump_hlo_as_proto": True,
        "xla_dump_hlo_module_re": "",  # every program
        "xla_dump_hlo_pass_re": "",  # no dumps between passes
        "xla_dump_hlo_pipeline_re": "",
        "xla_dump_emitter_re": "",
        "xla_dump_max_hlo_modules": -1,
        "xla_dump_disable_metadata": False,
        **dict.fromkeys(_OTHER_DUMPS, False),
    }


# Default values of the JAX settings that affect the generated programs.
_PROGRAM_SETTINGS = {
    "jax_debug_infs": False,
    "jax_debug_nans": False,
    "jax_default_matmul_precision": None,
    "jax_default_prng_impl": "threefry2x32",
    "jax_disable_jit": False,
    "jax_disable_most_optimizations": False,
    "jax_enable_custom_prng": False,
    "jax_enable_x64": False,
    "jax_exec_time_optimization_effort": 0.0,
    "jax_memory_fitting_effort": 0.0,
    "jax_memory_fitting_level": "O2",
    "jax_numpy_dtype_promotion": "standard",
    "jax_optimization_level": "UNKNOWN",
    "jax_softmax_custom_jvp": False,
    "jax_threefry_partitionable": True,
    "jax_use_direct_linearize": True,
    "jax_use_shardy_partitioner": True,
    "jax_use_simplified_jaxpr_constants": False,
}


def changed_settings() -> dict[str, str]:
    """Return the JAX settings that affect programs and differ from their defaults; this JAX may lack some of them."""
    values = {name: getattr(jax.config, name, usual) for name, usual in _PROGRAM_SETTINGS.items()}
    plain = {name: value.value if isinstance(value, Enum) else value for name, value in values.items()}
    return {name: str(value) for name, value in plain.items() if value != _PROGRAM_SETTINGS[name]}


def debug_options() -> str | None:
    """Return the `DebugOptions` that XLA has read in this process, as a text proto.

    None before a backend has started: XLA may not have read `XLA_FLAGS` yet, and the query would force it to.
    """
    from jax._src import xla_bridge
    from jax._src.lib import xla_client

    if not xla_bridge.backends_are_initialized():
        return None
    options = xla_client.CompileOptions()  # keep a reference: it owns its debug options
    return repr(options.executable_build_options.debug_options)


@contextmanager
def full_tracebacks() -> Iterator[None]:
    """Make JAX write the names and call stacks of operations into the program.

    memprof derives phases and modules from them, and a user may have turned them off. They do not affect the compile.
    """
    wanted = {"jax_include_full_tracebacks_in_locations": True, "jax_traceback_in_locations_limit": 100}
    with PROCESS_WIDE:
        before = {name: getattr(jax.config, name) for name in wanted}
        for name, value in wanted.items():
            jax.config.update(name, value)
        try:
            yield
        finally:
            for name, value in before.items():
                jax.config.update(name, value)


def is_lowered_for(lowered: jax.stages.Lowered, sharding: jax.sharding.Sharding) -> bool:
    """Whether a step is lowered for a sharding's devices, not for a device that it names."""
    return bool(lowered._lowering.compile_args["backend"] is _client(sharding))


def _client(sharding: jax.sharding.Sharding) -> Any:
    return next(iter(sharding.device_set)).client


def num_devices(lowered: jax.stages.Lowered) -> int:
    """Return the number of devices of a lowered step."""
    return int(lowered._lowering.compile_args["num_devices"])


def kept_arguments(lowered: jax.stages.Lowered, num_leaves: int) -> list[int]:
    """Return the flat indices of the argument leaves that became parameters of the program, in order.

    `jax.jit` drops unused arguments, which shifts the parameter numbers. Only a private record lists the kept ones.
    """
    kept = lowered._lowering.compile_args.get("kept_var_idx")
    return list(range(num_leaves)) if kept is None else sorted(kept)


def num_tokens(lowered: jax.stages.Lowered) -> int:
    """Return the number of tokens that order a program's effects, its first parameters."""
    return len(lowered._lowering.compile_args["ordered_effects"])


def has_callbacks(lowered: jax.stages.Lowered) -> bool:
    """Whether a lowered program calls back into Python."""
    return bool(lowered._lowering.compile_args["host_callbacks"])


@contextmanager
def callbacks_of_absent_devices() -> Iterator[None]:
    """Lower Python callbacks for an absent device.

    JAX requests the device's backend, but does not use it for a GPU. Without it, the program calls the same XLA
    function with the same operands and results, so its plan is the same. The program is compiled, but never run.
    """
    from jax._src.interpreters import mlir

    context: Any = mlir.ModuleContext
    get_backend = context.get_backend

    def get_backend_if_any(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return get_backend(self, *args, **kwargs)
        except RuntimeError:
            if sys._getframe(1).f_code.co_name != "emit_python_callback":
                raise
            return None

    with PROCESS_WIDE:
        context.get_backend = get_backend_if_any
        try:
            yield
        finally:
            context.get_backend = get_backend


def argument_shardings(lowered: jax.stages.Lowered) -> list[Any]:
    """Return the sharding of each parameter of a lowered program, in order.

    If the step leaves the choice to XLA, the entry is not a `jax.sharding.Sharding`.
    """
    return list(lowered._lowering.compile_args["in_shardings"])


def lower_for_platform(traced: Any, platform: str) -> jax.stages.Lowered:
    """Lower a step that names devices for a platform other than theirs.

    Args:
        platform: `cuda`, `tpu` or `cpu`.
    """
    lowered: jax.stages.Lowered = traced.lower(lowering_platforms=(platform,))
    return lowered


def portable_program(lowered: jax.stages.Lowered, sharding: jax.sharding.Sharding) -> PortableProgram:
    """Convert a lowered step into a program that another process can compile.

    Args:
        sharding: a sharding on the devices of the compile, whatever device the step itself names.
    """
    from jax._src.interpreters import mlir, pxla

    module, jits = lowered.compiler_ir("stablehlo"), lowered._lowering.compile_args
    # Whether XLA may choose shardings. One device leaves no choice, but XLA's fingerprint of a plan includes the flag.
    may_choose = pxla.get_prop_to_input_output(
        jits["in_shardings"], jits["out_shardings"], len(jits["ordered_effects"])
    )
    devices = np.array(sharding._device_assignment, dtype=object)
    options = pxla.create_compile_options(module, jits["tuple_args"], *may_choose, _client(sharding), devices, {})
    bytecode, calls = with_portable_calls(mlir.module_to_bytecode(module))
    return PortableProgram(module=bytecode, compile_options=options.SerializeAsString(), partitioned_calls=calls)


def compile_portable(program: PortableProgram, sharding: Any, options: Mapping[str, Any]) -> Any:
    """Compile a program for the devices of a sharding.

    The result reports its memory, and cannot be called.

    Args:
        options: XLA options for this compile.
    """
    from jax._src import compiler
    from jax._src.interpreters import mlir
    from jax._src.lib import xla_client
    from jaxlib.mlir import ir

    if program.compile_options:
        compile_options = xla_client.CompileOptions.ParseFromString(program.compile_options)
    else:  # a program lowered elsewhere, for one device
        compile_options = compiler.get_compile_options(
            num_replicas=1, num_partitions=1, device_assignment=np.array([[0]]), backend=_client(sharding)
        )
    if program.memory_limit_bytes:
        serialized = compile_options.SerializeAsString() + _memory_limit(program.memory_limit_bytes)
        compile_options = xla_client.CompileOptions.ParseFromString(serialized)
    compile_options.env_option_overrides = list(options.items())
    with mlir.make_ir_context():
        if PORTABLE_STABLEHLO.match(program.module):
            module = xla_client._xla.mlir.deserialize_portable_artifact(program.module)
        else:
            module = ir.Module.parse(program.module)
    with known_calls(program, sharding):
        return compiler.backend_compile_and_load(
            _client(sharding), module, sharding._internal_device_list, compile_options, host_callbacks=()
        )


def _memory_limit(size_bytes: int) -> bytes:
    """Return `executable_build_options { device_memory_size: ... }` of a serialized `CompileOptions`.

    For a present device, jaxlib sets it to the limit of the device's allocator (`bytes_limit` of `memory_stats()`). The
    numbers of the fields are those of xla/pjrt/proto/compile_options.proto; Python has no attribute for it.
    """
    value = _field(15) + _varint(size_bytes)
    return _field(3, wire_type=2) + _varint(len(value)) + value


def _field(number: int, *, wire_type: int = 0) -> bytes:
    return _varint(number << 3 | wire_type)


def _varint(number: int) -> bytes:
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


def memory_totals(compiled: Any) -> dict[str, int]:
    """Return the fields of `memory_analysis()` in bytes; jax 0.10.2 has no `total_allocation_bytes`.

    Args:
        compiled: the result of JAX's compile or of `compile_portable`.
    """
    is_jaxs = isinstance(compiled, jax.stages.Compiled)
    analysis: Any = compiled.memory_analysis() if is_jaxs else compiled.get_compiled_memory_stats()
    fields = {
        "argument_bytes": "argument_size_in_bytes",
        "output_bytes": "output_size_in_bytes",
        "alias_bytes": "alias_size_in_bytes",
        "temp_bytes": "temp_size_in_bytes",
        "peak_memory_bytes": "peak_memory_in_bytes",
        "total_allocation_bytes": "total_allocation_bytes",
    }
    return {ours: getattr(analysis, theirs) for ours, theirs in fields.items() if hasattr(analysis, theirs)}


def optimal_seconds(compiled: Any) -> float | None:
    """Return the compiler's estimate of a step's time from `cost_analysis()`, or None if it has no estimate.

    Only an executable has the estimate: the analysis of a lowered program is not implemented for absent TPUs,
    and a plan does not contain it.

    Args:
        compiled: the result of JAX's compile or of `compile_portable`.
    """
    found = compiled.cost_analysis()
    properties = found[0] if isinstance(found, list) and found else found
    seconds = properties.get("optimal_seconds") if isinstance(properties, Mapping) else None
    return float(seconds) if seconds is not None and 0 < seconds < math.inf else None


def argument_bytes(leaf: Any) -> int:
    """Return the bytes of one abstract argument. Keys of `jax.random` count as their underlying integers."""
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.extended):
        leaf = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(leaf.shape, leaf.dtype))
    num_elements = int(np.prod(leaf.shape, dtype=np.int64))
    return -(-num_elements * _bits(np.dtype(leaf.dtype)) // 8)


def _bits(dtype: np.dtype[Any]) -> int:
    """Return the bits of one element in an XLA buffer, which packs types below a byte."""
    if jax.dtypes.issubdtype(dtype, np.integer):
        return int(jax.numpy.iinfo(dtype).bits)
    if jax.dtypes.issubdtype(dtype, np.floating):
        return int(jax.numpy.finfo(dtype).bits)
    return 8 * dtype.itemsize


def place_arguments(lowered: jax.stages.Lowered, memory_kinds: Mapping[int, str]) -> None:
    """Put arguments of a lowered program into memories other than the device's own.

    A sharding on an absent device loses its memory kind, because such a device lists no memories. For an existing
    device, JAX writes the same attribute of the argument into the program.

    Args:
        memory_kinds: memory kinds, such as `pinned_host`, by parameter number.
    """
    from jax._src.interpreters import mlir
    from jaxlib.mlir import ir

    cached = lowered.compiler_ir("stablehlo")
    with cached.context:
        # JAX caches the lowered module of a function, which may be used again without these memories: change a copy.
        module = ir.Module.parse(mlir.module_to_bytecode(cached))
        computation = copy.copy(lowered._lowering)
        computation._hlo = module
        object.__setattr__(lowered, "_lowering", computation)
        main = ir.SymbolTable(module.operation)["main"]
        attributes = [{item.name: item.attr for item in argument} for argument in main.arg_attrs]
        for number, kind in memory_kinds.items():
            attributes[number]["mhlo.memory_kind"] = ir.StringAttr.get(kind)
        main.arg_attrs = ir.ArrayAttr.get([ir.DictAttr.get(argument) for argument in attributes])


def rejected_option(error: Exception, options: Iterable[str]) -> str | None:
    """Return XLA's message if one of the options caused the error, else None.

    The message is `No such compile option: 'NAME'`, or `While setting option NAME, 'VALUE' is not a valid bool value.`
    """
    message = str(error).partition("\n")[0].removeprefix("INVALID_ARGUMENT: ").rstrip(".")
    is_about_options = message.startswith(("No such compile option", "While setting option"))
    return message if is_about_options and any(name in message for name in options) else None


def jit_compiler_options(lowered: jax.stages.Lowered) -> dict[str, Any]:
    """Return the XLA options that a step was jitted with."""
    return dict(getattr(lowered._lowering, "_compiler_options_kvs", None) or ())


def is_out_of_memory(message: str) -> bool:
    """Whether the runtime's error says that memory ran out."""
    return message.startswith("RESOURCE_EXHAUSTED")


def bytes_asked_for(message: str) -> int | None:
    """Return the size of the failed allocation, or None if the message lacks it.

    The CPU reports `Out of memory allocating 512 bytes`, a GPU `Out of memory while trying to allocate 512 bytes` or,
    in newer versions, `... allocate 1.50GiB`.
    """
    match = re.search(r"allocat(?:e|ing) ([\d.]+)\s*(bytes|B|KiB|MiB|GiB|TiB)\b", message)
    if not match:
        return None
    number, unit = match.groups()
    exponent = {"KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40}.get(unit, 0)
    return int(float(number) * 2**exponent) if exponent else int(number)


def cudnn_version() -> int | None:
    """Return the cuDNN version that JAX traces attention for, as `90100`, or None."""
    from jax._src.cudnn import fused_attention_stablehlo

    try:
        return int(fused_attention_stablehlo.check_cudnn_version())
    except RuntimeError:
        return None


@contextmanager
def cudnn_of_absent_device(target: Target | None) -> Iterator[None]:
    """Trace cuDNN's attention for the target's cuDNN version, which XLA also receives.

    JAX reads only the version from this machine's library; without a device, XLA does not use the library either.
    """
    from jax._src.cudnn import fused_attention_stablehlo

    module: Any = fused_attention_stablehlo
    if not isinstance(module.check_cudnn_version, _CudnnVersion):
        module.check_cudnn_version = _CudnnVersion(module.check_cudnn_version)
    told = _CUDNN_OF_TARGET.search(target.compiler_config if target else "")
    numbers = [int(number or 0) for number in told.groups()] if told else []
    token = _CUDNN_VERSION.set(numbers[0] * 10_000 + numbers[1] * 100 + numbers[2] if numbers else None)
    try:
        yield
    finally:
        _CUDNN_VERSION.reset(token)


class _CudnnVersion:
    """The cuDNN version: the target's while a step is traced for it, else that of this machine's library."""

    def __init__(self, of_library: Callable[[], int]) -> None:
        self._of_library = of_library

    def __call__(self) -> int:
        return _CUDNN_VERSION.get() or self._of_library()


def _register_cuda_plugin() -> None:
    """Register JAX's CUDA compiler in a process in which JAX did not.

    If CUDA's libraries are missing when JAX starts its backends, the plugin fails to register. Its compiler is then
    missing too, although it does not need these libraries. If no CUDA platform is requested, JAX does not search for
    them.
    """
    plugin = next(
        filter(None, map(importlib.util.find_spec, ("jax_plugins.xla_cuda13", "jax_plugins.xla_cuda12"))), None
    )
    if plugin is None:
        return
    platforms = jax.config.jax_platforms
    jax.config.update("jax_platforms", "cpu")
    try:
        importlib.import_module(plugin.name).initialize()
    finally:
        jax.config.update("jax_platforms", platforms)
