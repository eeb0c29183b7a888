"""When the command line has JAX imported before anything else."""

from __future__ import annotations

import pytest

from memprof.profiler_cli.main import _compiles_workload

pytestmark = pytest.mark.with_one_jax


@pytest.mark.parametrize(
    ("line", "compiles"),
    [
        ("run transformer --target h100-80gb", True),
        ("run --target h100-80gb mlp", True),
        ("compare mlp -t bf16", True),
        ("run transformr", False),
        ("run train.py:step_spec", False),
        ("run mlp --help", False),
        ("compare a.memprof b.memprof", False),
        ("show mlp.memprof", False),
        ("list workloads", False),
        ("run", False),
        ("run ..", False),
        ("", False),
    ],
)
def test_jax_is_imported_at_once_where_a_workload_is_compiled(line: str, compiles: bool) -> None:
    assert _compiles_workload(line.split()) is compiles


def test_a_name_that_no_file_can_have_is_no_workload() -> None:
    assert not _compiles_workload(["run", "x" * 5000])
