"""Put checkpoints with one of JAX's policies around a step's layers, or around functions that produce many bytes.

If the function is found in the user's program, the code is executed there. Otherwise the same checkpoints are put
around the layer's blocks (see `sources/jax/checkpointing`), and the code names its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path

from memprof.sources.jax.tracing.rebinding import pasted_anew
from memprof.sources.jax.tracing.step import StepSpec
from memprof.studies.changes.change import Change, Step
from memprof.studies.changes.checkpoint_code import code_by_place, code_of, policy_of_jax
from memprof.studies.changes.checkpoint_places import (
    Place,
    around_blocks,
    best_place,
    called_in_each_block,
    written_by_place,
)
from memprof.studies.changes.own_jit import applied_code, step_of_code
from memprof.workloads.intents import Aim, Intent

_POLICIES = {  # in words: the values to keep, with the least recomputation first
    "dots_saveable": "the results of matrix products",
    "dots_with_no_batch_dims_saveable": "the results of matrix products with weights",
    "nothing_saveable": "their inputs alone",
}
_Made = tuple[str, StepSpec, Callable[[], AbstractContextManager[object]]]


def recomputations(step: Step) -> Iterator[Change]:
    """Yield the step with checkpoints in their best place, one change for each policy."""
    place = None if step.is_built_in else best_place(step.spec, step.target, may_be_beside=True)
    if place is None:
        return
    has_loops = place.is_loop or any(layer.is_loop for layer in place.layers)
    for policy, kept in _POLICIES.items():
        made = _change(step, place, policy)
        if made is None:
            return
        code, spec, around = made
        yield Change(
            rule=f"recompute_{policy.removesuffix('_saveable')}",
            intent=Intent(aim=Aim.RECOMPUTE_SCAN if has_loops else Aim.RECOMPUTE_MODULES),
            what=f"Checkpoint {_title(place)}, and keep {kept}",
            evidence=_evidence(place),
            cost="recomputes the rest of the forward pass",
            code=code,
            spec=spec,
            around=around,
        )


def _title(place: Place) -> str:
    """Return the checkpointed functions in words."""
    return " and ".join([*(each.title for each in place.beside), _title_of_layers(place)])


def _title_of_layers(place: Place) -> str:
    if not place.is_repeated:
        names = " and ".join(layer.title for layer in place.layers)
        return f"each call of {names}" if place.num_blocks > 1 else names
    if place.is_loop:
        return "the body of each scan"
    if place.num_blocks > 1:
        return "the layers"
    return place.layers[0].title if place.layers else "the loss"


def _evidence(place: Place) -> str:
    plural = "iterations of scans" if place.is_loop else "layers" if place.is_repeated else "calls"
    kind = "function" if place.num_blocks == 1 else plural
    places = [(each.name, each.file, each.line) for each in place.layers]
    places += [(each.title, each.file, each.line) for each in place.beside]
    where = ", ".join(f"{name} ({Path(file).name}:{line})" for name, file, line in places)
    idle = f"{place.num_idle} other {'calls are' if place.num_idle > 1 else 'call is'} not differentiated"
    return (
        f"the backward pass goes through {place.num_blocks:,} {kind}"
        + (f"; {where}" if where else "")
        + (f"; {idle}, so the checkpoint changes nothing there" if place.num_idle else "")
        + (f"; {place.num_nested} of them within another checkpoint" if place.num_nested else "")
    )


def _change(step: Step, place: Place, policy: str) -> _Made | None:
    """Return the code, the changed step, and the context to trace it in; None if no code would make this change."""
    made = _change_of_layers(step, place, policy)
    if made is None or not place.beside:
        return made
    code, spec, around_layers = made
    of_functions = code_of(place.beside, policy_of_jax(policy))

    @contextmanager
    def around() -> Iterator[None]:
        with around_layers(), pasted_anew(of_functions, [each.bound for each in place.beside]):
            yield

    is_one_file = all(code.startswith(f"# at the top of {Path(each.file).name}\n") for each in place.beside)
    known = {each for each in code.splitlines() if is_one_file and each.startswith(("import", "from"))}
    more = [each for each in of_functions.splitlines() if each not in known]
    return "\n".join([code.rstrip("\n"), *more]), spec, around


def _change_of_layers(step: Step, place: Place, policy: str) -> _Made | None:
    spec, layers = step.spec, place.layers
    if place.written is not None:
        code = code_of(place.written, policy_of_jax(policy))
        return code, spec, partial(pasted_anew, code, [each.bound for each in place.written])
    functions = called_in_each_block(spec, step.target, layers)
    if functions and all(each.is_local for each in functions):
        code = code_by_place([*map(written_by_place, functions)], policy_of_jax(policy))
        return code, spec, partial(around_blocks, layers, policy)
    applied = applied_code(spec, f"memprof.apply(jax.checkpoint_policies.{policy})")
    if applied is None:
        return None
    head, line = applied.rsplit("\n\n", 1)
    imports = head if "import jax" in head.splitlines() else f"import jax\n{head}"
    code = f"{imports}\n\n# memprof found no function of yours that contains only the repeated part\n{line}\n"
    return code, step_of_code(spec, code), nullcontext
