"""Tracing of an unmodified PyTorch training script to a capture of its step.

    capture = trace_script(run, target=target, name="train.py", config=dict)

The script runs on shapes alone until its optimizers have updated their parameters twice. A step is inferred: it ends
when each optimizer has updated its parameters once. The script runs in a greenlet that is then suspended forever, so no
`except`, `finally` or `atexit` of the script runs while memprof continues. The process must end with `os._exit`.
"""

from __future__ import annotations

import gc
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

import torch
from greenlet import greenlet
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from memprof.analysis.records.capture import Capture, Target
from memprof.errors import MemprofError
from memprof.sources.torch.absent_gpu import absent_gpu
from memprof.sources.torch.cuda_semantics import cublas_workspace_bytes, cuda_semantics
from memprof.sources.torch.owners import Owners, Parts
from memprof.sources.torch.places import Places, is_own_file
from memprof.sources.torch.script_tracer import ScriptTracer
from memprof.sources.torch.trace_capture import capture_of

_NUM_STEPS = 2
_MAX_UPDATES = 24  # updates in one step; an optimizer without an update by then is no longer waited for
_OF_VALUES = (DataDependentOutputException, DynamicOutputShapeException)
_UNSUPPORTED = (UnsupportedFakeTensorException, UnsupportedOperatorException)
_kept_greenlets: list[greenlet] = []  # keeps greenlets referenced; Python raises an error in an unreferenced one


def trace_script(
    run: Callable[[], None],
    *,
    target: Target,
    name: str,
    config: Callable[[], Mapping[str, str | int | float | bool | None]],
) -> Capture:
    """Run a script until its second step is complete, and return its capture.

    Args:
        run: runs the script.
        name: the script's name in the report.
        config: returns the script's settings; called after the script has run.

    Raises:
        MemprofError: the script ended without an update, or needs values that a trace does not have.
        SystemExit: the script exited.
        Exception: whatever the script raises.
    """
    started = time.perf_counter()
    places, mode = Places(), FakeTensorMode(allow_non_fake_inputs=True)
    tracer = _TracerOfSteps(places, mode)
    tracer.workspace_bytes = cublas_workspace_bytes(target)
    main, script = greenlet.getcurrent(), greenlet(run)
    steps = _Steps(tracer, enough=lambda: main.switch(True))
    tracer.steps = steps
    with (
        mode,
        cuda_semantics(tracer, moves=False) as compiled,
        tracer,
        absent_gpu(tracer, target),
        places.watching(),
        steps.owners.watching(),
    ):
        hook = register_optimizer_step_post_hook(steps.updated)
        try:
            is_enough = script.switch()
        except Exception as error:
            sentence = _needs_values(error)
            if sentence:
                raise MemprofError(f"{name} {sentence}") from error
            raise
        finally:
            hook.remove()
    if is_enough:
        _kept_greenlets.append(script)
    if not steps.num_updates:
        raise MemprofError(
            f"{name} ended without calling an optimizer's step(), so no training step was found: write a function "
            "that returns a memprof.TorchStepSpec, and name it"
        )
    steps.owners.find_averages()
    tracer.finish()
    return capture_of(
        tracer,
        tuple(steps.owners.leaves.values()),
        workload=name,
        config=config(),
        target=target,
        trace_seconds=time.perf_counter() - started,
        is_compiled=compiled.is_used,
        doubts=tuple(_doubts(steps, tracer)),
    )


def _doubts(steps: _Steps, tracer: ScriptTracer) -> Iterator[str]:
    if steps.num_steps < _NUM_STEPS:
        yield "the script ended within its second step, so the report shows its first"
    if not tracer.names_gpu:
        yield "the script names no GPU: all of its tensors are assumed to be on one"


