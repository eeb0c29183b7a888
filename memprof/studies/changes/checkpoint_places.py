"""Choose where to put a step's checkpoints, by the estimated peak of the traced step with them.

The default is the layers: the functions that make its repetitions, the bodies of its scans or, without either, the
loss. Other functions that produce many bytes replace or join the layers if the estimate is clearly lower, such as U-Net
blocks of different shapes, a kernel function that is called once, or the blocks of a model that runs twice. Each choice
takes a trace but no compile.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax.extend import core

from memprof.analysis.records.capture import Target
from memprof.sources.jax.checkpointing.apply import checkpointed, differentiated
from memprof.sources.jax.checkpointing.block_programs import blocks_of
from memprof.sources.jax.checkpointing.blocks import block_loops, find_repeated
from memprof.sources.jax.checkpointing.evaluation import without_calls
from memprof.sources.jax.checkpointing.layers import Layer, calls_counted, large_functions, layers_of
from memprof.sources.jax.checkpointing.liveness import estimated_peaks
from memprof.sources.jax.compile import traced_jaxpr
from memprof.sources.jax.tracing import jit_adapter
from memprof.sources.jax.tracing.flops import count_flops, recomputed_flops
from memprof.sources.jax.tracing.rebinding import Bound, find_bound, pasted_anew
from memprof.sources.jax.tracing.step import StepSpec
from memprof.studies.changes.checkpoint_code import Written, code_of, forms_of

CLEARLY = 0.95  # an estimate of at most this share of another one is clearly lower
_MANY_LAYERS = 4
_MAX_FUNCTIONS = 5  # that replace the layers or are added to them; each takes one or two traces
_MAX_ADDED = 2  # functions


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the checkpoints of a step go.

    Attributes:
        layers: the functions to put checkpoints around; empty: the loss as a whole.
        written: code that takes effect, by function; None if no code around them does.
        beside: code for other functions, if there is none for the blocks.
        has_blocks: whether they make the blocks of the step (see `blocks.py`).
        is_loop: whether these blocks are iterations of scans.
        is_repeated: whether these are layers, not the loss as a whole.
        num_blocks: number of calls or iterations that the backward pass goes through.
        num_idle: number of other calls, where the checkpoint changes nothing.
        num_nested: number of these blocks that are within another checkpoint.
        recomputed_flops: FLOPs of one step that are recomputed, with the checkpoints that were there.
        peak_bytes: the estimate of the step with the checkpoints.
    """

    layers: tuple[Layer, ...]
    written: tuple[Written, ...] | None
    has_blocks: bool
    is_loop: bool
    is_repeated: bool
    num_blocks: int
    num_idle: int
    num_nested: int
    recomputed_flops: int
    peak_bytes: int
    beside: tuple[Written, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Traced:
    """A traced step.

    Attributes:
        num_inside: number of checkpoints in the functions that it differentiates.
        num_nested: number of those that are within another checkpoint.
        num_idle: number of checkpoints that the backward pass does not go through.
        num_differentiated: number of those that it goes through.
        recomputed_flops: FLOPs of one step that are recomputed.
    """

    num_inside: int
    num_nested: int
    num_idle: int
    num_differentiated: int
    recomputed_flops: int
    peak_bytes: int


def best_place(
    spec: StepSpec, target: Target, *, enough_bytes: int | None = None, may_be_beside: bool = False
) -> Place | None:
    """Return the place with the lowest estimate; None if the step differentiates nothing in reverse mode.

    Args:
        enough_bytes: the search ends at an estimate of at most this size: more checkpoints would recompute more. None:
            it ends where no other place saves another 5% of the unchanged step's peak, or 10% with checkpoints within
            other checkpoints.
        may_be_beside: whether functions may be added to blocks for which there is no code.
    """
    places = _Places(spec, target)
    least_bytes = 0 if enough_bytes is not None else round((1 - CLEARLY) * places.before.peak_bytes)
    enough_bytes = enough_bytes or 0

    def highest_below(peak_bytes: int) -> int:
        """Return the highest estimate that is clearly below another one."""
        return min(int(CLEARLY * peak_bytes), peak_bytes - least_bytes)

    functions = [without_calls(closed) for closed in places.differentiated]
    layers = list({each.name: each for closed in functions for each in layers_of(closed)}.values())
    changed = [closed for closed in functions if not layers or layers_of(closed)]
    num_blocks = sum(block.count for closed in changed for block in blocks_of(closed))
    if not num_blocks:
        return None
    is_loop = any(find_repeated(each.jaxpr) is None and bool(block_loops(each.jaxpr)) for each in changed)
    best = places.of_layers(layers, num_blocks, is_loop=is_loop)
    if best.peak_bytes <= enough_bytes:
        return best
    large = {each.key: each for closed in functions for each in large_functions(closed)}
    # If the layers have checkpoints already, others may go around functions within them.
    is_there_already = best.num_nested > 0 and best.peak_bytes > highest_below(places.before.peak_bytes)
    known_layers = [] if best.written is None or is_there_already else layers
    tried = {each.key for each in layers if is_there_already}
    candidates = [each for each in large.values() if each.key not in tried]
    others = [each for each in candidates if not _is_no_better(each, known_layers, large)][:_MAX_FUNCTIONS]
    found = [place for each in others if (place := places.of_functions([each])) is not None]

    def extended(place: Place) -> Place:
        """Add functions to a place, each time one that lowers the estimate most."""
        for _ in range(_MAX_ADDED):
            if place.peak_bytes <= enough_bytes:
                break
            wider = [(*place.layers, *each.layers) for each in found if not {*each.layers} & {*place.layers}]
            tried = [places.of_functions(each) for each in wider if not _are_nested(each, large)]
            most = highest_below(place.peak_bytes)
            lower = [each for each in tried if each and each.peak_bytes <= most - least_bytes * bool(each.num_nested)]
            if not lower:
                break
            place = _lowest(lower)
        return place

    def extended_blocks(place: Place) -> Place:
        """Add functions outside of the blocks, each time one that lowers the estimate most."""
        outside = [each for each in others if not _is_no_better(each, layers, large)]
        added: list[Layer] = []
        while len(added) < _MAX_ADDED and place.peak_bytes > enough_bytes:
            wider = [(each, places.beside(place, each)) for each in outside if not _are_nested([each, *added], large)]
            lower = {made: each for each, made in wider if made and made.peak_bytes <= highest_below(place.peak_bytes)}
            if not lower:
                break
            place = _lowest([*lower])
            added.append(lower[place])
            outside.remove(lower[place])
        return place

    has_code = best.written is not None
    with_layers = extended(best) if has_code else extended_blocks(best) if may_be_beside else best
    is_enough = with_layers.peak_bytes <= enough_bytes
    most = highest_below(with_layers.peak_bytes)
    if is_enough or not found or _lowest(found).peak_bytes > most:
        return with_layers
    without_layers = extended(_lowest(found))
    return without_layers if without_layers.peak_bytes <= most else with_layers


def _lowest(places: Sequence[Place]) -> Place:
    """Return the place with the lowest estimate; of similar ones, that with the least recomputation."""
    lowest = min(each.peak_bytes for each in places)
    similar = (each for each in places if CLEARLY * each.peak_bytes <= lowest)
    return min(similar, key=lambda each: (each.recomputed_flops, each.num_nested, each.peak_bytes))


class _Places:
    """Places for the checkpoints of a step. Each takes a trace of the step, and is traced only once.

    Attributes:
        before: the step without new checkpoints.
        differentiated: the functions that it differentiates.
    """

    def __init__(self, spec: StepSpec, target: Target) -> None:
        self._spec, self._target = spec, target
        self.before, self.differentiated = self._traced()
        self._around: dict[tuple[tuple[str, str], ...], tuple[tuple[Written, ...], _Traced] | None] = {}

    def of_layers(self, layers: Sequence[Layer], num_blocks: int, *, is_loop: bool) -> Place:
        """Return the place around the layers."""
        is_single_block = num_blocks == 1 and not is_loop
        least = sum(1 if layer.is_loop else layer.count for layer in layers)
        with around_blocks(layers, "nothing_saveable"):
            around_all, _ = self._traced()
        for functions in _from_innermost(layers):
            found = self._around_functions(functions, least)
            if found is None or CLEARLY * found[1].peak_bytes > around_all.peak_bytes:
                continue
            # They make more than the blocks, such as layers of another model.
            makes_more = found[1].peak_bytes <= CLEARLY * around_all.peak_bytes
            place = self._place(functions, *found)
            num_calls = max(place.num_blocks, 1)
            return replace(
                place,
                has_blocks=not makes_more and (num_calls == 1 or not is_single_block),
                is_loop=is_loop and not makes_more,
                is_repeated=not is_single_block,
                num_blocks=num_calls if is_single_block or makes_more else num_blocks,
            )
        return Place(
            layers=tuple(layers),
            written=None,
            has_blocks=True,
            is_loop=is_loop,
            is_repeated=True,
            num_blocks=num_blocks,
            num_idle=0,
            num_nested=0,
            recomputed_flops=around_all.recomputed_flops,
            peak_bytes=around_all.peak_bytes,
        )

    def of_functions(self, functions: Sequence[Layer]) -> Place | None:
        """Return the place around some functions; None if no code puts a differentiated checkpoint there."""
        found = self._around_functions(functions, len(functions))
        place = None if found is None else self._place(functions, *found)
        return None if place is None or place.num_blocks < 1 else place

    def beside(self, place: Place, function: Layer) -> Place | None:
        """Return a place around blocks with another function; None if no code puts a checkpoint around it."""
        with around_blocks(place.layers, "nothing_saveable"):
            found = self._in_effective_form([function], place.beside)
        if found is None:
            return None
        written, after = found
        return replace(place, beside=written, recomputed_flops=after.recomputed_flops, peak_bytes=after.peak_bytes)

    def _place(self, functions: Sequence[Layer], written: tuple[Written, ...], after: _Traced) -> Place:
        before = self.before
        return Place(
            layers=tuple(functions),
            written=written,
            has_blocks=False,
            is_loop=False,
            is_repeated=False,
            num_blocks=after.num_differentiated - before.num_differentiated,
            num_idle=max(after.num_idle - before.num_idle, 0),
            num_nested=after.num_nested - before.num_nested,
            recomputed_flops=after.recomputed_flops,
            peak_bytes=after.peak_bytes,
        )

    def _around_functions(self, functions: Sequence[Layer], least: int) -> tuple[tuple[Written, ...], _Traced] | None:
        """Return the code that takes effect in the user's program, and the step traced with it.

        Args:
            least: minimum number of checkpoints that the code must add. It excludes a single checkpoint around all
                layers.

        Returns:
            None if a function cannot be assigned from outside, or no form takes effect.
        """
        key = tuple(each.key for each in functions)
        if key not in self._around:
            self._around[key] = self._in_effective_form(functions)
        found = self._around[key]
        has_all = found is not None and found[1].num_inside >= self.before.num_inside + least
        return found if has_all else None

    def _in_effective_form(
        self, functions: Sequence[Layer], others: Sequence[Written] = ()
    ) -> tuple[tuple[Written, ...], _Traced] | None:
        """Return the first form of the code that adds a checkpoint.

        Args:
            others: code for other functions.
        """
        found = [(layer, find_bound(layer.name, layer.file)) for layer in functions]
        if not found or any(bound is None for _, bound in found):
            return None
        forms = [
            (*others, *(_written(layer, bound, number) for layer, bound in found if bound is not None))
            for number in range(2)
        ]
        for code, written in {code_of(each, ""): each for each in forms}.items():  # a function may have only one form
            try:
                with pasted_anew(code, [each.bound for each in written]):
                    after, _ = self._traced()
            except Exception:  # raised by the user's code with ours in it
                continue
            if after.num_inside > self.before.num_inside + len(others):
                return written, after
        return None

    def _traced(self) -> tuple[_Traced, list[core.ClosedJaxpr]]:
        """Trace the step; also return the functions that it differentiates."""
        with differentiated() as functions:
            traced = traced_jaxpr(self._spec, self._target)
        jaxpr = traced.jaxpr
        inside = [each for closed in functions for each in _checkpoints_in(closed.jaxpr)]
        num_nested = sum(1 for each in inside for _ in _checkpoints_in(each.params["jaxpr"]))
        differentiated_flags = [bool(each.params.get("differentiated")) for each in _checkpoints_in(jaxpr)]
        found = _Traced(
            num_inside=len(inside),
            num_nested=num_nested,
            num_idle=differentiated_flags.count(False) - num_nested,  # nested ones are differentiated later
            num_differentiated=differentiated_flags.count(True),
            recomputed_flops=recomputed_flops(count_flops(traced)),
            peak_bytes=min(estimated_peaks(jaxpr)),
        )
        return found, functions


def _from_innermost(layers: Sequence[Layer]) -> Iterator[list[Layer]]:
    """Yield the functions of layers, then their callers: the innermost function may not contain the whole layer."""
    for depth in range(max((len(each.around) for each in layers), default=-1) + 1):
        yield [(each, *each.around)[min(depth, len(each.around))] for each in layers]


def _written(layer: Layer, bound: Bound, number: int) -> Written:
    """Return a function in one of the forms of its code, by the form's number."""
    forms = forms_of(bound.value if bound.method else None, is_in_haiku=layer.is_in_haiku)
    return Written(
        title=layer.title,
        definition=bound.name,
        target=f"{bound.name}.{bound.method}" if bound.method else bound.name,
        file=layer.file,
        line=layer.line,
        is_loop=layer.is_loop,
        form=forms[min(number, len(forms) - 1)],
        bound=bound,
    )


def written_by_place(layer: Layer) -> Written:
    """Return a function that is defined within the step, so that it exists only within a call."""
    name, forms = layer.own_name, forms_of(None, is_in_haiku=layer.is_in_haiku)
    return Written(
        title=layer.title,
        definition=name,
        target=name,
        file=layer.file,
        line=layer.line,
        is_loop=layer.is_loop,
        form=forms[0] if layer.is_loop else forms[-1],
    )


def around_blocks(layers: Sequence[Layer], policy: str) -> AbstractContextManager[object]:
    """Return a context in which the blocks of a traced step have checkpoints.

    Args:
        layers: if not empty, only functions with layers have checkpoints.
    """
    policy_function: Any = getattr(jax.checkpoint_policies, policy)
    return checkpointed(policy_function, chosen=_has_layers) if layers else checkpointed(policy_function)


def _has_layers(closed: core.ClosedJaxpr) -> bool:
    return bool(layers_of(closed))


def called_in_each_block(spec: StepSpec, target: Target, layers: Iterable[Layer]) -> list[Layer]:
    """Return, for each layer, the outermost function that runs at most one block per call.

    It contains a whole block; a function further inside may not.

    Returns:
        The functions; empty if a layer has none.
    """
    with jit_adapter.traced_anew(), calls_counted() as calls:
        traced_jaxpr(spec, target)

    def whole(layer: Layer) -> Layer | None:
        least = 1 if layer.is_loop else layer.count
        return next((each for each in layer.from_outermost if calls[each.key] >= least), None)

    found = [whole(each) for each in layers]
    return [each for each in found if each is not None] if None not in found else []


def _is_no_better(function: Layer, layers: Sequence[Layer], large: Mapping[tuple[str, str], Layer]) -> bool:
    """Whether a checkpoint around a function is known to save no more than the checkpoints around the layers.

    A part of a layer saves less than the layer, and a function around many layers recomputes them all at once. So in a
    transformer, only functions outside its layers are traced.
    """
    many = [each for each in layers if each.is_loop or each.count >= _MANY_LAYERS]
    around = {key for each in many if each.key in large for key in large[each.key].callers}
    known = {each.key for each in many}
    return function.key in {each.key for each in layers} | around or not known.isdisjoint(function.callers)


def _are_nested(layers: Sequence[Layer], large: Mapping[tuple[str, str], Layer]) -> bool:
    """Whether one of some functions calls another."""
    callers = [large[each.key].callers for each in layers if each.key in large]
    return any(each.key in of_one for each in layers for of_one in callers)


def _checkpoints_in(jaxpr: core.Jaxpr) -> Iterable[Any]:
    for each in jaxpr.eqns:
        if each.primitive.name in jit_adapter.CHECKPOINTS:
            yield each
        for inner in core.jaxprs_in_params(each.params):
            yield from _checkpoints_in(inner)
