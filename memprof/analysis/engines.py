"""From an engine to a report: the builder's totals, divided by the order of its layers.

    weights + inputs + outputs + activation memory + device persistent memory = footprint

The builder reports totals of weights, activation memory and persistent memory; the network has the inputs and outputs.
This module divides activation memory: a tensor between layers is live from the layer that makes it to the last layer
that reads it. The tensors live at the peak are `forward_temps`; the rest of the builder's total is `workspace`.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from memprof.analysis.attribution.module_paths import path_keys
from memprof.analysis.memory.breakdown import common_fields
from memprof.analysis.memory.card import judge_engine
from memprof.analysis.records.capture import ArgumentLeaf, Capture
from memprof.analysis.records.categories import Category, Phase, Role
from memprof.analysis.records.engine import Engine, EngineFigures, EngineTensor
from memprof.analysis.records.live_buffer import LiveBuffer
from memprof.analysis.records.pool import Pieces
from memprof.analysis.records.report import ProgramFacts, Report
from memprof.analysis.records.timeline import LiveChange, Timeline

_RULE = "engine"
_BUILDER = "the builder's total"
NOT_KNOWN = "The size of the execution context is known only to the runtime on a device."


def analyze_engine(capture: Capture) -> Report:
    """Report the device memory of an engine."""
    started = time.perf_counter()
    engine = capture.engine
    assert engine is not None
    modules = _Modules(capture.arguments)
    replayed = _replay(engine, modules)
    last = max(len(engine.layers) - 1, 0)
    held = (*_weights(capture, engine, modules, last), *_boundary(capture, engine, modules, last))
    excess = replayed.peak_bytes > engine.activation_bytes
    temps = () if excess else replayed.buffers
    live = sum(each.size_bytes for each in temps if each.at_peak)
    held += _rest(engine, engine.activation_bytes - live, last, excess=excess)
    buffers = tuple(sorted((each for each in (*held, *temps) if each.at_peak), key=lambda each: -each.size_bytes))
    footprint = sum(each.size_bytes for each in buffers)
    figures = EngineFigures(
        weights_bytes=engine.weights_bytes,
        activation_bytes=engine.activation_bytes,
        input_bytes=sum(each.size_bytes for each in engine.inputs),
        output_bytes=sum(each.size_bytes for each in engine.outputs),
        persistent_bytes=engine.device_persistent_bytes,
        scratch_bytes=engine.scratch_bytes,
        host_persistent_bytes=engine.host_persistent_bytes,
        replayed_bytes=replayed.peak_bytes,
        is_dynamic=engine.is_dynamic,
    )
    total = figures.weights_bytes + figures.activation_bytes + figures.input_bytes + figures.output_bytes
    assert footprint == total + figures.persistent_bytes
    return Report(
        **common_fields(capture, buffers, modules, footprint, forward_flops={}),
        framework="jax" if capture.toolchain.jax else "onnx",
        engine=engine.builder,
        engine_figures=figures,
        temp_buffers=temps,
        timeline=_timeline(held, temps, len(engine.layers), replayed.peak_position),
        program=ProgramFacts(num_recomputed_operations=0, loops=(), host_bytes=engine.host_persistent_bytes),
        doubts=(*capture.doubts, NOT_KNOWN),
        verdict=judge_engine(footprint, capture.target),
        pieces=Pieces(held=(footprint,)),
        pool=capture.pool,
        analysis_seconds=time.perf_counter() - started,
    )


class _Modules:
    """The modules that own parameters, whether a path is JAX's (`params['mlp']['up']`) or dotted (`mlp.up`)."""

    def __init__(self, arguments: Sequence[ArgumentLeaf]) -> None:
        self._trees = {leaf.path: _keys(leaf.path) for leaf in arguments if leaf.role is Role.PARAMS}
        roots = {keys[:1] for keys in self._trees.values()}
        self._root = len(roots) == 1 and all(len(keys) > 1 for keys in self._trees.values())
        self._known = {
            keys[:length] for keys in map(self._within, self._trees.values()) for length in range(1, len(keys))
        }
        self._names = {name for keys in self._known for name in keys}

    def of_argument(self, path: str) -> str:
        """Return the module that owns a parameter."""
        return "/".join(self._within(_keys(path))[:-1])

    def leaf_name(self, path: str) -> str:
        """Return the name of a parameter within its module."""
        return _keys(path)[-1]

    def of_node(self, name: str) -> str:
        """Return the module of an ONNX node from its name, like `Transformer/layers_0/mlp/MatMul.1`."""
        parts = [part for part in name.strip("/").replace(".", "/").split("/") if part]
        # The iterations of a loop over stacked layers are numbered: `layers_3` belongs to `layers`.
        scopes = tuple(part if part in self._names else re.sub(r"_\d+$", "", part) for part in parts)
        for start in range(len(scopes)):
            for stop in range(len(scopes), start, -1):
                if scopes[start:stop] in self._known:
                    return "/".join(scopes[start:stop])
        return ""

    def of_nodes(self, names: Sequence[str]) -> str:
        """Return the common module of all nodes of a layer."""
        paths = {path for path in map(self.of_node, names) if path}
        # A layer's own nodes are more specific than those around it.
        found = [path.split("/") for path in paths if not any(each.startswith(f"{path}/") for each in paths)]
        shared = takewhile(lambda scopes: len(set(scopes)) == 1, zip(*found, strict=False))
        return "/".join(scope for scope, *_ in shared)

    def _within(self, keys: tuple[str, ...]) -> tuple[str, ...]:
        return keys[1:] if self._root else keys


