"""Which module each value belongs to.

Op names tell it where the framework scopes its modules (Flax linen, Haiku, `jax.named_scope`). What has no module in
its name takes it from the data: a copy from what it copies, an update from the parameter that it updates. Where no name
tells modules at all (Flax NNX, Equinox, plain functions), an operation belongs to the module whose parameters it reads,
and what it makes goes on belonging to it until parameters of another one come in.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from memprof.analysis.aliases import Groups
from memprof.analysis.capture import ArgumentLeaf
from memprof.analysis.dataflow import Dataflow, Operation, Origin, Use
from memprof.analysis.op_names import ModulePaths, Named
from memprof.analysis.program import Program


class _Told(IntEnum):
    """How a value's module is known; what is known better decides, and of equals what comes first in the program."""

    NOT = 0
    BY_SCOPE = 1  # a scope without parameters lies around it
    BY_MODULE = 2  # the operation's name passes through a module with parameters
    BY_OWNER = 3  # it is made of the module's own parameters or optimizer state


class ModuleFlow:
    """The module of each group; empty where it belongs to none."""

    def __init__(
        self,
        program: Program,
        groups: Groups,
        arguments: Mapping[int, ArgumentLeaf],
        paths: ModulePaths,
        flow: Dataflow,
    ) -> None:
        """Args: arguments: the step's argument leaves by parameter number of the compiled program."""
        self._program = program
        self._paths = paths
        self._flow = flow
        self.module = [""] * groups.count
        self._told: list[int] = [_Told.NOT] * groups.count
        for group, number in flow.argument.items():
            self._learn(group, paths.of_argument(arguments[number].path), _Told.BY_OWNER)
        self._names_tell = any(
            operation.named in (Named.FORWARD, Named.BACKWARD) and paths.with_params(self._op_name(operation))
            for operation in flow.operations
        )
        flow.repeat(self._pass_down)
        if not self._names_tell:
            flow.repeat(self._pass_up)

    def _op_name(self, operation: Operation) -> str:
        return self._program.instructions[operation.index].op_name

    def _learn(self, group: int, module: str, told: int) -> bool:
        """Take over a group's module if it is better known than before. Returns whether it is."""
        if not module or told <= self._told[group]:
            return False
        self.module[group], self._told[group] = module, told
        return True

    def _pass_down(self) -> bool:
        """From definitions to uses. Returns whether anything changed."""
        changed = False
        for operation in self._flow.operations:
            module, told = self._module_of(operation)
            for group in operation.outputs:
                changed |= self._learn(group, module, told)
        return changed

    def _pass_up(self) -> bool:
        """A gradient belongs to the parameter that it updates. Returns whether anything changed."""
        changed = False
        for operation in reversed(self._flow.operations):
            owner = next((group for group in operation.outputs if self._told[group] == _Told.BY_OWNER), None)
            if owner is None:
                continue
            for _, group in operation.inputs:
                if self._flow.use[group] & Use.GRADIENT:
                    changed |= self._learn(group, self.module[owner], _Told.BY_OWNER)
        return changed

    def _module_of(self, operation: Operation) -> tuple[str, int]:
        """The module of what an operation makes, and how it is known."""
        op_name = self._op_name(operation)
        module = self._paths.with_params(op_name)
        if module:
            return module, _Told.BY_MODULE
        if operation.moved is not None and self._told[operation.moved] >= _Told.BY_MODULE:
            return self._inherited(operation, operation.moved)
        module = self._paths.of_op(op_name)
        if module:
            return module, _Told.BY_SCOPE
        if self._names_tell and operation.named not in (Named.NOTHING, Named.UNPHASED):
            return "", _Told.NOT  # it stands outside all modules on purpose
        source = max((group for _, group in operation.inputs), key=lambda group: self._told[group], default=None)
        return ("", _Told.NOT) if source is None else self._inherited(operation, source)

    def _inherited(self, operation: Operation, source: int) -> tuple[str, int]:
        """The module of one of the values that an operation reads.

        What is made of parameters and optimizer state is owned as they are: their copies are, and the update that works
        on them, but not what a layer makes of its input with their help. What is owned decides over what is not: a
        layer belongs to its own parameters wherever its input comes from, and an update to what it updates wherever the
        gradient (of tied parameters, say) is made.
        """
        told = self._told[source]
        if told == _Told.BY_OWNER and not any(map(self._is_state, operation.outputs)):
            told = _Told.BY_MODULE
        return self.module[source], told

    def _is_state(self, group: int) -> bool:
        """Whether a value is a copy of parameters or optimizer state, or their update."""
        origin = self._flow.origin[group]
        if origin & Origin.BACKWARD and origin & (Origin.DIRECT_PARAMS | Origin.DIRECT_OPTIMIZER_STATE):
            return True
        return not origin & (Origin.BATCH | Origin.OTHER_STATE)
