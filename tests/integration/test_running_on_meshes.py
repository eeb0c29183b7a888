"""Sharded steps that run, for real, on eight devices of the CPU: in one process, and as a job of two."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from integration.command import Command
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from jsonschema import Draft202012Validator
from simple_kernels import SIMPLE_KERNEL_FLAGS

import memprof as mp
from memprof.sources.capture_file import read_capture
from memprof.sources.jax.processes import job
from memprof.sources.jax.targets.mesh import mesh_of, target_of_step
from memprof.sources.jax.targets.resolve import ProjectTarget, resolve, resolve_asked

ROOT = Path(__file__).parents[2]
EXAMPLE = str(ROOT / "examples" / "running_sharded.py")
SCHEMA = json.loads((ROOT / "docs" / "schema" / "report.schema.json").read_text())
SMALL = ("--set", "num_layers=1", "--set", "width=64", "--target", "cpu")
# A weight of 64 by 64 and its two moments over 8 devices, the counter of steps, and 64 examples of the batch.
ARGUMENT_BYTES = 3 * 4 * 64 * 64 // 8 + 4 + 4 * 64 * 64 // 8


def flags(num_devices: int) -> str:
    return f"--xla_force_host_platform_device_count={num_devices} {SIMPLE_KERNEL_FLAGS}"


def free_address() -> str:
    """One that nobody else takes until it is used: systems give the ports above these to who asks for any."""
    while True:
        port = random.SystemRandom().randrange(10_000, 32_768)
        with socket.socket() as free, suppress(OSError):
            free.bind(("127.0.0.1", port))
            return f"127.0.0.1:{port}"


def losses_on_one_device(num_steps: int) -> list[float]:
    """The same training in plain JAX."""
    namespace: dict[str, Any] = {"__name__": "example"}
    exec(Path(EXAMPLE).read_text(), namespace)
    params = [jax.random.normal(jax.random.split(jax.random.key(0), 1)[0], (64, 64)) / 8]
    state, losses = (params, namespace["TX"].init(params)), []
    for step in range(num_steps):
        batch = np.random.default_rng(step).standard_normal((64, 64), np.float32)
        state, loss = jax.jit(namespace["train_step"])(state, batch)
        losses.append(float(loss))
    return losses


@pytest.mark.slow
def test_a_step_on_the_devices_of_one_process_is_measured_on_each(memprof: Command) -> None:
    done = memprof("run", EXAMPLE, *SMALL, "--steps", "3", "--format", "json", XLA_FLAGS=flags(8))
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    Draft202012Validator(SCHEMA).validate(report)
    assert (report["target"]["name"], report["mesh"]["axes"]) == ("cpu", {"fsdp": 8})
    measured = report["measured"]
    assert measured["losses"] == pytest.approx(losses_on_one_device(5), rel=1e-5)
    assert [device["argument_bytes"] for device in measured["devices"]] == [ARGUMENT_BYTES] * 8
    assert report["compiler"]["argument_bytes"] == ARGUMENT_BYTES
    assert measured["resident"]["num_devices"] == 8
    assert measured["resident"]["argument_bytes"] == 8 * ARGUMENT_BYTES
    # A CPU does not count: nothing is said of the peak of a device.
    assert (measured["peak_bytes"], {device["pool"] for device in measured["devices"]}) == (None, {None})
    [path] = memprof.folder.glob("*.memprof")
    assert len(read_capture(path).measured.devices) == 8


@pytest.mark.with_one_jax
def test_the_processes_of_a_job_are_one_report_and_one_session(
    memprof: Command, start: Callable[..., subprocess.Popen[str]]
) -> None:
    environment = {"JAX_COORDINATOR_ADDRESS": free_address(), "NUM_PROCESSES": "2", "XLA_FLAGS": flags(4)}
    trace = ("trace", EXAMPLE, *SMALL, "--steps", "2", "--logdir", "logs", "--format", "json")
    processes = [start(*trace, **environment, PROCESS_ID=str(number)) for number in range(2)]
    (first, said), (other, what_other_said) = (process.communicate(timeout=300) for process in processes)
    assert [process.returncode for process in processes] == [0, 0], said + what_other_said

    measured = json.loads(first)["measured"]
    assert measured["losses"] == pytest.approx(losses_on_one_device(4), rel=1e-5)
    assert measured["num_processes"] == 2
    assert [(each["process"], each["argument_bytes"]) for each in measured["devices"]] == [
        (number // 4, ARGUMENT_BYTES) for number in range(8)
    ]
    assert measured["resident"]["num_devices"] == 4
    assert all(op["num_calls"] % 2 == 0 for op in measured["ops"])  # in each of the two steps as often

    assert other == ""
    assert what_other_said.splitlines()[-1].startswith("process 1 of 2 has run its part of running_sharded:step_spec")
    [session] = (memprof.folder / "logs" / "plugins" / "profile").iterdir()
    traces = sorted(path.name for path in session.glob("*.xplane.pb"))
    assert [name.rpartition("_")[2] for name in traces] == ["0.xplane.pb", "1.xplane.pb"]
    assert len(list(session.glob("jit_train_step(*).hlo_proto.pb"))) == 1
    assert memprof.left_behind() == []


@pytest.mark.with_one_jax
@pytest.mark.slow
def test_a_built_in_workload_joins_the_job_that_slurm_has_started(
    start: Callable[..., subprocess.Popen[str]],
) -> None:
    slurm = {"SLURM_JOB_ID": "1", "SLURM_STEP_NODELIST": "localhost", "SLURM_NTASKS": "2"}
    environment = {"JAX_COORDINATOR_ADDRESS": free_address(), "XLA_FLAGS": flags(4), **slurm}
    run = ("run", "mlp", "--preset", "tiny", "--mesh", "8", "-t", "dp", "--target", "cpu", "--steps", "1", "--no-save")
    processes = [start(*run, "--format", "json", **environment, SLURM_PROCID=n, SLURM_LOCALID=n) for n in ("0", "1")]
    (first, said), (other, what_other_said) = (process.communicate(timeout=300) for process in processes)
    assert [process.returncode for process in processes] == [0, 0], said + what_other_said
    measured = json.loads(first)["measured"]
    assert [each["process"] for each in measured["devices"]] == [0] * 4 + [1] * 4
    assert other == ""
    assert what_other_said.splitlines()[-1].startswith("process 1 of 2 has run its part of mlp dp")


@pytest.mark.with_one_jax
def test_what_a_job_cannot_do_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAX_COORDINATOR_ADDRESS", raising=False)
    job.join()  # no address, no job
    job.refuse_rows()
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "127.0.0.1:1")

    def initialize() -> None:  # as it is without a launcher
        raise ValueError("Number of processes must be defined.")

    monkeypatch.setattr(jax.distributed, "initialize", initialize)
    with pytest.raises(mp.MemprofError, match="JAX finds no Slurm or MPI that assigns this process its number"):
        job.join()
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(
        mp.MemprofError, match="a comparison runs its steps in one process, but this is one of 2 processes of a job"
    ):
        job.refuse_rows()


ON_FOUR_DEVICES = """
import json
import jax, jax.numpy as jnp
jax.config.update("jax_num_cpu_devices", 4)
import memprof
from jax.sharding import NamedSharding, PartitionSpec as P

