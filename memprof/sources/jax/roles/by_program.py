"""The arguments of a step from its compiled program alone: names, shapes and roles. Needs no JAX.

A program compiled elsewhere comes without the step. But JAX writes the path of each argument into the program
(`state.params['dense']['kernel']`), and the uses of the arguments can be followed in a compiled program as in a traced
one (`updates.py`). These rules apply, in order:

- the user's roles; random keys, by their type;
- averages of parameters, and arrays that the program trains;
- conventional keys in the path, as in Flax, Optax and most other code (`params`, `opt_state`);
- the role shared by all other leaves of the smallest container around it;
- leaves carried from step to step, and scalars, are other state;
- otherwise a guess, which the report names. A leaf called `x` or `tokens` is input data. So are integers, and arrays
  whose first axis is the most frequent one in the forward pass, the batch axis. Other arrays are untrained parameters.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from memprof.analysis.attribution.aliases import AliasSets
from memprof.analysis.attribution.op_names import Named
from memprof.analysis.attribution.operations import Operation, find_operations
from memprof.analysis.hlo.buffer_table import BufferTable
from memprof.analysis.hlo.program import Instruction, Program
from memprof.analysis.records.capture import ArgumentLeaf
from memprof.analysis.records.categories import Role
from memprof.sources.jax.roles.leaf import all_prefixes, given_roles, longest_prefix, shortened
from memprof.sources.jax.roles.updates import ArgumentUse, Array, Result, argument_uses

# The first key of a path that is listed here decides the role.
_ROLE_BY_KEY = {
    **dict.fromkeys(("params", "parameters", "frozen_params", "trainable_params"), Role.PARAMS),
    **dict.fromkeys(("opt_state", "opt_states", "optimizer_state", "optim_state", "inner_state"), Role.OPTIMIZER_STATE),
    **dict.fromkeys(("batch", "batches", "minibatch"), Role.BATCH),
    **dict.fromkeys(("kv_cache", "kv_caches", "past_key_values", "cached_key", "cached_value"), Role.KV_CACHE),
    **dict.fromkeys(
        "batch_stats step rng rngs key keys dropout_rng dropout_key ema ema_params target_params loss_scale"
        " dynamic_scale masks".split(),
        Role.OTHER_STATE,
    ),
}
# Such keys of a program without derivatives mean the cache of its attention. Training caches other things, too.
_OF_CACHE = frozenset("cache caches k_cache v_cache k_caches v_caches key_cache value_cache".split())
# Names of input data, for leaves that the program neither trains nor carries.
_OF_DATA = frozenset(
    "x y xs ys inputs outputs targets target labels label tokens images image data graph input_ids attention_mask obs"
    " observations features text".split()
)
_PHASES = (Named.FORWARD, Named.RECOMPUTE, Named.BACKWARD)
_CONTRACTIONS = frozenset({"dot", "convolution", "custom-call", "reduce", "gather", "dynamic-slice", "reduce-window"})
_PATH = re.compile(r"[A-Za-z_]\w*(?:[.\[].*)?")
_KEY = re.compile(r"[A-Za-z_]\w*")
_OF_JAX = {
    "pred": "bool", "bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64", "c64": "complex64",
    "c128": "complex128", "f8e4m3fn": "float8_e4m3fn", "f8e5m2": "float8_e5m2",
}  # fmt: skip
# A first axis with this many times fewer values than the most frequent one still counts as a batch axis: a step can
# have more than one batch.
_AS_MANY = 4
_BITS = re.compile(r"([su])(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Leaf:
    """One argument, and the facts known about it.

    Attributes:
        has_name: the program contains its name; otherwise the path is made from its number.
        role: None while it is unknown.
        is_guess: the role is a guess from its name or shape.
    """

    path: str
    array: Array
    has_name: bool
    use: ArgumentUse
    role: Role | None = None
    is_guess: bool = False

    @property
    def owner(self) -> str:
        """The argument that it belongs to."""
        return [*all_prefixes(self.path)][-1]

    @property
    def is_float(self) -> bool:
        return self.array.dtype.startswith(("float", "bfloat", "complex"))

    @property
    def is_key(self) -> bool:
        """Whether it is a random key: two words for the default generator, four for another one."""
        return self.array.dtype == "uint32" and self.array.shape in ((2,), (4,))


def arguments_of_program(
    program: Program, table: BufferTable, roles: Mapping[str, str]
) -> tuple[tuple[ArgumentLeaf, ...], tuple[str, ...]]:
    """Return the arguments of a compiled program, and sentences about guessed roles.

    Args:
        roles: the user's roles, by path prefix.

    Raises:
        MemprofError: a role of the user is invalid, or its path does not exist.
        InternalError: the program has an unexpected shape.
    """
    parameters = [program.instructions[index] for index in program.entry.parameters]
    paths = _paths(parameters)
    given = given_roles(roles, paths)
    arrays = [_array(parameter) for parameter in parameters]
    flow = _Flow(program, AliasSets(program, table), arrays)
    roles_by_key = {**({} if flow.is_differentiated else dict.fromkeys(_OF_CACHE, Role.KV_CACHE)), **_ROLE_BY_KEY}
    leaves = [_with_stated_role(leaf, given, roles_by_key) for leaf in _with_uses(flow, arrays, paths)]
    leaves = [leaf if leaf.role else _by_container(leaf, leaves) for leaf in leaves]
    left = [leaf for leaf in leaves if not leaf.role and leaf.array.shape]
    most = max((flow.num_along[leaf.array.shape[0]] for leaf in left), default=0)
    leaves = [leaf if leaf.role else _by_shape(leaf, flow.num_along, most) for leaf in leaves]
    allocations = {each.parameter_number: each for each in table.allocations if each.parameter_number is not None}
    arguments = tuple(
        ArgumentLeaf(
            path=leaf.path,
            role=leaf.role or Role.OTHER_STATE,
            shape=leaf.array.shape,
            dtype=leaf.array.dtype,
            size_bytes=allocations[number].size_bytes if number in allocations else 0,
            donated=number in allocations and allocations[number].is_live_out,
            parameter_number=number,
        )
        for number, leaf in enumerate(leaves)
    )
    return arguments, tuple(_doubts(leaves, arguments, is_differentiated=flow.is_differentiated))


def _paths(parameters: Sequence[Instruction]) -> list[str]:
    """Return the path of each argument, or `arguments[3]` if the program contains no name."""
    names = [parameter.op_name.replace("\\'", "'") for parameter in parameters]
    return [
        name if _PATH.fullmatch(name) and names.count(name) == 1 else f"arguments[{number}]"
        for number, name in enumerate(names)
    ]


def _with_uses(flow: _Flow, arrays: Sequence[Array], paths: Sequence[str]) -> list[_Leaf]:
    owners: dict[str, int] = {}
    numbers = [owners.setdefault([*all_prefixes(path)][-1], len(owners)) for path in paths]
    uses = argument_uses(arrays, numbers, flow.results(), flow.differentiated)
    return [
        _Leaf(path=path, array=array, has_name=path != f"arguments[{number}]", use=use)
        for number, (path, array, use) in enumerate(zip(paths, arrays, uses, strict=True))
    ]


def _array(instruction: Instruction, leaf: int = 0) -> Array:
    """Return one array of a result, with JAX's name of its dtype. A token has no data: shape `()` and dtype `""`."""
    if not instruction.shape.leaves:
        return Array((), "")
    found = instruction.shape.leaves[leaf]
    integer = _BITS.fullmatch(found.dtype)
    dtype = f"{'u' * (integer[1] == 'u')}int{integer[2]}" if integer else _OF_JAX.get(found.dtype, found.dtype)
    return Array(found.dimensions, dtype)


