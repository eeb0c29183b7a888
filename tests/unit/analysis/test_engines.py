"""What the order of an engine's layers says: modules, lifetimes, what the boundary holds; engines that cannot be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from made_compiles import made_capture

from memprof.analysis.engines import analyze_engine
from memprof.analysis.records.capture import ArgumentLeaf, Capture
from memprof.analysis.records.categories import Category, Role
from memprof.analysis.records.engine import Engine, EngineLayer, EngineTensor, fault_of
from memprof.analysis.records.live_buffer import LiveBuffer
from memprof.analysis.records.report import Report
from memprof.analysis.records.timeline import LiveChange, Timeline
from memprof.errors import MemprofError
from memprof.sources.capture_file import write_capture
from memprof.sources.jax.targets.resolve import resolve


def _tensor(name: str, num_elements: int) -> EngineTensor:
    return EngineTensor(name=name, shape=(num_elements,), dtype="f32", size_bytes=4 * num_elements)


def _layer(name: str, inputs: tuple[int, ...], outputs: tuple[int, ...], **others: tuple[int, ...]) -> EngineLayer:
    constants = others.get("constants", ())
    nodes = (f"model/{name}/MatMul",)
    return EngineLayer(name=name, kind="gemm", inputs=inputs, outputs=outputs, constants=constants, nodes=nodes)


# `a` (40 bytes) is made by the first layer and read by the second; `b` (80 bytes) by the second, and by the last two.
# So the second holds most, 120 bytes. The cache is an input.
ENGINE = Engine(
    builder="tensorrt",
    version="1",
    weights_bytes=440,
    activation_bytes=200,
    scratch_bytes=60,
    device_persistent_bytes=16,
    host_persistent_bytes=8,
    inputs=(_tensor("x", 2), _tensor("cache.k", 3)),
    outputs=(_tensor("y", 5),),
    tensors=(_tensor("a", 10), _tensor("b", 20)),
    constants=(_tensor("w", 100),),
    layers=(
        _layer("up", (), (0,), constants=(0,)),
        _layer("down", (0,), (1,)),
        _layer("head", (1,), ()),
        _layer("tail", (1,), ()),
    ),
)


def _argument(path: str, role: Role, *shape: int) -> ArgumentLeaf:
    return ArgumentLeaf(
        path=path, shape=shape, dtype="float32", size_bytes=400, role=role, donated=False, parameter_number=None
    )


def engine_capture(engine: Engine = ENGINE, *arguments: ArgumentLeaf) -> Capture:
    made = made_capture()
    return replace(
        made,
        target=resolve("rtx-4090"),
        arguments=arguments,
        hlo_proto=b"",
        replay=None,
        engine=engine,
    )


def _report(engine: Engine, *arguments: ArgumentLeaf) -> Report:
    return analyze_engine(engine_capture(engine, *arguments))


def _by_name(report: Report) -> dict[str, LiveBuffer]:
    return {buffer.name: buffer for buffer in (*report.buffers, *report.temp_buffers)}


@pytest.mark.parametrize(
    "paths", [("params['model']['up']['w']", "params['model']['down']['w']"), ("model.up.w", "model.down.w")]
)
def test_the_modules_of_parameters_are_those_of_nodes(paths: tuple[str, str]) -> None:
    """Whether a path is JAX's or dotted, and what all parameters lie in is no module."""
    report = _report(ENGINE, *(_argument(path, Role.PARAMS, 100) for path in paths))
    found = _by_name(report)
    below = "model/" if paths[0].startswith("params") else ""
    assert [found[name].module for name in ("w", "a", "b")] == [f"{below}up", f"{below}up", f"{below}down"]


def test_modules_list_their_parameters_by_the_name_within_them() -> None:
    for paths in (("model.up.w", "model.up.b"), ("params['up']['w']", "params['up']['b']")):
        (up,) = _report(ENGINE, *(_argument(path, Role.PARAMS, 100) for path in paths)).modules.children
        assert (up.path, [name for name, _, _ in up.params]) == ("up", ["w", "b"])


def test_a_tensor_lives_from_its_layer_to_the_last_that_reads_it() -> None:
    report = _report(ENGINE)
    found = _by_name(report)
    assert [(found[name].start, found[name].end, found[name].at_peak) for name in ("a", "b")] == [
        (0, 1, True),
        (1, 3, True),
    ]
    assert report.timeline.peak_position == 1
    assert report.engine_figures is not None
    assert report.engine_figures.replayed_bytes == 120
    sizes = {name: found[name].size_bytes for name in ("workspace", "other weights", "persistent memory")}
    assert sizes == {"workspace": 80, "other weights": 40, "persistent memory": 16}


@pytest.mark.parametrize(
    ("weights_bytes", "names"),
    [
        (400, ["w"]),  # the constant of the layer is all of them
        (440, ["w", "other weights"]),
        (399, ["weights"]),  # the layer reads a byte more than there is
    ],
)
def test_weights_are_those_of_layers_as_far_as_they_fit_the_total(weights_bytes: int, names: list[str]) -> None:
    report = _report(replace(ENGINE, weights_bytes=weights_bytes))
    held = [buffer for buffer in report.buffers if buffer.category is Category.PARAMS]
    assert [buffer.name for buffer in held] == names
    assert sum(buffer.size_bytes for buffer in held) == weights_bytes