mesh = jax.make_mesh((4,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
w = jax.ShapeDtypeStruct((64, 64), "float32", sharding=NamedSharding(mesh, P("d")))
x = jnp.ones((8, 64))
step = lambda w, x: w - 0.1 * jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w)))(w)
profile = memprof.profile(step, w, x, target="cpu", donate_argnums=0)
own = jax.jit(step, donate_argnums=0).lower(w, x).compile().memory_analysis()
totals = profile.report.compiler
print(json.dumps([
    [totals.argument_bytes, own.argument_size_in_bytes],
    [totals.output_bytes, own.output_size_in_bytes],
    [totals.temp_bytes, own.temp_size_in_bytes],
    profile.report.target.topology.num_devices,
]))
"""


def test_devices_that_are_here_are_compiled_for_where_they_are_asked_for() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    done = subprocess.run([sys.executable, "-c", ON_FOUR_DEVICES], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *totals, num_devices = json.loads(done.stdout)
    assert all(ours == theirs for ours, theirs in totals)
    assert num_devices == 4


def test_steps_do_not_run_on_a_mesh_that_is_not_there() -> None:
    sharding = NamedSharding(mp.mesh("h100-80gb", {"data": 8}), P("data"))
    spec = mp.StepSpec(lambda x: x * 2, (jax.ShapeDtypeStruct((8,), "float32", sharding=sharding),))
    with pytest.raises(mp.MemprofError, match="sharded over absent devices, so it cannot run"):
        target_of_step(spec, None, runs=True)
    # The same target may be named beside it, as `memprof check --fits` does.
    assert target_of_step(spec, resolve("h100-80gb")).topology.num_devices == 8


@pytest.mark.parametrize("default", ["l4", "cpu"])
def test_the_default_of_a_project_yields_to_the_mesh_that_a_step_names(default: str) -> None:
    sharding = NamedSharding(mp.mesh("h100-80gb", {"data": 8}), P("data"))
    spec = mp.StepSpec(lambda x: x * 2, (jax.ShapeDtypeStruct((8,), "float32", sharding=sharding),))
    assert target_of_step(spec, resolve_asked(ProjectTarget(default))).name == "h100-80gb"
    with pytest.raises(mp.MemprofError, match="which determines the target: leave out the other target"):
        target_of_step(spec, resolve_asked(default))
    abstract = NamedSharding(jax.sharding.AbstractMesh((8,), ("data",)), P("data"))
    of_any = mp.StepSpec(lambda x: x * 2, (jax.ShapeDtypeStruct((8,), "float32", sharding=abstract),))
    chosen = target_of_step(of_any, resolve_asked(ProjectTarget(default)))
    assert (chosen.name, chosen.topology.num_devices) == ("l4" if default == "l4" else "h100-80gb", 8)


def test_devices_that_are_not_here_are_one_sentence() -> None:
    asked = resolve_asked("cpu", runs=True, mesh="fsdp=512")
    with pytest.raises(mp.MemprofError, match=r"--mesh asks for 512 devices, but there .* of the platform cpu"):
        mesh_of(asked)
    assert resolve_asked(None, runs=True, mesh="8").name == "local"