class _Steps:
    """Finder of the parts that the script trains, and of the ends of its steps."""

    def __init__(self, tracer: ScriptTracer, enough: Callable[[], Any]) -> None:
        self.owners = Owners(Parts(), tracer)
        self.num_updates = 0
        self.num_steps = 0
        self._tracer = tracer
        self._enough = enough
        self._awaited: set[frozenset[int]] = set()
        self._updated: set[frozenset[int]] = set()
        self._updates_of_step = 0

    def begin(self) -> bool:
        """Begin the first step if there is an optimizer. Return whether there is one."""
        if not self._find():
            return False
        for network in self.owners.parts.networks.values():
            self._tracer.fake_buffers(network)
        gc.collect()
        self._tracer.begin(self.owners.assign())
        return True

    def updated(self, optimizer: Any, *_: Any) -> None:
        """Record that an optimizer has made an update."""
        if not self._tracer.step_starts:
            return
        self.num_updates += 1
        self._updates_of_step += 1
        self._updated.add(_parameters_of(optimizer))
        self._find()
        self.owners.assign()
        if self._updates_of_step >= _MAX_UPDATES:
            self._awaited &= self._updated
        if self._awaited <= self._updated:
            self.num_steps += 1
            self._updated, self._updates_of_step = set(), 0
            if self.num_steps == _NUM_STEPS:
                self._enough()
            self._tracer.begin_step()

    def _find(self) -> bool:
        """Look for optimizers, networks and scalers. Return whether there is an optimizer."""
        found = gc.get_objects()
        optimizers = [each for each in found if issubclass(type(each), Optimizer) and _parameters_of(each)]
        if not optimizers:
            return False
        scalers = [each for each in found if issubclass(type(each), torch.amp.GradScaler)]
        roots = _roots([each for each in found if issubclass(type(each), torch.nn.Module)])
        if not self.num_updates:
            self._awaited = {_parameters_of(each) for each in optimizers}
        networks = self.owners.parts.networks
        if [*map(id, roots)] != [*map(id, networks.values())]:
            networks = _named(roots)
        self.owners.parts = Parts(networks=networks, optimizers=optimizers, scalers=scalers)
        self.owners.name_modules()
        return True


class _TracerOfSteps(ScriptTracer):
    """A tracer that begins the first step at the first operation differentiated with respect to a parameter."""

    steps: _Steps

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not self.step_starts and torch.is_grad_enabled() and _is_differentiated(args):
            self.steps.begin()
        return super().__torch_dispatch__(func, types, args, kwargs)


def _is_differentiated(args: Sequence[Any]) -> bool:
    return any(isinstance(each, torch.Tensor) and each.requires_grad for each in args)


def _parameters_of(optimizer: Any) -> frozenset[int]:
    return frozenset(id(each) for group in getattr(optimizer, "param_groups", ()) for each in group["params"])


def _roots(modules: Sequence[torch.nn.Module]) -> list[torch.nn.Module]:
    """Return the modules that have parameters and belong to no other module."""
    inner = {id(child) for each in modules for child in _children(each)}
    return [
        each
        for each in modules
        if id(each) not in inner and "_parameters" in vars(each) and next(each.parameters(), None) is not None
    ]


def _children(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    return (each for each in vars(module).get("_modules", {}).values() if each is not None)


def _named(roots: Sequence[torch.nn.Module]) -> dict[str, torch.nn.Module]:
    """Return networks by path prefix: empty for a single network, else derived from the script's variable names."""
    if len(roots) == 1:
        return {"": roots[0]}
    named: dict[str, torch.nn.Module] = {}
    for root in roots:
        name = _variable(root) or type(root).__name__
        taken = sum(prefix.rstrip(".").rstrip("0123456789") == name for prefix in named)
        named[f"{name}{taken + 1 if taken else ''}."] = root
    return named


def _variable(value: Any) -> str:
    """Return the name of a script variable that holds a value, or an empty string."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") == "__main__":
            for name, each in frame.f_locals.items():
                if each is value:
                    return name
        frame = frame.f_back
    return next((name for name, each in vars(sys.modules["__main__"]).items() if each is value), "")


def _needs_values(error: BaseException) -> str:
    """Return the rest of an error message after the name of the step; empty if tracing did not cause the error."""
    if isinstance(error, _OF_VALUES):
        operation = str(getattr(error, "func", "")).removesuffix(".default")
        return (
            f"makes shapes depend on the values of tensors ({operation}{_at_line(error)}), which a trace does not have"
        )
    if isinstance(error, _UNSUPPORTED):
        return f"uses an operation that cannot be traced with shapes only ({error}{_at_line(error)})"
    if "data pointer" in str(error) or "data_ptr" in str(error):
        return f"reads the memory of a tensor{_at_line(error).replace(',', '')}, which a trace of shapes does not have"
    return ""


def _at_line(error: BaseException) -> str:
    """Return the innermost line of the user's own code."""
    own = [each for each in traceback.extract_tb(error.__traceback__) if is_own_file(each.filename)]
    return f", {own[-1].filename}:{own[-1].lineno}" if own else ""