@pytest.mark.parametrize(
    ("dtype", "short"), [("float32", "f32"), ("bfloat16", "bf16"), ("uint8", "u8"), ("int32", "s32"), ("bool", "bool")]
)
def test_weights_of_the_model_have_types_in_xlas_words(dtype: str, short: str) -> None:
    """The layers list no constants, so the weights are those of the model: 400 of 440 bytes."""
    layers = tuple(replace(layer, constants=()) for layer in ENGINE.layers)
    weight = replace(_argument("model.up.w", Role.PARAMS, 100), dtype=dtype)
    found = _by_name(_report(replace(ENGINE, layers=layers, constants=()), weight))
    assert found["model.up.w"].dtype == short
    assert found["other weights"].size_bytes == 40


def test_what_is_live_for_the_whole_run_ends_with_the_last_layer() -> None:
    report = _report(ENGINE)
    held = [buffer for buffer in report.buffers if buffer.category is not Category.FORWARD_TEMPS]
    assert len(held) == 7  # the weight and the rest of them, two inputs, an output, the workspace, persistent memory
    assert {(buffer.start, buffer.end, buffer.offset) for buffer in held} == {(0, 3, None)}


def test_the_timeline_has_births_and_deaths_in_the_order_of_the_layers() -> None:
    """`a` dies after the second layer; `b` lives to the last one, so its death is not in the timeline."""
    params, temps = Category.PARAMS, Category.FORWARD_TEMPS
    assert _report(ENGINE).timeline == Timeline(
        num_positions=4,
        # the weights; `x` and `cache.k`; `y`; the rest of the activation memory, and the persistent memory
        base={params: 440, Category.BATCH: 8 + 12, Category.OUTPUTS: 20, Category.WORKSPACE: 80 + 16},
        changes=(LiveChange(0, temps, 40), LiveChange(1, temps, 80), LiveChange(2, temps, -40)),
        phases=(),
        peak_position=1,
        temp_changes=((0, 2), (1, 3)),
    )


def test_a_tensor_dies_before_the_next_one_is_born() -> None:
    layers = (_layer("one", (), (0,)), _layer("two", (), (1,)))
    report = _report(replace(ENGINE, layers=(*layers, _layer("three", (), (), constants=(0,)))))
    temps = Category.FORWARD_TEMPS
    assert report.timeline.changes == tuple(
        LiveChange(position, temps, delta) for position, delta in ((0, 40), (1, -40), (1, 80), (2, -80))
    )
    assert report.timeline.temp_changes == ((0, 1), (2, 3))


def test_an_engine_without_layers_has_the_totals_of_its_builder() -> None:
    report = _report(replace(ENGINE, layers=(), tensors=(), constants=()))
    assert {buffer.name: (buffer.size_bytes, buffer.start, buffer.end) for buffer in report.buffers} == {
        "weights": (440, 0, 0),
        "workspace": (200, 0, 0),
        "y": (20, 0, 0),
        "persistent memory": (16, 0, 0),
        "cache.k": (12, 0, 0),
        "x": (8, 0, 0),
    }


def test_of_equal_peaks_the_first_counts() -> None:
    layers = (_layer("one", (), (0,)), _layer("two", (0,), ()), _layer("three", (), (1,), constants=(0,)))
    engine = replace(ENGINE, tensors=(_tensor("a", 20), _tensor("b", 20)), layers=layers)
    report = _report(engine)
    assert report.timeline.peak_position == 0
    assert [buffer.name for buffer in report.temp_buffers if buffer.at_peak] == ["a"]


def test_an_input_has_the_role_of_the_argument_of_its_name() -> None:
    report = _report(ENGINE, _argument("cache['k']", Role.KV_CACHE, 3))
    categories = {buffer.name: buffer.category for buffer in report.buffers}
    assert categories["cache.k"] is Category.KV_CACHE
    assert categories["x"] is Category.BATCH


@pytest.mark.parametrize(
    ("engine", "fault"),
    [
        (ENGINE, ""),
        (replace(ENGINE, tensors=ENGINE.tensors[:1]), "a layer has a tensor that does not exist"),
        (replace(ENGINE, constants=()), "a layer reads a constant that does not exist"),
        (replace(ENGINE, constants=(*ENGINE.constants, _tensor("v", 1))), "no layer reads a constant"),
        *(
            (
                replace(ENGINE, **{field: (EngineTensor(name="t", shape=shape, dtype="f32", size_bytes=size), *kept)}),
                "the shape and the size of a tensor contradict each other",
            )
            for field, kept in (("inputs", ()), ("outputs", ()), ("constants", ()), ("tensors", ENGINE.tensors[1:]))
            for shape, size in (((4, 4), 129), ((4, 4), 7), ((0,), 1), ((1,), 0))
        ),
        (replace(ENGINE, inputs=(EngineTensor(name="t", shape=(3,), dtype="s4", size_bytes=2),)), ""),
        (replace(ENGINE, inputs=(EngineTensor(name="t", shape=(3,), dtype="f64", size_bytes=24),)), ""),
    ],
)
def test_an_engine_that_contradicts_itself_is_refused(engine: Engine, fault: str, tmp_path: Path) -> None:
    assert fault_of(engine) == fault
    if fault:
        with pytest.raises(MemprofError, match=f"in its engine, {fault}"):
            write_capture(engine_capture(engine), tmp_path / "engine.memprof")
