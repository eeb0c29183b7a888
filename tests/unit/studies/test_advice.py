"""Each rule of advice on reports by hand: one where it must speak, and two that look alike where it must be silent.

Attention, families of arrays and the end of the backward pass are known by data flow: see `test_patterns.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

import jax.numpy as jnp
import pytest
from report_builder import CPU, H100, buffer, node, report

from memprof.analysis.records.capture import ArgumentLeaf, Target, Topology
from memprof.analysis.records.categories import Category, Phase, Role
from memprof.analysis.records.live_buffer import LiveBuffer
from memprof.analysis.records.report import CollectiveTraffic, Loop, Report, Schedule, ScopedOperations
from memprof.analysis.records.timeline import LiveChange, PhaseSpan, Timeline
from memprof.studies.advice.advice import Advice, Proposal
from memprof.studies.advice.advise import RULES, advise, upper_bounds
from memprof.studies.advice.meshes import gather_in_chunks
from memprof.studies.advice.recomputation import _ladder, _Rung
from memprof.studies.advice.state import _factored_bytes, donate_state
from memprof.studies.advice.what_if import changed_at_peak
from memprof.workloads.build import plan
from memprof.workloads.composition import parse_techniques
from memprof.workloads.intents import Aim, Intent, means_to

_KB = (16, 16)  # 1,024 bytes of float32
_FORWARD, _BACKWARD = "jit(step)/jvp(Net)/dot_general", "jit(step)/transpose(jvp(Net))/dot_general"


_EIGHT_GPUS = replace(H100, topology=Topology(num_devices=8))


def _ordered(target: Target, *, saved_bytes: int = 1024, num_waiting: int = 2, is_fenced: bool = False) -> Report:
    """Four arrays of 1,024 bytes are live, some only because of the order."""
    arrays = [_passes(_KB, "f32") for _ in range(4)]
    made = report(arrays, target=target)
    return replace(
        made,
        program=replace(made.program, has_barriers=is_fenced),
        schedule=Schedule(
            bound_bytes=1024,
            other_bytes=made.live_peak_bytes - saved_bytes,
            waiting=tuple(arrays[:num_waiting]),
            is_fenced=is_fenced,
        ),
    )


def _rules(made: Report) -> set[str]:
    return {advice.rule for advice in advise(made)}


def _proposal(made: Report, rule: str):  # type: ignore[no-untyped-def]
    return next(advice for advice in advise(made) if advice.rule == rule)


def _leaf(
    path: str, role: Role, shape: tuple[int, ...], position: int | None = 0, donated: bool = False
) -> ArgumentLeaf:
    size_bytes = 4
    for length in shape:
        size_bytes *= length
    return ArgumentLeaf(
        path=path,
        role=role,
        shape=shape,
        dtype="float32",
        size_bytes=size_bytes,
        donated=donated,
        parameter_number=0,
        position=position,
    )


def _argument(leaf: ArgumentLeaf) -> LiveBuffer:
    return buffer(leaf.shape, "f32", Category(leaf.role.value), op=leaf.path, phase=Phase.ARGUMENT)


def _donation(*leaves: ArgumentLeaf, phase: Phase = Phase.UPDATE) -> Report:
    """A step with results of the shapes of its arguments."""
    results = [buffer(leaf.shape, "f32", Category.OUTPUTS, op="jit(step)/sub", phase=phase) for leaf in leaves]
    return report([*map(_argument, leaves), *results], arguments=leaves)


_W = _leaf("params['w']", Role.PARAMS, _KB)
_MU = _leaf("state[0].mu['w']", Role.OPTIMIZER_STATE, _KB, position=2)


def _passes(shape: tuple[int, ...], dtype: str, category: Category = Category.ACTIVATIONS, **names: str) -> LiveBuffer:
    phase = Phase.BACKWARD if category is Category.COTANGENTS else Phase.FORWARD
    return buffer(shape, dtype, category, op=_FORWARD, phase=phase, **names)


def _padded(shape: tuple[int, ...], padded: tuple[int, ...]) -> LiveBuffer:
    """An array in whole tiles, or with 512 bytes behind its elements."""
    size_bytes = 4 * prod(padded) if padded else 4 * prod(shape) + 512
    found = replace(_passes(shape, "f32"), size_bytes=size_bytes, padded=padded)
    return replace(found, padding_bytes=size_bytes - 4 * prod(shape))


def _at(found: LiveBuffer, start: int, end: int) -> LiveBuffer:
    return replace(found, start=start, end=end)


def _loss(*, widest_at: int = 8, module: str = "", is_of_softmax: bool = True) -> Report:
    """Logits of 64 columns and their cotangent, beside hidden values of 16 columns made at position 5."""
    return report(
        [
            replace(_at(_passes((32, 64), "bf16", module=module), widest_at, 9), is_of_softmax=is_of_softmax),
            _at(_passes((32, 64), "bf16", Category.COTANGENTS, module=module), 10, 11),
            _at(_passes((32, 16), "bf16", module="layers_0"), 5, 12),
            _at(_passes((32, 16), "bf16", module="layers_1"), 6, 12),
        ]
    )


def _attention(is_of_attention: bool = True, category: Category = Category.ACTIVATIONS) -> Report:
    weights = replace(_passes((2, 64, 64), "bf16", category), is_of_attention=is_of_attention)
    return report([weights, _passes((64, 16), "bf16")])


def _blocks(
    num_matrices: int = 2, category: Category = Category.ACTIVATIONS, *, op: str = "tanh", depth: int = 3
) -> Report:
    """Layers that each hold an array from the forward to the backward pass."""
    params = [(f"w{index}", (64, 16), "bf16") for index in range(num_matrices)]
    layers = tuple(
        node(f"layers_{layer}", (), children=(node(f"layers_{layer}/up", (), params=tuple(params)),))
        for layer in range(depth)
    )
    found = []
    for layer in range(depth):
        module = f"layers_{layer}"
        kept = buffer((32, 64), "bf16", category, module=module, op=f"jit(step)/jvp({module})/{op}")
        backward = 20 + 4 * (depth - layer)
        found.append(_at(kept, 3 * layer, backward + 1))
        back = buffer((1,), "bf16", Category.COTANGENTS, module=module, op=_BACKWARD, phase=Phase.BACKWARD)
        found.append(_at(back, backward, backward + 1))
        done = buffer((1,), "bf16", Category.FORWARD_TEMPS, module=module, op=_FORWARD)
        found.append(_at(done, 3 * layer + 1, 3 * layer + 1))
    made = report(found, modules=node("", found, children=layers))
    return _over_time(made)


def _over_time(made: Report) -> Report:
    """The same, where each array is held from its first to its last position."""
    moments = sorted(
        [(each.start, 1, number) for number, each in enumerate(made.temp_buffers)]
        + [(each.end + 1, 0, number) for number, each in enumerate(made.temp_buffers)]
    )
    places: list[list[int]] = [[] for _ in made.temp_buffers]
    changes, live, peak, peak_at = [], 0, 0, 0
    for place, (position, is_birth, number) in enumerate(moments):
        size_bytes = made.temp_buffers[number].size_bytes
        changes.append(
            LiveChange(position, made.temp_buffers[number].category, size_bytes if is_birth else -size_bytes)
        )
        places[number].append(place)
        live += changes[-1].delta_bytes
        if live > peak:
            peak, peak_at = live, place
    temps = tuple(
        replace(each, at_peak=born <= peak_at < died)
        for each, (born, died) in zip(made.temp_buffers, places, strict=True)
    )
    base = {each.category: each.size_bytes for each in made.buffers if not each.is_temp}
    lasting = [each for each in made.buffers if not each.is_temp]
    at_peak = [each for each in temps if each.at_peak]
    end = max(position for position, _, _ in moments)
    return replace(
        made,
        buffers=tuple(sorted([*lasting, *at_peak], key=lambda each: -each.size_bytes)),
        temp_buffers=temps,
        timeline=Timeline(
            num_positions=end + 1,
            base=base,
            changes=tuple(changes),
            temp_changes=tuple((born, died) for born, died in places),
            phases=(PhaseSpan(phase=Phase.FORWARD, start=0, end=end),),
            peak_position=moments[peak_at][0],
        ),
        footprint_bytes=peak + sum(each.size_bytes for each in lasting),
        live_peak_bytes=peak + sum(each.size_bytes for each in lasting),
    )


def _scan(num_stacks: int = 2, *, is_stacked: bool = True) -> Report:
    """A loop of 4 turns and arrays whose first axis is 4, of which the first is what the loop carries along."""
    arrays = [
        replace(_passes((4, 32, 16 * (number + 1)), "bf16"), is_stacked=is_stacked, offset=number << 20)
        for number in range(num_stacks)
    ]
    return _with_loop(arrays)


def _scan_that_carries_one() -> Report:
    """A loop of 4 turns that stacks up one array, which lies in one place before the loop and after it."""
    stack = replace(_passes((4, 32, 16), "bf16"), is_stacked=True)
    return _with_loop([replace(stack, end=stack.start + 1), replace(stack, start=stack.start + 1)])


def _with_loop(arrays: list[LiveBuffer]) -> Report:
    made = report(arrays)
    loop = Loop(op="jit(step)/jvp(Net)/while", phase=Phase.FORWARD, trip_count=4)
    return replace(made, program=replace(made.program, loops=(loop,)))


def _copies(
    number: int, category: Category = Category.PARAM_COPIES, *, repeated: Category = Category.RECOMPUTED
) -> Report:
    copies = (buffer(_KB, "bf16", category, op=f"jit(step)/convert.{place}") for place in range(number))
    repeats = buffer((4, 4), "bf16", repeated, op="jit(step)/rematted_computation/tanh")
    return report([_argument(_W), *copies, repeats], arguments=(_W,))


def _optimizer(param: tuple[int, ...], *state: tuple[int, ...], target=H100, phase=Phase.UPDATE) -> Report:  # type: ignore[no-untyped-def]
    w = _leaf("params['w']", Role.PARAMS, param, donated=True)
    leaves = [_leaf(f"state[{n}]", Role.OPTIMIZER_STATE, shape, 1, donated=True) for n, shape in enumerate(state)]
    big = buffer((256, 256), "bf16", Category.GRADIENTS, op=_BACKWARD, phase=Phase.BACKWARD)
    made = report([_argument(w), *map(_argument, leaves), big], arguments=(w, *leaves), target=target, num_params=1)
    spans = tuple(replace(span, phase=phase) if span.phase is Phase.UPDATE else span for span in made.timeline.phases)
    return replace(made, timeline=replace(made.timeline, phases=spans))


def _accumulation(dtype: str = "f32", *, start: int = 1, turns: int | None = 4, is_stacked: bool = False) -> Report:
    """A sum of gradients in a loop, beside a forward pass that ends at position 5."""
    total = buffer((64, 64), dtype, Category.GRADIENTS, op="jit(step)/while/body/add", phase=Phase.BACKWARD)
    total = replace(_at(total, start, 9), is_stacked=is_stacked)
    made = report([total, _at(_passes((16, 16), "bf16"), 5, 8)])
    loop = Loop(op="jit(step)/while", phase=Phase.FORWARD, trip_count=turns)
    return replace(made, program=replace(made.program, loops=(loop,)))


def _update(*, peak: int = 9, shape: tuple[int, ...] = (4, 16, 16)) -> Report:
    """An array of the update at position 9, after the backward pass has ended at position 7."""
    stacked = buffer(shape, "f32", Category.GRADIENTS, op="jit(step)/concatenate", phase=Phase.BACKWARD)
    made = report([_argument(_W), _at(stacked, 9, 10)], arguments=(_W,))
    program = replace(made.program, backward_end=7)
    return replace(made, program=program, timeline=replace(made.timeline, peak_position=peak))


def _huge(family: int = 1, *, is_stacked: bool = False, category: Category = Category.ACTIVATIONS) -> Report:
    array = replace(_passes((64, 64), "bf16", category), family=family, is_stacked=is_stacked)
    return report([array, _passes((16, 16), "bf16", module="layers_0")])


def _scratch(evidence: str, dtype: str = "bf16", capability: str | None = "9.0") -> Report:
    """Scratch beside the result of the same call."""
    found = buffer((4096,), "u8", Category.WORKSPACE, op=_FORWARD)
    made = report([replace(found, evidence=evidence), _passes((16, 16), dtype)])
    return replace(made, target=replace(made.target, compute_capability=capability))


def _fragmented(*shapes: tuple[int, ...], fragmentation: int = 4096) -> Report:
    found = [_passes((16, 16), "bf16", module=f"layers_{n}") for n in range(len(shapes))]
    layers = tuple(node(f"layers_{n}", (), params=(("w", shape, "f32"),)) for n, shape in enumerate(shapes))
    return report(found, fragmentation=fragmentation, modules=node("", found, children=layers))


def _on_mesh(
    *leaves: ArgumentLeaf, beside: Report | None = None, axes: dict[str, int] | None = None, sent: str = ""
) -> Report:
    """A step on a mesh with these arguments, and with what another report has."""
    made = report([*map(_argument, leaves), *(beside.buffers if beside else ())], arguments=leaves)
    made = _over_time(replace(beside, buffers=made.buffers, arguments=leaves)) if beside else made
    made = replace(
        made,
        footprint_bytes=sum(each.size_bytes for each in made.buffers),
        live_peak_bytes=sum(each.size_bytes for each in made.buffers),
    )
    axes = axes or {"dp": 8}
    topology = Topology(num_devices=prod(axes.values()), axes=axes)
    traffic = CollectiveTraffic(kind=sent, axes=tuple(axes), count=1, size_bytes=8, param_bytes=0, at_least=False)
    return replace(made, target=replace(made.target, topology=topology), collectives=(traffic,) if sent else ())


def _batch_gathered(*, param_bytes: int = 0, kind: str = "all-gather", rows: int = 32) -> Report:
    """A batch of 32 examples, 4 on each of 8 devices, and an array made of it."""
    made = _on_mesh(_over(_X, "dp"), beside=report([_passes((rows, 16), "f32")]), sent=kind)
    x, *others = made.buffers
    traffic = [replace(each, param_bytes=param_bytes) for each in made.collectives]
    return replace(made, buffers=(replace(x, shape=(4, 16)), *others), collectives=tuple(traffic))


def _over(leaf: ArgumentLeaf, *axes: str) -> ArgumentLeaf:
    return replace(leaf, mesh_axes=axes)


def _gathered(*modules: str, category: Category = Category.GATHERED_PARAMS) -> Report:
    return _on_mesh(
        _over(_W, "dp"), beside=report([_passes(_KB, "f32", category, module=module) for module in modules])
    )


_X = _leaf("x", Role.BATCH, (32, 16), position=1)
_HEAD = _leaf("params['head']", Role.PARAMS, (16, 64))
_FULL = report([_passes((32, 16), "f32")])
_DP_TP = {"dp": 2, "tp": 4}


_CACHE = buffer((4, 2, 16, 8), "f32", Category.KV_CACHE, op="cache", phase=Phase.ARGUMENT)


def _temp(shape: tuple[int, ...], dtype: str = "f32") -> LiveBuffer:
    return buffer(shape, dtype, Category.FORWARD_TEMPS, op="jit(step)/layers/while")


def _cached(*buffers: LiveBuffer, weights: str = "f32", trip_count: int | None = None, **needs: Any) -> Report:
    """A step with a weight of 64 x 512, two prompts of 8 tokens, and what else is given."""
    weight = buffer((64, 512), weights, Category.PARAMS, op="params", phase=Phase.ARGUMENT)
    made = report([weight, *buffers])
    loops = () if trip_count is None else (Loop(op="jit(step)/while", phase=Phase.FORWARD, trip_count=trip_count),)
    leaves = [_leaf("params", Role.PARAMS, (64, 512)), replace(_leaf("tokens", Role.BATCH, (2, 8)), dtype="int32")]
    caches = [_leaf("cache", Role.KV_CACHE, each.shape) for each in buffers if each.category is Category.KV_CACHE]
    leaves += [replace(leaf, **needs) for leaf in caches]
    return replace(made, arguments=tuple(leaves), program=replace(made.program, loops=loops))


def _result(shape: tuple[int, ...], dtype: str = "f32") -> LiveBuffer:
    return buffer(shape, dtype, Category.OUTPUTS, op="jit(step)/concatenate")


def _quantised(*buffers: LiveBuffer, trip_count: int | None = None, stacked: bool = False) -> Report:
    """The same with 8-bit integers as the weight, stacked as 8 layers of 8 x 512 or whole."""
    made = _cached(_CACHE, *buffers, weights="s8", trip_count=trip_count)
    weight, *others = made.arguments
    weight = replace(weight, dtype="int8", shape=(8, 8, 512) if stacked else weight.shape)
    return replace(made, arguments=(weight, *others))


CASES: dict[str, tuple[Callable[[], Report], dict[str, Callable[[], Report]]]] = {
    "donate_state": (
        lambda: _donation(_W, _MU),
        {
            "gradients are the results": lambda: _donation(_W, phase=Phase.BACKWARD),
            "a prediction has the shape of a parameter": lambda: _donation(_W, phase=Phase.FORWARD),
            "all is donated": lambda: _donation(replace(_W, donated=True), replace(_MU, donated=True)),
        },
    ),
    "half_precision": (
        lambda: report([_passes(_KB, "f32")]),
        {
            "the activations have 16 bits": lambda: report(
                [_passes(_KB, "bf16"), _passes((8,), "f32", Category.COTANGENTS)]
            ),
            "float32 is of the update": lambda: report(
                [_passes(_KB, "f32", Category.UPDATE_TEMPS), _passes((8,), "bf16")]
            ),
            "a softmax in float32 of a step in bfloat16": lambda: report([_passes(_KB, "f32"), _passes(_KB, "bf16")]),
            "a factorization": lambda: report(
                [_passes(_KB, "f32"), replace(_passes(_KB, "f32"), op="jit(step)/jvp()/cholesky")]
            ),
        },
    ),
    "chunked_loss": (
        _loss,
        {
            "pixels, of which no softmax is taken": lambda: _loss(is_of_softmax=False),
            "the widest array is made before others": lambda: _loss(widest_at=1),
            "the widest array is of a repeated layer": lambda: _loss(module="layers_1"),
        },
    ),
    "flash_attention": (
        _attention,
        {
            "square, but of no attention": lambda: _attention(is_of_attention=False),
            "computed again already": lambda: _attention(category=Category.RECOMPUTED),
        },
    ),
    "remat_modules": (
        _blocks,
        {
            "one matrix a layer": lambda: _blocks(num_matrices=1),
            "recomputed already": lambda: _blocks(category=Category.RECOMPUTED),
            "one layer": lambda: _blocks(depth=1),
        },
    ),
    "remat_elementwise": (
        _blocks,
        {
            "all are products": lambda: _blocks(op="dot_general"),
            "recomputed already": lambda: _blocks(category=Category.RECOMPUTED),
        },
    ),
    "remat_scan": (
        _scan,
        {
            "a batch as long as the loop": lambda: _scan(is_stacked=False),
            "only what the loop carries along": lambda: _scan(num_stacks=1),
            "that before the loop and after it": _scan_that_carries_one,
        },
    ),
    "copied_cache": (
        lambda: _cached(_CACHE, _temp((4, 2, 8, 16)), trip_count=4),
        {
            "no loop over layers": lambda: _cached(_CACHE, _temp((4, 2, 8, 16))),
            "the copy of one layer": lambda: _cached(_CACHE, _temp((2, 8, 16)), trip_count=4),
            "another type": lambda: _cached(_CACHE, _temp((4, 2, 8, 16), "bf16"), trip_count=4),
        },
    ),
    "relaid_cache": (
        lambda: _cached(_CACHE, _temp((4, 2, 8, 16)), _temp((4, 8, 16, 2))),
        {
            "one layer at a time": lambda: _cached(_CACHE, _temp((4, 2, 8, 16))),
            "a loop makes them": lambda: _cached(_CACHE, _temp((4, 2, 8, 16)), _temp((4, 8, 16, 2)), trip_count=4),
            "scores": lambda: _cached(_CACHE, _temp((2, 16, 16)), _temp((2, 16, 16))),
        },
    ),
    "wide_cache": (
        lambda: _cached(_CACHE, weights="bf16"),
        {
            "weights as wide": lambda: _cached(_CACHE),
            "16 bits already": lambda: _cached(replace(_CACHE, dtype="bf16"), weights="bf16"),
            "scales of a quantised cache": lambda: _cached(_CACHE, replace(_CACHE, dtype="s8"), weights="bf16"),
        },
    ),
    "growing_cache": (
        lambda: _cached(_CACHE, _result((4, 2, 17, 8))),
        {
            "as long as before": lambda: _cached(_CACHE, _result((4, 2, 16, 8))),
            "two axes are longer": lambda: _cached(_CACHE, _result((4, 3, 17, 8))),
            "shorter, as what a beam keeps": lambda: _cached(_CACHE, _result((3, 2, 16, 8))),
            "another type": lambda: _cached(_CACHE, _result((4, 2, 17, 8), "bf16")),
            "no result, but a value on the way": lambda: _cached(_CACHE, _temp((4, 2, 17, 8))),
        },
    ),
    "repeated_heads": (
        lambda: _cached(_CACHE, num_copies=4),
        {"each head once": lambda: _cached(_CACHE), "no cache at the peak": lambda: _cached(num_copies=4)},
    ),
    "long_cache": (
        lambda: _cached(_CACHE, window=(4, 16)),
        {"attention reads all": lambda: _cached(_CACHE), "no cache at the peak": lambda: _cached(window=(4, 16))},
    ),
    "wide_weights": (
        lambda: _cached(_CACHE),
        {
            "16 bits already": lambda: _cached(_CACHE, weights="bf16"),
            "nothing shows that the step trains nothing": lambda: _cached(),
        },
    ),
    "copied_weights": (
        lambda: _cached(_CACHE, buffer((64, 64), "bf16", Category.PARAM_COPIES)),
        {
            "training casts them anew after each update": lambda: _copies(4),
            "no copies": lambda: _cached(_CACHE),
        },
    ),
    "dequantised_weights": (
        lambda: _quantised(buffer((64, 4, 128), "bf16", Category.PARAM_COPIES, op="jit(step)/mul")),
        {
            "another weight, transposed": lambda: _quantised(buffer((16, 64), "bf16", Category.PARAM_COPIES)),
            "the integers themselves, in another order": lambda: _quantised(
                buffer((512, 64), "s8", Category.PARAM_COPIES)
            ),
            "the slice of a turn": lambda: _quantised(
                buffer((1, 8, 512), "s8", Category.PARAM_COPIES), trip_count=8, stacked=True
            ),
        },
    ),
    "whole_prompt_logits": (
        lambda: _cached(_CACHE, buffer((2, 8, 512), "f32", Category.OUTPUTS, op="jit(step)/head")),
        {
            "the last token": lambda: _cached(_CACHE, buffer((2, 512), "f32", Category.OUTPUTS, op="jit(step)/head")),
            "hidden units of every token": lambda: _cached(_CACHE, _temp((2, 8, 512))),
            "no cache": lambda: _cached(buffer((2, 8, 512), "f32", Category.OUTPUTS, op="jit(step)/head")),
        },
    ),
    "param_copies": (
        lambda: _copies(4),
        {
            "one at a time": lambda: _copies(1),
            "gradients of the same shapes": lambda: _copies(4, Category.GRADIENTS),
            "no checkpoint, whose layers could cast again": lambda: _copies(4, repeated=Category.ACTIVATIONS),
        },
    ),
    "factored_optimizer": (
        lambda: _optimizer((256, 256), (256, 256), (256, 256)),
        {
            "vectors, which cannot be factored": lambda: _optimizer((65536,), (65536,), (65536,)),
            "factored already": lambda: _optimizer((256, 256), (256,), (256,)),
            "the steps that L-BFGS looks back on": lambda: _optimizer((256, 256), (10, 256, 256), (10, 256, 256)),
        },
    ),
    "offload_optimizer": (
        lambda: _optimizer((256, 256), (256, 256)),
        {
            "no other memory": lambda: _optimizer((256, 256), (256, 256), target=CPU),
            "used in the passes": lambda: _optimizer((256, 256), (256, 256), phase=Phase.FORWARD),
        },
    ),
    "narrow_accumulators": (
        _accumulation,
        {
            "gradients of one batch": lambda: _accumulation(start=6),
            "16 bits already": lambda: _accumulation("bf16"),
            "a line search, whose steps nobody knows": lambda: _accumulation(turns=None),
            "gradients that a scan stacks": lambda: _accumulation(is_stacked=True),
        },
    ),
    "update_peak": (
        _update,
        {
            "the backward pass is at work": lambda: _update(peak=7),
            "one parameter at a time": lambda: _update(shape=_KB),
        },
    ),
    "huge_buffer": (
        _huge,
        {
            "it cannot be cut": lambda: _huge(family=0),
            "a loop makes it in pieces": lambda: _huge(is_stacked=True),
            "it is an argument's copy": lambda: _huge(category=Category.PARAM_COPIES),
        },
    ),
    "workspace": (
        lambda: _scratch("scratch of __cublas$gemm"),
        {
            "of a convolution": lambda: _scratch("scratch of __cudnn$convForward"),
            "of integers, which XLA leaves to the library": lambda: _scratch("scratch of __cublas$gemm", dtype="s32"),
            "on a T4, for which XLA generates none": lambda: _scratch("scratch of __cublas$gemm", capability="7.5"),
            "where no capability is told": lambda: _scratch("scratch of __cublas$gemm", capability="unknown"),
            "pointers of a tuple": lambda: _scratch("table of pointers to the elements of a tuple"),
        },
    ),
    "replicated_state": (
        lambda: _on_mesh(_over(_MU), _over(_W, "dp")),
        {
            "divided": lambda: _on_mesh(_over(_MU, "dp"), _over(_W, "dp")),
            "no other device": lambda: _on_mesh(_over(_MU), axes={"dp": 1}),
            "it cannot be cut": lambda: _on_mesh(_over(replace(_MU, shape=(9, 9), size_bytes=324))),
            "XLA divides it": lambda: _on_mesh(_MU),
            "examples": lambda: _on_mesh(_over(_X)),
        },
    ),
    "gather_in_chunks": (
        lambda: _gathered("layers_0", "layers_1"),
        {
            "one layer": lambda: _gathered("layers_0", "layers_0"),
            "copies of what is here": lambda: _gathered("layers_0", "layers_1", category=Category.PARAM_COPIES),
        },
    ),
    "undivided_batch": (
        lambda: _on_mesh(_over(_X), _over(_W), beside=_FULL),
        {
            "divided": lambda: _on_mesh(_over(_X, "dp"), _over(_W), beside=_FULL),
            "too few examples": lambda: _on_mesh(_over(_X), _over(_W), beside=_FULL, axes={"dp": 5}),
            "parts of layers": lambda: _on_mesh(_over(_X), _over(_W), beside=report([_passes((32, 2), "f32")])),
            "stages that send on": lambda: _on_mesh(_over(_X), _over(_W), beside=_FULL, sent="collective-permute"),
        },
    ),
    "gathered_batch": (
        _batch_gathered,
        {
            "parameters are gathered": lambda: _batch_gathered(param_bytes=8),
            "gradients are added up": lambda: _batch_gathered(kind="all-reduce"),
            "the examples of one device": lambda: _batch_gathered(rows=4),
        },
    ),
    "undivided_logits": (
        lambda: _on_mesh(_over(_X, "dp"), _over(_HEAD), beside=_loss(), axes=_DP_TP),
        {
            "divided rows": lambda: _on_mesh(_over(_X, "dp"), _over(_HEAD), beside=_loss(), axes={"dp": 8}),
            "divided columns": lambda: _on_mesh(
                _over(_X, "dp"), _over(replace(_HEAD, shape=(16, 256)), "tp"), beside=_loss(), axes=_DP_TP
            ),
            "no logits": lambda: _on_mesh(
                _over(_X, "dp"), _over(_HEAD), beside=_loss(is_of_softmax=False), axes=_DP_TP
            ),
        },
    ),
    "padded_axes": (
        lambda: report([_padded((100, 130), (104, 256))]),
        {
            "no padding": lambda: report([_passes((104, 256), "f32")]),
            "padding at the end of its memory alone": lambda: report([_padded((104, 256), ())]),
        },
    ),
    "other_order": (
        lambda: _ordered(_EIGHT_GPUS),
        {
            "no better order": lambda: _ordered(_EIGHT_GPUS, saved_bytes=0),
            "one GPU, where XLA orders for memory": lambda: _ordered(H100),
            "a CPU": lambda: _ordered(CPU, is_fenced=True),
            "nothing is there for the order alone": lambda: _ordered(_EIGHT_GPUS, num_waiting=0),
        },
    ),
    "fragmentation": (
        lambda: _fragmented(_KB, _KB),
        {
            "layers of different sizes": lambda: _fragmented(_KB, (32, 16)),
            "one layer": lambda: _fragmented(_KB),
            "well packed": lambda: _fragmented(_KB, _KB, fragmentation=0),
        },
    ),
}


@pytest.mark.parametrize(("dtype", "shape"), [("uint8", (32, 512)), ("int32", (8, 512))])
def test_integers_may_hold_several_numbers(dtype: str, shape: tuple[int, ...]) -> None:
    made = _quantised(buffer((64, 512), "bf16", Category.PARAM_COPIES))
    weight, *others = made.arguments
    packed = replace(made, arguments=(replace(weight, dtype=dtype, shape=shape), *others))
    assert [each.rule for each in advise(packed)] == ["dequantised_weights"]


@pytest.mark.parametrize(
    ("made", "rule", "saving_bytes"),
    [
        (lambda: _cached(_CACHE, num_copies=4), "repeated_heads", 4096 * 3 // 4),
        (lambda: _cached(_CACHE, window=(4, 16)), "long_cache", 4096 * 12 // 16),
        (lambda: _cached(_CACHE, _result((4, 2, 17, 8))), "growing_cache", 4352),
    ],
)
def test_the_bound_of_a_cache_is_what_attention_does_not_need(
    made: Callable[[], Report], rule: str, saving_bytes: int
) -> None:
    """The cache of 4 x 2 x 16 x 8 numbers has 4,096 bytes, and the longer one 4 x 2 x 17 x 8 x 4."""
    assert {each.rule: each.saving_bytes for each in advise(made())}[rule] == saving_bytes


def test_the_bound_of_a_copied_cache_has_what_the_loop_cuts_out_of_it() -> None:
    """Without the loop go the copy of 4 layers, and the slice of one: 4,096 and 1,024 bytes."""
    copy, piece = _temp((4, 2, 8, 16)), _temp((1, 2, 8, 16))
    found = [each for each in advise(_cached(_CACHE, copy, piece, trip_count=4)) if each.rule == "copied_cache"]
    assert [each.saving_bytes for each in found] == [4096 + 1024]
    assert "1 array (4,096 bytes) at the peak" in found[0].proposal.evidence


def test_a_layer_of_stacked_integers_is_a_dequantised_weight() -> None:
    copy = buffer((1, 8, 512), "f32", Category.PARAM_COPIES)
    rules = [each.rule for each in advise(_quantised(copy, trip_count=8, stacked=True))]
    assert "dequantised_weights" in rules
    assert "copied_weights" not in rules


@pytest.mark.parametrize(
    ("made", "code"),
    [
        (lambda: _ordered(H100, is_fenced=True), "Use the operands of"),
        (lambda: _ordered(_EIGHT_GPUS, is_fenced=True), "Use the operands of"),
        (lambda: _ordered(_EIGHT_GPUS), "--xla_disable_hlo_passes=latency-hiding-scheduler"),
    ],
)
def test_an_order_is_changed_by_what_has_made_it(made: Callable[[], Report], code: str) -> None:
    assert code in _proposal(made(), "other_order").proposal.how_to


def test_another_order_saves_the_difference_of_two_peaks() -> None:
    assert _proposal(_ordered(_EIGHT_GPUS, saved_bytes=1500), "other_order").saving_bytes == 1500


def test_the_axis_that_lacks_most_is_named_once_for_all_arrays_of_a_shape() -> None:
    # [100,130] is stored as [104,256]: 106,496 bytes for 52,000; twice; and [8,100] as [8,128]: 4,096 for 3,200
    made = report([_padded((100, 130), (104, 256)), _padded((100, 130), (104, 256)), _padded((8, 100), (8, 128))])
    (first,) = (each for each in advise(made) if each.rule == "padded_axes")  # the other saves less than 2%
    assert "the axis of 130 in f32[100,130]" in first.proposal.what
    assert "multiple of its tile: 256" in first.proposal.what
    assert (first.saving_bytes, first.is_compiled) == (2 * (106_496 - 52_000), False)


def test_there_is_a_case_for_each_rule() -> None:
    assert set(CASES) == {rule.__name__ for rule in RULES}
    assert all(len(silent) >= 2 for _, silent in CASES.values())


@pytest.mark.parametrize("rule", CASES)
def test_it_speaks_where_it_must(rule: str) -> None:
    assert rule in _rules(CASES[rule][0]())


def test_a_float32_cache_is_cast_with_the_weights_that_make_its_keys() -> None:
    """A step cannot write bfloat16 keys into a float32 cache, so no line of code casts the weights alone."""

    def advice(cache_dtype: str) -> Advice:
        report = _cached(replace(_CACHE, dtype=cache_dtype))
        return next(each for each in upper_bounds(report) if each.rule == "wide_weights")

    alone, together = advice("bf16"), advice("f32")
    assert (alone.proposal.intent.aim, together.proposal.intent.aim) == (Aim.CAST_WEIGHTS, Aim.CAST_WEIGHTS_AND_CACHE)
    assert together.saving_bytes - alone.saving_bytes == _CACHE.size_bytes // 2
    assert means_to(alone.proposal.intent).code
    assert not means_to(together.proposal.intent).code
    computed = _temp((64, 64))
    (beside,) = (each for each in upper_bounds(_cached(_CACHE, computed)) if each.rule == "wide_weights")
    assert beside.bound_bytes - together.bound_bytes == int(0.6 * computed.size_bytes)  # made by the weights


@pytest.mark.parametrize(("rule", "case"), [(rule, case) for rule, (_, silent) in CASES.items() for case in silent])
def test_it_is_silent_where_a_program_only_looks_alike(rule: str, case: str) -> None:
    assert rule not in _rules(CASES[rule][1][case]())


_OF_TRAINING = {
    Category.ACTIVATIONS: Category.FORWARD_TEMPS,
    Category.RECOMPUTED: Category.FORWARD_TEMPS,
    Category.COTANGENTS: Category.FORWARD_TEMPS,
    Category.GRADIENTS: Category.FORWARD_TEMPS,
    Category.UPDATE_TEMPS: Category.FORWARD_TEMPS,
    Category.OPTIMIZER_STATE: Category.OTHER_STATE,
}


def _untrained(made: Report) -> Report:
    """The same memory in a step that trains nothing: what belongs to training has another category and phase."""

    def forward(each: LiveBuffer) -> LiveBuffer:
        phase = each.phase if each.phase is Phase.ARGUMENT else Phase.FORWARD
        return replace(each, category=_OF_TRAINING.get(each.category, each.category), phase=phase)

    categories = dict.fromkeys(Category, 0)
    for category, size_bytes in made.categories.items():
        categories[_OF_TRAINING.get(category, category)] += size_bytes
    operations = (ScopedOperations(scope="step", phase=Phase.NONE, num_operations=1),)
    timeline = made.timeline
    return replace(
        made,
        buffers=tuple(map(forward, made.buffers)),
        temp_buffers=tuple(map(forward, made.temp_buffers)),
        categories=categories,
        arguments=tuple(
            replace(leaf, role=Role.OTHER_STATE) if leaf.role is Role.OPTIMIZER_STATE else leaf
            for leaf in made.arguments
        ),
        program=replace(made.program, operations=operations, backward_end=-1),
        timeline=replace(timeline, phases=(PhaseSpan(phase=Phase.FORWARD, start=0, end=timeline.num_positions - 1),)),
    )


@pytest.mark.parametrize("rule", CASES)
def test_advice_for_a_step_that_trains_nothing_is_not_about_training(rule: str) -> None:
    _assert_not_about_training(_untrained(CASES[rule][0]()))


def test_replicated_parameters_of_a_step_that_trains_nothing_are_gathered_at_every_call() -> None:
    made = _untrained(_on_mesh(_over(_W)))
    assert "at every call" in _proposal(made, "replicated_state").proposal.cost
    _assert_not_about_training(made)


@pytest.mark.parametrize(
    ("scope", "role", "words"),
    [
        ("jit(step)/shard_map/mul", _MU, 'psum_scatter(gradient, "dp"'),
        ("jit(step)/shard_map/mul", _W, 'all_gather(param, "dp"'),
        ("jit(step)/attention/shard_map/mul", _MU, "with_sharding_constraint"),  # only a part of it
    ],
)
def test_a_function_in_shard_map_divides_its_state_itself(scope: str, role: ArgumentLeaf, words: str) -> None:
    made = _on_mesh(_over(role), beside=report([_passes((2, 2), "f32")]))
    made = replace(made, temp_buffers=tuple(replace(each, op=scope) for each in made.temp_buffers))
    assert words in _proposal(made, "replicated_state").proposal.how_to


def _assert_not_about_training(made: Report) -> None:
    words = re.compile("checkpoint|gradient|optimizer|backward|recompute|cotangent|activation|loss", re.IGNORECASE)
    for each in upper_bounds(made):
        proposal = each.proposal
        for sentence in (proposal.what, proposal.evidence, proposal.cost, proposal.how_to):
            assert not words.search(sentence), each.rule


def test_layers_are_not_gathered_for_a_backward_pass_that_does_not_exist() -> None:
    made = _gathered("layers_0", "layers_1")
    assert list(gather_in_chunks(made))
    assert not list(gather_in_chunks(_untrained(made)))


def test_a_huge_array_of_a_step_that_trains_nothing_is_made_in_pieces() -> None:
    proposal = _proposal(_untrained(_huge()), "huge_buffer").proposal
    assert proposal.cost == "a loop instead of one operation"
    assert proposal.how_to.endswith("with batch_size= their number divided by 32.")


@pytest.mark.parametrize("rule", CASES)
def test_the_evidence_supports_the_saving(rule: str) -> None:
    made = CASES[rule][0]()
    evidence = _proposal(made, rule).proposal.evidence
    numbers = [int(number.replace(",", "")) for number in re.findall(r"(?<![\w.,\[])\d[\d,]*(?![\w.\]])", evidence)]
    assert _proposal(made, rule).saving_bytes <= max(numbers)
    assert all(number <= made.footprint_bytes for number in numbers)


@pytest.mark.parametrize(
    ("leaves", "code"),
    [
        ([_W], "donate_argnums=(0,)"),
        ([_W, _MU], "donate_argnums=(0, 2)"),
        # A pytree is one argument, however many leaves it has.
        ([_W, replace(_W, path="params['b']", position=0)], "donate_argnums=(0,)"),
        ([replace(_W, position=None), replace(_MU, position=None)], "donate_argnames=('params', 'state')"),
        ([_W, replace(_MU, position=None)], "donate_argnums=(0,), donate_argnames=('state',)"),
        # What is donated already is left to the jit that donates it.
        ([replace(_W, donated=True, shape=(8, 8)), _MU], "donate_argnums=(2,)"),
    ],
)
def test_donation_names_the_arguments(leaves: list[ArgumentLeaf], code: str) -> None:
    assert _proposal(_donation(*leaves), "donate_state").proposal.how_to == (
        f"# at the top of the file\nimport jax\n\nstep = jax.jit(step, {code})"
    )


_NU = replace(_MU, path="state[0].nu['w']")
_FROZEN = replace(_W, path="reference['w']", position=1)


@pytest.mark.parametrize(
    ("leaves", "num_results", "positions"),
    [
        # The reference comes first, and the parameters come back.
        ([replace(_FROZEN, position=0, is_carried=False), replace(_W, position=1, is_carried=True)], 1, (1,)),
        # A pytree that also holds frozen parameters is deleted whole.
        ([replace(_W, is_carried=True), replace(_FROZEN, position=0, is_carried=False)], 1, None),
        # It is unknown what comes back: two arrays of the state, or one of three that are alike.
        ([_FROZEN, _W, replace(_MU, position=0)], 2, (0,)),
        ([_FROZEN, replace(_MU, position=2), replace(_NU, position=2), _W], 2, (2,)),
    ],
)
def test_parameters_that_do_not_come_back_are_not_donated(
    leaves: list[ArgumentLeaf], num_results: int, positions: tuple[int, ...] | None
) -> None:
    made = _donation(*leaves)
    arguments, results = made.buffers[: len(leaves)], made.buffers[len(leaves) :][:num_results]
    proposals = [*donate_state(report([*arguments, *results], arguments=tuple(leaves)))]
    assert [each.intent.positions for each in proposals] == [positions] * (positions is not None)


def test_an_array_in_pieces_takes_only_its_own_family_along() -> None:
    own = replace(_passes((64, 64), "bf16"), family=1)  # 8,192 bytes
    other = replace(_passes((64, 63), "bf16"), family=2)
    made = report([own, other])
    assert _proposal(made, "huge_buffer").saving_bytes == 8192 - 8192 // 32


@pytest.mark.parametrize(
    ("target", "dtype", "code"),
    [
        (H100, "bf16", "dot_product_attention(q, k, v, "),
        (H100, "f32", "a.astype(jnp.bfloat16) for a in (q, k, v)"),
        (CPU, "f32", "attend with one block at a time"),
        (replace(H100, compute_capability="7.0"), "bf16", "attend with one block at a time"),
        (replace(H100, compute_capability="gfx942"), "bf16", "attend with one block at a time"),
        (replace(H100, compute_capability="abc.0"), "bf16", "attend with one block at a time"),
    ],
)
def test_the_kernel_is_named_where_there_is_one(target, dtype: str, code: str) -> None:  # type: ignore[no-untyped-def]
    weights = replace(_passes((2, 64, 64), dtype), is_of_attention=True)
    made = report([weights, _passes((64, 16), "bf16")], target=target)
    assert code in _proposal(made, "flash_attention").proposal.how_to


@pytest.mark.parametrize(("shape", "is_refused"), [((2, 64, 64), False), ((2, 77, 77), True), ((3, 64, 77), True)])
def test_the_lengths_that_cudnn_refuses_with_a_mask_are_named(shape: tuple[int, ...], is_refused: bool) -> None:
    weights = replace(_passes(shape, "bf16"), is_of_attention=True)
    cost = _proposal(report([weights, _passes((64, 16), "bf16")]), "flash_attention").proposal.cost
    assert ("; in training, JAX refuses an odd length (77 here): pad queries" in cost) == is_refused


@pytest.mark.parametrize(
    ("dtype", "dropout", "technique"),
    [("bf16", 0.0, "flash"), ("f32", 0.0, "bf16+flash"), ("f32", 0.1, None)],
)
def test_the_technique_of_the_kernel_is_not_refused_when_it_is_followed(
    dtype: str, dropout: float, technique: str | None
) -> None:
    weights = replace(_passes((2, 64, 64), dtype), is_of_attention=True)
    made = replace(report([weights, _passes((64, 16), "bf16")]), config={"attention_dropout_rate": dropout})
    proposal = _proposal(made, "flash_attention").proposal
    assert proposal.technique == technique
    assert ("without dropout" in proposal.what) == bool(dropout)
    own = [] if dtype == "f32" else ["bf16"]
    rows = [] if technique is None else ["+".join([*own, technique])]
    plan(workload="transformer", preset="tiny", overrides=[f"attention_dropout_rate={dropout}"], techniques=rows)


@pytest.mark.parametrize(
    ("op", "shape", "drops"),
    [
        ("lt", (4, 64, 64), True),
        ("lt", (4, 64, 16), False),
        ("jit(_uniform)/shift_right_logical", (2, 2, 64, 64), True),
    ],
)
def test_probabilities_that_are_dropped_at_random_are_not_dropped_by_the_kernel(
    op: str, shape: tuple[int, ...], drops: bool
) -> None:
    """The mask of another dropout, of the layer's results, has another shape."""
    weights = replace(_passes((4, 64, 64), "bf16"), is_of_attention=True)
    mask = replace(_passes(shape, "pred"), op=f"jit(step)/jvp(Net)/jit(_bernoulli)/{op}")
    what = _proposal(report([weights, _passes((64, 16), "bf16"), mask]), "flash_attention").proposal.what
    assert what.endswith("without dropout of probabilities") == drops


