"""Places of operations: the running module, and the lines of the Python stack.

In the forward pass, module hooks report the module. In the backward pass, an autograd node has the number of its
forward operation, so it has the same place: `Places` stores the place of each number.
"""

from __future__ import annotations

import re
import sys
import sysconfig
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from memprof.analysis.records.live_buffer import StackFrame

_PACKAGE = Path(__file__).resolve().parents[2]
_WORKLOADS = str(_PACKAGE / "workloads")
_TORCH = str(Path(torch.__file__).resolve().parent)
_FUNCTION = torch.autograd.function.__file__
_STANDARD_LIBRARY = str(Path(sysconfig.get_paths()["stdlib"]))
_INSTALLED = re.compile(r".*[/\\](?:site|dist)-packages[/\\](.*)")
# Wrappers around each call of a dispatch mode, and of some of PyTorch's own functions.
_WRAPPERS = str(Path(_TORCH) / "_dynamo"), str(Path(_TORCH) / "_compile.py")
_CALLER = str(Path(__file__).with_name("trace_step.py"))
_DEEPEST = 100
_COMPILED = "OptimizedModule"  # the class of modules that torch.compile returns


@dataclass(frozen=True, slots=True)
class Place:
    """The place of an operation. Attributes: module, source, library, stack: as in `TracedValue`."""

    module: str = ""
    source: str = ""
    library: str = ""
    stack: tuple[StackFrame, ...] = ()

    def in_module(self, module: str) -> Place:
        """Return the same lines in another module."""
        return Place(module, self.source, self.library, self.stack)


class Places:
    """The place of the current operation, and the stored places of earlier ones."""

    def __init__(self) -> None:
        self.has_recurrent_kernels = False  # a module with special cuDNN kernels has run
        self.has_compiled_modules = False
        self._paths: dict[int, str] = {}
        self._active: list[str] = []
        self._numbers: list[int] = []
        self._places: list[Place] = []
        self._lines: dict[CodeType, dict[int, StackFrame]] = {}
        self._stacks: dict[tuple[StackFrame, ...], Place] = {}

    def name_modules(self, network: torch.nn.Module, prefix: str = "") -> None:
        """Store the paths of a network's modules: `layers/0` for `layers.0`, after a prefix such as `generator.`."""
        for name, module in network.named_modules():
            self.has_compiled_modules |= type(module).__name__ == _COMPILED
            self._paths.setdefault(id(module), without_compiled(f"{prefix}{name}").rstrip(".").replace(".", "/"))

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Follow the running modules."""
        hooks = (
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        )
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    @property
    def module(self) -> str:
        """The path of the running module; empty outside all modules."""
        return self._active[-1] if self._active else ""

    def is_in_function(self) -> bool:
        """Whether a `torch.autograd.Function` is running. It records no gradients of its own operations."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame.f_code.co_filename == _FUNCTION and frame.f_code.co_name == "apply":
                return True
            frame = frame.f_back
        return False

    def of_forward(self) -> Place:
        """Return the place of a forward operation, and store it for the operation's autograd node, if any."""
        place = self.of_lines().in_module(self.module)
        number = torch.autograd._get_sequence_nr() - 1
        if not self._numbers or self._numbers[-1] < number:
            self._numbers.append(number)
            self._places.append(place)
        else:  # a node has several operations; the last one makes its result
            self._places[-1] = place
        return place

    def of_node(self, node: Any) -> Place | None:
        """Return the place of an autograd node's forward operation; None if it has none (accumulation into `.grad`)."""
        found = bisect_right(self._numbers, node._sequence_nr()) - 1
        if found < 0 or node.name() == "torch::autograd::AccumulateGrad":
            return None
        return self._places[found]

    def of_lines(self) -> Place:
        """Return the source lines of the current operation's callers, without a module."""
        frames: list[StackFrame] = []
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and len(frames) < _DEEPEST:
            file = frame.f_code.co_filename
            if file == _CALLER:
                break  # the callers of the step do not belong to it
            if _is_shown(file):
                frames.append(self._frame(frame.f_code, frame.f_lineno))
            frame = frame.f_back
        stack = tuple(reversed(frames))
        if stack not in self._stacks:
            self._stacks[stack] = _place(stack)
        return self._stacks[stack]

    def _frame(self, code: CodeType, line: int) -> StackFrame:
        lines = self._lines.setdefault(code, {})
        if line not in lines:
            installed = _INSTALLED.match(code.co_filename)
            file = installed.group(1) if installed else code.co_filename
            lines[line] = StackFrame(file, code.co_qualname, line, is_own_file(code.co_filename))
        return lines[line]

    def _enter(self, module: torch.nn.Module, inputs: Any) -> None:
        self.has_recurrent_kernels |= isinstance(module, torch.nn.RNNBase)
        self._active.append(self._paths.get(id(module), self.module))

    def _leave(self, module: torch.nn.Module, inputs: Any, result: Any) -> None:
        if self._active:
            self._active.pop()


def without_compiled(path: str) -> str:
    """Return the path of a module or parameter without the names that `torch.compile` adds."""
    return path.replace("_orig_mod.", "").removesuffix("_orig_mod")


def _place(stack: tuple[StackFrame, ...]) -> Place:
    """Return the place of a stack. Args: stack: outermost call first."""
    beneath = ""
    for each in reversed(stack):
        line = f"{each.file}:{each.line}"
        if each.is_own:
            return Place("", line, beneath, stack)
        if not beneath and not each.file.startswith("torch/"):
            beneath = line
    first = f"{stack[-1].file}:{stack[-1].line}" if stack else ""
    return Place("", beneath or first, "", stack)


def is_own_file(file: str) -> bool:
    """Whether a file belongs to the user, or to one of our workloads."""
    if file.startswith(str(_PACKAGE)):
        return file.startswith(_WORKLOADS)
    return not (file.startswith(("<", _TORCH, _STANDARD_LIBRARY)) or _INSTALLED.match(file))


def _is_shown(file: str) -> bool:
    """Whether a stack frame is shown: frames of the standard library and of the tracing itself are not."""
    if file.startswith(str(_PACKAGE)):
        return file.startswith(_WORKLOADS)
    return not file.startswith(("<", _STANDARD_LIBRARY, *_WRAPPERS))
