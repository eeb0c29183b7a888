"""A lowered program that any process with the same jaxlib can compile, and how it is to be compiled."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memprof.analysis.records.capture import Target

BYTECODE = b"ML\xefR"
PORTABLE_STABLEHLO = re.compile(BYTECODE + rb".{1,2}StableHLO_v", re.DOTALL)  # the version, then who wrote it
_MODULE_FILE = "step.mlirbc"
_OPTIONS_FILE = "compile_options.pb"


@dataclass(frozen=True, slots=True, kw_only=True)
class PortableProgram:
    """A lowered step, which any process with the same jaxlib can compile.

    Attributes:
        module: its StableHLO module as MLIR bytecode.
        compile_options: a serialized `CompileOptions`: on which devices, numbered within their topology, what XLA may
            shard by itself, and what JAX's settings in this process say of compiles.
    """

    module: bytes
    compile_options: bytes

    def write(self, folder: Path) -> None:
        """Leave it in a work folder."""
        (folder / _MODULE_FILE).write_bytes(self.module)
        (folder / _OPTIONS_FILE).write_bytes(self.compile_options)

    @classmethod
    def read(cls, folder: Path) -> PortableProgram:
        """The one that was left in a work folder."""
        return cls(module=(folder / _MODULE_FILE).read_bytes(), compile_options=(folder / _OPTIONS_FILE).read_bytes())


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileSettings:
    """How compiles are made, whatever is compiled.

    Attributes:
        complete: whether to compile to the end where no step runs, and not to the plan alone.
        use_cache: whether a plan may come from the user's cache.
        timeout_seconds: a compile is given up after so long; None: never.
        cluster: the address of the Dask scheduler that hands lowered steps to workers; None: all is done here.
    """

    complete: bool = False
    use_cache: bool = True
    timeout_seconds: float | None = None
    cluster: str | None = None


TO_THE_PLAN = CompileSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanTask:
    """What it takes to compile a `PortableProgram`, besides itself.

    Attributes:
        options: XLA's options that its step asks for.
        xla_flags: the variable of the environment, as it was where the program was lowered.
    """

    target: Target
    options: Mapping[str, Any]
    xla_flags: str
    settings: CompileSettings = TO_THE_PLAN
