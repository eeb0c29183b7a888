"""The parameters that a value is made from, and the parameter that each leaf of optimizer state mirrors.

Paths decide most cases. If two trees of parameters have leaves of equal names (two networks of one class, each with its
optimizer), the path `opt_state[0].mu['Dense_0']['kernel']` fits both. The update then decides, because it reads each
parameter together with its own state.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping

from memprof.analysis.attribution.dataflow import FROM_PARAMS, SOURCES, Dataflow
from memprof.analysis.attribution.module_paths import Keys, Mirror, ModulePaths
from memprof.analysis.attribution.op_names import Named
from memprof.analysis.attribution.operations import Operation
from memprof.analysis.records.capture import ArgumentLeaf
from memprof.analysis.records.categories import Role

_SEVERAL = -1


class Owners:
    """See the module's docstring.

    Attributes:
        module_of_argument: the module of each argument, by parameter number; empty if it has none.
    """

    def __init__(self, arguments: Mapping[int, ArgumentLeaf], paths: ModulePaths, flow: Dataflow) -> None:
        self._arguments = arguments
        self._paths = paths
        self._flow = flow
        self._owner: dict[int, int] = {
            group: number for group, number in flow.argument.items() if arguments[number].role is Role.PARAMS
        }
        self.module_of_argument = {number: paths.of_argument(leaf.path) for number, leaf in arguments.items()}
        flow.repeat(self._pass_down)
        mirrors = {number: mirror for number, leaf in arguments.items() if (mirror := paths.mirror(leaf.path))}
        if mirrors:
            self.module_of_argument.update(self._mirrored(mirrors))

    def of(self, group: int) -> int | None:
        """Return the number of the single parameter that a value is made from; None for other values."""
        owner = self._owner.get(group, _SEVERAL)
        return None if owner == _SEVERAL else owner

    def is_owned(self, group: int) -> bool:
        """Whether a value is made from parameters alone, of one layer or of several."""
        return group in self._owner

    def modules_of_unnamed_state(self) -> dict[int, str]:
        """Return by group the module of state whose path names none: that of the parameter that it updates."""
        flow, module_of = self._flow, self.module_of_argument
        made_of: dict[int, int] = defaultdict(int)
        for group, number in flow.argument.items():
            if self._arguments[number].role is Role.OPTIMIZER_STATE and not module_of[number]:
                made_of[group] = 1 << number
        unnamed = dict(made_of)
        modules: dict[int, set[str]] = defaultdict(set)

        def see(operation: Operation, together: int) -> None:
            read = {module_of[owner] for _, group in operation.inputs if (owner := self.of(group)) is not None}
            for group, bit in unnamed.items() if read else ():
                if together & bit:
                    modules[group] |= read

        self._follow(made_of, see)
        return {group: next(iter(found)) for group, found in modules.items() if len(found) == 1}

    def _follow(self, made_of: dict[int, int], see: Callable[[Operation, int], None]) -> None:
        """Propagate bits of state to the values that the update makes from it.

        Args:
            made_of: the bits by group.
            see: called with each operation of the update that reads such values, and all their bits.
        """
        # The next network's loss may use an updated parameter, so an operation of a loss passes nothing on.
        update = [each for each in self._flow.operations if each.named in (Named.NOTHING, Named.UNPHASED)]

        def pass_down() -> bool:
            changed = False
            for operation in update:
                together = 0
                for _, group in operation.inputs:
                    together |= made_of[group]
                if not together:
                    continue
                see(operation, together)
                for group in operation.outputs:
                    if group not in self._flow.argument and together & ~made_of[group]:
                        made_of[group] |= together
                        changed = True
            return changed

        self._flow.repeat(pass_down)

    def _pass_down(self) -> bool:
        changed = False
        owner_of, origin, of_params = self._owner, self._flow.origin, FROM_PARAMS
        for operation in self._flow.operations:
            copies = [
                group for group in operation.outputs if origin[group] & SOURCES == of_params and group not in owner_of
            ]
            if copies and (owners := {owner_of[group] for _, group in operation.inputs if group in owner_of}):
                owner = self._one_of(owners)
                for group in copies:
                    owner_of[group] = owner
                changed = True
        return changed

    def _one_of(self, owners: set[int]) -> int:
        """Return the owner of a value made from several parameters: the largest, if all belong to one layer.

        The layer may have parameters in two trees: a frozen kernel, and a low-rank product that is added to it.
        """
        if _SEVERAL in owners:
            return _SEVERAL
        largest = max(sorted(owners), key=lambda number: self._arguments[number].size_bytes)
        layer = self._layer(largest)
        layers = map(self._layer, owners)
        return largest if all(keys[: len(layer)] == layer[: len(keys)] for keys in layers) else _SEVERAL

    def _layer(self, number: int) -> Keys:
        """Return the module of a parameter within its tree."""
        keys = self._paths.keys(self._arguments[number].path)
        return keys[len(self._paths.root(keys)) : -1]

    def _mirrored(self, mirrors: Mapping[int, Mirror]) -> dict[int, str]:
        """Return the modules of leaves whose paths fit several parameters, by the parameters read beside them.

        If the updates do not decide, the path may: `agent.critic.target_params['Dense_0']` names `critic`.
        """
        votes = self._votes({mirror.tree: mirror for mirror in mirrors.values()}, mirrors)
        modules = {}
        for number, mirror in mirrors.items():
            ranked = Counter({start: votes[mirror.tree, start] for start in mirror.modules}).most_common(2)
            (first, most), (_, second) = ranked
            if most > second:
                modules[number] = mirror.modules[first]
            else:
                named = [start for start in mirror.modules if start and set(start) <= set(mirror.tree)]
                if len(named) == 1:
                    modules[number] = mirror.modules[named[0]]
        return modules

    def _votes(self, trees: Mapping[Keys, Mirror], mirrors: Mapping[int, Mirror]) -> Counter[tuple[Keys, Keys]]:
        """Count how often the update reads a parameter together with values made from a tree of optimizer state."""
        bits = {tree: 1 << place for place, tree in enumerate(trees)}
        made_of: dict[int, int] = defaultdict(int)
        for group, number in self._flow.argument.items():
            if number in mirrors:
                made_of[group] = bits[mirrors[number].tree]
        # The path before the ending that the leaves of a tree share with parameters.
        starts = {tree: {start for m in mirrors.values() if m.tree == tree for start in m.modules} for tree in trees}
        found: set[tuple[int, Keys, Keys]] = set()

        def see(operation: Operation, together: int) -> None:
            for tree, bit in bits.items():
                if together & bit:
                    found.update((owner, tree, start) for owner, start in self._beside(operation.inputs, starts[tree]))

        self._follow(made_of, see)
        return Counter((tree, start) for _, tree, start in found)

    def _beside(self, inputs: tuple[tuple[int, int], ...], starts: set[Keys]) -> list[tuple[int, Keys]]:
        """Return the parameters that an operation reads, each with the path before its shared ending."""
        owners = {owner for _, group in inputs if (owner := self.of(group)) is not None}
        keys = {owner: self._paths.keys(self._arguments[owner].path) for owner in owners}
        return [(owner, start) for owner, key in keys.items() for start in starts if key[: len(start)] == start]
