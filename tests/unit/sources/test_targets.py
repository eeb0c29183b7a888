"""From what the user wrote after `--target` to the record that the compiler and the capture get."""

from __future__ import annotations

import json
import os
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from hlo import Step
from hlo_nodes import f32

from memprof.analysis.records.capture import Capture, Target, Topology
from memprof.analysis.records.categories import Role
from memprof.errors import MemprofError
from memprof.sources.capture_file import read_capture, write_capture
from memprof.sources.jax.processes.task import decoded_task, encoded_task
from memprof.sources.jax.targets.nvidia.catalogue import gpus
from memprof.sources.jax.targets.resolve import (
    AskedTarget,
    LocalDevice,
    ProjectTarget,
    mesh_option,
    option_of,
    read_mesh,
    resolve,
    resolve_asked,
)
from memprof.studies.subject import find_subject


def test_one_gpu_is_a_topology_of_one_with_the_facts_of_the_catalogue() -> None:
    target = resolve("l4")
    assert target.topology == Topology(num_devices=1, num_hosts=1, num_slices=1)
    assert (target.platform, target.memory_bytes) == ("cuda", gpus()["l4"].memory_bytes)
    assert target.is_deviceless
    assert target.compiler_config == gpus()["l4"].target_config()


def test_an_exported_file_is_read_once_and_is_named_as_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.pbtxt").write_text(gpus()["l4"].target_config())
    target = resolve("mine.pbtxt")
    os.remove("mine.pbtxt")
    assert (target.name, target.description) == ("mine", "NVIDIA L4")
    assert target.compiler_config == gpus()["l4"].target_config()
    assert option_of(target) == "mine.pbtxt"
    assert option_of(resolve("l4")) == "l4"


def test_the_local_device_is_no_target_until_jax_has_started() -> None:
    assert resolve_asked("Local") == LocalDevice()
    assert option_of(LocalDevice()) == "local"
    with pytest.raises(MemprofError, match="only JAX knows the local device"):
        resolve("local")


@pytest.mark.parametrize("asked", [None, LocalDevice(reason="asked", topology=Topology(num_devices=4)), resolve("l4")])
def test_a_task_carries_what_was_asked_for(asked: AskedTarget) -> None:
    task = find_subject("mlp", preset="tiny").task("baseline", target=asked)
    assert decoded_task(encoded_task(task)) == task


def test_a_step_runs_on_no_device_that_need_not_be_there() -> None:
    assert resolve_asked(None, runs=True) is None
    assert resolve_asked("cpu", runs=True) == resolve("cpu")
    with pytest.raises(MemprofError, match="h100-80gb is a target to compile for"):
        resolve_asked("h100-80gb", runs=True)


@pytest.mark.parametrize(
    ("text", "hosts", "expected"),
    [
        ("fsdp=4,tp=2", 1, Topology(num_devices=8, axes={"fsdp": 4, "tp": 2})),
        (" fsdp = 4 , tp = 2 ", 2, Topology(num_devices=8, num_hosts=2, axes={"fsdp": 4, "tp": 2})),
        ("8", 1, Topology(num_devices=8)),
        ("1", 1, Topology()),
    ],
)
def test_a_mesh_is_a_topology_of_the_target(text: str, hosts: int, expected: Topology) -> None:
    assert read_mesh(text, hosts) == expected
    target = resolve_asked("l4", mesh=text, hosts=hosts)
    assert target == resolve("l4", expected)
    assert read_mesh(mesh_option(expected) or "1", hosts) == expected


def test_a_mesh_without_a_target_is_of_the_default_gpu() -> None:
    target = resolve_asked(None, mesh="8")
    assert target is not None
    assert (target.name, target.topology.num_devices, target.is_deviceless) == ("h100-80gb", 8, True)


def test_the_default_of_a_project_says_so_and_yields_to_a_mesh_that_it_cannot_be_of() -> None:
    asked = resolve_asked(ProjectTarget("l4"), mesh="8")
    assert (asked.name, asked.topology.num_devices, asked.reason) == ("l4", 8, "the default of this project")
    assert resolve_asked(ProjectTarget("cpu"), mesh="8") == resolve_asked(None, mesh="8")
    with pytest.raises(MemprofError, match="needs a GPU or a TPU, but 'cpu' is neither"):
        resolve_asked("cpu", mesh="8")


def test_a_capture_keeps_the_target_but_not_what_the_compiler_was_told_of_it(tmp_path: Path) -> None:
    path = write_capture(_capture(resolve("l4")), tmp_path / "a.memprof")
    with zipfile.ZipFile(path) as archive:
        written = json.loads(archive.read("manifest.json"))["target"]
    assert written == {
        "name": "l4",
        "description": "NVIDIA L4",
        "platform": "cuda",
        "memory_bytes": gpus()["l4"].memory_bytes,
        "compute_capability": "8.9",
        "reason": "asked for",
        "topology": {"num_devices": 1, "num_hosts": 1, "num_slices": 1, "axes": {}, "chips": []},
        "reserved_bytes": 0,
        "chip_bytes": {},
        "kernel_vmem_bytes": 0,
        "speeds": {
            "operations_per_second": {"f32": 30.3e12, "tf32": 60e12, "bf16": 121e12, "f16": 121e12, "f8": 242.5e12}
            | {"s8": 242.5e12},
            "memory_bytes_per_second": 300_096_000_000,
            "link_bytes_per_second": 31.5e9,
            "host_bytes_per_second": 31.5e9,
        },
    }
    assert read_capture(path).target == resolve("l4")


def _capture(target: Target) -> Capture:
    step = Step()
    x = step.argument("x", Role.BATCH, f32(4))
    step.result(step.op("y", "add", f32(4), [x, x], "jit(step)/add"))
    return replace(step.capture(), target=target)


@pytest.mark.parametrize(
    ("text", "name"),
    [("V100", "v100-16gb"), ("A100-80GB", "a100-80gb"), ("h200", "h200"), ("CPU", "cpu"), ("L4", "l4")],
)
def test_a_target_is_known_in_any_case_and_by_its_first_words(text: str, name: str) -> None:
    assert resolve(text).name == name


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("H100", "'H100' matches several targets: choose from h100-80gb, h100-pcie"),
        ("A10", "'A10' matches several targets: choose from a100-40gb, a100-80gb, a100-80gb-pcie, a10g"),
        ("h100-80g", "There is no target 'h100-80g' .did you mean 'h100-80gb'"),
        ("", "There is no target ''"),
    ],
)
def test_a_target_that_could_be_several_is_asked_for(text: str, sentence: str) -> None:
    with pytest.raises(MemprofError, match=sentence):
        resolve(text)