def _keys(path: str) -> tuple[str, ...]:
    keys = tuple(path_keys(path))
    return keys if len(keys) > 1 else tuple(path.split("."))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Replay:
    """The tensors between layers as live buffers, ordered by birth, and their peak."""

    buffers: tuple[LiveBuffer, ...]
    peak_bytes: int
    peak_position: int


def _replay(engine: Engine, modules: _Modules) -> _Replay:
    births: dict[int, int] = {}
    deaths: dict[int, int] = {}
    for position, layer in enumerate(engine.layers):
        for number in (*layer.outputs, *layer.inputs):
            births.setdefault(number, position)
            deaths[number] = position
    change = Counter[int]()
    for number, position in births.items():
        change[position] += engine.tensors[number].size_bytes
        change[deaths[number] + 1] -= engine.tensors[number].size_bytes
    live = peak = peak_position = 0
    for position in range(len(engine.layers)):
        live += change[position]
        if live > peak:
            peak, peak_position = live, position
    buffers = tuple(
        _buffer(
            engine.tensors[number],
            Category.FORWARD_TEMPS,
            Phase.FORWARD,
            module=modules.of_nodes(engine.layers[births[number]].nodes),
            op=", ".join(engine.layers[births[number]].nodes) or engine.layers[births[number]].name,
            evidence="live from the layer that produces it to the last layer that reads it (inferred)",
            start=births[number],
            end=deaths[number],
            at_peak=births[number] <= peak_position <= deaths[number],
        )
        for number in sorted(births, key=lambda number: births[number])
    )
    return _Replay(buffers=buffers, peak_bytes=peak, peak_position=peak_position)


def _weights(capture: Capture, engine: Engine, modules: _Modules, last: int) -> tuple[LiveBuffer, ...]:
    """Return the weights that the layers read, or else those of the model, and the rest of the builder's total.

    If layers read parts of one array under several names, their sum exceeds the total; if the builder has compressed
    weights, the model's sum does. If both exceed it, the total is not divided.
    """
    readers = {number: layer for layer in reversed(engine.layers) for number in layer.constants}
    of_layers = tuple(
        _buffer(
            tensor,
            Category.PARAMS,
            Phase.ARGUMENT,
            module=modules.of_nodes(readers[number].nodes),
            op=", ".join(readers[number].nodes) or readers[number].name,
            evidence="a constant of a layer",
            end=last,
        )
        for number, tensor in enumerate(engine.constants)
    )
    of_model = tuple(
        _buffer(
            EngineTensor(name=leaf.path, shape=leaf.shape, dtype=_short(leaf.dtype), size_bytes=leaf.size_bytes),
            Category.PARAMS,
            Phase.ARGUMENT,
            module=modules.of_argument(leaf.path),
            evidence="a weight of the model",
            end=last,
        )
        for leaf in capture.arguments
        if leaf.role is Role.PARAMS
    )
    for found in (of_layers, of_model):
        rest_bytes = engine.weights_bytes - sum(each.size_bytes for each in found)
        if found and rest_bytes >= 0:
            rest = _total(
                "other weights", rest_bytes, Category.PARAMS, f"{_BUILDER} of weights minus the listed ones", last
            )
            return (*found, *((rest,) if rest_bytes else ()))
    return (_total("weights", engine.weights_bytes, Category.PARAMS, f"{_BUILDER} of weights", last),)