class _Origin(NamedTuple):
    """The origins of a group, as those of a `Result`."""

    directly: int = 0
    forward: int = 0
    sources: int = 0
    of_gradients: bool = False

    def __or__(self, other: _Origin) -> _Origin:
        return _Origin(
            self.directly | other.directly,
            self.forward | other.forward,
            self.sources | other.sources,
            self.of_gradients or other.of_gradients,
        )


class _Flow:
    """The origins of each group of a program; see `updates.Result`.

    Attributes:
        differentiated: the arguments that differentiated operations read, as bits.
        is_differentiated: the program has a backward pass, by its op names.
        num_along: by the length of the first axis, the number of operations before the backward pass that combine
            several arrays into one with that first axis.
    """

    def __init__(self, program: Program, groups: AliasSets, arrays: Sequence[Array]) -> None:
        self._program, self._groups = program, groups
        self._origins = [_Origin()] * groups.count
        self._itself = [0] * groups.count
        self.differentiated = 0
        for number, index in enumerate(program.entry.parameters):
            bit = 1 << number
            for group in groups.of_instruction(program.instructions[index]):
                self._origins[group] |= _Origin(bit, bit, bit if arrays[number].shape else 0)
                self._itself[group] |= bit
        operations = find_operations(program, groups).in_order
        keeps_shape = [_keeps_shape(program, operation) for operation in operations]
        self.is_differentiated = any(operation.named is Named.BACKWARD for operation in operations)
        while sum(self._add(*each) for each in zip(operations, keeps_shape, strict=True)):  # loops carry facts around
            pass
        self.num_along = Counter(axis for operation in operations for axis in self._first_axis(operation))

    def results(self) -> list[Result]:
        """Return the origins of each result of the program."""
        root = self._program.instructions[self._program.entry.root]
        return [
            Result(_array(root, leaf), *self._origins[group])
            for leaf, group in enumerate(self._groups.of_instruction(root))
        ]

    def _add(self, operation: Operation, is_elementwise: Sequence[bool]) -> bool:
        """Propagate the origins of an operation's operands to its results. Return whether any changed."""
        directly = forward = sources = 0
        of_gradients = operation.named is Named.BACKWARD
        # XLA scatters the gradient of an embedding directly into a value that it is added to later, such as an average.
        is_sum = of_gradients and self._program.instructions[operation.index].opcode == "scatter"
        for (number, group), keeps_shape in zip(operation.inputs, is_elementwise, strict=True):
            is_phased = operation.named in _PHASES and not (is_sum and number == 0)
            origin = self._origins[group]
            sources |= origin.sources
            if is_phased:  # an updated value also carries the leaves that updated it, which do not count here
                self.differentiated |= self._itself[group] if origin.of_gradients else origin.directly
            if group == operation.choice:  # the predicate of a select enters neither value
                continue
            of_gradients |= origin.of_gradients
            directly |= 0 if is_phased else origin.directly
            forward |= origin.forward if keeps_shape and operation.named is not Named.BACKWARD else 0
        before = [self._origins[group] for group in operation.outputs]
        for group in operation.outputs:
            self._origins[group] |= _Origin(directly, forward, sources, of_gradients)
        return before != [self._origins[group] for group in operation.outputs]

    def _first_axis(self, operation: Operation) -> tuple[int, ...]:
        leaves = self._program.instructions[operation.index].shape.leaves
        if (
            not leaves
            or not leaves[0].dimensions
            or any(self._origins[group].of_gradients for group in operation.outputs)
        ):
            return ()
        is_mixed = any(self._origins[group].sources.bit_count() > 1 for group in operation.outputs)
        return leaves[0].dimensions[:1] if is_mixed else ()


