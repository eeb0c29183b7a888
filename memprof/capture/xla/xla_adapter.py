"""What is private or unstable in JAX and XLA, for compiling: small functions, with the versions seen.

What concerns jits and what they trace is in `jit_adapter.py`.
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
from memprof.capture.xla.compiler_log import muted_stderr
from memprof.capture.xla.portable_program import PORTABLE_STABLEHLO, PortableProgram

# Held by whoever changes what JAX and XLA have once for the whole process: configuration, backends, plugins. Two
# threads that register the CUDA plugin at once end the process ("PJRT_Api already exists"), and two that turn the
# compilation cache off and on again, overlapping, leave it off.
PROCESS_WIDE = threading.RLock()
_CUDNN_VERSION: ContextVar[int | None] = ContextVar("_CUDNN_VERSION", default=None)
_CUDNN_OF_TARGET = re.compile(
    r"dnn_version_info\s*:?\s*\{\s*major:\s*(\d+)(?:\s*minor:\s*(\d+))?(?:\s*patch:\s*(\d+))?"
)


def gpu_devices(target: Target) -> list[jax.Device]:
    """GPUs that need not be there, as many as the topology of the target says (jax 0.10.2 to 0.12).

    The topology cannot be selected by name: the text proto and the topology string must both be given.
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
    """All devices of a TPU slice, or of several, which need not be there (jax 0.10.2 to 0.12).

    Loading libtpu prints warnings about the absent device, and it asks the network for the metadata of a cloud machine
    unless it is told not to. It reads these variables once.

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


# Several processes of a machine may load libtpu, which otherwise locks the devices of the machine for one.
_OF_LIBTPU = {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}


def cuda_plugin_version() -> str | None:
    """`jax-cuda13-plugin 0.12.0`, or None where there is none."""
    for name in ("jax-cuda13-plugin", "jax-cuda12-plugin"):
        try:
            return f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def cuda_folder() -> Path | None:
    """The folder under which JAX tells XLA to look for ptxas and libdevice (jax 0.10.2 to 0.12)."""
    from jax._src.lib import cuda_path

    return None if cuda_path is None else Path(cuda_path)


@contextmanager
def no_compilation_cache() -> Iterator[None]:
    """Turn the persistent compilation cache off for a while: a hit writes no dump (jax 0.10.2 to 0.12).

    One thread at a time, since the switch is that of the process.
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
    """The compile options for one dump of the program as a proto, whatever XLA_FLAGS says of dumps.

    An option of a compile stands over the same one in XLA_FLAGS, so each that would keep the proto from being written,
    change its form or drown it in other files is named (jaxlib 0.10.2 to 0.12).
    """
    return {
        "xla_dump_to": str(folder),
        "xla_dump_hlo_as_proto": True,
        "xla_dump_hlo_module_re": "",  # every program
        "xla_dump_hlo_pass_re": "",  # none in the middle of a compile
        "xla_dump_hlo_pipeline_re": "",
        "xla_dump_emitter_re": "",
        "xla_dump_max_hlo_modules": -1,
        "xla_dump_disable_metadata": False,
        **dict.fromkeys(_OTHER_DUMPS, False),
    }


# JAX's settings that change the programs that it makes, as they come (jax 0.10.2 to 0.12).
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
    """The settings of JAX that change programs and are not as they come; this JAX may have a part of them only."""
    values = {name: getattr(jax.config, name, usual) for name, usual in _PROGRAM_SETTINGS.items()}
    plain = {name: value.value if isinstance(value, Enum) else value for name, value in values.items()}
    return {name: str(value) for name, value in plain.items() if value != _PROGRAM_SETTINGS[name]}


def debug_options() -> str | None:
    """XLA's `DebugOptions` as this process has read them, as a text proto (jax 0.10.2 to 0.12).

    None before a backend has started: XLA may not have read `XLA_FLAGS` yet, and asking would make it.
    """
    from jax._src import xla_bridge
    from jax._src.lib import xla_client

    if not xla_bridge.backends_are_initialized():
        return None
    options = xla_client.CompileOptions()  # it owns what it gives
    return repr(options.executable_build_options.debug_options)