def _rung(family: str, saving_bytes: int, flops: int) -> _Rung:
    return _Rung(family=family, paths=(), without=lambda buffer: None, saving_bytes=saving_bytes, flops=flops)


def test_what_saves_less_than_something_cheaper_is_left_out() -> None:
    block, attention, mlp = _rung("block", 50, 30), _rung("attention", 40, 10), _rung("mlp", 20, 20)
    assert _ladder([block, attention, mlp]) == [attention, block]


def test_a_rung_saves_as_much_as_the_one_below_it() -> None:
    norm, attention, mlp = _rung("norm", 10, 1), _rung("attention", 20, 2), _rung("mlp", 15, 3)
    assert _ladder([mlp, attention, norm]) == [norm, attention]


def test_two_that_save_the_same_are_both_named() -> None:
    """Something else makes the peak then, and the compiler may move it: it did in GPT-2."""
    block, attention = _rung("block", 40, 30), _rung("attention", 40, 10)
    assert _ladder([block, attention]) == [attention, block]


@pytest.mark.parametrize("aim", Aim)
def test_the_technique_for_each_aim_exists(aim: Aim) -> None:
    found = means_to(Intent(aim=aim, positions=(0,), modules="layers_*"))
    assert found.technique is None or len(parse_techniques(found.technique)) == 1


