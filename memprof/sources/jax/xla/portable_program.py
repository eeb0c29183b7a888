"""A lowered program that any process with the same jaxlib can compile, and the settings of its compile."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memprof.analysis.records.capture import Target

BYTECODE = b"ML\xefR"
PORTABLE_STABLEHLO = re.compile(BYTECODE + rb".{1,2}StableHLO_v", re.DOTALL)  # the version, then the producer
_MODULE_FILE = "step.mlirbc"
_OPTIONS_FILE = "compile_options.pb"
_LIMIT_FILE = "memory_limit.txt"
_CALLS_FILE = "partitioned_calls.pickle"


@dataclass(frozen=True, slots=True, kw_only=True)
class PortableProgram:
    """A lowered step that any process with the same jaxlib can compile.

    Attributes:
        module: its StableHLO module as MLIR bytecode.
        compile_options: a serialized `CompileOptions`: the devices, numbered within their topology; whether XLA may
            choose shardings; and this process's JAX settings for compiles.
        memory_limit_bytes: the memory for which XLA plans; 0: XLA's own share of the device's memory.
        partitioned_calls: a description of the calls that JAX divides among devices (see `partitioned_calls.py`);
            empty without any.
    """

    module: bytes
    compile_options: bytes
    memory_limit_bytes: int = 0
    partitioned_calls: bytes = b""

    def write(self, folder: Path) -> None:
        """Write the program to a work folder."""
        (folder / _MODULE_FILE).write_bytes(self.module)
        (folder / _OPTIONS_FILE).write_bytes(self.compile_options)
        (folder / _LIMIT_FILE).write_text(str(self.memory_limit_bytes), encoding="ascii")
        (folder / _CALLS_FILE).write_bytes(self.partitioned_calls)

    @classmethod
    def read(cls, folder: Path) -> PortableProgram:
        """Read the program from a work folder."""
        return cls(
            module=(folder / _MODULE_FILE).read_bytes(),
            compile_options=(folder / _OPTIONS_FILE).read_bytes(),
            memory_limit_bytes=int((folder / _LIMIT_FILE).read_text(encoding="ascii")),
            partitioned_calls=(folder / _CALLS_FILE).read_bytes(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileSettings:
    """Settings of all compiles.

    Attributes:
        complete: whether to finish the compile of a step that will not run, instead of stopping at its plan.
        use_cache: whether a plan may come from the user's cache.
        timeout_seconds: time after which a compile is aborted; None means no limit.
        cluster: address of the Dask scheduler that sends lowered steps to workers; None means to compile locally.
    """

    complete: bool = False
    use_cache: bool = True
    timeout_seconds: float | None = None
    cluster: str | None = None


TO_THE_PLAN = CompileSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanTask:
    """The inputs of a compile besides the `PortableProgram`.

    Attributes:
        options: XLA options that the step requests.
        xla_flags: the environment variable in the process that lowered the program.
    """

    target: Target
    options: Mapping[str, Any]
    xla_flags: str
    settings: CompileSettings = TO_THE_PLAN
