"""The step that is profiled: a function, its abstract arguments, and what each argument is for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from memprof.analysis.capture import TargetInfo
from memprof.analysis.categories import Role


@dataclass(frozen=True, slots=True)
class StepSpec:
    """A function to compile, with everything that memprof must know about it.

    Attributes:
        fn: the step, not yet jitted.
        args: its positional arguments: pytrees of `jax.ShapeDtypeStruct` or arrays. Only shapes and dtypes are used.
        roles: role by path prefix in the argument tree, as JAX writes paths (`state.params`, `state.opt_state`,
            `batch`). The longest prefix that matches a leaf decides; a leaf that none matches is `other_state`.
        donate_argnums: arguments whose buffers the step may reuse for its results.
        workload: name of the workload, for the reports.
        techniques: labels of the techniques applied, in the order given.
        config: the workload's configuration, for the reports and the capture: flat, JSON scalars only.
        compiler_options: XLA options for this compile.
        memory_kinds: the memory that arguments live in, where it is not the device's own (`pinned_host`), by path
            prefix like `roles`. Where a result lives is for the step to say, with `jax.device_put`.
        check_target: raises `MemprofError` for a target that the step cannot be compiled for; None: it will do.
    """

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    roles: Mapping[str, Role] = field(default_factory=dict)
    donate_argnums: tuple[int, ...] = ()
    workload: str = "step"
    techniques: tuple[str, ...] = ()
    config: Mapping[str, str | int | float | bool | None] = field(default_factory=dict)
    compiler_options: Mapping[str, str] = field(default_factory=dict)
    memory_kinds: Mapping[str, str] = field(default_factory=dict)
    check_target: Callable[[TargetInfo], None] | None = None

    @property
    def label(self) -> str:
        """`transformer bf16+scan`: the workload and its techniques."""
        return " ".join(part for part in (self.workload, "+".join(self.techniques)) if part)