def _keeps_shape(program: Program, operation: Operation) -> list[bool]:
    """Return for each input of an operation whether it enters the result element by element."""
    instruction = program.instructions[operation.index]
    if instruction.opcode in _CONTRACTIONS or not instruction.shape.leaves:
        return [False] * len(operation.inputs)
    shapes = {leaf.dimensions for leaf in instruction.shape.leaves}
    # A combined collective is split into one operation per operand, each with its own operand only.
    numbers = dict.fromkeys(number for number, _ in operation.inputs)
    operands = (program.instructions[instruction.operands[number]] for number in numbers)
    return [leaf.dimensions in shapes for operand in operands for leaf in operand.shape.leaves]


def _with_stated_role(leaf: _Leaf, given: Mapping[str, Role], roles_by_key: Mapping[str, Role]) -> _Leaf:
    """Return the leaf with the role that the user, its use or its name gives it, if any."""
    use = leaf.use
    prefix = longest_prefix(leaf.path, given)
    said = (
        next((roles_by_key[key] for key in _KEY.findall(leaf.path) if key in roles_by_key), None)
        if leaf.has_name
        else None
    )
    # The fill level of a cache, or one for each sequence. Quantised caches have 8 bits or fewer.
    is_level = not leaf.array.shape or (len(leaf.array.shape) == 1 and leaf.array.dtype in ("int32", "int64"))
    role = Role.OTHER_STATE if said is Role.KV_CACHE and is_level else said
    if prefix is not None:
        role = given[prefix]
    elif leaf.is_key or (use.is_average and leaf.is_float):
        role = Role.OTHER_STATE
    elif use.is_trained and leaf.is_float and leaf.array.shape:
        # State that mirrors parameters repeats their names: `momentum['params']`.
        role = Role.PARAMS if use.is_differentiated else Role.OPTIMIZER_STATE
    elif said is None and use.is_differentiated_for:
        role = Role.PARAMS
    return replace(leaf, role=role)