def _short(dtype: str) -> str:
    """XLA's name for JAX's name of a dtype: `bf16` for `bfloat16`."""
    for name, word in (("bfloat", "bf"), ("float", "f"), ("uint", "u"), ("int", "s")):
        dtype = dtype.replace(name, word)
    return dtype


def _boundary(capture: Capture, engine: Engine, modules: _Modules, last: int) -> tuple[LiveBuffer, ...]:
    roles = {".".join(_keys(leaf.path)): leaf for leaf in capture.arguments}
    found = []
    for tensor in engine.inputs:
        leaf = roles.get(tensor.name)
        category = Category.BATCH if leaf is None else Category(leaf.role.value)
        found.append(_buffer(tensor, category, Phase.ARGUMENT, evidence="an input of the engine", end=last))
    found += [
        _buffer(tensor, Category.OUTPUTS, Phase.NONE, evidence="an output of the engine", end=last)
        for tensor in engine.outputs
    ]
    return tuple(found)


def _rest(engine: Engine, rest_bytes: int, last: int, *, excess: bool) -> tuple[LiveBuffer, ...]:
    """Return the part of the builder's totals that no tensor explains."""
    found = []
    if rest_bytes and excess:
        evidence = f"{_BUILDER} of activation memory; the layers' tensors need more, so it reuses memory in place"
        found.append(_total("activation memory", rest_bytes, Category.FORWARD_TEMPS, evidence, last))
    elif rest_bytes:
        evidence = f"{_BUILDER} of activation memory minus the tensors between layers"
        found.append(_total("workspace", rest_bytes, Category.WORKSPACE, evidence, last))
    if engine.device_persistent_bytes:
        evidence = f"{_BUILDER} of device persistent memory"
        found.append(_total("persistent memory", engine.device_persistent_bytes, Category.WORKSPACE, evidence, last))
    return tuple(found)


def _total(name: str, size_bytes: int, category: Category, evidence: str, last: int) -> LiveBuffer:
    tensor = EngineTensor(name=name, shape=(size_bytes,), dtype="u8", size_bytes=size_bytes)
    phase = Phase.ARGUMENT if category is Category.PARAMS else Phase.FORWARD
    return _buffer(tensor, category, phase, evidence=evidence, end=last)


def _buffer(
    tensor: EngineTensor,
    category: Category,
    phase: Phase,
    *,
    evidence: str,
    end: int,
    module: str = "",
    op: str = "",
    start: int = 0,
    at_peak: bool = True,
) -> LiveBuffer:
    return LiveBuffer(
        size_bytes=tensor.size_bytes,
        shape=tensor.shape,
        dtype=tensor.dtype,
        category=category,
        phase=phase,
        module=module,
        name=tensor.name,
        op=op or tensor.name,
        source="",
        rule=_RULE,
        evidence=evidence,
        start=start,
        end=end,
        offset=None,  # the builder does not report addresses
        at_peak=at_peak,
    )


def _timeline(
    held: Sequence[LiveBuffer], temps: Sequence[LiveBuffer], num_positions: int, peak_position: int
) -> Timeline:
    base: Counter[Category] = Counter()
    for buffer in held:
        base[buffer.category] += buffer.size_bytes
    # At each position, deaths at the previous one come before births.
    events = sorted(
        [(buffer.start, 1, number) for number, buffer in enumerate(temps)]
        + [(buffer.end + 1, 0, number) for number, buffer in enumerate(temps) if buffer.end + 1 < num_positions]
    )
    moments: list[list[int]] = [[] for _ in temps]
    for moment, (_, _, number) in enumerate(events):
        moments[number].append(moment)
    return Timeline(
        num_positions=num_positions,
        base=dict(base),
        changes=tuple(
            LiveChange(position, temps[number].category, temps[number].size_bytes * (1 if is_birth else -1))
            for position, is_birth, number in events
        ),
        phases=(),
        peak_position=peak_position,
        temp_changes=tuple((each[0], each[1] if len(each) > 1 else len(events)) for each in moments),
    )
