"""Scripts that misbehave run under `memprof watch` as they run without it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from integration.command import MAIN, QUICK
from misbehaving_scripts import SCRIPTS

_SAID = re.compile(
    r"^(not recorded: |memprof: |report written to |the working folder was deleted|the script was killed).*\n",
    re.MULTILINE,
)
_PATIENCE_SECONDS = 300
_SIGNALLED = 128


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_that_misbehaves_does_so_as_without_memprof(name: str, tmp_path: Path) -> None:
    plain = _run((sys.executable,), SCRIPTS[name], tmp_path)
    watch = (*MAIN, "watch", "--keep", "0", "-o", str(tmp_path / "report.md"))
    watched = _run((sys.executable, "-P", *watch[1:]), SCRIPTS[name], tmp_path)
    code = plain.returncode if plain.returncode >= 0 else _SIGNALLED - plain.returncode
    assert (watched.returncode, watched.stdout) == (code, plain.stdout), watched.stderr
    assert _SAID.sub("", watched.stderr) == plain.stderr


def _run(program: tuple[str, ...], script: str, parent: Path) -> subprocess.CompletedProcess[str]:
    """Run a script in a new folder of the same name each time."""
    folder, temp_folder = parent / "folder", parent / "temp"
    for each in (folder, temp_folder):
        shutil.rmtree(each, ignore_errors=True)
        each.mkdir()
    (folder / "script.py").write_text(script, encoding="utf-8")
    (folder / "json.py").write_text("MINE = 'the script has this module'\n", encoding="utf-8")
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(parent), "TMPDIR": str(temp_folder), "JAX_PLATFORMS": "cpu"}
    return subprocess.run(
        [*program, "script.py", "two words", ""],
        cwd=folder,
        env={**environment, **QUICK, "PYTHONPATH": str(Path(__file__).parents[2])},
        input="a line\n",
        capture_output=True,
        text=True,
        timeout=_PATIENCE_SECONDS,
    )
