"""The arguments of consecutive steps on their devices: new values, and results of the previous step."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, chain, groupby
from typing import Any

import jax
import numpy as np

from memprof.analysis.records.capture import ArgumentLeaf
from memprof.analysis.records.categories import Role
from memprof.errors import MemprofError
from memprof.sources.jax.compile import CompiledStep
from memprof.sources.jax.tracing.jitting import is_array
from memprof.sources.jax.tracing.step import Feed, StepSpec


class Arguments:
    """The arguments of consecutive steps.

    If consecutive results have the shapes and dtypes of an argument's leaves, they replace it in the next step, as
    `state` does in `state, metrics = step(state, batch)`. This applies only to arguments that are donated or hold
    parameters, optimizer state or a KV cache, not to a batch or a learning rate that happens to match a result. All
    other arguments are new in each step.
    """

    def __init__(self, spec: StepSpec, compiled: CompiledStep) -> None:
        """Determine which arguments may come from a result.

        Raises:
            MemprofError: the step's arguments are shapes without values.
        """
        self._abstract, self._structure = jax.tree.flatten(compiled.arguments)
        self._spans = _argument_spans(spec, compiled)
        self._new_leaves = (
            _from_feed(spec.feed) if spec.feed is not None else _own_arguments(spec, compiled, self._spans)
        )
        places = _places_in_memory(self._abstract, self._structure, compiled)
        self._places_in_memory = [_one_if_all_are(places[span]) for span in self._spans]
        self._is_sharded = compiled.planned.lowered.target.topology.num_devices > 1
        self._host = jax.local_devices(backend="cpu")[0]
        leaves = compiled.planned.lowered.arguments
        self._changes = [any(map(_changes, leaves[span])) for span in self._spans]
        self._places: dict[int, slice] | None = None
        self._next: dict[int, list[Any]] = {}

    def prepare(self, step: int) -> None:
        """Put all arguments of a step on the device in advance."""
        self._next = dict(enumerate(self._of_step(step)))

    def of_step(self, step: int) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Return all positional and keyword arguments of a step, on the device."""
        args, kwargs = jax.tree.unflatten(self._structure, chain.from_iterable(self._of_step(step)))
        return args, kwargs

    def take(self, result: Any) -> None:
        """Keep the parts of a step's result that are arguments of the next step."""
        results = jax.tree.leaves(result)
        if self._places is None:
            self._places = self._find_places(results)
        self._next = {number: results[place] for number, place in self._places.items()}
        if self._is_sharded:  # XLA may choose other shardings for results than for arguments; otherwise this is a no-op
            self._next = {number: self._placed(leaves, number) for number, leaves in self._next.items()}

    def bytes_on(self, device: jax.Device) -> int:
        """Return the bytes on one device of this process of the arguments that `prepare` made."""
        shards = chain.from_iterable(leaf.addressable_shards for leaf in chain.from_iterable(self._next.values()))
        return sum(shard.data.nbytes for shard in shards if shard.device == device)

    def _of_step(self, step: int) -> list[list[Any]]:
        kept, self._next = self._next, {}  # no other reference to a donated argument may exist
        return [kept[number] if number in kept else self._new(number, step) for number in range(len(self._spans))]

    def _find_places(self, results: list[Any]) -> dict[int, slice]:
        """Find the results that replace each argument: the first ones with equal shapes and dtypes."""
        places: dict[int, slice] = {}
        taken: set[int] = set()
        for number, span in enumerate(self._spans):
            wanted = [_shape_and_dtype(leaf) for leaf in self._abstract[span]]
            if not wanted or not self._changes[number]:
                continue
            for first in range(len(results) - len(wanted) + 1):
                place = range(first, first + len(wanted))
                if taken.isdisjoint(place) and [_shape_and_dtype(results[index]) for index in place] == wanted:
                    places[number] = slice(place.start, place.stop)
                    taken.update(place)
                    break
        return places

    def _new(self, number: int, step: int) -> list[Any]:
        with jax.default_device(self._host):
            leaves = self._new_leaves(number, step)
        return self._placed(leaves, number)

    def _placed(self, leaves: list[Any], number: int) -> list[Any]:
        placed: list[Any] = jax.block_until_ready(jax.device_put(leaves, self._places_in_memory[number]))
        return placed


def _argument_spans(spec: StepSpec, compiled: CompiledStep) -> list[slice]:
    """Return the leaves of each argument: as the feed counts arguments, otherwise by their names."""
    if spec.feed is not None:
        sizes = [len(jax.tree.leaves(argument)) for argument in compiled.arguments[0]]
    else:
        owners = (re.split(r"[.\[]", leaf.path, maxsplit=1)[0] for leaf in compiled.planned.lowered.arguments)
        sizes = [len(list(leaves)) for _, leaves in groupby(owners)]
    ends = list(accumulate(sizes))
    return [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]


def _from_feed(feed: Feed) -> Callable[[int, int], list[Any]]:
    return lambda number, step: jax.tree.leaves(feed.argument(number, step))


def _own_arguments(spec: StepSpec, compiled: CompiledStep, spans: Sequence[slice]) -> Callable[[int, int], list[Any]]:
    """Return the given arguments of a step without a feed, copied for each step because it may donate them.

    Raises:
        MemprofError: the arguments are shapes without values.
    """
    given = jax.tree.leaves(compiled.given)
    if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in given):
        raise MemprofError(
            f"{spec.label} cannot be run, only compiled: its arguments are shapes. Give the StepSpec arrays, or a feed"
        )

    def copied(number: int, step: int) -> list[Any]:
        return [jax.numpy.array(leaf, copy=True) if is_array(leaf) else leaf for leaf in given[spans[number]]]

    return copied


def _places_in_memory(abstract: Sequence[Any], structure: Any, compiled: CompiledStep) -> list[Any]:
    """Return the sharding or device of each leaf."""
    own = [getattr(leaf, "sharding", None) or compiled.devices[0] for leaf in abstract]
    if compiled.planned.lowered.target.topology.num_devices == 1:
        return own
    chosen = structure.flatten_up_to(compiled.executable.input_shardings)  # None: the program does not use it
    return [one or other for one, other in zip(chosen, own, strict=True)]


def _one_if_all_are(places: list[Any]) -> Any:
    """Return the place of an argument's leaves: a single one if all are equal, which makes the transfer faster."""
    return places[0] if len(set(places)) == 1 else places


def _changes(leaf: ArgumentLeaf) -> bool:
    """Whether steps change a leaf."""
    return leaf.donated or leaf.role in (Role.PARAMS, Role.OPTIMIZER_STATE, Role.KV_CACHE)


def _shape_and_dtype(leaf: Any) -> tuple[Any, Any]:
    return np.shape(leaf), getattr(leaf, "dtype", None)
