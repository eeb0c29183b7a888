"""Compilers for absent devices: the differences between the families' XLA compilers, as one record for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memprof.analysis.records.capture import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicelessCompiler:
    """The compiler of a family.

    Attributes:
        missing: requirements of a compile that this machine lacks, in words; empty if nothing is missing.
        install: the command that installs them.
        devices: the absent devices of a target, as JAX represents them.
        tools: other files that a plan depends on, each identified by its path and size.
        options: our XLA options, in addition to those of the step (`asked`); `to_the_plan`: the compile ends as soon as
            its plan is complete.
        refuses: the compiler rejects a program that does not fit the device, with an error after the plan.
        needs_tools: code generation needs tools besides the compiler, which may be missing.
        with_ample_memory: returns the target with so much memory that XLA recomputes nothing to save memory; None if
            the compiler does not receive the memory size.
    """

    missing: Callable[[], tuple[str, ...]]
    install: str
    devices: Callable[[Target], list[Any]]
    tools: Callable[[], tuple[Path | None, ...]] = tuple
    options: Callable[[Iterable[str], bool], dict[str, str]] = lambda asked, to_the_plan: {}
    refuses: bool = False
    needs_tools: bool = False
    with_ample_memory: Callable[[Target], Target] | None = None
