"""The builder's messages as records, and the report of an engine: by hand, without TensorRT."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from made_compiles import made_capture

from memprof.analysis.engines import analyze_engine
from memprof.analysis.pipeline import analyze
from memprof.analysis.records.capture import Capture
from memprof.analysis.records.categories import Category
from memprof.errors import InternalError, MemprofError
from memprof.sources.capture_file import read_capture, write_capture
from memprof.sources.jax.targets.resolve import resolve
from memprof.sources.tensorrt.build import capability_of
from memprof.sources.tensorrt.build_log import Boundary, read_engine, tensor


def _array(name: str, shape: str, dtype: str = "Float") -> str:
    return (
        f"{{ Name: {name}, Dimensions: [{shape}], Strides: [1], StrideOrder: [0], Datatype: {dtype}, Format: (Linear)"
        " Row major linear format }"
    )


def _layer(name: str, inputs: Sequence[str], constants: Sequence[str], outputs: Sequence[str], nodes: str) -> str:
    sections = ", ".join(
        f"{title}: [{' ' + ', '.join(arrays) if arrays else ''}]"
        for title, arrays in (("Inputs", inputs), ("Constants", constants), ("Outputs", outputs))
    )
    return f"Name: {name}, LayerType: gemm, {sections}, TacticName: t, StreamId: 0, Metadata: {nodes}"


def _messages(*layers: str, activation: int = 1000, weights: int = 600) -> list[str]:
    return [
        "Total Host Persistent Memory: 80 bytes",
        "Total Device Persistent Memory: 16 bytes",
        f"Max Scratch Memory: {activation} bytes",
        f"Total Activation Memory: {activation} bytes",
        f"Total Weights Memory: {weights} bytes",
        "Layers:\n" + "\n".join(layers) + "\n\nI/O Tensors:\n Name: x, IOMode: Input",
    ]


# x (40 bytes) makes a (100) from a weight of 400, a makes b (200), b makes y (20): a and b are live together.
LAYERS = (
    _layer("one", [_array("x", "10")], [_array("w", "10,10")], [_array("a", "5,5")], "[ONNX Layer: up/MatMul]"),
    _layer("two", [_array("a", "25")], [], [_array("b", "50")], "[ONNX Layer: up/Mul][ONNX Layer: down/Add]"),
    _layer("a, {b}", [_array("b", "50")], [], [_array("y", "5")], ""),
)
BOUNDARY = Boundary(inputs=(tensor("x", [10], "Float"),), outputs=(tensor("y", [5], "Float"),))


def _capture(messages: list[str]) -> Capture:
    engine = read_engine(messages, BOUNDARY, version="1.7.1")
    made = made_capture()
    return Capture(
        label="model",
        workload="model",
        techniques=(),
        config={},
        target=resolve("rtx-4090"),
        toolchain=made.toolchain,
        compiler=made.compiler,
        arguments=(),
        flops=0,
        recomputed_flops=0,
        timings=made.timings,
        hlo_proto=b"",
        engine=engine,
    )


def test_layers_are_read_with_their_tensors() -> None:
    engine = read_engine(_messages(*LAYERS), BOUNDARY, version="1.7.1")
    assert [(each.name, each.size_bytes) for each in engine.tensors] == [("a", 100), ("b", 200)]
    assert [(each.name, each.size_bytes) for each in engine.constants] == [("w", 400)]
    assert [(each.inputs, each.outputs, each.constants) for each in engine.layers] == [
        ((), (0,), (0,)),
        ((0,), (1,), ()),
        ((1,), (), ()),
    ]
    assert [each.name for each in engine.layers] == ["one", "two", "a, {b}"]
    assert engine.layers[1].nodes == ("up/Mul", "down/Add")


def test_the_parts_of_an_engine_add_up() -> None:
    report = analyze_engine(_capture(_messages(*LAYERS)))
    assert report.footprint_bytes == 600 + 1000 + 40 + 20 + 16
    assert sum(report.categories.values()) == report.footprint_bytes
    assert {name: size for name, size in report.categories.items() if size} == {
        Category.PARAMS: 600,
        Category.BATCH: 40,
        Category.FORWARD_TEMPS: 300,
        Category.WORKSPACE: 700 + 16,
        Category.OUTPUTS: 20,
    }
    assert report.engine_figures is not None
    assert report.engine_figures.replayed_bytes == 300
    assert report.timeline.peak_position == 1


def test_a_total_below_the_replay_stays_whole() -> None:
    """The builder reuses memory in place, which the order of the layers does not show."""
    report = analyze_engine(_capture(_messages(*LAYERS, activation=250)))
    assert report.categories[Category.FORWARD_TEMPS] == 250
    assert report.categories[Category.WORKSPACE] == 16
    assert sum(report.categories.values()) == report.footprint_bytes == 600 + 250 + 40 + 20 + 16


def test_weights_read_in_parts_stay_whole() -> None:
    report = analyze_engine(_capture(_messages(*LAYERS, weights=300)))
    assert report.categories[Category.PARAMS] == 300


def test_a_capture_of_an_engine_is_read_again(tmp_path: Path) -> None:
    capture = _capture(_messages(*LAYERS))
    path = write_capture(capture, tmp_path / "engine.memprof")
    found = read_capture(path)
    assert found.engine == capture.engine
    assert analyze(found).categories == analyze(capture).categories


@pytest.mark.parametrize(
    ("messages", "sentence"),
    [
        (_messages(*LAYERS)[1:], "did not report: Total Host Persistent Memory"),
        (_messages(*LAYERS)[:-1], "listed no layers"),
        (_messages("something else"), "in an unknown form"),
        (_messages(_layer("one", [], [], [_array("a", "5", "Quaternion")], "")), "type Quaternion is unknown"),
    ],
)
def test_messages_of_another_form_are_an_error(messages: list[str], sentence: str) -> None:
    with pytest.raises(InternalError, match=sentence):
        read_engine(messages, BOUNDARY, version="2")


@pytest.mark.parametrize(("target", "capability"), [("rtx-4090", (8, 9)), ("t4", (7, 5)), ("rtx-5090", (12, 0))])
def test_a_gpu_has_its_capability(target: str, capability: tuple[int, int]) -> None:
    assert capability_of(resolve(target)) == capability


@pytest.mark.parametrize("target", ["a100-40gb", "h100-80gb", "b200", "v100-16gb"])
def test_other_gpus_have_a_sentence(target: str) -> None:
    with pytest.raises(MemprofError, match=f"TensorRT for RTX does not support {target}"):
        capability_of(resolve(target))
