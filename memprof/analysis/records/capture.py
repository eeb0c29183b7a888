"""The capture: all data that memprof stores about one compiled step.

Making a capture needs JAX (room `sources`); reading one does not. It holds the optimized program with its buffer
assignment, the compiler's own totals, and the roles of the arguments. Every report is made from the capture alone.

The types of the fields define the values that are accepted from a file (`untrusted.py`): `Bytes` is a whole number of
bytes with up to 62 bits, `Text` a short string.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Annotated

from msgspec import Meta

from memprof.analysis.records.categories import Role
from memprof.analysis.records.device_family import family_of
from memprof.analysis.records.engine import Engine
from memprof.analysis.records.kernel import Kernel
from memprof.analysis.records.measurement import Measurement
from memprof.analysis.records.pool import PoolSettings
from memprof.analysis.records.trace import Trace
from memprof.untrusted import MAX_BYTES, Bytes, Count, Dimensions, Seconds, Text, Words

# One step of the largest runs has more operations than 64 bits can count, so the type has no upper bound.
MAX_OPERATIONS = 10**30
Operations = Annotated[int, Meta(ge=0)]
_Positive = Annotated[int, Meta(ge=1, le=2**31 - 1)]
_Speed = Annotated[float, Meta(ge=1, le=1e30)]
# The text of source lines, by file and line number.
SourceLines = Mapping[Text, Mapping[Annotated[int, Meta(ge=1, le=2**31 - 1)], Words]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The devices, hosts and slices for which a step is compiled. A single device is a topology too.

    Attributes:
        axes: the mesh of the devices: the size of each axis by its name, in the mesh's order; empty for one device.
        chips: the number of chips along each dimension of a TPU slice; empty if `num_devices` determines it.
    """

    num_devices: _Positive = 1
    num_hosts: _Positive = 1
    num_slices: _Positive = 1
    axes: Mapping[Words, _Positive] = field(default_factory=dict)
    chips: tuple[_Positive, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """The peaks of a device, from its catalogue entry.

    Attributes:
        operations_per_second: the rate of dense matrix products, by the dtype of the products: `f64`, `f32`, `tf32`,
            `bf16`, `f16`, `f8`, `s8`. A dtype without units on the device is missing.
        memory_bytes_per_second: the bandwidth of its own memory.
        link_bytes_per_second: the bandwidth to other devices of the host, in one direction.
        host_bytes_per_second: the bandwidth to the host, in one direction.
    """

    operations_per_second: Mapping[Text, _Speed]
    memory_bytes_per_second: _Speed
    link_bytes_per_second: _Speed
    host_bytes_per_second: _Speed


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The device for which a step is compiled: resolved from the user's input, passed to the compiler, and captured.

    Attributes:
        name: `h100-80gb`, `cpu`, `local`, or the name of an exported target file.
        description: the vendor's name of the kind of device.
        platform: XLA's platform: `cuda`, `tpu` or `cpu`.
        memory_bytes: the memory of one device; None if there is no fixed amount (the host).
        reserved_bytes: the part of it that the device's runtime reserves.
        chip_bytes: the memory on the chip itself, by the name of its memory space: `vmem`, `smem`.
        kernel_vmem_bytes: the VMEM that one kernel can use if it sets no other limit; 0 if unknown.
        compute_capability: for example `9.0`; None if the device has none.
        reason: why this target was chosen, in words for the report (`asked for`, `no accelerator here, ...`).
        topology: the number of devices and their arrangement.
        compiler_config: the compiler's description of absent devices: the text of XLA's `GpuTargetConfigProto`, or
            libtpu's name of the chip; otherwise empty. Captures omit it, because they hold the compiled program.
        file: the exported file of the configuration, if any; captures omit it too.
        speeds: the peaks of one device; None if they are unknown.
    """

    name: Text
    description: Text
    platform: Text
    memory_bytes: Annotated[int, Meta(gt=0, le=MAX_BYTES)] | None
    compute_capability: Text | None
    reason: Words
    topology: Topology = Topology()
    reserved_bytes: Bytes = 0
    chip_bytes: Mapping[Text, Bytes] = field(default_factory=dict, compare=False)
    kernel_vmem_bytes: Bytes = field(default=0, compare=False)
    compiler_config: str = field(default="", compare=False, repr=False)
    file: str = field(default="", compare=False)
    speeds: Speeds | None = field(default=None, compare=False)

    @property
    def is_deviceless(self) -> bool:
        """Whether the devices may be absent: a step is compiled for them but never run."""
        return bool(self.compiler_config)

    @property
    def usable_bytes(self) -> int | None:
        """The memory available to programs; None if there is no fixed amount."""
        return None if self.memory_bytes is None else max(self.memory_bytes - self.reserved_bytes, 0)

    def with_memory(self, memory_bytes: int) -> Target:
        """Return the same target with another amount of memory, all of it available to programs."""
        return replace(self, memory_bytes=memory_bytes, reserved_bytes=0)

    def with_less(self, kept_bytes: int) -> Target:
        """Return the same target with less memory, because some must stay free."""
        return self if self.memory_bytes is None else replace(self, memory_bytes=self.memory_bytes - kept_bytes)

    @property
    def cuda_capability(self) -> tuple[int, int] | None:
        """The compute capability as numbers; None if there is none, or if the text is not a CUDA compute capability."""
        found = re.fullmatch(r"([0-9]{1,3})\.([0-9]{1,3})", self.compute_capability or "")
        return (int(found[1]), int(found[2])) if found and family_of(self.platform).has_cuda else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolchain:
    """The versions that made a capture (None if not installed), and the settings that change the program.

    Attributes:
        jax, jaxlib: empty if another framework made the step.
        libtpu: the version of the TPU compiler, if it compiled the step.
        torch: PyTorch's version if it made the step, else None.
        tensorrt: the version of the builder, if it made an engine.
        jax_settings: JAX settings that change programs and differ from their defaults, by name.
    """

    memprof: Text
    python: Text
    jax: Text
    jaxlib: Text
    cuda_plugin: Text | None
    flax: Text | None
    optax: Text | None
    xla_flags: Words
    jax_settings: Mapping[Text, Words] = field(default_factory=dict)
    torch: Text | None = None
    libtpu: Text | None = None
    tensorrt: Text | None = None

    @property
    def settings(self) -> tuple[str, ...]:
        """The JAX settings as texts: `jax_enable_x64=True`."""
        return tuple(f"{name}={value}" for name, value in self.jax_settings.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class CompilerTotals:
    """The report of `compiled.memory_analysis()` in bytes, and the compiler's time; never mixed with memprof's results.

    Attributes:
        peak_memory_bytes: None on CPU, where XLA's peak excludes the temporaries.
        is_complete: whether the program was compiled completely. Otherwise these are the totals of its plan, which
            determines all of them.
        optimal_seconds: `compiled.cost_analysis()["optimal_seconds"]`, the compiler's estimate of the time of a step;
            None for a plan, and if the compiler gives no estimate.
    """

    argument_bytes: Bytes
    output_bytes: Bytes
    alias_bytes: Bytes
    temp_bytes: Bytes
    peak_memory_bytes: Bytes | None
    total_allocation_bytes: Bytes | None
    is_complete: bool = True
    optimal_seconds: Seconds | None = None


# For a step that is traced but not compiled.
NO_COMPILER = CompilerTotals(
    argument_bytes=0, output_bytes=0, alias_bytes=0, temp_bytes=0, peak_memory_bytes=None, total_allocation_bytes=None
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayTotals:
    """The totals of the heap traces' replay when the capture was made; every analysis must reproduce them.

    Attributes:
        footprint_bytes: the size of all allocations of device memory.
        peak_bytes: the sum of the peaks of all traces.
        num_events: the number of events of all traces.
        byte_events: the sum over all live ranges of bytes times duration in events.
    """

    footprint_bytes: Bytes
    peak_bytes: Bytes
    num_events: Count
    byte_events: Annotated[int, Meta(ge=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentLeaf:
    """One leaf of the step's arguments.

    Attributes:
        path: its path in the argument tree, as JAX writes it: `state.params['Dense_0']['kernel']`.
        shape, size_bytes: those of the whole array, even if it is sharded.
        dtype: JAX's name: `float32`, `bfloat16`, `int32`, `key<fry>`.
        parameter_number: its number in the compiled program; None if jit dropped it because the step never uses it.
        position: the number of the step's positional argument that contains it; None for keyword arguments.
        mesh_axes: the mesh axes over which it is sharded; None if there is no mesh, or if the step leaves the sharding
            to XLA.
        num_copies: for a KV cache, the number of equal copies of each head that the step stores.
        window: for a KV cache, the number of tokens that attention reads, and the number that the cache has room for;
            empty if attention reads all, or if that is unknown.
        is_carried: whether the step returns its next value; None if that is unknown.
    """

    path: Text
    role: Role
    shape: Dimensions
    dtype: Text
    size_bytes: Bytes
    donated: bool
    parameter_number: Count | None
    position: Count | None = None
    mesh_axes: tuple[Words, ...] | None = None
    num_copies: Count = 1
    window: Dimensions = ()
    is_carried: bool | None = None

    @property
    def num_elements(self) -> int:
        return prod(self.shape)

    @property
    def has_sane_size(self) -> bool:
        """Whether an array of this shape is possible. A file may contain an impossible shape."""
        return self.num_elements <= MAX_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Wall-clock seconds of the compiler on the machine that made the capture.

    Attributes:
        compile_seconds: the time until the plan or the program was ready; 0 if the plan was cached.
        cached_compile_seconds: the time of the original compile of a cached plan; None if it was compiled now.
    """

    lower_seconds: Seconds
    compile_seconds: Seconds
    cached_compile_seconds: Seconds | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeFolders:
    """The code folders of the machine that made a capture, as absolute paths.

    Attributes:
        user: the user's working folder, and the folder of the script.
        standard_library: the folders of Python's own modules.
        cells: the names of notebook cells in tracebacks (`Cell In[3]`), by IPython's file names of the cells.
    """

    user: tuple[Words, ...] = ()
    standard_library: tuple[Words, ...] = ()
    cells: Mapping[Words, Words] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """One compiled step. See the module's docstring.

    Attributes:
        label: its name in reports: `transformer bf16+scan`.
        flops, recomputed_flops: FLOPs of the matrix products and convolutions of one step, counted in the traced
            program; `recomputed_flops` is the part that rematerialisation repeats.
        flops_by_scope: FLOPs by JAX's scopes around each operation: `transpose(jvp(Transformer))/layers_0/mlp`.
        doubts: sentences about arguments whose role had to be guessed.
        fenced_values: the values at the step's optimization barriers: the source lines that made them, by the end of
            the op name. Empty for an imported dump.
        partitioner_messages: the messages of XLA's partitioner on stderr, without log prefixes.
        refusal: the compiler's message if it rejected the program because it does not fit the device.
        hlo_proto: a serialized `xla.HloProto`: the scheduled module and its buffer assignment; empty for an engine or a
            trace.
        engine: the description from an inference engine's builder, instead of XLA's program; else None.
        trace: the trace of a step without a compiled program; else None.
        proto_without_limit: the same program, compiled without a memory limit; empty if XLA recomputes no values by
            itself, or if this program was not compiled.
        measured: the measurements of a run of the step; None if it did not run.
        replay: the totals of the replay when the step was compiled; None in a capture without a compiler.
        replay_without_limit: the totals of the replay of `proto_without_limit`.
        source_lines: the text of the source lines in the program and of the lines around them, by file and number.
        kernels: the Pallas kernels of a program for a TPU, except SparseCore kernels.
        file: the file of the capture, for messages; None if the capture was made in this process.
        request: a digest of the request of a command with several rows; empty for any other command.
        folders: the folders of the user's code; None in captures that do not record them.
        pool: the settings of JAX's allocator on the machine that compiled the step.
    """

    label: Text
    workload: Text
    techniques: tuple[Text, ...]
    config: Mapping[Text, Words | int | float | bool | None]
    target: Target
    toolchain: Toolchain
    compiler: CompilerTotals
    arguments: tuple[ArgumentLeaf, ...]
    flops: Operations
    recomputed_flops: Operations
    timings: Timings
    hlo_proto: bytes = b""
    trace: Trace | None = None
    proto_without_limit: bytes = b""
    doubts: tuple[Words, ...] = ()
    partitioner_messages: tuple[Words, ...] = ()
    refusal: Words = ""
    measured: Measurement | None = None
    flops_by_scope: Mapping[Words, Operations] = field(default_factory=dict)
    request: Text = ""
    fenced_values: Mapping[Words, tuple[Words, ...]] = field(default_factory=dict)
    replay: ReplayTotals | None = None
    replay_without_limit: ReplayTotals | None = None
    source_lines: SourceLines = field(default_factory=dict)
    folders: CodeFolders | None = None
    pool: PoolSettings = field(default_factory=PoolSettings)
    engine: Engine | None = None
    kernels: tuple[Kernel, ...] = ()
    file: str | None = field(default=None, compare=False)

    @property
    def num_params(self) -> int:
        """The number of parameters, including frozen ones (elements, not bytes)."""
        return sum(leaf.num_elements for leaf in self.arguments if leaf.role is Role.PARAMS)
