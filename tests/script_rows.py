"""A script in a process of its own that prints rows, each of them for a test of its own.

A script's cases lie in a process together, since JAX takes long to start. A case that fails prints its traceback
instead of its row (`fail_alone`), so the test of that row fails, and no other.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

# For scripts: `with fail_alone(): ...` around each case, and `row(name, value)` at its end.
_BEGINNING = """
import contextlib, json, traceback

@contextlib.contextmanager
def fail_alone():
    try:
        yield
    except Exception:
        traceback.print_exc()

def row(name, value):
    print(json.dumps([name, value]), flush=True)
"""


class ScriptRows(dict[str, Any]):
    """The values that a script printed, by name."""

    def __init__(self, script: str, *arguments: str, **environment: str) -> None:
        done = subprocess.run(
            [sys.executable, "-c", _BEGINNING + script, *arguments],
            capture_output=True,
            text=True,
            env={**os.environ, **environment},
            check=False,
        )
        super().__init__(map(json.loads, done.stdout.splitlines()))
        self._ending = f"exit code {done.returncode}\n{done.stderr[-3000:]}"

    def __missing__(self, name: str) -> Any:
        pytest.fail(f"the script printed no row {name!r}: {self._ending}")