@pytest.mark.parametrize(
    ("modules", "technique"),
    [
        ("layers_*", "remat"),
        ("layers_*/mlp", "remat-mlp"),
        ("layers_*/attention", "remat-attn"),
        ("layers_*/norm", None),
    ],
)
def test_modules_are_recomputed_by_the_technique_for_them(modules: str, technique: str | None) -> None:
    assert means_to(Intent(aim=Aim.RECOMPUTE_MODULES, modules=modules)).technique == technique


@pytest.mark.parametrize(("params", "words"), [((4, 16, 16), "4 layers"), ((16, 16), "4 steps")])
def test_a_loop_without_stacked_parameters_goes_over_steps_of_time(params: tuple[int, ...], words: str) -> None:
    """A scan over 4 layers takes the parameters of each; an LSTM has the same ones in all of its 4 steps."""
    scanned = replace(_scan(), arguments=(_leaf("params['w']", Role.PARAMS, params),))
    [found] = [each.proposal for each in advise(scanned) if each.rule == "remat_scan"]
    assert f"the activations of {words}," in found.evidence


def test_of_gathered_layers_the_largest_one_stays_wherever_it_lies() -> None:
    """The second of three layers has two arrays of 1 KiB, the others one each."""
    made = _gathered("layers_0", "layers_1", "layers_1", "layers_2")
    (proposal,) = gather_in_chunks(made)
    assert sorted(each.module for each in changed_at_peak(made, proposal.without)) == ["layers_0", "layers_2"]
    assert proposal.evidence.endswith("those of the largest layer, layers_1, hold 2,048")