@contextmanager
def full_tracebacks() -> Iterator[None]:
    """Have JAX write the names and the call stacks of operations into the program (jax 0.10.2 to 0.12).

    They decide phases and modules, and a user may have turned them off; they change nothing else.
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
    """Whether a step is lowered for the devices of a sharding, not for one that it names (jax 0.10.2 to 0.12)."""
    return bool(lowered._lowering.compile_args["backend"] is _client(sharding))


def _client(sharding: jax.sharding.Sharding) -> Any:
    return next(iter(sharding.device_set)).client


def num_devices(lowered: jax.stages.Lowered) -> int:
    """How many devices a lowered step runs on (jax 0.10.2 to 0.12)."""
    return int(lowered._lowering.compile_args["num_devices"])


def kept_arguments(lowered: jax.stages.Lowered, num_leaves: int) -> list[int]:
    """The flat indices of the argument leaves that became parameters of the program, in order.

    `jax.jit` drops arguments that the function never uses, which shifts the parameter numbers. Which ones it kept is
    only in a private record (jax 0.10.2 to 0.12).
    """
    kept = lowered._lowering.compile_args.get("kept_var_idx")
    return list(range(num_leaves)) if kept is None else sorted(kept)


def num_tokens(lowered: jax.stages.Lowered) -> int:
    """The number of tokens that order a program's effects; they are its first parameters (jax 0.10.2 to 0.12)."""
    return len(lowered._lowering.compile_args["ordered_effects"])


def has_callbacks(lowered: jax.stages.Lowered) -> bool:
    """Whether a lowered program calls back into Python (jax 0.10.2 to 0.12)."""
    return bool(lowered._lowering.compile_args["host_callbacks"])


@contextmanager
def callbacks_of_absent_devices() -> Iterator[None]:
    """Lower callbacks into Python for a device that this process does not have (jax 0.10.2 to 0.12).

    JAX asks for the device's backend, and does not use it for a GPU. Without it, the program calls the same function of
    XLA with the same operands and results, so its plan is the same. It is compiled, and never run.
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
    """The sharding of each parameter of a lowered program, in order (jax 0.10.2 to 0.12).

    Where the step leaves it to XLA it is no `jax.sharding.Sharding`.
    """
    return list(lowered._lowering.compile_args["in_shardings"])


def lower_for_platform(traced: Any, platform: str) -> jax.stages.Lowered:
    """Lower a step that names devices of its own for another platform than theirs (jax 0.10.2 to 0.12).

    Args:
        platform: `cuda`, `tpu` or `cpu`.
    """
    lowered: jax.stages.Lowered = traced.lower(lowering_platforms=(platform,))
    return lowered


def portable_program(lowered: jax.stages.Lowered, sharding: jax.sharding.Sharding) -> PortableProgram:
    """What it takes to compile a lowered step elsewhere (jax 0.10.2 to 0.12).

    Args:
        sharding: on the devices that it is to be compiled for, whatever device the step itself names.
    """
    from jax._src.interpreters import mlir, pxla

    module, jits = lowered.compiler_ir("stablehlo"), lowered._lowering.compile_args
    # Whether XLA may choose shardings: without a choice on one device, but in the fingerprint that it writes of a plan.
    may_choose = pxla.get_prop_to_input_output(
        jits["in_shardings"], jits["out_shardings"], len(jits["ordered_effects"])
    )
    devices = np.array(sharding._device_assignment, dtype=object)
    options = pxla.create_compile_options(module, jits["tuple_args"], *may_choose, _client(sharding), devices, {})
    return PortableProgram(module=mlir.module_to_bytecode(module), compile_options=options.SerializeAsString())


def compile_portable(program: PortableProgram, sharding: Any, options: Mapping[str, Any]) -> Any:
    """Compile a program for the devices of a sharding (jax 0.10.2 to 0.12).

    What comes back says how much memory it takes, and cannot be called.

    Args:
        options: XLA's options for this compile.
    """
    from jax._src import compiler
    from jax._src.interpreters import mlir
    from jax._src.lib import xla_client
    from jaxlib.mlir import ir

    if program.compile_options:
        compile_options = xla_client.CompileOptions.ParseFromString(program.compile_options)
    else:  # somebody else has lowered it, for one device
        compile_options = compiler.get_compile_options(
            num_replicas=1, num_partitions=1, device_assignment=np.array([[0]]), backend=_client(sharding)
        )
    compile_options.env_option_overrides = list(options.items())
    with mlir.make_ir_context():
        if PORTABLE_STABLEHLO.match(program.module):
            module = xla_client._xla.mlir.deserialize_portable_artifact(program.module)
        else:
            module = ir.Module.parse(program.module)
    return compiler.backend_compile_and_load(
        _client(sharding), module, sharding._internal_device_list, compile_options, host_callbacks=()
    )


def memory_totals(compiled: Any) -> dict[str, int]:
    """The fields of `memory_analysis()` in bytes; jax 0.10.2 has no `total_allocation_bytes`.

    Args:
        compiled: by JAX, or by `compile_portable`.
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
    """The compiler's estimate of the time of a step, from `cost_analysis()`; None where it gives none.

    Only an executable has it: the analysis of a lowered program is not implemented for absent TPUs (jax 0.10.2 to
    0.12), and a plan holds no estimate.

    Args:
        compiled: by JAX, or by `compile_portable`.
    """
    found = compiled.cost_analysis()
    properties = found[0] if isinstance(found, list) and found else found
    seconds = properties.get("optimal_seconds") if isinstance(properties, Mapping) else None
    return float(seconds) if seconds is not None and 0 < seconds < math.inf else None


