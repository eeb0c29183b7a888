"""`memprof list`: the names that other commands take."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

import typer

from memprof.profiler_cli.console import write_table
from memprof.reports.units import format_bytes

_Listing = tuple[Sequence[str], Sequence[Sequence[str]]]  # titles, rows


class Kind(StrEnum):
    """What can be listed."""

    WORKLOADS = "workloads"
    TECHNIQUES = "techniques"
    TARGETS = "targets"
    OPTIMIZERS = "optimizers"


def list_names(
    kind: Annotated[Kind | None, typer.Argument(help="What to list; by default the names of all.")] = None,
) -> None:
    """List workloads, techniques, targets and optimizers."""
    if kind is None:
        write_table(("list", "names"), [(each.value, ", ".join(row[0] for row in _LISTS[each]()[1])) for each in Kind])
    else:
        write_table(*_LISTS[kind]())


def _workloads() -> _Listing:
    from memprof.workloads.registry import workloads

    rows = [(each.name, ", ".join(each.presets), each.default_preset, each.summary) for each in workloads()]
    return ("workload", "presets", "default", "what it is"), rows


def _techniques() -> _Listing:
    from memprof.workloads.registry import techniques

    rows = [(each.usage, each.family, each.summary) for each in techniques()]
    return ("technique", "family", "what it does"), rows


def _targets() -> _Listing:
    from memprof.sources.jax.targets.families import catalogue, families
    from memprof.sources.jax.targets.resolve import LOCAL, catalogued

    devices = catalogue()
    rows: list[Sequence[str]] = []
    for name in catalogued():
        if name == LOCAL:
            rows.append((name, "", "", "the default device of this machine", ""))
            continue
        each = devices[name]
        memory = "" if each.memory_bytes is None else format_bytes(each.memory_bytes)
        rows.append((name, memory, each.compute_capability or "", each.description, each.source))
    rows += [(file, "", "", what, "") for file, what in (each.file_row for each in families()) if file]
    return ("target", "memory", "capability", "device", "facts from"), rows


def _optimizers() -> _Listing:
    from memprof.workloads.registry import optimizers

    return ("optimizer", "what it is"), [(each.name, each.summary) for each in optimizers()]


_LISTS = {
    Kind.WORKLOADS: _workloads,
    Kind.TECHNIQUES: _techniques,
    Kind.TARGETS: _targets,
    Kind.OPTIMIZERS: _optimizers,
}
