"""The arguments of one step after another, on the devices that it runs on: new ones, and results of the step before."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, chain, groupby
from typing import Any

import jax
import numpy as np

from memprof.analysis.records.capture import ArgumentLeaf
from memprof.analysis.records.categories import Role
from memprof.capture.compile import CompiledStep
from memprof.capture.tracing.jitting import is_array
from memprof.capture.tracing.step import Feed, StepSpec
from memprof.errors import MemprofError


class Arguments:
    """The arguments of one step after another.

    Results with the shapes and dtypes of an argument's leaves, one after the other, take its place in the next step,
    as `state` does in `state, metrics = step(state, batch)`. That goes for arguments that are donated, or hold
    parameters or optimizer state; a batch or a learning rate that happens to look like a result is left alone. All
    others are new in each step.
    """

    def __init__(self, spec: StepSpec, compiled: CompiledStep) -> None:
        """Finds out which arguments may come from a result.

        Raises:
            MemprofError: the step has no real arguments.
        """
        self._abstract, self._structure = jax.tree.flatten(compiled.arguments)
        self._spans = _argument_spans(spec, compiled)
        self._new_leaves = (
            _from_feed(spec.feed) if spec.feed is not None else _own_arguments(spec, compiled, self._spans)
        )
        places = _places_in_memory(self._abstract, self._structure, compiled)
        self._places_in_memory = [_one_if_all_are(places[span]) for span in self._spans]
        self._is_sharded = compiled.lowered.target.topology.num_devices > 1
        self._host = jax.local_devices(backend="cpu")[0]
        leaves = compiled.lowered.arguments
        self._changes = [any(map(_changes, leaves[span])) for span in self._spans]
        self._places: dict[int, slice] | None = None
        self._next: dict[int, list[Any]] = {}

    def prepare(self, step: int) -> None:
        """Put all arguments of a step on the device, ahead of it."""
        self._next = dict(enumerate(self._of_step(step)))

    def of_step(self, step: int) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """All arguments of a step, positional and by keyword, on the device."""
        args, kwargs = jax.tree.unflatten(self._structure, chain.from_iterable(self._of_step(step)))
        return args, kwargs

    def take(self, result: Any) -> None:
        """Keep of a step's result what goes into the next one."""
        results = jax.tree.leaves(result)
        if self._places is None:
            self._places = self._find_places(results)
        self._next = {number: results[place] for number, place in self._places.items()}
        if self._is_sharded:  # XLA may have chosen other shardings for results than for arguments; else nothing moves
            self._next = {number: self._placed(leaves, number) for number, leaves in self._next.items()}

    def bytes_on(self, device: jax.Device) -> int:
        """What a device of this process holds of the arguments that `prepare` has made."""
        shards = chain.from_iterable(leaf.addressable_shards for leaf in chain.from_iterable(self._next.values()))
        return sum(shard.data.nbytes for shard in shards if shard.device == device)

    def _of_step(self, step: int) -> list[list[Any]]:
        kept, self._next = self._next, {}  # what the step donates must be in nobody's hands but its own
        return [kept[number] if number in kept else self._new(number, step) for number in range(len(self._spans))]

    def _find_places(self, results: list[Any]) -> dict[int, slice]:
        """Which results take the place of which argument: the first ones that look like it."""
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
    """The leaves of each argument: of those that a feed counts, else of those that the user knows by name."""
    if spec.feed is not None:
        sizes = [len(jax.tree.leaves(argument)) for argument in compiled.arguments[0]]
    else:
        owners = (re.split(r"[.\[]", leaf.path, maxsplit=1)[0] for leaf in compiled.lowered.arguments)
        sizes = [len(list(leaves)) for _, leaves in groupby(owners)]
    ends = list(accumulate(sizes))
    return [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]


def _from_feed(feed: Feed) -> Callable[[int, int], list[Any]]:
    return lambda number, step: jax.tree.leaves(feed.argument(number, step))


def _own_arguments(spec: StepSpec, compiled: CompiledStep, spans: Sequence[slice]) -> Callable[[int, int], list[Any]]:
    """The arguments that a step without a feed was given, copied for each step: it may donate them.

    Raises:
        MemprofError: they are shapes alone.
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
    """Where each leaf is to lie."""
    own = [getattr(leaf, "sharding", None) or compiled.devices[0] for leaf in abstract]
    if compiled.lowered.target.topology.num_devices == 1:
        return own
    chosen = structure.flatten_up_to(compiled.executable.input_shardings)  # None: the program does not take it
    return [one or other for one, other in zip(chosen, own, strict=True)]


def _one_if_all_are(places: list[Any]) -> Any:
    """The place of the leaves of an argument: one where it is that of all, which is put there faster."""
    return places[0] if len(set(places)) == 1 else places


def _changes(leaf: ArgumentLeaf) -> bool:
    """Whether a leaf is something that steps change."""
    return leaf.donated or leaf.role in (Role.PARAMS, Role.OPTIMIZER_STATE, Role.KV_CACHE)


def _shape_and_dtype(leaf: Any) -> tuple[Any, Any]:
    return np.shape(leaf), getattr(leaf, "dtype", None)