@pytest.mark.parametrize(
    ("shape", "num_numbers"),
    [
        ((), 1),
        ((4096,), 4096),
        ((127, 4096), 127 * 4096),  # too small: kept whole
        ((4096, 127), 127 * 4096),
        ((128, 4096), 128 + 4096),
        ((3, 256, 128), 3 * (256 + 128)),
        ((256, 3, 128), 3 * (256 + 128)),
    ],
)
def test_factored_moments_hold_a_row_and_a_column(shape: tuple[int, ...], num_numbers: int) -> None:
    assert _factored_bytes(shape) == 4 * num_numbers


def test_the_bound_of_factored_moments_counts_the_temporaries_of_the_update() -> None:
    made = _optimizer((256, 256), (256, 256))
    (alone,) = (each for each in upper_bounds(made) if each.rule == "factored_optimizer")
    temp = buffer((128, 128), "f32", Category.UPDATE_TEMPS, op="jit(step)/adam", phase=Phase.UPDATE)
    beside = report(
        [*made.buffers, temp], arguments=made.arguments, target=made.target, num_params=1, fragmentation=512
    )
    (bound,) = (each for each in upper_bounds(beside) if each.rule == "factored_optimizer")
    of_state = (256 * 256 - 2 * 256) * 4  # rows and columns stay
    assert alone.bound_bytes == of_state
    assert bound.bound_bytes == of_state + 128 * 128 * 4 + 512


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("import jax\n\nstep = jax.jit(step)", "# at the top of the file\nimport jax\n\nstep = jax.jit(step)"),
        (
            "from flax import nnx\nimport jax\nf = g\n",
            "# at the top of the file\nfrom flax import nnx\nimport jax\n\nf = g",
        ),
        ("# at the top of train.py\nimport jax\n\nf = g", "# at the top of train.py\nimport jax\n\nf = g"),
        ("donate_argnums = (0,)", "donate_argnums = (0,)"),
    ],
)
def test_imports_have_a_place_of_their_own(code: str, shown: str) -> None:
    proposal = Proposal(
        intent=Intent(aim=Aim.DONATE), what="", evidence="", cost="", without=lambda buffer: None, code=code
    )
    assert proposal.code_to_paste == shown


@pytest.mark.parametrize("length", [256, 257])
def test_bfloat16_warns_of_a_loop_that_adds_more_than_256_times(length: int) -> None:
    """With the 8 bits of its mantissa, 256 + 1 is 256."""
    assert float(jnp.bfloat16(256) + jnp.bfloat16(1)) == 256
    found = _proposal(report([replace(_passes((length, 16), "f32"), is_stacked=True)]), "half_precision")
    assert ("the state of the loop of 257 iterations" in found.proposal.cost) == (length == 257)
