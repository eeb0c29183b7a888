"""The capture: everything that memprof keeps of one compiled step.

A capture is made where JAX is (room `sources`) and read where it need not be: the optimized program with its buffer
assignment, the compiler's own totals, and what the arguments are for. Every report is made from it alone.

The types of the fields say what is accepted of a file (`untrusted.py`): `Bytes` is a whole number of bytes of up to 62
bits, `Text` a string that is not long.
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

# One step of the largest runs has more operations than 64 bits hold, for which a type has no upper bound.
MAX_OPERATIONS = 10**30
Operations = Annotated[int, Meta(ge=0)]
_Positive = Annotated[int, Meta(ge=1, le=2**31 - 1)]
_Speed = Annotated[float, Meta(ge=1, le=1e30)]
# The text of lines, by file and number.
SourceLines = Mapping[Text, Mapping[Annotated[int, Meta(ge=1, le=2**31 - 1)], Words]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """How many devices a step is compiled for, and on how many hosts and slices: one device is a topology of one.

    Attributes:
        axes: the mesh that they form: the size of each axis by its name, in the mesh's order; empty of one device.
        chips: the chips of a TPU slice along each of its dimensions; empty where the number of devices decides.
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
        operations_per_second: of dense matrix products, by the dtype of the products: `f64`, `f32`, `tf32`, `bf16`,
            `f16`, `f8`, `s8`. A dtype that the device has no units for is missing.
        memory_bytes_per_second: of its own memory.
        link_bytes_per_second: to other devices of the host, in one direction.
        host_bytes_per_second: to the host, in one direction.
    """

    operations_per_second: Mapping[Text, _Speed]
    memory_bytes_per_second: _Speed
    link_bytes_per_second: _Speed
    host_bytes_per_second: _Speed


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a step is compiled for: resolved from what the user wrote, carried to the compiler, kept in the capture.

    Attributes:
        name: `h100-80gb`, `cpu`, `local`, or the name of an exported target file.
        description: the vendor's name of the kind of device.
        platform: XLA's platform: `cuda`, `tpu` or `cpu`; empty of the local device until JAX has looked.
        memory_bytes: of one device, or None where there is no fixed amount (the host).
        reserved_bytes: the part of it that the device's runtime keeps from programs.
        chip_bytes: the memory on the chip itself, by the name of its memory space: `vmem`, `smem`.
        kernel_vmem_bytes: the VMEM that one kernel can use if it asks for no other limit; 0 if that is unknown.
        compute_capability: for example `9.0`; None where there is none.
        reason: why this target was taken, in words for the report (`asked for`, `no accelerator here, ...`).
        topology: how many of the device.
        compiler_config: of devices that need not be there what their compiler wants to know of them: the text of XLA's
            `GpuTargetConfigProto`, or libtpu's name of the chip; else empty. A capture, which holds the program that
            came of it, is written without it.
        file: the exported file that the configuration was read from, if any; not in captures either.
        speeds: the peaks of one device; None where they are not known.
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
        """Whether the devices need not be there, so that a step is compiled for them and never run."""
        return bool(self.compiler_config)

    @property
    def usable_bytes(self) -> int | None:
        """The memory that programs can have; None where there is no fixed amount."""
        return None if self.memory_bytes is None else max(self.memory_bytes - self.reserved_bytes, 0)

    def with_memory(self, memory_bytes: int) -> Target:
        """The same with another amount of memory, all of it for programs."""
        return replace(self, memory_bytes=memory_bytes, reserved_bytes=0)

    def with_less(self, kept_bytes: int) -> Target:
        """The same of which some memory stays free."""
        return self if self.memory_bytes is None else replace(self, memory_bytes=self.memory_bytes - kept_bytes)

    @property
    def cuda_capability(self) -> tuple[int, int] | None:
        """The compute capability as numbers; None where there is none, or the text is no CUDA compute capability."""
        found = re.fullmatch(r"([0-9]{1,3})\.([0-9]{1,3})", self.compute_capability or "")
        return (int(found[1]), int(found[2])) if found and family_of(self.platform).has_cuda else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolchain:
    """The versions that made a capture (None: not installed), and what was set that changes the program.

    Attributes:
        jax, jaxlib: empty where another framework made the step.
        libtpu: of a TPU's compiler, where that made the step.
        torch: PyTorch's version where it made the step, else None.
        tensorrt: of the builder, where that made an engine.
        jax_settings: of the settings of JAX those that change programs and were not as they come, by name.
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
        """The same as texts: `jax_enable_x64=True`."""
        return tuple(f"{name}={value}" for name, value in self.jax_settings.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class CompilerTotals:
    """What `compiled.memory_analysis()` reports, in bytes, and its time. Never mixed with what memprof infers.

    Attributes:
        peak_memory_bytes: None on CPU, where XLA leaves the temporaries out of it.
        is_complete: whether the program was compiled to the end; else these are the totals of its plan, in which all
            of them are decided.
        optimal_seconds: `compiled.cost_analysis()["optimal_seconds"]`, the compiler's estimate of the time of a step;
            None of a plan, and where the compiler gives none.
    """

    argument_bytes: Bytes
    output_bytes: Bytes
    alias_bytes: Bytes
    temp_bytes: Bytes
    peak_memory_bytes: Bytes | None
    total_allocation_bytes: Bytes | None
    is_complete: bool = True
    optimal_seconds: Seconds | None = None


# Of a step that is traced and not compiled.
NO_COMPILER = CompilerTotals(
    argument_bytes=0, output_bytes=0, alias_bytes=0, temp_bytes=0, peak_memory_bytes=None, total_allocation_bytes=None
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayTotals:
    """What the replay of the heap traces came to where the capture was made: every analysis must come to the same.

    Attributes:
        footprint_bytes: of all allocations of device memory.
        peak_bytes: of all traces together, each at its own highest.
        num_events: of all traces together.
        byte_events: the bytes of every stretch of time in which memory is taken, times its number of events.
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
        shape, size_bytes: of the whole array, however many devices share it.
        dtype: JAX's name: `float32`, `bfloat16`, `int32`, `key<fry>`.
        parameter_number: its number in the compiled program; None where jit dropped it because the step never uses it.
        position: the number of the step's positional argument that it belongs to; None for keyword arguments.
        mesh_axes: the axes of the mesh that its sharding divides it over; None where there is no mesh, or the step
            leaves it to XLA.
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

    @property
    def num_elements(self) -> int:
        return prod(self.shape)

    @property
    def has_sane_size(self) -> bool:
        """Whether an array of that shape can be; what a file says need not be."""
        return self.num_elements <= MAX_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Wall-clock seconds that the compiler took, on the machine that made the capture.

    Attributes:
        compile_seconds: until the plan was there, or the program; 0 where the plan was in the cache.
        cached_compile_seconds: what the compile took that made a plan from the cache; None: it was compiled now.
    """

    lower_seconds: Seconds
    compile_seconds: Seconds
    cached_compile_seconds: Seconds | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeFolders:
    """Where code lay on the machine that made a capture, as absolute paths.

    Attributes:
        user: the folder that the user worked in, and the folder of the script.
        standard_library: where Python's own modules are.
        cells: by the file name that IPython gave to a cell of a notebook, its name in a traceback: `Cell In[3]`.
    """

    user: tuple[Words, ...] = ()
    standard_library: tuple[Words, ...] = ()
    cells: Mapping[Words, Words] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """One compiled step. See the module's docstring.

    Attributes:
        label: what the reports call it: `transformer bf16+scan`.
        flops, recomputed_flops: floating-point operations of the matrix products and convolutions of one step, counted
            in the traced program; `recomputed_flops` is the part that rematerialisation repeats.
        flops_by_scope: the same by the scopes of JAX around each operation: `transpose(jvp(Transformer))/layers_0/mlp`.
        doubts: sentences about arguments whose role had to be guessed.
        fenced_values: the values at the step's optimization barriers: the source lines that made them by the end of
            the op name. Empty for an imported dump.
        partitioner_messages: what XLA's partitioner wrote to stderr, without the marks of a log.
        refusal: the compiler's sentence where it refused the program, which does not fit the device.
        hlo_proto: a serialized `xla.HloProto`: the scheduled module and its buffer assignment; empty of an engine or a
            trace.
        engine: what an inference engine's builder says, in place of XLA's program; else None.
        trace: of a step that has no compiled program; else None.
        proto_without_limit: the same program, compiled without a limit of memory; empty if XLA recomputes nothing on
            its own, or it was not compiled so.
        measured: what was measured when the step ran; None where it did not.
        replay: what the replay came to where the step was compiled; None in a capture that no compiler made.
        replay_without_limit: the same of `proto_without_limit`.
        source_lines: the text of the source lines that the program names and of those around them, by file and number.
        kernels: the Pallas kernels of a program for a TPU, without those of SparseCores.
        file: where the capture was read from, for messages; None where it was made in this process.
        request: a digest of what a command of several rows asked for; empty for any other command.
        folders: where the user's code lay; None in captures that do not tell.
        pool: the settings of JAX's allocator where the step was compiled.
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
        """The number of parameters, frozen ones too (elements, not bytes)."""
        return sum(leaf.num_elements for leaf in self.arguments if leaf.role is Role.PARAMS)
