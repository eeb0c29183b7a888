"""What JAX says of a CUDA plugin that does not start."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from memprof.plugin_complaints import leave_out_plugin_complaints

_LOGGER = logging.getLogger("jax._src.xla_bridge")
_COMPLAINT = ("Jax plugin configuration error: Exception when calling %s.initialize()", "jax_plugins.xla_cuda13")


@pytest.mark.skipif(any(Path("/dev").glob("nvidia[0-9]*")), reason="a GPU is here, so a plugin may complain")
def test_an_array_on_the_cpu_prints_no_traceback() -> None:
    code = "import memprof, jax; jax.numpy.ones(3) + 1"
    environment = {name: value for name, value in os.environ.items() if name != "JAX_PLATFORMS"}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert "cuDNN" not in ended.stderr
    assert "Traceback" not in ended.stderr


def test_who_asks_for_cuda_hears_of_it(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    leave_out_plugin_complaints()
    monkeypatch.setenv("JAX_PLATFORMS", "cuda,cpu")
    _LOGGER.error(*_COMPLAINT)
    _LOGGER.error("Jax plugin configuration error: Plugin module %s does not exist", "jax_plugins.of_another_device")
    assert [record.args for record in caplog.records] == [(_COMPLAINT[1],), ("jax_plugins.of_another_device",)]
