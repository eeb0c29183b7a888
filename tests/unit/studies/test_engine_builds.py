"""Engines of TensorRT: what is asked of the builder, and the capture of what it built. The builder is made by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hlo import Step
from hlo_nodes import f32

from memprof.analysis.comparison import FailedRow
from memprof.analysis.records.capture import Capture
from memprof.analysis.records.categories import Role
from memprof.analysis.records.engine import Engine
from memprof.errors import MemprofError
from memprof.sources.jax.processes.task import Task
from memprof.sources.jax.targets.resolve import resolve
from memprof.sources.tensorrt.build import BuiltEngine
from memprof.sources.tensorrt.request import BuildRequest, Dimension, NamedArray
from memprof.studies import engine
from memprof.studies.engine import POOL, EngineBuild, engine_target, of_engine, of_model
from memprof.studies.side_by_side import SideBySide, make_rows
from memprof.studies.subject import Subject, find_subject
from memprof.workloads.build import BuiltInStep

_ENGINE = Engine(
    builder="tensorrt",
    version="1.7.1",
    weights_bytes=1024,
    activation_bytes=512,
    scratch_bytes=0,
    device_persistent_bytes=0,
    host_persistent_bytes=0,
    inputs=(),
    outputs=(),
    tensors=(),
    constants=(),
    layers=(),
)
_WEIGHTS = (
    NamedArray(name="up", shape=(4, 8), dtype="float32", size_bytes=128),
    NamedArray(name="down", shape=(8, 2), dtype="float16", size_bytes=32),
)


def _config(task: Task) -> dict[str, Any]:
    assert isinstance(task.recipe, BuiltInStep)
    return task.recipe.config


@dataclass
class _Builder:
    """In place of JAX, ONNX and TensorRT. A model is named by its sizes; `config` is that of the step's capture."""

    config: dict[str, object] = field(default_factory=lambda: {"batch_size": 8, "context_len": 3, "seq_len": 2})
    exports: list[Task] = field(default_factory=list)
    requests: list[tuple[BuildRequest, float | None]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    open_files: int = 0

    def put_in_place(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(engine, "check_installed", lambda: None)
        monkeypatch.setattr(engine, "exported_in_child", self.exported_in_child)
        monkeypatch.setattr(engine, "build_engine", self.build_engine)

    @contextmanager
    def exported_in_child(self, task: Task, *, progress: Callable[[str], None]) -> Iterator[Any]:
        progress("exporting")
        self.exports.append(task)
        self.open_files += 1
        sizes = "-".join(f"{name}={_config(task)[name]}" for name in ("batch_size", "seq_len"))
        yield self._capture(), None, (Path(f"/models/{sizes}.onnx"), Path("/models/weights"))
        self.open_files -= 1

    def _capture(self) -> Capture:
        step = Step()
        w = step.argument("params['w']", Role.PARAMS, f32(4))
        step.result(step.op("out", "negate", f32(4), [w], "jit(step)/neg"))
        made = step.capture()
        tools = replace(made.toolchain, xla_flags="--xla_mine=true", cuda_plugin="0.12")
        return replace(made, workload="net", techniques=("bf16",), config=self.config, toolchain=tools)

    def build_engine(self, request: BuildRequest, folder: Path, *, timeout_seconds: float | None) -> BuiltEngine:
        assert folder.is_dir()
        if "seq_len=13" in request.model:
            raise MemprofError("TensorRT rejects it")
        self.requests.append((request, timeout_seconds))
        return BuiltEngine(engine=_ENGINE, weights=_WEIGHTS, seconds=2.5)


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch) -> _Builder:
    made = _Builder()
    made.put_in_place(monkeypatch)
    return made


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "net.onnx"
    path.write_bytes(b"onnx")
    return path


def _build(subject: str | Subject, techniques: str = "", **fields: Any) -> EngineBuild:
    found = find_subject(subject) if isinstance(subject, str) else subject
    return EngineBuild(**{"subject": found, "techniques": techniques, "target": engine_target("l4"), **fields})


def _of_model(path: Path, *overrides: str, techniques: str = "", **fields: Any) -> EngineBuild:
    return _build(find_subject(str(path), overrides=overrides), techniques, **fields)


def test_techniques_are_those_of_the_model_and_those_of_the_engine() -> None:
    assert of_model("bf16+int8-qdq+dynamic-batch+scan") == "bf16+scan"
    assert of_engine("bf16+int8-qdq+dynamic-batch+scan") == ("int8-qdq", "dynamic-batch")
    assert of_model("int8-qdq") == ""
    assert of_engine("") == ()


def test_the_default_target_says_that_it_is_one() -> None:
    assert engine_target("l4") == resolve("l4")
    default = engine_target(None)
    assert (default.name, default.reason) == ("rtx-4090", "the default of --engine tensorrt")
    with pytest.raises(MemprofError, match="TensorRT builds for NVIDIA GPUs, but cpu is not one"):
        engine_target("cpu")


def test_a_model_file_is_built_for_the_maxima_that_are_set(builder: _Builder, model: Path) -> None:
    build = _of_model(model, "batch=256", "length=16", techniques="int8-qdq", timeout_seconds=9.0)
    capture = build.capture(progress=builder.said.append).capture
    (request, timeout) = builder.requests[0]
    assert request == BuildRequest(
        model=str(model.resolve()),
        name="net",
        compute_capability=(8, 9),
        maxima={"batch": 256, "length": 16},
        int8=True,
    )
    assert (timeout, builder.said, builder.exports) == (9.0, ["building the engine"], [])
    assert (capture.label, capture.workload, capture.techniques) == ("net int8-qdq", "net", ("int8-qdq",))
    assert capture.config == {"batch": 256, "length": 16}
    assert (capture.engine, capture.pool, capture.timings.compile_seconds) == (_ENGINE, POOL, 2.5)
    assert (capture.flops, capture.recomputed_flops, capture.timings.lower_seconds) == (0, 0, 0.0)
    assert (capture.toolchain.tensorrt, capture.toolchain.jax, capture.toolchain.optax) == ("1.7.1", "", None)
    assert [(each.path, each.shape, each.dtype, each.size_bytes) for each in capture.arguments] == [
        ("up", (4, 8), "float32", 128),
        ("down", (8, 2), "float16", 32),
    ]
    assert [(each.role, each.donated, each.parameter_number) for each in capture.arguments] == [
        (Role.PARAMS, False, 0),
        (Role.PARAMS, False, 1),
    ]
    assert capture.compiler.total_allocation_bytes is None
    assert capture.request == build.digest
    assert _of_model(model, label="mine").capture(progress=builder.said.append).capture.label == "mine"
    assert not builder.requests[1][0].int8


@pytest.mark.parametrize(
    ("overrides", "techniques", "sentence"),
    [
        ((), "bf16", "so techniques can only quantise its products: leave out -t, or give -t int8-qdq"),
        ((), "dynamic-batch", "no other dimension can be made dynamic: leave out dynamic-batch and dynamic-length"),
        (("batch=0",), "", "--set batch=0 is not a size: give the maximum of the dimension, a whole number"),
        (("batch=-1",), "", "--set batch=-1 is not a size"),
        (("batch=1.5",), "", "--set batch=1.5 is not a size"),
        (("batch=\u0663",), "", "is not a size"),
    ],
)
def test_a_model_file_takes_no_other_choices(
    builder: _Builder, model: Path, overrides: tuple[str, ...], techniques: str, sentence: str
) -> None:
    with pytest.raises(MemprofError, match=sentence):
        _of_model(model, *overrides, techniques=techniques).capture(progress=builder.said.append)
    assert builder.requests == []
    _of_model(model, "batch=1").check()


def test_a_step_is_exported_and_its_model_is_built(builder: _Builder) -> None:
    build = _build("transformer", "fp16+int8-qdq", timeout_seconds=9.0)
    capture = build.capture(progress=builder.said.append).capture
    (task,) = builder.exports
    assert (task.exports, task.verifies, task.settings.timeout_seconds) == ("model.onnx", False, 9.0)
    assert builder.said == ["exporting", "building the engine"]
    ((request, timeout),) = builder.requests
    assert (request.name, request.int8, request.maxima, request.varying, request.smaller_models, timeout) == (
        ("transformer", True, {}, (), (), 9.0)
    )
    assert request.model.startswith("/models/batch_size=8-")
    assert (capture.workload, capture.techniques) == ("net", ("bf16", "int8-qdq"))
    assert (capture.label, capture.target) == ("net fp16+int8-qdq", engine_target("l4"))
    tools = capture.toolchain
    assert (tools.xla_flags, tools.cuda_plugin, tools.tensorrt) == ("", None, "1.7.1")
    assert (capture.engine, capture.pool, capture.timings.compile_seconds) == (_ENGINE, POOL, 2.5)
    assert capture.compiler.argument_bytes == 0
    assert builder.open_files == 0


def _with_sizes(builder: _Builder, **config: int) -> BuildRequest:
    builder.config = config
    _build("transformer", "dynamic-batch+dynamic-length").capture(progress=builder.said.append)
    return builder.requests[-1][0]


def test_sizes_that_vary_have_models_with_each_smaller_size(builder: _Builder) -> None:
    """Of two dimensions there are three further models: the second is smaller by one, the first is, or both are."""
    request = _with_sizes(builder, batch_size=8, seq_len=3)
    assert request.varying == (
        Dimension(name="batch_size", size=8, smaller=7),
        Dimension(name="seq_len", size=3, smaller=2),
    )
    sizes = [(_config(task)["batch_size"], _config(task)["seq_len"]) for task in builder.exports]
    assert sizes[1:] == [(7, 3), (8, 2), (7, 2)]
    assert [Path(each).name for each in request.smaller_models] == [
        "batch_size=7-seq_len=3.onnx",
        "batch_size=8-seq_len=2.onnx",
        "batch_size=7-seq_len=2.onnx",
    ]
    assert request.maxima == {"batch_size": 8, "seq_len": 3}
    assert builder.open_files == 0


def test_a_size_that_varies_is_one_of_the_workload_and_three_at_least(builder: _Builder) -> None:
    assert [each.smaller for each in _with_sizes(builder, batch_size=3, seq_len=5, context_len=4).varying] == [2, 4]
    with pytest.raises(MemprofError, match="Technique 'dynamic-batch' needs a batch_size of at least 3, but it is 2"):
        _with_sizes(builder, batch_size=2, seq_len=5)
    with pytest.raises(
        MemprofError, match="Technique 'dynamic-length' does not apply to net, which has no such dimension"
    ):
        _with_sizes(builder, batch_size=8)


def test_rows_are_built_in_turn_and_a_failed_one_has_its_reason(builder: _Builder) -> None:
    builds = [_build("transformer", label="first"), _build("transformer", label="second")]
    broken = replace(builds[1], subject=builds[1].subject.with_override("seq_len", 13), label="broken")
    table = SideBySide(["first", "broken", "second"])
    said: list[tuple[str, str]] = []
    kept: list[Capture] = []
    make_rows(
        [builds[0], broken, builds[1]],
        table,
        progress=lambda label, stage: said.append((label, stage)),
        keep=kept.append,
    )
    assert [each.label for each in kept] == ["first", "second"]
    assert table.failures == [FailedRow(label="broken", reason="TensorRT rejects it")]
    assert said == [
        *(("first", stage) for stage in ("exporting", "building the engine", "done")),
        *(("broken", stage) for stage in ("exporting", "building the engine", "failed")),
        *(("second", stage) for stage in ("exporting", "building the engine", "done")),
    ]
    assert [row.label for row in table.comparison().rows] == ["first", "second"]


def test_the_digest_is_that_of_what_is_built(model: Path) -> None:
    """Neither the label nor the limit of time changes an engine; a training workload is built in its inference."""
    build = _build("transformer", "fp16")
    same = [
        replace(build, label="mine"),
        replace(build, timeout_seconds=3.0),
        _build(find_subject("transformer", overrides=["phase=inference"]), "fp16"),
    ]
    assert {each.digest for each in same} == {build.digest}
    others = [
        _build("transformer"),
        _build("mlp", "fp16"),
        _build(find_subject("transformer", overrides=["seq_len=5"]), "fp16"),
        _build("transformer", "fp16", target=engine_target("rtx-4090")),
        _of_model(model),
    ]
    assert len({build.digest, *(each.digest for each in others)}) == 6


def test_weights_that_xla_narrows_are_narrowed_by_the_builder_instead(builder: _Builder) -> None:
    with pytest.raises(MemprofError, match="'int8-weights' is for programs that XLA compiles; for TensorRT, quantise"):
        _build("transformer", "int8-weights").check()
    _build("transformer", "bf16").check()
