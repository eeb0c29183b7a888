"""What JAX says of a CUDA plugin that does not start."""

from __future__ import annotations

import ast
import logging
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from memprof.plugin_complaints import leave_out_plugin_complaints

_LOGGER = logging.getLogger("jax._src.xla_bridge")
_COMPLAINT = ("Jax plugin configuration error: Exception when calling %s.initialize()", "jax_plugins.xla_cuda13")


_without_gpu = pytest.mark.skipif(
    any(Path("/dev").glob("nvidia[0-9]*")), reason="a GPU is here, so a plugin may complain"
)
_PROJECT = Path(__file__).parents[2]


def _installed(folder: Path) -> Path:
    """What the wheel puts into site-packages."""
    with (_PROJECT / "pyproject.toml").open("rb") as file:
        wheel = tomllib.load(file)["tool"]["hatch"]["build"]["targets"]["wheel"]
    for package in wheel["packages"]:
        (folder / package).symlink_to(_PROJECT / package)
    for source, name in wheel["force-include"].items():
        shutil.copy(_PROJECT / source, folder / name)
    return folder


def _run_beside(site: Path, script: Path, **variables: str) -> str:
    """The stderr of a script in an environment that starts with this folder of packages."""
    code = "import runpy, site, sys; site.addsitedir(sys.argv[1]); runpy.run_path(sys.argv[2])"
    environment = {name: value for name, value in os.environ.items() if name != "JAX_PLATFORMS"} | variables
    command = [sys.executable, "-c", code, str(site), str(script)]
    ended = subprocess.run(
        command, cwd=script.parent, env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    return ended.stderr


@_without_gpu
def test_a_script_that_knows_no_memprof_prints_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    site = _installed(tmp_path / "site")
    (tmp_path / "memprof.py").write_text("raise SystemExit('a module of the user, which nobody imports')")
    script = tmp_path / "train.py"
    script.write_text("import jax; jax.numpy.ones(3) + 1; import sys; assert 'memprof' not in sys.modules")
    assert "cuDNN" not in _run_beside(site, script)
    # Who asks for CUDA hears why there is none.
    assert "cuDNN" in _run_beside(site, script, JAX_PLATFORMS="cuda,cpu")


def test_what_python_imports_at_each_start_imports_nothing(tmp_path: Path) -> None:
    site = _installed(tmp_path)
    code = (
        "import sys, site; before = set(sys.modules); site.addsitedir(sys.argv[1]);"
        "print(sorted(set(sys.modules) - before - {'encodings.utf_8_sig'}))"  # site reads the file with it
    )
    # -S: the environment of the tests may have it, too.
    ended = subprocess.run([sys.executable, "-S", "-c", code, str(site)], capture_output=True, text=True, check=True)
    assert ended.stdout == "['_jax_memprof_quiet']\n"


@_without_gpu
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


def test_pytest_leaves_the_file_that_python_reads_at_its_start_alone() -> None:
    # pytest would warn in every environment that has memprof: it is imported before pytest could rewrite it.
    module = Path(__file__).parents[2] / "packaging" / "_jax_memprof_quiet.py"
    assert "PYTEST_DONT_REWRITE" in (ast.get_docstring(ast.parse(module.read_text())) or "")
