"""A repeated comparison is never stale, and compiles nothing again where nothing has changed."""

from __future__ import annotations

import json

import pytest
from changed_inputs import KINDS, SIZES, command, write_inputs
from integration.command import Command

from memprof.analysis.records.categories import Role
from memprof.sources.capture_file import read_capture


def compare(memprof: Command, changed: frozenset[str] = frozenset(), **environment: str) -> dict[str, int | bool]:
    """The size of each parameter, by the kind of input that decides it, and whether XLA compiled."""
    arguments, variables = command(changed)
    ended = memprof(*arguments, **variables, **environment)
    assert ended.returncode == 0, ended.stderr
    (row,) = json.loads(ended.stdout)["rows"]
    latest = max((memprof.folder / "rows").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    params = [leaf for leaf in read_capture(latest).arguments if leaf.role is Role.PARAMS]
    sizes = {leaf.path.split("'")[-2]: leaf.num_elements for leaf in params}
    return {**sizes, "compiles": row["timings"]["cached_compile_seconds"] is None}


@pytest.mark.with_one_jax
@pytest.mark.slow
def test_every_changed_input_changes_its_row_and_an_unrelated_variable_does_not(memprof: Command) -> None:
    assert len(KINDS) >= 25
    files = memprof.folder / "rows"
    write_inputs(memprof.folder, frozenset())
    first = compare(memprof, MARK="a")
    written = sorted(files.iterdir())
    again = compare(memprof, MARK="b")
    assert (first, again) == (
        {**dict.fromkeys(KINDS, SIZES[1]), "compiles": True},
        {**dict.fromkeys(KINDS, SIZES[1]), "compiles": False},
    )
    assert sorted(files.iterdir()) == written
    everything = frozenset(KINDS)
    write_inputs(memprof.folder, everything)
    assert compare(memprof, everything) == {**dict.fromkeys(KINDS, SIZES[2]), "compiles": True}
