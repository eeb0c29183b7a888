"""Trace a PyTorch step in this process: the library behind `--framework torch`."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from memprof.analysis.hlo.decoded import FreshCapture
from memprof.analysis.records.capture import Capture, Target
from memprof.errors import MemprofError, WorkloadError
from memprof.sources.jax.processes.task import plain
from memprof.sources.jax.targets.resolve import LOCAL, default_target, option_of, resolve, resolve_asked
from memprof.sources.jax.user_traceback import first_line, user_traceback
from memprof.sources.torch.step_spec import DATA, SHARDS
from memprof.studies.subject import Subject
from memprof.workloads.torch.plan import TorchPlan, plan
from memprof.workloads.torch.script import TorchScript, trace_in_child
from memprof.workloads.torch.user import TorchReference
from memprof.workloads.user.reference import SCRIPT, Reference, is_reference, parse

if TYPE_CHECKING:
    from memprof.sources.torch.step_spec import TorchStepSpec

    StepMaker = Callable[[], TorchStepSpec] | TorchScript

FRAMEWORK = "torch"
_DEFAULT_NAME = "torch_spec"


def torch_target(name: str | None, mesh: str | None = None) -> Target:
    """Return the device, or devices, that a PyTorch step is judged for; None means an H100.

    Raises:
        MemprofError: there is no such target, or it is the local device.
    """
    if name == LOCAL:
        raise MemprofError("PyTorch steps are traced and do not run here: name a GPU of `memprof list targets`, or cpu")
    if mesh is None:
        return default_target("the default") if name is None else resolve(name)
    target = resolve_asked(name, mesh=mesh)
    assert isinstance(target, Target)  # only steps that run get the local device
    if [*target.topology.axes] not in ([DATA], [SHARDS]):
        raise MemprofError(
            f"a PyTorch step is divided over one axis: give --mesh {DATA}=8 for DistributedDataParallel, or"
            f" --mesh {SHARDS}=8 for FSDP2"
        )
    return target


def step_maker(
    name: str,
    *,
    preset: str | None,
    overrides: Sequence[str],
    techniques: str,
    arguments: Sequence[str],
    num_devices: int = 1,
) -> StepMaker:
    """Return the maker of the step that the user named, with all choices of a built-in workload checked.

    Raises:
        MemprofError: a name or a value is wrong, or the step does not take one of the choices.
    """
    if not is_reference(name):
        if arguments:
            raise MemprofError(f"{name} takes no arguments, but got {' '.join(arguments)}; choices are made with --set")
        chosen = plan(name, preset=preset, overrides=overrides, techniques=techniques, num_devices=num_devices)
        return partial(_built, chosen)
    if preset is not None:
        raise MemprofError(f"--preset is for built-in workloads; parameters of {name} are set with --set")
    if techniques:
        raise MemprofError(f"{name} is a finished PyTorch step, which techniques cannot change: leave out -t")
    reference = parse(name, default=_DEFAULT_NAME)
    if reference.is_script:
        if num_devices > 1:
            raise MemprofError(f"--mesh is for a function that returns a memprof.TorchStepSpec, but {name} is a script")
        return TorchScript(reference=reference, overrides=tuple(overrides), arguments=tuple(arguments))
    return TorchReference(reference=reference, overrides=tuple(overrides), arguments=tuple(arguments)).make_spec


def _built(chosen: TorchPlan) -> TorchStepSpec:
    from memprof.workloads.torch.build import build  # imports torch

    return build(chosen)


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchTrace:
    """A step to trace.

    Attributes:
        subject: a built-in workload, or a reference to a function that returns a `TorchStepSpec`.
        techniques: labels joined by `+`.
        label: its name in the report; if empty, the step's own label.
    """

    subject: Subject
    techniques: str
    target: Target
    label: str = ""

    @property
    def digest(self) -> str:
        """Return a digest of the request (see `request_digest`)."""
        target = [option_of(self.target), plain(self.target.topology)]
        facts = [FRAMEWORK, plain(self.subject), self.techniques, target]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def check(self) -> None:
        """Raise `MemprofError` for mistakes that are found before tracing."""
        self._maker()

    def capture(self, *, progress: Callable[[str], None]) -> FreshCapture:
        """Trace it.

        Raises:
            MemprofError, WorkloadError: see `step_maker` and `capture_of_step`.
        """
        make_spec = self._maker()
        progress("tracing")
        return FreshCapture(
            capture=replace(capture_of_step(make_spec, self.target, label=self.label or None), request=self.digest)
        )

    def _maker(self) -> StepMaker:
        subject = self.subject
        return step_maker(
            subject.name,
            preset=subject.preset,
            overrides=subject.overrides,
            techniques=self.techniques,
            arguments=subject.arguments,
            num_devices=self.target.topology.num_devices,
        )


def capture_of_script(name: str, arguments: Sequence[str], target: Target, *, is_module: bool) -> Capture:
    """Trace an unchanged script.

    Args:
        name: a path, or the name of a module.

    Raises:
        MemprofError, WorkloadError: see `trace_in_child`.
    """
    if not is_module and not os.path.isfile(name):
        raise MemprofError(f"there is no script {name}: give its path, or -m and the name of a module")
    path = None if is_module else Path(name).resolve()
    reference = Reference(module=name if path is None else path.stem, path=path, name=SCRIPT)
    return trace_in_child(TorchScript(reference=reference, arguments=tuple(arguments)), target)


def capture_of_step(make_spec: StepMaker, target: Target, *, label: str | None = None) -> Capture:
    """Trace a step.

    Args:
        make_spec: makes the step under fake tensors; a script is run unchanged.
        label: its name in the report; None means its own label.

    Raises:
        MemprofError: PyTorch is not installed, or the step cannot be traced.
        WorkloadError: the user's code failed.
    """
    if isinstance(make_spec, TorchScript):
        capture = trace_in_child(make_spec, target)
        return capture if label is None else replace(capture, label=label)
    try:
        from memprof.sources.torch.trace_step import trace_step
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MemprofError("PyTorch is not installed: pip install 'jax-memprof[torch]'") from error
    try:
        capture = trace_step(make_spec, target=target)
    except MemprofError:
        raise
    except Exception as error:  # raised by the user's code
        sentence = f"the step failed while it was traced: {type(error).__name__}: {first_line(error)}"
        raise WorkloadError(sentence, details=user_traceback(error)) from error
    return capture if label is None else replace(capture, label=label)
