"""The origins and uses of each value.

A forward pass over the program collects the origins of each group of positions (see `aliases.py`); a backward pass
collects its uses. Loops carry facts around, so a program with loops repeats the passes to a fixpoint. Facts are bit
sets in plain integers (a flag type costs ten times as much), so both passes are linear in the size of the program. Code
that runs for each operation uses members of enumerations by plain names: looking one up in its class takes longer than
the rest of the work (Python 3.11).

Phases come from op names if these show one, and otherwise from the data flow:

- an instruction without an op name was inserted by the compiler (a copy, a broadcast, a pad). It belongs to the phase
  of the value that it copies or, if that has none, of its users;
- after the backward pass, an op name without a mark of differentiation is still work on gradients (clipping,
  accumulating) or, as soon as it reads parameters or optimizer state, the update;
- any other op name without such a mark is outside differentiation: a rollout, shuffled data, a reference model, a
  metric. So is an operation that reads data after the update, unless it makes new parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from functools import lru_cache
from math import prod

from memprof.analysis.attribution.aliases import AliasSets
from memprof.analysis.attribution.loop_states import makers_of_states
from memprof.analysis.attribution.op_names import Named
from memprof.analysis.attribution.operations import Operation, find_operations
from memprof.analysis.hlo.program import Instruction, Program
from memprof.analysis.records.capture import ArgumentLeaf
from memprof.analysis.records.categories import Phase, Role


class Origin(IntEnum):
    """The origins of a value, as bits of a set.

    The lower bits are the roles of arguments, see `ROLE_ORIGIN`. The first three of these mean that an operation of
    that phase lies upstream. The `DIRECT_` bits mean that parameters, optimizer state or other arguments (no scalars,
    no keys) reach the value without passing through the forward or backward pass. `OTHER_DEVICES` means that other
    devices sent a part. `PROGRAM_DATA` means that parameters were multiplied with data of the program itself (a dataset
    or a grid of points that the step closes over), or that a loop computes the value as its state.
    """

    FORWARD = 1 << 16
    RECOMPUTE = 1 << 17
    BACKWARD = 1 << 18
    DIRECT_PARAMS = 1 << 19
    DIRECT_OPTIMIZER_STATE = 1 << 20
    DIRECT_DATA = 1 << 21
    OTHER_DEVICES = 1 << 22
    PROGRAM_DATA = 1 << 23


class Use(IntEnum):
    """The uses of a value, as bits of a set."""

    FORWARD = 1
    RECOMPUTE = 2
    BACKWARD = 4
    UPDATE = 8
    RESULT = 16
    GRADIENT = 32  # a gradient of parameters, or a part of one
    UNDIFFERENTIATED = 64


ROLE_ORIGIN = {role: 1 << number for number, role in enumerate(Role)}
ROLES = sum(ROLE_ORIGIN.values())
SOURCES = ROLES | Origin.PROGRAM_DATA

_STATE = (Role.PARAMS, Role.OPTIMIZER_STATE)
FROM_PARAMS = ROLE_ORIGIN[Role.PARAMS]
# All that the update does not change.
FROM_DATA = sum(bit for role, bit in ROLE_ORIGIN.items() if role not in _STATE) | Origin.PROGRAM_DATA

# The origin that an argument of a role gives to its direct readers.
_DIRECT = dict.fromkeys(Role, Origin.DIRECT_DATA) | {
    Role.PARAMS: Origin.DIRECT_PARAMS,
    Role.OPTIMIZER_STATE: Origin.DIRECT_OPTIMIZER_STATE,
}
_DIRECT_STATE = Origin.DIRECT_PARAMS | Origin.DIRECT_OPTIMIZER_STATE
_DIRECT_BITS = _DIRECT_STATE | Origin.DIRECT_DATA
_DIRECT_DATA, _PROGRAM_DATA = Origin.DIRECT_DATA, int(Origin.PROGRAM_DATA)
_LARGEST_KEY = 4  # elements of an `rbg` random key; `threefry2x32` has two
_PHASE_ORIGIN = {
    Named.FORWARD: Origin.FORWARD,
    Named.RECOMPUTE: Origin.RECOMPUTE,
    Named.BACKWARD: Origin.BACKWARD,
}

_PHASE_USE = {
    Phase.FORWARD: Use.FORWARD,
    Phase.RECOMPUTE: Use.RECOMPUTE,
    Phase.BACKWARD: Use.BACKWARD,
    Phase.UPDATE: Use.UPDATE,
    Phase.UNDIFFERENTIATED: Use.UNDIFFERENTIATED,
    Phase.NONE: 0,
}

# Operations whose result is the same quantity as the listed operands (None: all operands). If the result is a gradient,
# so is the operand.
_SAME_QUANTITY: dict[str, tuple[int, ...] | None] = {
    "add": None, "subtract": None, "convert": None, "copy": None, "copy-start": None, "transpose": None,
    "reshape": None, "negate": None, "slice": None, "concatenate": None, "reverse": None, "all-reduce": None,
    "all-reduce-start": None, "reduce-scatter": None, "all-gather": None, "all-gather-start": None,
    "pad": (0,), "dynamic-slice": (0,), "scatter": (0,), "dynamic-update-slice": (0, 1),
}  # fmt: skip

# Operations that scale the listed operands if the other operand is a number: a gradient in fp8 is multiplied by the
# scales of its inputs.
_SCALED = {"multiply": (0, 1), "divide": (0,)}

_MATRIX_PRODUCTS = frozenset({"dot", "convolution", "custom-call"})
_NAMES_OF_PRODUCTS = ("dot_general", "conv_general_dilated")  # XLA turns small products into other operations
_LAYOUT = frozenset({"copy", "transpose", "reshape"})
_SPREAD = frozenset({"broadcast", "convert", *_LAYOUT})
_NOT_COMPUTING = _SPREAD | set(_SAME_QUANTITY) - {"add", "subtract", "negate", "scatter"}

_FORWARD, _RECOMPUTE, _BACKWARD, _NO_PHASE = Phase.FORWARD, Phase.RECOMPUTE, Phase.BACKWARD, Phase.NONE
_NAMED_NOTHING, _NAMED_UNPHASED = Named.NOTHING, Named.UNPHASED
_NAMED_FORWARD, _NAMED_RECOMPUTE, _NAMED_BACKWARD = Named.FORWARD, Named.RECOMPUTE, Named.BACKWARD
_USE_GRADIENT, _USE_IN_BACKWARD = Use.GRADIENT, Use.RECOMPUTE | Use.BACKWARD
_USE_MAKES_GRADIENT = Use.GRADIENT | Use.RESULT
_OTHER_STATE, _OTHER_DEVICES = ROLE_ORIGIN[Role.OTHER_STATE], int(Origin.OTHER_DEVICES)
_OPTIMIZER_STATE = ROLE_ORIGIN[Role.OPTIMIZER_STATE]
_MAY_BE_BACKWARD = (_BACKWARD, _NO_PHASE)  # if the origins show no phase, the uses may


class Dataflow:
    """Facts by group. See the module's docstring.

    Attributes:
        operations, phase_of_name, constants: see `operations.py`.
        origin, use: sets of bits of `Origin` and `Use`.
        named: a set of bits of `Named`: the phases in the op names of the operations that make it.
        computed: the same, but for an operation that only moves data, the phases of the operations that computed them.
        definers: the instructions that make it.
        argument: the parameter number of each group that holds an argument.
    """

    def __init__(self, program: Program, groups: AliasSets, arguments: Mapping[int, ArgumentLeaf]) -> None:
        """Args: arguments: the step's argument leaves by parameter number of the compiled program."""
        self._program = program
        self._is_training = any(leaf.role in _STATE for leaf in arguments.values())
        self.origin = [0] * groups.count
        self.named = [0] * groups.count
        self.computed = [0] * groups.count
        self.use = [0] * groups.count
        self.definers: list[list[int]] = [[] for _ in range(groups.count)]
        self.argument: dict[int, int] = {}
        self._direct: dict[int, int] = {}  # by argument group: the origin that it gives to direct readers
        self._in_memory = groups.in_memory
        self._groups = groups
        for index in program.entry.parameters:
            instruction = program.instructions[index]
            number = instruction.parameter_number
            role = arguments[number].role
            is_scalar = role not in _STATE and _num_elements(instruction) <= _LARGEST_KEY
            for group in groups.of_instruction(instruction):
                self.argument[group] = number
                self.origin[group] = ROLE_ORIGIN[role]
                self._direct[group] = 0 if is_scalar else _DIRECT[role]
        found = find_operations(program, groups)
        self.operations, self.phase_of_name, self.constants = found.in_order, found.phase_of_name, found.constants
        for group, index in self.constants.items():
            self.definers[group].append(index)
        self._named_groups: set[int] = set()  # made by an operation with a name, possibly among others
        self._expanded: set[int] = set()  # computed, not only moved, by operations without a name
        for operation in self.operations:
            for group in operation.outputs:
                self.definers[group].append(operation.index)
            if operation.named is not _NAMED_NOTHING:
                self._named_groups.update(operation.outputs)
            elif program.instructions[operation.index].opcode not in _NOT_COMPUTING:
                self._expanded.update(operation.outputs)
        self._expanded -= self._named_groups
        self._multiplied = {
            group
            for operation in self.operations
            if program.instructions[operation.index].opcode in _MATRIX_PRODUCTS
            for _, group in operation.inputs
        }
        self._makers_of_states = makers_of_states(program, groups, self.operations)
        self._products = frozenset(filter(self._is_product, (operation.index for operation in self.operations)))
        self._has_loops = "while" in {program.instructions[index].opcode for index in groups.order}
        self.repeat(self._pass_down)
        self.is_differentiated = any(operation.named is _NAMED_BACKWARD for operation in self.operations)
        self._phases = self._shown_phases(arguments)
        for group in groups.of_instruction(program.instructions[program.entry.root]):
            self.use[group] |= Use.RESULT
        self.repeat(self._pass_up)
        if not self._is_training:
            # A sampler differentiates in each of its steps, so its carry is not kept for a backward pass.
            for group, use in enumerate(self.use):
                kept = ~(
                    _USE_GRADIENT | _USE_IN_BACKWARD if self.phase(group) is Phase.UNDIFFERENTIATED else _USE_GRADIENT
                )
                self.use[group] = use & kept

    def phase(self, group: int) -> Phase:
        """Return the phase that makes a group's values or, if the origins show none, the first phase that uses them.

        A named operation that does not serve only the update is outside differentiation.
        """
        phase = self._phases[group]
        if phase is not _NO_PHASE:
            return _BACKWARD if phase is _FORWARD and self._is_only_backward(group) else phase
        use = self.use[group]
        if not self.is_differentiated:
            return Phase.FORWARD
        if self.named[group] & _NAMED_UNPHASED and use & ~(Use.UPDATE | Use.GRADIENT | Use.RESULT):
            return Phase.UNDIFFERENTIATED
        if use & Use.FORWARD:
            return Phase.FORWARD
        if use & Use.RECOMPUTE:
            return Phase.RECOMPUTE
        if use & Use.BACKWARD:
            return Phase.BACKWARD
        if use & Use.UPDATE:
            return Phase.UPDATE
        is_unread = not use and self.named[group] & _NAMED_UNPHASED  # the keys of a sort that only moves other values
        return Phase.UNDIFFERENTIATED if use & (Use.UNDIFFERENTIATED | Use.RESULT) or is_unread else Phase.NONE

    def _is_only_backward(self, group: int) -> bool:
        """Whether the compiler recomputes a value from the forward pass for the backward pass alone.

        It expands operations of the backward pass this way, without names (`select-and-scatter`, the gradient of
        pooling).
        """
        uses = self.use[group] & ~(_USE_GRADIENT | Use.RESULT)
        return group in self._expanded and uses == Use.BACKWARD

    def _shown_phases(self, arguments: Mapping[int, ArgumentLeaf]) -> list[Phase]:
        """Return the phase of each group that names and origins show; NONE if they show none."""
        phases = list(map(_shown_phase, self.named, self.origin))
        if not self.is_differentiated:
            return phases
        doubtful = []
        for group, phase in enumerate(phases):
            if not self.named[group] & _NAMED_UNPHASED:
                continue
            if not self._is_training and phase in (
                Phase.UPDATE,
                _BACKWARD,
            ):  # a sampler's state, moved along a gradient
                phases[group] = Phase.UNDIFFERENTIATED
                continue
            reads_data = bool(self.origin[group] & _DIRECT_DATA)
            if phase is Phase.UPDATE and reads_data:
                doubtful.append(group)
                continue
            is_after_forward = phase is _FORWARD and not self.named[group] & _NAMED_FORWARD
            is_before = phase is _NO_PHASE and (reads_data or self._is_of_params_and_more(group))
            if is_after_forward or is_before:
                phases[group] = Phase.UNDIFFERENTIATED
        if doubtful:
            updates = self._makers_of_state(arguments)
            for group in doubtful:
                if group not in updates:
                    phases[group] = Phase.UNDIFFERENTIATED
        return phases

    def _is_of_params_and_more(self, group: int) -> bool:
        origin = self.origin[group]
        return bool(origin & Origin.DIRECT_PARAMS and origin & ROLES != FROM_PARAMS)

    def _makers_of_state(self, arguments: Mapping[int, ArgumentLeaf]) -> set[int]:
        """Return the groups from which new parameters or optimizer state are made outside differentiation.

        A result is new state if its shape is that of parameters or optimizer state.
        """
        program = self._program
        shapes = {
            leaf.dimensions
            for instruction in map(program.instructions.__getitem__, program.entry.parameters)
            if arguments[instruction.parameter_number].role in _STATE
            for leaf in instruction.shape.leaves
            if leaf.dimensions
        }
        root = program.instructions[program.entry.root]
        results = zip(self._groups.of_instruction(root), root.shape.leaves, strict=True)
        makers = {group for group, leaf in results if leaf.dimensions in shapes}

        def pass_up() -> bool:
            num_known = len(makers)
            for operation in reversed(self.operations):
                if operation.named in (_NAMED_NOTHING, _NAMED_UNPHASED) and not makers.isdisjoint(operation.outputs):
                    makers.update([group for _, group in operation.inputs])
            return len(makers) > num_known

        self.repeat(pass_up)
        return makers

    def computed_in(self, group: int) -> Phase:
        """Return the phase that computes a group's values, even if a later phase only moves them.

        The backward pass copies residuals of the forward pass to another layout, slices one layer's from the stack that
        a scan has made, or fetches them from the host: the copies hold values that the forward pass has computed.
        """
        phase, computed = self.phase(group), self.computed[group]
        if phase is not _BACKWARD or computed & _NAMED_BACKWARD or group in self._expanded:
            return phase
        if computed & _NAMED_RECOMPUTE:
            return _RECOMPUTE
        return _FORWARD if computed & _NAMED_FORWARD else phase

    def repeat(self, one_pass: Callable[[], bool]) -> None:
        """Run a pass until it reports no change; a program without loops needs one run."""
        while one_pass() and self._has_loops:
            pass

    def _pass_down(self) -> bool:
        """Propagate origins and phases from definitions to uses. Return whether anything changed."""
        changed = False
        origin, named, all_computed, argument = self.origin, self.named, self.computed, self.argument
        direct, states, products = self._direct, self._makers_of_states, self._products
        for operation in self.operations:
            op_named = operation.named
            made_from = _OTHER_DEVICES if operation.is_fetched else 0
            inherited = 0
            for _, group in operation.inputs:
                if group == operation.choice and origin[group] & ROLES == _OTHER_STATE:
                    continue  # a mask: masked weights are weights
                made_from |= origin[group]
                if group in argument:
                    made_from |= direct[group]
                elif op_named is _NAMED_NOTHING:
                    inherited |= named[group]
            if op_named is _NAMED_NOTHING:
                shown = inherited
            else:
                shown = int(op_named)
                if op_named is not _NAMED_UNPHASED:
                    made_from = made_from & ~_DIRECT_BITS | _PHASE_ORIGIN[op_named]
            computed = shown if operation.moved is None else all_computed[operation.moved]
            if made_from & FROM_PARAMS and (
                operation.index in states or (operation.index in products and self._reads_program_data(operation))
            ):
                made_from |= _PROGRAM_DATA
            for group in operation.outputs:
                if group in argument:
                    continue  # the argument's next version keeps its role
                if op_named is _NAMED_NOTHING and group in self._named_groups and _fills(self._program, operation):
                    continue  # the start of a loop; a loop of another phase may share the zeros
                if made_from & ~origin[group] or shown & ~named[group] or computed & ~all_computed[group]:
                    origin[group] |= made_from
                    named[group] |= shown
                    all_computed[group] |= computed
                    changed = True
        return changed

    def _pass_up(self) -> bool:
        """Propagate uses to definitions. Return whether anything changed."""
        changed = False
        use, phases = self.use, self._phases
        for operation in reversed(self.operations):
            instruction = self._program.instructions[operation.index]
            of_outputs = 0
            for group in operation.outputs:
                of_outputs |= use[group]
            phase = self._phases[operation.outputs[0]] if operation.outputs else _NO_PHASE
            is_known = phase is not _NO_PHASE
            if operation.outputs and not is_known:
                phase = self.phase(operation.outputs[0])
            if operation.named is _NAMED_NOTHING or phase is _NO_PHASE:
                passed = of_outputs & ~_USE_GRADIENT
            else:
                passed = _PHASE_USE[phase]
                if not self._in_memory.issuperset(operation.outputs) or (is_known and instruction.opcode in _LAYOUT):
                    # XLA repeats cheap operations of the forward pass inside fusions of the backward pass, instead of
                    # keeping their results, and delays a layout change until the backward pass needs it. Their
                    # operands are then used in the backward pass.
                    passed |= of_outputs & _USE_IN_BACKWARD
            # An operation on gradients is outside differentiation (accumulating, clipping, the update), or makes one.
            may_be_gradients = operation.named is _NAMED_UNPHASED or of_outputs & _USE_MAKES_GRADIENT
            for number, group in operation.inputs:
                bits = passed
                if (
                    may_be_gradients
                    and phases[group] in _MAY_BE_BACKWARD
                    and not use[group] & _USE_GRADIENT
                    and self.computed_in(group) is _BACKWARD
                    and self._is_gradient(operation, instruction, number, group)
                ):
                    bits |= _USE_GRADIENT
                if bits & ~use[group]:
                    use[group] |= bits
                    changed = True
        return changed

    def _is_product(self, index: int) -> bool:
        """Whether an instruction is a matrix product or a convolution, or the multiplication of a small one."""
        instruction = self._program.instructions[index]
        if instruction.opcode != "multiply":
            return instruction.opcode in _MATRIX_PRODUCTS
        return instruction.op_name.rpartition("/")[2] in _NAMES_OF_PRODUCTS

    def _reads_program_data(self, operation: Operation) -> bool:
        """Whether an operation reads an array that depends on no argument, besides zeros and the like."""
        operands = self._program.instructions[operation.index].operands
        return any(
            not self.origin[group] & ROLES and not self._is_scalar(operands[number])
            for number, group in operation.inputs
        )

    def _is_scalar(self, index: int) -> bool:
        """Whether all elements of an instruction's result are the same number."""
        instruction = self._program.instructions[index]
        while _num_elements(instruction) != 1:
            definers = self._definers_of(instruction)
            if len(definers) != 1 or definers[0].opcode not in _SPREAD:
                return False
            instruction = self._program.instructions[definers[0].operands[0]]
        return True

    def _definers_of(self, instruction: Instruction) -> list[Instruction]:
        groups = self._groups.of_instruction(instruction)
        return [self._program.instructions[index] for index in self.definers[groups[0]]] if groups else []

    def _accumulates(self, instruction: Instruction, group: int) -> bool:
        """Whether an instruction adds to a loop's carry, or returns a sum that was accumulated elsewhere."""
        operands = [self._program.instructions[operand] for operand in instruction.operands]
        if instruction.opcode == "copy":
            return any(
                each.opcode == "add" and self._accumulates(each, group) for each in self._definers_of(operands[0])
            )
        return instruction.opcode == "add" and any(group in self._groups.of_instruction(each) for each in operands)

    def _is_gradient(self, operation: Operation, instruction: Instruction, number: int, group: int) -> bool:
        """Whether a value of the backward pass is a gradient, or a part of one, because of this use of it.

        Args:
            operation: it works on gradients, or makes one.
        """
        if operation.named is _NAMED_UNPHASED:
            return True
        if instruction.opcode in _SCALED:
            return number in _SCALED[instruction.opcode] and self._is_scalar(instruction.operands[1 - number])
        if instruction.opcode == "reduce":
            # XLA splits a long sum of products into partial sums and their total; all keep the op name. A product
            # with a vector becomes a multiplication and a sum of one name, but a product is not a partial sum. A loop
            # under `vmap` accumulates the gradients of each example separately. If a matrix product reads the values
            # that a loop accumulates, these are cotangents, and their sum is the gradient of a bias.
            return any(
                (definer.op_name == instruction.op_name != "" and definer.opcode != "multiply")
                or (group not in self._multiplied and self._accumulates(definer, group))
                for definer in (self._program.instructions[index] for index in self.definers[group])
            )
        operands = _SAME_QUANTITY.get(instruction.opcode, ())
        return operands is None or number in operands