def _by_container(leaf: _Leaf, leaves: Sequence[_Leaf]) -> _Leaf:
    """Return the leaf with the role shared by all known leaves of the smallest container around it with any."""
    for prefix in list(all_prefixes(leaf.path))[1:] if leaf.has_name else ():
        roles = {
            each.role
            for each in leaves
            if each.role and not each.is_key and each.path.startswith(prefix) and each.path[len(prefix)] in ".["
        }
        if len(roles) != 1:
            if roles:
                break
            continue
        (role,) = roles
        fits = {Role.PARAMS: leaf.is_float and not leaf.use.is_carried, Role.BATCH: bool(leaf.array.shape)}.get(
            role, True
        )
        return replace(leaf, role=role if fits else None)
    return leaf


def _by_shape(leaf: _Leaf, num_along: Mapping[int, int], most: int) -> _Leaf:
    """Return the leaf with a role guessed from its name and shape.

    Args:
        num_along: see `_Flow`.
        most: the largest of these numbers among the remaining leaves.
    """
    use, shape = leaf.use, leaf.array.shape
    if not shape or (use.is_carried and not use.is_kept):
        return replace(leaf, role=Role.OTHER_STATE)
    if leaf.has_name and _KEY.findall(leaf.path)[0] in _OF_DATA:
        return replace(leaf, role=Role.BATCH)
    is_data = not leaf.is_float or num_along[shape[0]] * _AS_MANY >= most
    return replace(leaf, role=Role.BATCH if is_data else Role.PARAMS, is_guess=True)


def _doubts(leaves: Sequence[_Leaf], arguments: Sequence[ArgumentLeaf], *, is_differentiated: bool) -> list[str]:
    sentences = []
    if not is_differentiated and not any(leaf.has_name for leaf in leaves):
        sentences.append(
            "No name in the program shows a differentiation: it is not a training step, or it was written without "
            "names; without names, roles, gradients and activations cannot be identified (`as_text(debug_info=True)` "
            "keeps them)."
        )
    for role in (Role.BATCH, Role.PARAMS):
        guessed = [each for leaf, each in zip(leaves, arguments, strict=True) if leaf.is_guess and leaf.role is role]
        if guessed:
            size_bytes = sum(each.size_bytes for each in guessed)
            sentences.append(
                f"The program does not show the role of {shortened([each.path for each in guessed])} ({size_bytes:,} "
                f"bytes); by its shape it counts as {role.value}. If that is wrong, import again with --role "
                f"'{guessed[0].path}=...'."
            )
    nameless = sum(not leaf.has_name for leaf in leaves)
    if nameless:
        sentences.append(
            f"The program does not name {nameless} of its {len(leaves)} arguments, so their roles are inferred from "
            "shapes and updates."
        )
    return sentences
