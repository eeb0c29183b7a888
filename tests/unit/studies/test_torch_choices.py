"""What a step of PyTorch takes, before it is traced. Needs no PyTorch."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from hlo import Step
from hlo_nodes import f32
from typer.testing import CliRunner

from memprof.analysis.records.capture import Capture
from memprof.analysis.records.categories import Role
from memprof.errors import MemprofError, WorkloadError
from memprof.profiler_cli.app import app
from memprof.sources.jax.targets.resolve import DEFAULT_GPU, resolve
from memprof.studies import torch_step
from memprof.studies.subject import find_subject
from memprof.studies.torch_step import TorchTrace, capture_of_script, capture_of_step, step_maker, torch_target
from memprof.workloads.torch.script import TorchScript
from memprof.workloads.user.reference import parse


def test_a_step_is_judged_for_a_gpu_that_need_not_be_there() -> None:
    assert torch_target(None) == replace(resolve(DEFAULT_GPU), reason="the default")
    assert torch_target("l4") == resolve("l4")
    assert torch_target("cpu").platform == "cpu"
    with pytest.raises(MemprofError, match="traced and do not run here"):
        torch_target("local")


@pytest.mark.parametrize(
    ("name", "preset", "techniques", "arguments", "sentence"),
    [
        ("train.py:step", "tiny", "", (), "--preset is for built-in workloads"),
        ("train.py:step", None, "bf16", (), "which techniques cannot change: leave out -t"),
        ("mlp", None, "", ("--fast",), "takes no arguments, but got --fast"),
        (
            "transformer",
            "tiny-llama",
            "",
            (),
            "has the blocks of GPT-2: leave num_kv_heads, gated_mlp, activation, norm",
        ),
    ],
)
def test_a_choice_that_the_step_does_not_take_is_refused(
    name: str, preset: str | None, techniques: str, arguments: tuple[str, ...], sentence: str
) -> None:
    with pytest.raises(MemprofError, match=sentence):
        step_maker(name, preset=preset, overrides=(), techniques=techniques, arguments=arguments)


def test_a_step_of_the_user_takes_arguments_and_parameters() -> None:
    assert callable(
        step_maker("mine.train:step", preset=None, overrides=("a=1",), techniques="", arguments=("--fast",))
    )


def test_a_mesh_has_one_axis() -> None:
    divided = torch_target("l4", "fsdp=4")
    assert (divided.name, divided.topology.num_devices, dict(divided.topology.axes)) == ("l4", 4, {"fsdp": 4})
    assert dict(torch_target(None, "dp=8").topology.axes) == {"dp": 8}
    for mesh in ("tp=4", "dp=2,fsdp=2"):
        with pytest.raises(MemprofError, match="give --mesh dp=8 for DistributedDataParallel, or --mesh fsdp=8"):
            torch_target("l4", mesh)


def _maker(name: str, **choices: object) -> object:
    return step_maker(name, **{"preset": None, "overrides": (), "techniques": "", "arguments": (), **choices})  # type: ignore[arg-type]


def test_a_script_is_run_and_a_function_is_called(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\n", encoding="utf-8")
    found = _maker(str(script), overrides=("a=1",), arguments=("--fast",))
    assert isinstance(found, TorchScript)
    assert (found.reference.path, found.reference.is_script) == (script, True)
    assert (found.overrides, found.arguments) == (("a=1",), ("--fast",))
    with pytest.raises(MemprofError, match=r"--mesh is for a function that returns a memprof.TorchStepSpec"):
        _maker(str(script), num_devices=2)
    assert not isinstance(_maker(f"{script}:any_function", num_devices=2), TorchScript)
    assert callable(_maker("mlp", preset="tiny", num_devices=2))


class TestTorchTrace:
    @pytest.fixture
    def made(self, monkeypatch: pytest.MonkeyPatch) -> Capture:
        step = Step()
        w = step.argument("w", Role.PARAMS, f32(4))
        step.result(step.op("out", "negate", f32(4), [w], "neg"))
        capture = step.capture()
        monkeypatch.setattr(torch_step, "capture_of_step", lambda make_spec, target, label: capture)
        return capture

    def test_the_capture_has_the_digest_of_its_request(self, made: Capture) -> None:
        said: list[str] = []
        trace = TorchTrace(subject=find_subject("mlp", preset="tiny"), techniques="", target=torch_target("l4"))
        trace.check()
        assert trace.capture(progress=said.append).capture == replace(made, request=trace.digest)
        assert said == ["tracing"]

    def test_the_digest_is_that_of_the_choices(self) -> None:
        base = TorchTrace(subject=find_subject("mlp", preset="tiny"), techniques="", target=torch_target("l4"))
        others = [
            replace(base, subject=find_subject("mlp", preset="base")),
            replace(base, techniques="bf16"),
            replace(base, target=torch_target("cpu")),
            replace(base, target=torch_target("l4", "fsdp=2")),
        ]
        assert len({base.digest, *(each.digest for each in others)}) == 5
        assert replace(base).digest == base.digest

    def test_a_wrong_choice_is_found_before_tracing(self) -> None:
        trace = TorchTrace(subject=find_subject("mlp", preset="tiny"), techniques="scan", target=torch_target("l4"))
        with pytest.raises(MemprofError, match="scan"):
            trace.check()


class TestCaptureOfScript:
    @pytest.fixture
    def traced(self, monkeypatch: pytest.MonkeyPatch) -> list[TorchScript]:
        found: list[TorchScript] = []
        monkeypatch.setattr(torch_step, "trace_in_child", lambda script, target: found.append(script))
        return found

    def test_a_path_is_made_whole(
        self, traced: list[TorchScript], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "train.py").write_text("", encoding="utf-8")
        monkeypatch.chdir(tmp_path)
        capture_of_script("train.py", ["--fast"], torch_target("l4"), is_module=False)
        (script,) = traced
        assert (script.reference.module, script.reference.path) == ("train", tmp_path / "train.py")
        assert (script.arguments, script.reference.is_script) == (("--fast",), True)
        with pytest.raises(MemprofError, match=r"there is no script other.py: give its path, or -m"):
            capture_of_script("other.py", [], torch_target("l4"), is_module=False)
        with pytest.raises(MemprofError, match="there is no script"):
            capture_of_script(str(tmp_path), [], torch_target("l4"), is_module=False)

    def test_a_module_has_no_path(self, traced: list[TorchScript]) -> None:
        capture_of_script("mine.train", [], torch_target("l4"), is_module=True)
        (script,) = traced
        assert (script.reference.module, script.reference.path) == ("mine.train", None)


class TestCaptureOfStep:
    @pytest.fixture
    def capture(self) -> Capture:
        step = Step()
        step.result(step.op("out", "negate", f32(4), [step.argument("w", Role.PARAMS, f32(4))], "neg"))
        return step.capture()

    def test_a_script_is_traced_in_its_own_process(self, capture: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch_step, "trace_in_child", lambda script, target: capture)
        script = TorchScript(reference=parse("mine.train"))
        assert capture_of_step(script, torch_target("l4")) is capture
        assert capture_of_step(script, torch_target("l4"), label="mine").label == "mine"

    def _tracing(self, monkeypatch: pytest.MonkeyPatch, trace_step: object) -> None:
        module = ModuleType("memprof.sources.torch.trace_step")
        module.trace_step = trace_step  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)

    def test_a_step_is_traced_here(self, capture: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
        self._tracing(monkeypatch, lambda make_spec, target: capture)
        assert capture_of_step(lambda: None, torch_target("l4")) is capture  # type: ignore[arg-type,return-value]
        assert capture_of_step(lambda: None, torch_target("l4"), label="mine") == replace(capture, label="mine")  # type: ignore[arg-type,return-value]

    def test_a_fault_of_the_step_is_the_users(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(make_spec: object, target: object) -> None:
            raise ZeroDivisionError("in\nthe loss")

        def refuse(make_spec: object, target: object) -> None:
            raise MemprofError("it has no loss")

        self._tracing(monkeypatch, fail)
        with pytest.raises(WorkloadError, match=r"^the step failed while it was traced: ZeroDivisionError: in$"):
            capture_of_step(lambda: None, torch_target("l4"))  # type: ignore[arg-type,return-value]
        self._tracing(monkeypatch, refuse)
        with pytest.raises(MemprofError, match=r"^it has no loss$") as raised:
            capture_of_step(lambda: None, torch_target("l4"))  # type: ignore[arg-type,return-value]
        assert not isinstance(raised.value, WorkloadError)

    def test_missing_pytorch_is_said(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in [each for each in sys.modules if each.split(".")[0] == "torch" or ".torch." in each]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, "torch", None)
        with pytest.raises(MemprofError, match=r"^PyTorch is not installed: pip install 'jax-memprof\[torch\]'$"):
            capture_of_step(lambda: None, torch_target("l4"))  # type: ignore[arg-type,return-value]


def test_a_missing_module_of_ours_is_not_taken_for_missing_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "memprof.sources.torch.trace_step", None)
    make = step_maker("mine.train:step", preset=None, overrides=(), techniques="", arguments=())
    with pytest.raises(ModuleNotFoundError, match="trace_step"):
        capture_of_step(make, torch_target("l4"))


@pytest.mark.parametrize("step", ["train.py", "train.py:torch_spec", "train.py:any_function"])
@pytest.mark.parametrize("command", ["advise", "plan", "trace", "export", "serve-plan"])
def test_commands_for_steps_of_jax_refuse_one_of_pytorch(
    command: str, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("import torch\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, [command, step])
    assert isinstance(result.exception, MemprofError)
    assert not isinstance(result.exception, WorkloadError)
    assert str(result.exception).startswith(
        f"{step} is written with PyTorch, and `memprof {command}` is for steps of JAX"
    )
