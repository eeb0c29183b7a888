"""Baselines: the sums of a report that a check compares with.

A baseline contains no program and no source, so it can be committed to a repository.

    write_baseline(baseline_of(report), Path("baseline.json"))

The schema is `memprof.baseline/1`: fields may be added, never renamed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from memprof.analysis.records.capture import Topology
from memprof.analysis.records.categories import Category
from memprof.analysis.records.live_buffer import LiveBuffer
from memprof.analysis.records.report import ModuleNode, Report
from memprof.errors import MemprofError
from memprof.files import IfTaken, write_whole
from memprof.untrusted import Bytes, Text, UnfitError, Words, as_record, open_regular, parse_json, quote

SCHEMA = "memprof.baseline/1"
_ONE_DEVICE = "one device"  # also for baselines written before meshes were supported
_NUM_BUFFERS = 100
_MAX_FILE_BYTES = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """Sums of one report.

    Attributes:
        origin: properties that must be equal for sums to be comparable, by name: workload, techniques, target, mesh.
        toolchain: versions, by name; a difference in versions alone may change the sums.
        categories, modules: bytes by category, and by module without its submodules; each adds up to the footprint.
        buffers: bytes of the largest kinds of buffers (type, category, module, operation).
        pressure: whether XLA recomputes values on its own under memory pressure. `lifted`: it does, and the sums are
            those of the plan without that; `kept`: it does, and there is no such plan; `unknown`: the baseline was
            written before this was recorded.
    """

    label: Text
    origin: Mapping[Text, Words]
    toolchain: Mapping[Text, Words]
    footprint_bytes: Bytes
    live_peak_bytes: Bytes
    categories: Mapping[Text, Bytes]
    modules: Mapping[Words, Bytes]
    buffers: Mapping[Words, Bytes]
    pressure: Literal["none", "lifted", "kept", "unknown"] = "unknown"


def baseline_of(report: Report) -> Baseline:
    """Return the sums of a report; under memory pressure, those of the plan without it."""
    sums = report.unpressed
    buffers: Counter[str] = Counter()
    for buffer in sums.buffers:
        buffers[_kind(buffer)] += buffer.size_bytes
    tools = report.toolchain
    return Baseline(
        label=report.label,
        origin={
            "workload": report.workload,
            "techniques": "+".join(report.techniques) or "none",
            "target": report.target.name,
            "mesh": _mesh(report.target.topology),
        },
        toolchain={
            "jax": tools.jax,
            "jaxlib": tools.jaxlib,
            "XLA_FLAGS": tools.xla_flags or "none",
            "settings of JAX": " ".join(tools.settings) or "none",
            "memprof": tools.memprof,
        },
        footprint_bytes=sums.footprint_bytes,
        live_peak_bytes=sums.live_peak_bytes,
        categories={category.value: sums.categories[category] for category in Category},
        modules=dict(_own_bytes(sums.modules)),
        buffers=dict(buffers.most_common(_NUM_BUFFERS)),
        pressure="none" if report.pressure is None else "kept" if report.without_limit is None else "lifted",
    )


def write_baseline(baseline: Baseline, path: Path) -> None:
    """Write a baseline, and replace an existing one.

    Raises:
        MemprofError: the file cannot be written.
    """
    text = json.dumps({"schema": SCHEMA, **asdict(baseline)}, indent=1) + "\n"
    write_whole(path, text.encode(), what="the baseline", if_taken=IfTaken.REPLACE)


def read_baseline(path: Path) -> Baseline:
    """Read a baseline.

    Raises:
        MemprofError: there is no such file, or it is not a baseline, or has another schema.
    """
    try:
        with open_regular(path) as file:
            data = file.read(_MAX_FILE_BYTES + 1)
    except FileNotFoundError as error:
        raise MemprofError(f"there is no baseline {path}; write it with --update") from error
    except OSError as error:
        raise MemprofError(f"{path} is not a baseline ({error.strerror or error}); write it with --update") from error
    if len(data) > _MAX_FILE_BYTES:
        raise MemprofError(
            f"{path} is not a baseline: it has more than {_MAX_FILE_BYTES:,} bytes; write it with --update"
        )
    try:
        found = parse_json(data)
    except UnfitError as error:
        raise MemprofError(
            f"{path} is not a baseline, or is damaged ({error}); write it again with --update"
        ) from error
    schema = found.get("schema") if isinstance(found, dict) else None
    if schema != SCHEMA:
        raise MemprofError(
            f"{path} has schema {quote(schema)}, but '{SCHEMA}' was expected; write it again with --update"
        )
    try:
        baseline = as_record(found, Baseline)
    except UnfitError as error:
        raise MemprofError(f"{path} is a damaged baseline ({error}); write it again with --update") from error
    for name, sums in (("categories", baseline.categories), ("modules", baseline.modules)):
        if sum(sums.values()) != baseline.footprint_bytes:
            raise MemprofError(
                f"{path} is a damaged baseline: its {name} do not add up to its footprint; write it again with --update"
            )
    return replace(baseline, origin={"mesh": _ONE_DEVICE, **baseline.origin})


def _mesh(topology: Topology) -> str:
    if topology.num_devices == 1:
        return _ONE_DEVICE
    axes = ",".join(f"{name}={size}" for name, size in topology.axes.items())
    hosts = f" on {topology.num_hosts} hosts" if topology.num_hosts > 1 else ""
    return f"{axes} ({topology.num_devices} devices{hosts})"


def _own_bytes(root: ModuleNode) -> Counter[str]:
    sums: Counter[str] = Counter()
    pending = [root]
    while pending:
        node = pending.pop()
        sums[node.path] += node.size_bytes - sum(child.size_bytes for child in node.children)
        pending.extend(node.children)
    return +sums


def _kind(buffer: LiveBuffer) -> str:
    """Return the key that matches buffers of two programs; names of instructions change with every compile."""
    shape = ",".join(map(str, buffer.shape))
    return f"{buffer.dtype}[{shape}] {buffer.category.value} {buffer.module or '(no module)'}"
