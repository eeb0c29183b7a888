"""Layers on several devices, one stage after the other."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from memprof.analysis.comparison import Verdict
from memprof.analysis.records.categories import Category, Role
from memprof.workloads.evidence import no, used_arguments, yes
from memprof.workloads.mesh_axes import PP, batch_axes
from memprof.workloads.scopes import LAYERS
from memprof.workloads.technique import ARGUMENT, Argument, Observation, Technique
from memprof.workloads.techniques.sharding import check_divides
from memprof.workloads.train_config import TrainConfig, require


def pipeline_evidence(seen: Observation) -> Verdict:
    """Looks for stacked layers that are divided over the axis, and for what one device of it hands to the next."""
    size = seen.report.target.topology.axes.get(PP, 1)
    if size == 1:
        return no(f"no two devices lie along an axis {PP}")
    layers = [leaf for leaf in used_arguments(seen.report, Role.PARAMS) if f"['{LAYERS}']" in leaf.path and leaf.shape]
    if not layers or any(PP not in (leaf.mesh_axes or ()) for leaf in layers):
        return no(f"the program takes no stacked layers that are all sharded over {PP}={size}")
    handed_on = sum(
        each.count for each in seen.report.collectives if each.kind == "collective-permute" and PP in each.axes
    )
    sentence = (
        f"each device has {layers[0].shape[0] // size} of {layers[0].shape[0]} layers, and sends arrays to the next "
        f"one along {PP}={size} {handed_on} times per step"
    )
    return yes(sentence) if handed_on else no(sentence)


def check_axes(config: Any, train_config: TrainConfig, axes: Mapping[str, int]) -> None:
    """Raises `MemprofError` unless each device gets equally many layers, and of each microbatch equally much."""
    size = axes[PP]
    check_divides("num_layers", config.num_layers, PP, axes)
    num_microbatches = train_config.num_microbatches or size
    require(
        num_microbatches % size == 0,
        f"Technique 'pp{num_microbatches}' has {num_microbatches} microbatches, but that must be a multiple of the"
        f" {size} devices along {PP}: change one of them.",
    )
    sharing = prod(axes[axis] for axis in batch_axes(train_config) if axis != PP and axis in axes)
    num_minibatches = train_config.num_minibatches
    parts = num_minibatches * num_microbatches * sharing
    minibatches = f" in each of {num_minibatches} minibatches" if num_minibatches > 1 else ""
    devices = f", each for {sharing} devices" if sharing > 1 else ""
    require(
        config.batch_size % parts == 0,
        f"batch_size is {config.batch_size}, but it must be a multiple of {parts}: there are {num_microbatches}"
        f" microbatches{minibatches}{devices}.",
    )


PIPELINE = Technique(
    name="pp",
    about="""Shard the layers over the axis `pp`; microbatches pass from one device to the next (GPipe).

    A device has the parameters, gradients and optimizer state of its layers, and their activations for all
    microbatches, because the backward pass begins when the forward pass has ended; with `remat` only the inputs of the
    layers remain. Embeddings, final norm and head are on every device, which processes its part of the batch there.

    With S devices and M microbatches there are M + S - 1 ticks, and a device is idle in S - 1 of them. It computes
    nevertheless, because all devices run the same program, and keeps activations for the backward pass: the bubble
    multiplies operations and activations by (M + S - 1) / M. Without a number there are as many microbatches as
    devices; more microbatches make the bubble smaller.""",
    summary="layers sharded over the axis pp, the batch passed on in M microbatches (default: as many as devices)",
    instruction="Stack the layers' parameters, shard them over the axis with jax.shard_map, and pass microbatches on.",
    reference="Huang et al. 2018, GPipe, arXiv:1811.06965",
    sets={"pipelined": True, "num_microbatches": ARGUMENT, "scan_layers": True},
    argument=Argument(
        spelling="pp<M>", pattern="(?:[1-9][0-9]*)?", example="4", parse=lambda text: int(text) if text else 0
    ),
    axis=PP,
    evidence=pipeline_evidence,
    check_axes=check_axes,
    shrinks=(Category.PARAMS, Category.OPTIMIZER_STATE, Category.BATCH),
)

TECHNIQUES = (PIPELINE,)
