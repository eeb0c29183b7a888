"""The step to profile: a function, its arguments, and their roles."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from memprof.analysis.records.capture import Target
from memprof.analysis.records.categories import Role
from memprof.errors import MemprofError
from memprof.sources.jax.tracing.step_checks import argument_numbers, check_callable, check_step, shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """The data needed to run a step, not only to compile it. Without a feed, the step's own arguments must be arrays.

    Attributes:
        argument: maps the number of an argument and the number of a step to a value: new arrays on the host or on the
            default device. Arguments that the step returns for the next one (see `run.Arguments`) are requested once.
        loss: maps the step's result to the loss, a number, or None if it has none.
        num_examples, num_tokens: the size of one step's batch. `num_tokens` is None if the batch has no tokens.
    """

    argument: Callable[[int, int], Any]
    loss: Callable[[Any], float | None]
    num_examples: int
    num_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class StepSpec:
    """A function to compile, with everything that memprof must know about it.

    Attributes:
        fn: the step. A function that is already jitted (`jax.jit`) keeps its own options; memprof jits any other.
        args: its positional arguments: pytrees of arrays or of `jax.ShapeDtypeStruct`. Only shapes and dtypes of arrays
            are used; nothing is allocated.
        donate_argnums: arguments whose buffers the step may reuse for its results.
        static_argnums: arguments that are not arrays; the program is compiled for their values.
        roles: roles of argument leaves, by path prefix as JAX writes paths (`state.params`, `batch['x']`). The longest
            matching prefix decides. Roles of other leaves are inferred from their types, from the optimizer's state
            and from their use in the program (see the folder `roles`).
        kwargs: its keyword arguments.
        workload: name of the workload, for the reports.
        techniques: labels of the techniques applied, in the order given.
        config: the workload's configuration, for the reports and the capture: flat, JSON scalars only.
        compiler_options: XLA options for this compile.
        memory_kinds: memory kinds of arguments outside device memory (`pinned_host`), by path prefix like `roles`. The
            step itself chooses the memory of its results, with `jax.device_put`.
        feed: real arguments to run the step with; None: `args` themselves, if they are arrays.
        check_target: raises `MemprofError` if the step cannot be compiled for a target; None: no check.
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
        """Convert lists and single numbers to tuples, and check all fields.

        Raises:
            MemprofError: a field is invalid.
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
        """The workload and its techniques: `transformer bf16+scan`."""
        return " ".join(part for part in (self.workload, "+".join(self.techniques)) if part)
