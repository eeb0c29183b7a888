"""Store layer state, such as a KV cache, as one array per layer, and unroll the loop over layers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import jax

from memprof.analysis.records.categories import Role
from memprof.analysis.records.rewrites import Unrolled
from memprof.sources.jax.checkpointing.unrolled import in_layers, stacked, updated_by_loops
from memprof.sources.jax.compile import traced_jaxpr
from memprof.sources.jax.tracing.jitting import framework_of, is_array
from memprof.sources.jax.tracing.rebinding import Bound, pasted
from memprof.sources.jax.tracing.step import StepSpec
from memprof.studies.changes.change import Change, Step
from memprof.studies.changes.own_jit import applied_code, has_shardings, name_of_step
from memprof.workloads.intents import Aim, Intent

_MIN_SHARE = 0.02  # of the footprint
_STATE = (Role.KV_CACHE, Role.OTHER_STATE)


def layered_states(step: Step) -> Iterator[Change]:
    """Yield the step with one array per layer, if a loop over layers reads and writes one array of all layers."""
    spec = step.spec
    has_state = bool(step.report.program.loops) and any(leaf.role in _STATE for leaf in step.report.arguments)
    if step.is_composed or not has_state or framework_of(spec) == "flax" or has_shardings(spec.fn):
        return
    leaves = _leaves(spec)
    loops = {leaves[number]: layers for number, layers in updated_by_loops(traced_jaxpr(spec, step.target)).items()}
    positions = sorted({position for position, _ in loops if isinstance(position, int)})
    held = [leaf for leaf in step.report.arguments if leaf.position in positions and leaf.role in _STATE]
    num_layers = set(loops.values())
    others = [
        leaf
        for position in positions
        for number, leaf in enumerate(jax.tree.leaves(spec.args[position]))
        if is_array(leaf) and leaf.shape and leaf.shape[0] in num_layers and (position, number) not in loops
    ]
    code = applied_code(spec, "memprof.apply(memprof.Unrolled())")
    if (
        len(num_layers) != 1
        or others  # `in_layers` would split them, too
        or sum(step.report.device_bytes(leaf) for leaf in held) < _MIN_SHARE * step.report.unpressed.footprint_bytes
        or code is None
    ):
        return
    (number,) = num_layers
    names = [_name(spec, position, len(positions)) for position in positions]
    lines = "".join(f"{name} = memprof.in_layers({name}, {number})\n" for name in names)
    code = f"{code}\n\n# once, before the first call; the step returns it in the same form\n{lines}"
    given = [Bound(name=name, value=spec.args[position]) for name, position in zip(names, positions, strict=True)]
    with pasted(code, [Bound(name=name_of_step(spec), value=spec.fn), *given]) as values:
        changed = values[name_of_step(spec)]
        args = dict(zip(positions, (values[name] for name in names), strict=True))
    yield Change(
        rule="copied_cache",
        intent=Intent(aim=Aim.SPLIT_CACHE),
        what="Store the cache of each layer in a separate array, and call the layers one after another",
        evidence=f"a loop over {number} layers reads and writes {sum(leaf.size_bytes for leaf in held):,} bytes of"
        f" {', '.join(names)}",
        cost="a longer compile: the program has a copy of each layer",
        code=code,
        spec=replace(spec, fn=changed, args=tuple(args.get(place, arg) for place, arg in enumerate(spec.args))),
        on_cpu=replace(spec, fn=_with_whole_arrays(changed, positions, number)),
        rewrite=Unrolled(),
    )


def _leaves(spec: StepSpec) -> list[tuple[int | str, int]]:
    """Return, for each input of the step's jaxpr, its argument and the leaf's number in it."""
    given: list[tuple[int | str, Any]] = [*enumerate(spec.args), *sorted(spec.kwargs.items())]
    return [
        (place, number)
        for place, arg in given
        if place not in spec.static_argnums
        for number, leaf in enumerate(jax.tree.leaves(arg))
        if is_array(leaf)
    ]


def _name(spec: StepSpec, position: int, num_positions: int) -> str:
    """Return the name of an argument in code: `cache`, or that of the parameter if there are several."""
    if num_positions == 1:
        return "cache"
    return list(inspect.signature(spec.fn).parameters)[position]


def _with_whole_arrays(changed: Callable[..., Any], positions: list[int], num_layers: int) -> Callable[..., Any]:
    """Return the changed step with the arguments and results of the unchanged one."""

    def step(*args: Any, **kwargs: Any) -> Any:
        given = [in_layers(arg, num_layers) if place in positions else arg for place, arg in enumerate(args)]
        return stacked(changed(*given, **kwargs))

    return step
