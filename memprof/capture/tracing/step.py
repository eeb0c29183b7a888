"""The step that is profiled: a function, its arguments, and what each argument is for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from memprof.analysis.records.capture import Target
from memprof.analysis.records.categories import Role
from memprof.capture.tracing.step_checks import argument_numbers, check_callable, check_step, shown
from memprof.errors import MemprofError


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """What it takes to run a step, not only to compile it. Without one, the step's own arguments must be arrays.

    Attributes:
        argument: from the number of an argument and of a step to its value, arrays of its own on the host or on the
            default device. What the step itself returns for the next one (see `run.Arguments`) is asked for once.
        loss: from the step's result to the loss, a number; None where it has none.
        num_examples, num_tokens: in the batch of one step; None where there are no tokens.
    """

    argument: Callable[[int, int], Any]
    loss: Callable[[Any], float | None]
    num_examples: int
    num_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class StepSpec:
    """A function to compile, with everything that memprof must know about it.

    Attributes:
        fn: the step. A function that is already jitted (`jax.jit`) keeps its own options; any other is jitted here.
        args: its positional arguments: pytrees of arrays or of `jax.ShapeDtypeStruct`. Only shapes and dtypes of arrays
            are used; nothing is allocated.
        donate_argnums: arguments whose buffers the step may reuse for its results.
        static_argnums: arguments that are no arrays and that the compiled program is made for.
        roles: what leaves of the arguments are for, by path prefix as JAX writes paths (`state.params`, `batch['x']`).
            The longest prefix that matches a leaf decides. Those of other leaves are inferred from types, from the
            optimizer's state and from what the program does with them (see the folder `roles`).
        kwargs: its keyword arguments.
        workload: name of the workload, for the reports.
        techniques: labels of the techniques applied, in the order given.
        config: the workload's configuration, for the reports and the capture: flat, JSON scalars only.
        compiler_options: XLA options for this compile.
        memory_kinds: the memory that arguments live in, where it is not the device's own (`pinned_host`), by path
            prefix like `roles`. Where a result lives is for the step to say, with `jax.device_put`.
        feed: real arguments to run the step on; None: `args` themselves, where they are arrays.
        check_target: raises `MemprofError` for a target that the step cannot be compiled for; None: it will do.
    """

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    donate_argnums: tuple[int, ...] = ()
    static_argnums: tuple[int, ...] = ()
    roles: Mapping[str, Role | str] = field(default_factory=dict)
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    workload: str = "step"
    techniques: tuple[str, ...] = ()
    config: Mapping[str, str | int | float | bool | None] = field(default_factory=dict)
    compiler_options: Mapping[str, str] = field(default_factory=dict)
    memory_kinds: Mapping[str, str] = field(default_factory=dict)
    feed: Feed | None = None
    check_target: Callable[[Target], None] | None = None

    def __post_init__(self) -> None:
        """Take a list for a tuple, and one number for several.

        Raises:
            MemprofError: a field is not what it must be.
        """
        check_callable(self.fn)
        if not isinstance(self.args, (tuple, list)):
            raise MemprofError(
                f"the step's arguments are {shown(self.args)}, but a tuple was expected: StepSpec(step, (state, batch))"
            )
        object.__setattr__(self, "args", tuple(self.args))
        for name in ("donate_argnums", "static_argnums"):
            numbers = argument_numbers(name, getattr(self, name), num_args=len(self.args))
            object.__setattr__(self, name, numbers)
        check_step(self)

    @property
    def label(self) -> str:
        """`transformer bf16+scan`: the workload and its techniques."""
        return " ".join(part for part in (self.workload, "+".join(self.techniques)) if part)
