"""Several devices that share a step: what each axis of a mesh divides."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from memprof.analysis.categories import Category, Role
from memprof.analysis.comparison import Verdict
from memprof.analysis.report import Report
from memprof.workloads.evidence import in_words, no, total_bytes, used_arguments, yes
from memprof.workloads.mesh_axes import FSDP, batch_axes
from memprof.workloads.technique import ArgumentValue, HowTo, Technique
from memprof.workloads.train_config import TrainConfig, require


def fsdp_evidence(report: Report, argument: ArgumentValue | None, reference: Report | None) -> Verdict:
    """Looks for the axis in the shardings of parameters, optimizer state and batch."""
    del argument, reference
    return _divided_over(report, FSDP, Role.PARAMS, Role.OPTIMIZER_STATE, Role.BATCH)


def _divided_over(report: Report, axis: str, *roles: Role) -> Verdict:
    size = report.target.topology.axes.get(axis, 1)
    if size == 1:
        return no(f"no two devices lie along an axis {axis}")
    whole, said = [], []
    for role in roles:
        leaves = used_arguments(report, role)
        total = total_bytes(leaves)
        part = total_bytes(leaf for leaf in leaves if axis in (leaf.mesh_axes or ()))
        said.append(f"{in_words(part)} of {in_words(total)} of {role.value}")
        if 2 * part < total:
            whole.append(role.value)
    sentence = f"{', '.join(said)} are divided over {axis}={size}"
    return no(sentence) if whole else yes(sentence)


def check_batch(config: Any, train_config: TrainConfig, axes: Mapping[str, int]) -> None:
    """Raises `MemprofError` unless each device gets equally many examples of each minibatch."""
    used = [axis for axis in batch_axes(train_config) if axis in axes]
    size, num_minibatches = prod(axes[axis] for axis in used), train_config.num_minibatches
    over = "+".join(f"{axis}={axes[axis]}" for axis in used)
    parts = f" in each of {num_minibatches} minibatches" if num_minibatches > 1 else ""
    require(
        config.batch_size % (size * num_minibatches) == 0,
        f"batch_size is {config.batch_size}, but it must be a multiple of {size * num_minibatches}, to be divided over"
        f" {over}{parts}: change either.",
    )


FSDP_TECHNIQUE = Technique(
    name="fsdp",
    about="""Parameters, gradients and optimizer state are divided over the axis `fsdp`, and the batch with them.

    Each device keeps its part of every array. A layer's weights are gathered from all of them for its forward pass and
    again for its backward pass, and each device gets its part of the sum of the gradients.""",
    summary="parameters, gradients, optimizer state and batch divided over the axis fsdp (ZeRO-3)",
    how_to=HowTo(
        sentence="Divide each parameter over the mesh, and the optimizer state like it; the batch as well.",
        code='sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("fsdp"))',
    ),
    reference="Zhao et al. 2023, PyTorch FSDP, arXiv:2304.11277",
    family="sharding",
    sets={"fully_sharded": True},
    axis=FSDP,
    evidence=fsdp_evidence,
    check_axes=check_batch,
    shrinks=(Category.PARAMS, Category.OPTIMIZER_STATE, Category.BATCH),
)

TECHNIQUES = (FSDP_TECHNIQUE,)
