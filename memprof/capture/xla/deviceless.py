"""How XLA compiles for an absent device, for each family of devices: `COMPILERS`.

Every difference that the process of a compile has to know is a field of one record. What a compiled program means is a
fact of its family: see `analysis/records/device_family.py`.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memprof.analysis.records.capture import Target
from memprof.capture.xla import xla_adapter
from memprof.capture.xla.cuda_tools import INSTALL_DEVICELESS, find_libdevice, find_ptxas, missing_for_deviceless
from memprof.capture.xla.deviceless_options import options_for_gpu
from memprof.capture.xla.toolchain import installed_version
from memprof.errors import MemprofError

INSTALL_TPU = 'pip install "jax-memprof[tpu]"'


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicelessCompiler:
    """The compiler of a family.

    Attributes:
        missing: what a compile needs and this machine lacks, in words; empty if nothing is missing.
        install: the command that installs it.
        version: of the plugin of JAX that holds the compiler; None if it is missing.
        tools: what else decides about a plan: files, each by its path and size.
        options: XLA's options of ours, beside those that a step asks for (`asked`); `to_the_plan`: the compile is
            ended as soon as its plan is complete.
        refuses: whether it refuses a program that does not fit the device, as an error after the plan.
        knows_memory: whether it takes the size of the memory as a part of the target, so that it can be changed.
    """

    missing: Callable[[], tuple[str, ...]]
    install: str
    version: Callable[[], str | None]
    tools: Callable[[], tuple[Path | None, ...]]
    options: Callable[[Iterable[str], bool], dict[str, str]]
    refuses: bool
    knows_memory: bool


def deviceless_options(target: Target, asked: Iterable[str], *, to_the_plan: bool) -> dict[str, str]:
    """Our options for a compile; none where the program may run.

    Args:
        asked: the names of the options that the step asks for.
        to_the_plan: see `with_our_options`.
    """
    return COMPILERS[target.platform].options(asked, to_the_plan) if target.is_deviceless else {}


def with_our_options(
    compile_it: Callable[[Mapping[str, Any]], Any], target: Target, asked: Mapping[str, Any], *, to_the_plan: bool
) -> Any:
    """Compile with options of ours, none where the program may run. One that this XLA has not is left out.

    Args:
        asked: the options that the step asks for.
        to_the_plan: whether what comes after it is of no interest.

    Raises:
        MemprofError: XLA has no such option, or it does not take that value.
    """
    ours = deviceless_options(target, asked, to_the_plan=to_the_plan)
    while True:
        try:
            return compile_it(ours)
        except Exception as error:  # XLA's own errors have no common type
            unknown = [name for name in ours if xla_adapter.rejected_option(error, [name])]
            if unknown:
                ours = {name: value for name, value in ours.items() if name not in unknown}
                continue
            reason = xla_adapter.rejected_option(error, asked)
            if reason is None:
                raise
            raise MemprofError(f"XLA does not accept an option of this step: {reason}") from error


def libtpu_version() -> str | None:
    """`libtpu 0.0.50.1`, or the path of the library that the environment names instead; None if it is missing."""
    installed, library = _installed_library(), _library()
    if library is None:
        return None
    return f"libtpu {installed_version('libtpu')}" if library == installed else str(library)


def _library() -> Path | None:
    """The library that JAX loads (jax 0.10.2 to 0.12). It sets the variable itself when it does."""
    named = os.environ.get("TPU_LIBRARY_PATH")
    return Path(named) if named else _installed_library()


def _installed_library() -> Path | None:
    spec = importlib.util.find_spec("libtpu")
    return None if spec is None or spec.origin is None else Path(spec.origin).with_name("libtpu.so")


COMPILERS = {
    "cuda": DevicelessCompiler(
        missing=missing_for_deviceless,
        install=INSTALL_DEVICELESS,
        version=lambda: xla_adapter.cuda_plugin_version(),
        tools=lambda: (find_ptxas(), find_libdevice()),
        options=lambda asked, to_the_plan: options_for_gpu(asked, to_the_plan=to_the_plan),
        refuses=False,
        knows_memory=True,
    ),
    "tpu": DevicelessCompiler(
        missing=lambda: () if libtpu_version() else ("libtpu",),
        install=INSTALL_TPU,
        version=libtpu_version,
        tools=lambda: (_library(),),
        options=lambda asked, to_the_plan: {},
        refuses=True,
        knows_memory=False,
    ),
}
