"""Memory in the log of a training run, read back with each tracker's own reader.

Weights & Biases and MLflow bring a hundred packages: without them their tests are skipped.
`pip install wandb mlflow`, then `python -m pytest tests/unit/test_loggers.py`.
"""

from __future__ import annotations

import json
import struct
import sys
import warnings
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest

import memprof
from memprof import loggers
from memprof.measuring import DeviceMemory, Measured

pytestmark = [pytest.mark.with_one_jax, pytest.mark.usefixtures("quick_compiles")]
FOOTPRINT, PARAMS = "memprof/predicted/footprint_bytes", "memprof/predicted/params_bytes"


def step(w: Any, x: Any) -> Any:
    return w - jnp.sum(x)


@pytest.fixture(scope="module")
def profile() -> memprof.Profile:
    return memprof.profile(step, jnp.ones(256), jnp.ones(64), target="cpu", roles={"w": "params"})


def log_two_steps(log: loggers.MemoryLogger) -> None:
    with log:
        for number in (5, 6):
            step(jnp.ones(256), jnp.ones(64)).block_until_ready()
            log(number)


def wandb_history(content: bytes) -> list[dict[str, float]]:
    """The rows in an offline run's file: seven bytes, then a log of records in the manner of LevelDB."""
    from wandb.proto.wandb_internal_pb2 import Record

    block_bytes, head_bytes, ends_record = 32768, 7, (1, 4)
    rows, record, position = [], b"", 7
    while position + head_bytes <= len(content):
        if (left := block_bytes - position % block_bytes) < head_bytes:
            position += left
            continue
        _, length, kind = struct.unpack_from("<IHB", content, position)
        position += head_bytes + length
        record += content[position - length : position]
        if kind in ends_record:
            items, record = Record.FromString(record).history.item, b""
            rows += [{item.nested_key[0]: json.loads(item.value_json) for item in items}] if items else []
    return rows


def test_metrics_are_named_by_device_and_category_with_their_unit(profile: memprof.Profile) -> None:
    measured = Measured()
    measured.devices = (
        DeviceMemory(device="cuda:0", source="allocator", start_bytes=1, end_bytes=2, peak_bytes=3),
        DeviceMemory(device="cuda:1", source="allocator", start_bytes=4, end_bytes=5, peak_bytes=None),
    )
    assert loggers.measured_metrics(measured) == {
        "memprof/measured/cuda_0/allocator_start_bytes": 1,
        "memprof/measured/cuda_0/allocator_end_bytes": 2,
        "memprof/measured/cuda_0/allocator_peak_bytes": 3,
        "memprof/measured/cuda_1/allocator_start_bytes": 4,
        "memprof/measured/cuda_1/allocator_end_bytes": 5,
    }
    predicted = loggers.predicted_metrics(profile)
    assert predicted[PARAMS] == 1024
    totals = {FOOTPRINT, "memprof/predicted/live_peak_bytes"}
    assert sum(size for name, size in predicted.items() if name not in totals) == predicted[FOOTPRINT]


def test_predictions_are_written_once_and_measurements_with_each_call(profile: memprof.Profile) -> None:
    rows: dict[int, dict[str, int]] = {}
    log_two_steps(loggers.MemoryLogger(lambda metrics, step: rows.update({step: dict(metrics)}), profile))
    assert list(rows) == [5, 6]
    assert rows[5].keys() - rows[6].keys() == loggers.predicted_metrics(profile).keys()
    (peak,) = (size for name, size in rows[6].items() if name.endswith("resident_peak_bytes"))
    assert peak > 1 << 20  # of the whole process, in bytes


def test_tensorboard(profile: memprof.Profile, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed (the extra tensorboard)")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    log_two_steps(loggers.to_tensorboard(tmp_path, profile))
    log = EventAccumulator(str(tmp_path)).Reload()
    found = {tag: [(each.step, float(make_ndarray(each.tensor_proto))) for each in log.Tensors(tag)]
             for tag in log.Tags()["tensors"]}  # fmt: skip
    assert found[FOOTPRINT] == [(5, profile.footprint_bytes)]
    assert found[PARAMS] == [(5, 1024)]
    (peaks,) = (values for tag, values in found.items() if tag.endswith("resident_peak_bytes"))
    assert [number for number, _ in peaks] == [5, 6]


def test_a_writer_of_another_library_is_taken_and_stays_open(profile: memprof.Profile) -> None:
    class Writer:
        written: list[tuple[str, int, int]] = []  # noqa: RUF012

        def add_scalar(self, tag: str, value: int, step: int) -> None:
            self.written.append((tag, value, step))

        def flush(self) -> None:
            pass

    log_two_steps(loggers.to_tensorboard(Writer(), profile))
    assert (PARAMS, 1024, 5) in Writer.written


def test_weights_and_biases(profile: memprof.Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb", reason="Weights & Biases is not installed (pip install wandb)")
    with pytest.raises(memprof.MemprofError, match="no run of Weights & Biases is active"):
        loggers.to_wandb(profile=profile)
    with warnings.catch_warnings(), wandb.init(mode="offline", dir=tmp_path, project="p") as run:
        warnings.simplefilter("ignore")
        log_two_steps(loggers.to_wandb(profile=profile))
        run.log({"loss": 1.0})  # the run is the caller's, and goes on
        assert (run.summary[FOOTPRINT], run.summary[PARAMS]) == (profile.footprint_bytes, 1024)
        assert (run.summary["memprof/step"], run.summary["loss"], run.step) == (6, 1.0, 3)
    wandb.teardown()  # its service has written all that it was given
    (file,) = tmp_path.rglob("*.wandb")
    first, second, last = wandb_history(file.read_bytes())
    assert (first[PARAMS], first["memprof/step"]) == (1024, 5)
    assert (PARAMS in second, second["memprof/step"]) == (False, 6)
    assert last["loss"] == 1.0


def test_mlflow(profile: memprof.Profile, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed (pip install mlflow)")
        mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/runs.db")
        with mlflow.start_run() as run:
            log_two_steps(loggers.to_mlflow(profile=profile))
        history = mlflow.MlflowClient().get_metric_history
        assert [(each.step, each.value) for each in history(run.info.run_id, PARAMS)] == [(5, 1024)]
        (peak,) = (name for name in mlflow.get_run(run.info.run_id).data.metrics if name.endswith("_peak_bytes")
                   and "measured" in name)  # fmt: skip
        assert [each.step for each in history(run.info.run_id, peak)] == [5, 6]


@pytest.mark.parametrize("package", ["tensorboard.summary", "wandb", "mlflow"])
def test_what_is_not_installed_is_one_sentence(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    begin = {
        "tensorboard.summary": lambda: loggers.to_tensorboard("logs"),
        "wandb": loggers.to_wandb,
        "mlflow": loggers.to_mlflow,
    }[package]
    with pytest.raises(memprof.MemprofError, match=r"^logging to .* needs its package: install it with pip install "):
        begin()


def test_what_is_no_log_is_one_sentence(profile: memprof.Profile) -> None:
    for begin, sentence in (
        (lambda: loggers.to_tensorboard(3), "a log directory or a writer with add_scalar was expected"),
        (lambda: loggers.to_wandb("run"), r"a run of Weights & Biases, as returned by wandb\.init\(\), was expected"),
        (lambda: loggers.to_tensorboard("logs", "profile"), "the profile of a step was expected"),  # type: ignore[arg-type]
    ):
        with pytest.raises(memprof.MemprofError, match=sentence):
            begin()
