"""What holds for the tests of the workloads: they run small programs once, so compiling them is what takes time."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True, scope="module")
def _quick_compiles(quick_compiles: None) -> None:
    """See `quick_compiles`."""
