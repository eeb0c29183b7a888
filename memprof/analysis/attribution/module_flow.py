"""The module of each value.

Op names show the module if the framework scopes its modules (Flax linen, Haiku, `jax.named_scope`). If a step has
several trees of parameters, a scope can fit modules in more than one tree; the parameters that are read inside the
scope decide. A value without a module in its name takes the module from the data: a copy from its source, an update
from the parameter that it updates. If no op name shows a module (Flax NNX, Equinox, plain functions), an operation
belongs to the module whose parameters it reads. An operation that reads no parameters makes values between modules.
Such a value belongs to the smallest module that contains both its maker and its users. The maker is the module whose
code contains the operation (see `source_modules.py`) or, if the program has no stack traces, the module whose
parameters were read last.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from enum import IntEnum
from functools import reduce
from itertools import takewhile

from memprof.analysis.attribution.aliases import AliasSets
from memprof.analysis.attribution.dataflow import FROM_DATA, Dataflow, Origin, Use
from memprof.analysis.attribution.module_paths import Keys, ModulePaths, ScopeMatch
from memprof.analysis.attribution.nesting import made_by_branches, written_and_read
from memprof.analysis.attribution.op_names import Named, plain_scopes
from memprof.analysis.attribution.operations import Operation
from memprof.analysis.attribution.owners import Owners
from memprof.analysis.attribution.source_modules import SourceModules, instance
from memprof.analysis.hlo.program import Instruction, Program
from memprof.analysis.records.capture import ArgumentLeaf
from memprof.analysis.records.categories import Phase, Role


class _Known(IntEnum):
    """How a value's module is known. A higher level wins; ties go to the first operation in the program."""

    NOT = 0
    BY_SCOPE = 1  # a scope without parameters surrounds it
    BY_MAKER = 2  # it lies between modules; this module makes it
    BY_MODULE = 3  # the operation reads the module's parameters, or its name or path contains the module
    BY_OWNER = 4  # it is made from the module's own parameters or optimizer state


# As plain names: see `dataflow.py`.
_NOT, _BY_SCOPE, _BY_MAKER = _Known.NOT, _Known.BY_SCOPE, _Known.BY_MAKER
_BY_MODULE, _BY_OWNER = _Known.BY_MODULE, _Known.BY_OWNER
_UNMARKED = (Named.NOTHING, Named.UNPHASED)
_STATE = frozenset({Role.OTHER_STATE, Role.KV_CACHE})
_LATER = frozenset({Phase.RECOMPUTE, Phase.BACKWARD, Phase.UPDATE})