@lru_cache(maxsize=4096)
def _shown_phase(named: int, origin: int) -> Phase:
    """Return the phase that names and origins show; NONE if they show none."""
    if named & Named.BACKWARD:
        return Phase.BACKWARD
    if named & Named.RECOMPUTE:
        return Phase.RECOMPUTE
    if named & Named.FORWARD:
        return Phase.FORWARD
    if origin & Origin.BACKWARD:
        return Phase.UPDATE if origin & _DIRECT_STATE else Phase.BACKWARD
    if origin & (Origin.FORWARD | Origin.RECOMPUTE):
        return Phase.FORWARD
    return Phase.UPDATE if origin & _OPTIMIZER_STATE else Phase.NONE


def _num_elements(instruction: Instruction) -> int:
    return prod(instruction.shape.leaves[0].dimensions) if instruction.shape.leaves else 0


def _fills(program: Program, operation: Operation) -> bool:
    """Whether an operation itself writes one number everywhere, regardless of values that share its memory."""
    instruction = program.instructions[operation.index]
    while instruction.opcode == "fusion" or instruction.opcode in _LAYOUT:
        is_fusion = instruction.opcode == "fusion"
        index = program.computations[instruction.called[0]].root if is_fusion else instruction.operands[0]
        instruction = program.instructions[index]
    return instruction.opcode == "broadcast" and _num_elements(program.instructions[instruction.operands[0]]) == 1
