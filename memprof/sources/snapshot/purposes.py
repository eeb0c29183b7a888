"""The purpose of a snapshot's allocations, inferred from the stacks of their two ends by an ordered table of rules.

A stack shows which part of the step is running: an optimizer, autograd's engine, the forward pass of a module. It does
not show roles, so these categories are weaker evidence than the categories of a traced step, and their rules say so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from memprof.analysis.records.categories import Category, Phase
from memprof.untrusted import Text


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A Python or C++ call. A file without a folder, or `??`, belongs to C++."""

    filename: Text = ""
    line: int = 0
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """The two ends of an allocation.

    Attributes:
        is_early: it was allocated before the history begins, so its stack may be missing.
        made, freed: the phase of the step that allocated and freed it; `freed` is None if it was not freed.
        makes_module: a module was being made or moved when it was allocated.
        is_workspace: a library requested it as scratch memory.
    """

    is_early: bool
    made: Phase
    freed: Phase | None
    makes_module: bool
    is_workspace: bool


@dataclass(frozen=True, slots=True)
class _Rule:
    name: str
    category: Category
    evidence: str
    holds: Callable[[Ends], bool]


_WORKSPACE = re.compile(r"getNewWorkspace|getCurrentCUDABlasHandle|gemm_and_bias|Workspace::Workspace")
_OPERATION = re.compile(r"at::_ops::(\w+)::(?:call|redispatch)")
_ALLOCATING = ("empty", "resize_", "new_empty", "set_")  # operations that other operations use to allocate
_PYTHON = re.compile(r"\.py$|^<")


def phase_of(stack: Sequence[Frame]) -> Phase:
    """Return the phase of the step that a stack belongs to."""
    if any("torch/optim/" in frame.filename for frame in stack):
        return Phase.UPDATE
    if any(frame.name.startswith("torch::autograd::Engine::") or _is_backward(frame) for frame in stack):
        repeats = any(frame.filename.endswith("torch/utils/checkpoint.py") for frame in stack)
        return Phase.RECOMPUTE if repeats and _calls_module(stack) else Phase.BACKWARD
    return Phase.FORWARD if _calls_module(stack) else Phase.NONE


def ends_of(made_by: Sequence[Frame], freed_by: Sequence[Frame] | None, *, is_early: bool) -> Ends:
    """Return the facts about an allocation's two ends."""
    return Ends(
        is_early=is_early,
        made=phase_of(made_by),
        freed=None if freed_by is None else phase_of(freed_by),
        makes_module=any(
            "torch/nn/modules/" in frame.filename and frame.name in ("__init__", "_apply", "to_empty")
            for frame in made_by
        ),
        is_workspace=any(_WORKSPACE.search(frame.name) for frame in made_by),
    )


def purpose_of(ends: Ends) -> tuple[Category, str, str]:
    """Return the category of an allocation, the rule that claims it and its evidence."""
    for rule in _RULES:
        if rule.holds(ends):
            return rule.category, rule.name, rule.evidence
    if ends.is_early:
        return Category.UNATTRIBUTED, "unattributed", "allocated before the history begins"
    return Category.UNATTRIBUTED, "unattributed", "its stack has no module, optimizer or backward pass"


def operation_of(stack: Sequence[Frame]) -> str:
    """Return the operation that allocates, such as `aten.addmm`; without C++ frames, the innermost Python function."""
    found = [match.group(1) for frame in stack if (match := _OPERATION.search(frame.name))]
    if found:
        return f"aten.{next((name for name in found if not name.startswith(_ALLOCATING)), found[-1])}"
    return next((frame.name for frame in stack if is_python(frame)), "allocation")


def is_python(frame: Frame) -> bool:
    """Whether it is a Python call."""
    return bool(_PYTHON.search(frame.filename))


def _is_backward(frame: Frame) -> bool:
    return (
        frame.filename.endswith(("torch/autograd/__init__.py", "torch/autograd/graph.py")) and "backward" in frame.name
    )


def _calls_module(stack: Sequence[Frame]) -> bool:
    return any(
        frame.filename.endswith("torch/nn/modules/module.py") and frame.name.endswith("_call_impl") for frame in stack
    )


_RULES = (
    _Rule("workspace", Category.WORKSPACE, "a library's scratch memory", lambda ends: ends.is_workspace),
    _Rule(
        "created with a module",
        Category.PARAMS,
        "allocated where a module is created or moved, and not freed; includes the module's buffers",
        lambda ends: ends.makes_module and ends.freed is None,
    ),
    _Rule(
        "kept by an optimizer",
        Category.OPTIMIZER_STATE,
        "allocated in an optimizer, and not freed",
        lambda ends: ends.made is Phase.UPDATE and ends.freed is None,
    ),
    _Rule(
        "update temporary",
        Category.UPDATE_TEMPS,
        "allocated in an optimizer, and freed",
        lambda ends: ends.made is Phase.UPDATE,
    ),
    _Rule(
        "recomputed",
        Category.RECOMPUTED,
        "allocated where a checkpoint repeats the forward pass",
        lambda ends: ends.made is Phase.RECOMPUTE,
    ),
    _Rule(
        "cotangent",
        Category.COTANGENTS,
        "allocated and freed in the backward pass",
        lambda ends: ends.made is Phase.BACKWARD and ends.freed in (Phase.BACKWARD, Phase.RECOMPUTE),
    ),
    _Rule(
        "outlives the backward pass",
        Category.GRADIENTS,
        "allocated in the backward pass, and not freed in it",
        lambda ends: ends.made is Phase.BACKWARD,
    ),
    _Rule(
        "freed in the backward pass",
        Category.ACTIVATIONS,
        "allocated in the forward pass, and freed in the backward pass",
        lambda ends: ends.made is Phase.FORWARD and ends.freed in (Phase.BACKWARD, Phase.RECOMPUTE),
    ),
    _Rule(
        "kept to the end",
        Category.ACTIVATIONS,
        "allocated in the forward pass, and live at the end of the history",
        lambda ends: ends.made is Phase.FORWARD and ends.freed is None,
    ),
    _Rule(
        "forward temporary",
        Category.FORWARD_TEMPS,
        "allocated in the forward pass, and not freed in the backward pass",
        lambda ends: ends.made is Phase.FORWARD,
    ),
)