class ModuleFlow:
    """The module of each group; empty if it has none."""

    def __init__(
        self,
        program: Program,
        groups: AliasSets,
        arguments: Mapping[int, ArgumentLeaf],
        paths: ModulePaths,
        flow: Dataflow,
    ) -> None:
        """Args: arguments: the step's argument leaves by parameter number of the compiled program."""
        self._program = program
        self._arguments = arguments
        self._paths = paths
        self._flow = flow
        self._owners = Owners(arguments, paths, flow)
        self._module = [""] * groups.count
        self._known: list[int] = [_NOT] * groups.count
        self._fitted: dict[int, str] = {}  # by position: the module that the data flow selects among those that fit
        self._shared = made_by_branches(program, groups, flow)
        for group, number in flow.argument.items():
            module = self._owners.module_of_argument[number]
            if module or arguments[number].role is Role.PARAMS:  # the root owns parameters without a module
                self._learn(group, module, _BY_OWNER)
            elif arguments[number].role in _STATE and (module := paths.of_state(arguments[number].path)):
                self._learn(group, module, _BY_MODULE)
        self._numbers_mislead = self._scopes_number_something_else()
        self._tree_around = self._trees_by_scope()
        matches = {name: match for name in flow.phase_of_name if (match := self._match(name))}
        self._certain = {name: match.certain for name, match in matches.items() if match.certain}
        self._uncertain = {name: match for name, match in matches.items() if not match.certain}
        self._networks = self._scopes_of_networks(matches)
        self._in_networks = {name for name in flow.phase_of_name if plain_scopes(name)[:1] in self._networks}
        self._plain_scope = {name: self._find_plain_scope(name) for name in flow.phase_of_name}
        self._name_parameters()
        self._names_tell = any(
            named in (Named.FORWARD, Named.BACKWARD) and self._has_module(name)
            for name, named in flow.phase_of_name.items()
        )
        self._by_users: dict[int, Keys] = {}  # the code that makes a group, if its users identify the instance
        self._last_read = [-1] * groups.count  # the last operation on the way to a group that reads parameters
        self._sources = None if self._names_tell else SourceModules(program, self._reads_of_parameters())
        self._caches = written_and_read(program, groups, flow) if self._sources else frozenset()
        flow.repeat(self._pass_down)
        flow.repeat(self._pass_up)
        if not self._names_tell:
            self._widen()

    def of(self, group: int, maker: Instruction) -> str:
        """Return the module of a value: from the name of the instruction that makes it, or else from the data flow."""
        if group in self._shared:
            return self._module[group]
        named = self._fitted.get(maker.first_position) or self.of_scope(maker.op_name)
        if not named and self._known[group] <= _BY_SCOPE:  # a fusion makes values of several scopes
            named = self._plain_scope.get(maker.op_name, "")
        return named or self._module[group]

    def of_scope(self, op_name: str) -> str:
        """Return the module with parameters that an op name alone shows; empty if it shows none."""
        match = self._match(op_name)
        if match is None:
            return ""
        return match.certain or match.modules.get(self._tree_around.get(match.around) or (), "")

    def _op_name(self, operation: Operation) -> str:
        return self._program.instructions[operation.index].op_name

    def _match(self, op_name: str) -> ScopeMatch | None:
        """Return the modules that an op name spells, unless they are numbers of something else."""
        match = self._paths.match(op_name)
        return None if match and self._numbers_mislead and _is_numbered(match.certain) else match

    def _scopes_number_something_else(self) -> bool:
        """Whether numbers in scopes and numbers in parameter paths count different things.

        A flat list of parameters (`params[1]`) has more entries than the network has layers. Then the scope `0` of the
        forward pass reads parameters of the module `1`.
        """
        numbered = {
            name: match.certain
            for name, named in self._flow.phase_of_name.items()
            if named is Named.FORWARD and (match := self._paths.match(name)) and _is_numbered(match.certain)
        }
        for operation in self._flow.operations if numbered else ():
            scope = numbered.get(self._op_name(operation))
            if scope is None:
                continue
            read = {self._owners.module_of_argument[owner] for owner in self._read_by(operation)}
            if any(_is_numbered(module) and not _within(module, scope) for module in read):
                return True
        return False

    def _trees_by_scope(self) -> dict[Keys, Keys | None]:
        """Return, for scopes that fit modules of several trees, the tree whose parameters are read inside them.

        None if each operation decides: two networks of one class are called within the same scope. Trees with no
        parameter path in common are parts of one network (frozen weights and adapters); the largest tree gets the
        scope.
        """
        read: dict[Keys, dict[Keys, set[int]]] = defaultdict(lambda: defaultdict(set))
        of_several = {
            name: match for name in self._flow.phase_of_name if (match := self._match(name)) and not match.certain
        }
        for operation in self._flow.operations if of_several else ():
            match = of_several.get(self._op_name(operation))
            if match is None:
                continue
            for owner in self._read_by(operation):
                for root, module in match.modules.items():
                    if _within(self._owners.module_of_argument[owner], module):
                        read[match.around][root].add(owner)
        return {around: self._tree(trees) for around, trees in read.items()}

    def _read_by(self, operation: Operation) -> set[int]:
        """Return the parameters that an operation reads, directly or as copies."""
        return {owner for _, group in operation.inputs if (owner := self._owners.of(group)) is not None}

    def _tree(self, trees: Mapping[Keys, set[int]]) -> Keys | None:
        names = {
            root: {self._paths.keys(self._arguments[number].path)[len(root) :] for number in numbers}
            for root, numbers in trees.items()
        }
        if len(set().union(*names.values())) < sum(map(len, names.values())):
            return None
        return max(trees, key=lambda root: sum(self._arguments[number].size_bytes for number in trees[root]))

    def _scopes_of_networks(self, matches: Mapping[str, ScopeMatch]) -> set[Keys]:
        """Return the scopes that contain modules with parameters or, if there are none, the single outermost scope."""
        if matches:
            return {match.around[:1] for match in matches.values() if match.around}
        outermost = {
            scopes[:1]
            for name, named in self._flow.phase_of_name.items()
            if named is Named.FORWARD and (scopes := self._paths.plain_scopes(name))
        }
        return outermost if len(outermost) == 1 else set()

    def _name_parameters(self) -> None:
        """Name parameters whose paths contain no module (`state[0][6]`) by the single scope that reads them."""
        arguments, module_of_argument = self._arguments, self._owners.module_of_argument
        unnamed = {
            number: group
            for group, number in self._flow.argument.items()
            if arguments[number].role is Role.PARAMS and not module_of_argument[number]
        }
        scopes: dict[int, set[str]] = defaultdict(set)
        for operation in self._flow.operations if unnamed else ():
            if operation.named is Named.FORWARD and not any(map(self._owners.is_owned, operation.outputs)):
                for owner in self._read_by(operation) & unnamed.keys():
                    scopes[owner].add(self._plain_scope[self._op_name(operation)])
        for number, found in scopes.items():
            if len(found) == 1:
                module_of_argument[number] = self._module[unnamed[number]] = found.pop()
        if any(module_of_argument[number] for number in unnamed):
            for group, module in self._owners.modules_of_unnamed_state().items():
                self._learn(group, module, _BY_OWNER)

    def _has_module(self, op_name: str) -> bool:
        match = self._match(op_name)
        return match is not None and bool(match.certain or match.around in self._tree_around)

    def _learn(self, group: int, module: str, known: int) -> bool:
        """Set a group's module if it is better known than before. Returns whether it is."""
        if known <= self._known[group]:
            return False
        self._module[group], self._known[group] = module, known
        return True

    def _pass_down(self) -> bool:
        """Propagate modules from definitions to uses. Returns whether anything changed."""
        changed = False
        shared, all_known, certain = self._shared, self._known, self._certain
        instructions = self._program.instructions
        for place, operation in enumerate(self._flow.operations):
            instruction = instructions[operation.index]
            if not self._names_tell:
                self._count_reads(operation, place)
            module = certain.get(instruction.op_name, "")
            known: int = _BY_MODULE  # the usual case
            if not module:
                module, known = self._module_of(operation, instruction)
            for group in operation.outputs:
                if group in shared and module and all_known[group]:
                    changed |= self._share(group, module)
                elif known > all_known[group]:
                    changed |= self._learn(group, module, known)
        return changed

    def _share(self, group: int, module: str) -> bool:
        """Assign a value that several branches make to the innermost module that contains their modules."""
        common = _common(self._module[group], module)
        changed = common != self._module[group]
        self._module[group] = common
        return changed

    def _pass_up(self) -> bool:
        """Give a gradient the module of the parameter that it updates, unless names show one. Returns any change."""
        changed = False
        known, use, gradient = self._known, self._flow.use, Use.GRADIENT
        for operation in reversed(self._flow.operations):
            owned = [group for group in operation.outputs if known[group] == _BY_OWNER]
            for _, group in operation.inputs if owned else ():
                if use[group] & gradient and not (self._names_tell and known[group]):
                    changed |= self._learn(group, self._module[owned[0]], _BY_OWNER)
        return changed

    def _module_of(self, operation: Operation, instruction: Instruction) -> tuple[str, int]:
        """Return the module of an operation's results if its name alone does not show it, and how it is known."""
        op_name = instruction.op_name
        if op_name in self._uncertain:
            module = self._fitting(operation, self._uncertain[op_name])
            if module:
                self._fitted[instruction.first_position] = module
                return module, _BY_MODULE
        owned = [group for group in operation.outputs if self._owners.is_owned(group)]
        for group in owned:
            owner = self._owners.of(group)
            if owner is not None:
                return self._owners.module_of_argument[owner], _BY_OWNER
        if owned:
            # XLA concatenates the weights of layers that read the same input.
            parts = [self._module[group] for _, group in operation.inputs if self._known[group]]
            return reduce(_common, parts) if parts else "", _BY_OWNER
        if self._sources and any(group in self._caches for group in operation.outputs):
            # The cache belongs to the code that stores keys and values, whichever layer makes them.
            return self._made_between(
                self._sources, instruction, [group for _, group in operation.inputs], operation.outputs
            )
        if operation.moved is not None and self._known[operation.moved] >= _BY_MAKER:
            return self._inherited(operation, operation.moved)
        module = self._in_network(operation)
        if module:
            return module, _BY_MODULE
        module = self._plain_scope[op_name]
        if module:
            return module, _BY_SCOPE
        if self._names_tell and (op_name in self._in_networks or operation.named not in _UNMARKED):
            # The user left it outside all modules, unless it reads the parameters of one.
            modules = {self._owners.module_of_argument[owner] for owner in self._read_by(operation)}
            return (modules.pop(), _BY_MODULE) if len(modules) == 1 else ("", _NOT)
        if self._names_tell and any(
            self._flow.phase(group) is Phase.UNDIFFERENTIATED for group in operation.outputs
        ):  # for example a rollout or shuffled data
            return "", _NOT
        sources = [group for _, group in operation.inputs]
        if not sources:
            return "", _NOT
        source = max(sources, key=self._weight)
        if self._known[source] < _BY_OWNER and operation.named is not Named.NOTHING and self._sources:
            return self._made_between(self._sources, instruction, sources, operation.outputs)
        return self._inherited(operation, source)

    def _reads_of_parameters(self) -> Iterator[tuple[int, str]]:
        """Yield the stack frame of each operation that reads parameters, with their module."""
        for operation in self._flow.operations:
            frame = self._program.instructions[operation.index].stack_frame_id
            outputs = operation.outputs
            if not frame or not outputs or any(map(self._owners.is_owned, outputs)):
                continue
            if self._flow.phase(outputs[0]) is not Phase.UPDATE:
                for owner in self._read_by(operation):
                    yield frame, self._owners.module_of_argument[owner]

    def _count_reads(self, operation: Operation, place: int) -> None:
        """Record the last operation on the way to a value that reads parameters."""
        last_read = self._last_read
        last = (
            place if self._read_by(operation) else max([last_read[group] for _, group in operation.inputs], default=-1)
        )
        for group in operation.outputs:
            last_read[group] = max(last, last_read[group])

    def _made_between(
        self, code: SourceModules, instruction: Instruction, sources: list[int], outputs: tuple[int, ...]
    ) -> tuple[str, int]:
        """Return the module of a value whose maker reads no parameters."""
        known = [group for group in sources if self._known[group] > _BY_SCOPE]
        known.sort(key=lambda group: -self._last_read[group])
        pattern = code.pattern(instruction.stack_frame_id)
        if pattern is not None:
            found = instance(pattern, [self._module[group] for group in known])
            if found is not None:
                return found, _BY_MAKER
            self._by_users.update(dict.fromkeys(outputs, pattern))
        return (self._module[known[0]], _BY_MAKER) if known else ("", _NOT)

    def _widen(self) -> None:
        """Widen the module of values between modules to the smallest one that contains their maker and their users.

        For a value of the forward pass, only users in that pass count; users in the backward pass are their
        derivatives.
        """
        module, known, phase = self._module, self._known, self._flow.phase
        users: tuple[dict[int, str], dict[int, str]] = {}, {}  # in the pass that makes the value; in another
        for operation in reversed(self._flow.operations):
            output = next((group for group in operation.outputs if known[group] > _BY_SCOPE), None)
            if output is None or (output in self._caches and operation.moved in self._caches - {output}):
                continue  # XLA copies the zeros of one cache to the next
            pattern = self._by_users.get(output) if known[output] == _BY_MAKER else None
            used_in = users[0].get(output)
            if pattern and used_in is not None:  # the start of a block: its input comes from another module
                module[output] = instance(pattern, [used_in]) or module[output]
            user = module[output]
            if known[output] == _BY_MAKER and operation.named is Named.NOTHING:  # inserted by the compiler for its user
                user = users[0].get(output, user)
            is_later = phase(output) in _LATER
            for _, group in operation.inputs:
                if known[group] == _BY_MAKER:
                    found = users[is_later and phase(group) not in _LATER]
                    found[group] = _common(found[group], user) if group in found else user
        for group, user in (users[1] | users[0]).items():
            module[group] = _common(module[group], user)

    def _weight(self, group: int) -> tuple[int, int]:
        """Rank a value that an operation reads: first by how its module is known, then by the size of its parameter.

        The size keeps a scale from deciding over the weights.
        """
        owner = self._owners.of(group)
        return self._known[group], 0 if owner is None else self._arguments[owner].size_bytes

    def _fitting(self, operation: Operation, match: ScopeMatch) -> str:
        """Return the fitting module whose parameters the operation reads, or else the one whose data it reads."""
        read = {self._owners.module_of_argument[owner] for owner in self._read_by(operation)}
        fits = [module for module in match.modules.values() if any(_within(each, module) for each in read)]
        if len(fits) == 1:
            return fits[0]
        tree = self._tree_around.get(match.around)
        if tree in match.modules:
            return match.modules[tree]
        for _, group in operation.inputs:
            for root, module in match.modules.items():
                if self._known[group] >= _BY_MODULE and _within(self._module[group], "/".join(root)):
                    return module
        return ""

    def _find_plain_scope(self, op_name: str) -> str:
        """Return the outermost scope without parameters, except the scope of the whole network."""
        scopes = self._paths.plain_scopes(op_name)
        return next(iter(scopes[scopes[:1] in self._networks :]), "")

    def _in_network(self, operation: Operation) -> str:
        """Return the module of an operation in a network's scope, but outside its modules with parameters.

        This applies only if there are several trees of parameters; a single network is the whole step.
        """
        if not self._tree_around:
            return ""
        scopes = plain_scopes(self._op_name(operation))
        for stop in range(len(scopes), 0, -1):
            if scopes[:stop] in self._tree_around:
                tree = self._tree_around[scopes[:stop]] or next(
                    (self._paths.root(keys) for _, group in operation.inputs if (keys := self._known_keys(group))), ()
                )
                return "/".join((*tree, *scopes[stop : stop + 1])) if tree else ""
        return ""

    def _known_keys(self, group: int) -> Keys:
        """Return the path of a group's module; empty unless the module is known to have parameters."""
        module = self._module[group] if self._known[group] >= _BY_MODULE else ""
        return tuple(module.split("/")) if module else ()

    def _inherited(self, operation: Operation, source: int) -> tuple[str, int]:
        """Return the module of one of the values that an operation reads.

        Copies of parameters and optimizer state are owned by their module, and so are their updates. The results that
        a layer computes from its input are not. Owned values decide: a layer belongs to its own parameters whatever its
        input, and an update belongs to the value that it updates wherever the gradient (for example of tied parameters)
        is made.
        """
        known = self._known[source]
        if known == _BY_OWNER and not any(map(self._is_state, operation.outputs)):
            known = _BY_MODULE
        return self._module[source], known

    def _is_state(self, group: int) -> bool:
        """Whether a value is a copy of parameters or optimizer state, or their update."""
        origin = self._flow.origin[group]
        if origin & Origin.BACKWARD and origin & (Origin.DIRECT_PARAMS | Origin.DIRECT_OPTIMIZER_STATE):
            return True
        return not origin & FROM_DATA


def _common(left: str, right: str) -> str:
    """Return the innermost module that contains both modules."""
    pairs = zip(left.split("/"), right.split("/"), strict=False)
    return "/".join(part for part, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _is_numbered(module: str) -> bool:
    """Whether a module begins with a list index, like `0/value`, instead of a name."""
    return module.partition("/")[0].isdecimal()


def _within(module: str, outer: str) -> bool:
    """Whether a module equals another one or lies inside it."""
    return module == outer or module.startswith(f"{outer}/")
