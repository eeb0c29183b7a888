"""The capture: everything that memprof keeps of one compiled step.

A capture is made where JAX is (room `capture`) and read where it need not be: the optimized program with its buffer
assignment, the compiler's own totals, and what the arguments are for. Every report is made from it alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

from memprof.analysis.categories import Role
from memprof.analysis.measurement import Measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetInfo:
    """The device that a step was compiled for.

    Attributes:
        name: `h100-80gb`, `cpu`, `local:NVIDIA H200`, or the name of an exported target file.
        description: the vendor's name of the device.
        platform: XLA's platform: `cuda` or `cpu`.
        memory_bytes: device memory, or None where there is no fixed amount (the host).
        compute_capability: for example `9.0`; None where there is none.
        reason: why this target was taken, in words for the report (`asked for`, `no accelerator here, ...`).
    """

    name: str
    description: str
    platform: str
    memory_bytes: int | None
    compute_capability: str | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolchain:
    """The versions that made a capture, and the XLA flags that were set. None: not installed."""

    memprof: str
    python: str
    jax: str
    jaxlib: str
    cuda_plugin: str | None
    flax: str | None
    optax: str | None
    xla_flags: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CompilerTotals:
    """What `compiled.memory_analysis()` reports, in bytes. Never mixed with what memprof infers.

    `peak_memory_bytes` is None on CPU, where XLA leaves the temporaries out of it.
    """

    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    temp_bytes: int
    peak_memory_bytes: int | None
    total_allocation_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentLeaf:
    """One leaf of the step's arguments.

    Attributes:
        path: its path in the argument tree, as JAX writes it: `state.params['Dense_0']['kernel']`.
        dtype: JAX's name: `float32`, `bfloat16`, `int32`, `key<fry>`.
        parameter_number: its number in the compiled program; None where jit dropped it because the step never uses it.
    """

    path: str
    role: Role
    shape: tuple[int, ...]
    dtype: str
    size_bytes: int
    donated: bool
    parameter_number: int | None

    @property
    def num_elements(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Wall-clock seconds that the compiler took, on the machine that made the capture."""

    lower_seconds: float
    compile_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeFolders:
    """Where code lay on the machine that made a capture, as absolute paths.

    Attributes:
        user: the folder that the user worked in, and the folder of his script.
        standard_library: where Python's own modules are.
    """

    user: tuple[str, ...] = ()
    standard_library: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """One compiled step. See the module's docstring.

    Attributes:
        label: what the reports call it: `transformer bf16+scan`.
        flops, recomputed_flops: floating-point operations of the matrix products and convolutions of one step, counted
            in the traced program; `recomputed_flops` is the part that rematerialisation repeats.
        flops_by_scope: the same by the scopes of JAX around each operation: `transpose(jvp(Transformer))/layers_0/mlp`.
        doubts: sentences about arguments whose role had to be guessed.
        hlo_proto: a serialized `xla.HloProto`: the scheduled module and its buffer assignment.
        measured: what was measured when the step ran; None where it did not.
        folders: where the user's code lay; None in captures that do not tell.
    """

    label: str
    workload: str
    techniques: tuple[str, ...]
    config: Mapping[str, str | int | float | bool | None]
    target: TargetInfo
    toolchain: Toolchain
    compiler: CompilerTotals
    arguments: tuple[ArgumentLeaf, ...]
    flops: int
    recomputed_flops: int
    timings: Timings
    hlo_proto: bytes
    doubts: tuple[str, ...] = ()
    measured: Measurement | None = None
    flops_by_scope: Mapping[str, int] = field(default_factory=dict)
    folders: CodeFolders | None = None

    @property
    def num_params(self) -> int:
        """The number of parameters, frozen ones too (elements, not bytes)."""
        return sum(leaf.num_elements for leaf in self.arguments if leaf.role is Role.PARAMS)