def argument_bytes(leaf: Any) -> int:
    """Bytes of one abstract argument. Keys of `jax.random` count as the integers that they are made of."""
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.extended):
        leaf = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(leaf.shape, leaf.dtype))
    num_elements = int(np.prod(leaf.shape, dtype=np.int64))
    return -(-num_elements * _bits(np.dtype(leaf.dtype)) // 8)


def _bits(dtype: np.dtype[Any]) -> int:
    """Bits of one element in an XLA buffer, where types below a byte are packed."""
    if jax.dtypes.issubdtype(dtype, np.integer):
        return int(jax.numpy.iinfo(dtype).bits)
    if jax.dtypes.issubdtype(dtype, np.floating):
        return int(jax.numpy.finfo(dtype).bits)
    return 8 * dtype.itemsize


def place_arguments(lowered: jax.stages.Lowered, memory_kinds: Mapping[int, str]) -> None:
    """Put arguments of a lowered program into other memories than the device's own (jax 0.10.2 to 0.12).

    A sharding on a device that is not there forgets its memory kind, because such a device lists no memories. What JAX
    writes into the program for one that is there is this attribute of the argument.

    Args:
        memory_kinds: `pinned_host`, by parameter number.
    """
    from jax._src.interpreters import mlir
    from jaxlib.mlir import ir

    cached = lowered.compiler_ir("stablehlo")
    with cached.context:
        # JAX keeps what it lowered for the same function, which may come again without these memories: change a copy.
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
    """XLA's own words where it failed because of one of the options; else None (jaxlib 0.10.2 to 0.12).

    It says `No such compile option: 'NAME'`, or `While setting option NAME, 'VALUE' is not a valid bool value.`
    """
    message = str(error).partition("\n")[0].removeprefix("INVALID_ARGUMENT: ").rstrip(".")
    is_about_options = message.startswith(("No such compile option", "While setting option"))
    return message if is_about_options and any(name in message for name in options) else None


def jit_compiler_options(lowered: jax.stages.Lowered) -> dict[str, Any]:
    """XLA's options that a step was jitted with (jax 0.10.2 to 0.12)."""
    return dict(getattr(lowered._lowering, "_compiler_options_kvs", None) or ())


def is_out_of_memory(message: str) -> bool:
    """Whether the runtime's error says that memory ran out (jaxlib 0.10.2 to 0.12)."""
    return message.startswith("RESOURCE_EXHAUSTED")


def bytes_asked_for(message: str) -> int | None:
    """The size of the allocation that failed, where the runtime tells it (jaxlib 0.10.2 to 0.12).

    The CPU says `Out of memory allocating 512 bytes`, a GPU `Out of memory while trying to allocate 512 bytes` or, in
    newer versions, `... allocate 1.50GiB`.
    """
    match = re.search(r"allocat(?:e|ing) ([\d.]+)\s*(bytes|B|KiB|MiB|GiB|TiB)\b", message)
    if not match:
        return None
    number, unit = match.groups()
    exponent = {"KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40}.get(unit, 0)
    return int(float(number) * 2**exponent) if exponent else int(number)


def cudnn_version() -> int | None:
    """The version of cuDNN that JAX traces attention for, as `90100`; None if it finds none (jax 0.10.2 to 0.12)."""
    from jax._src.cudnn import fused_attention_stablehlo

    try:
        return int(fused_attention_stablehlo.check_cudnn_version())
    except RuntimeError:
        return None


@contextmanager
def cudnn_of_absent_device(target: Target | None) -> Iterator[None]:
    """Trace cuDNN's attention for the version that XLA is told of the target (jax 0.10.2 to 0.12).

    JAX asks the library of this machine for its version and takes nothing else from it; nor does XLA without a device.
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
    """Says the version of cuDNN: that of the target a step is traced for, else that of this machine's library."""

    def __init__(self, of_library: Callable[[], int]) -> None:
        self._of_library = of_library

    def __call__(self) -> int:
        return _CUDNN_VERSION.get() or self._of_library()


def _register_cuda_plugin() -> None:
    """Make JAX's CUDA compiler available in a process in which JAX has given it up (jax 0.10.2 to 0.12).

    When JAX starts its backends where CUDA's libraries are missing, its plugin refuses to be registered, and with it
    the compiler, which needs none of them. With no CUDA platform asked for, it does not look for them.
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
