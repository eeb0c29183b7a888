"""Layers on several devices, one stage after the other."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from memprof.analysis.comparison import Verdict
from memprof.analysis.records.categories import Category, Role
from memprof.analysis.records.report import Report
from memprof.workloads.evidence import no, used_arguments, yes
from memprof.workloads.mesh_axes import PP, batch_axes
from memprof.workloads.scopes import LAYERS
from memprof.workloads.technique import ARGUMENT, Argument, ArgumentValue, HowTo, Technique
from memprof.workloads.techniques.sharding import check_divides
from memprof.workloads.train_config import TrainConfig, require


def pipeline_evidence(report: Report, argument: ArgumentValue | None, reference: Report | None) -> Verdict:
    """Looks for stacked layers that are divided over the axis, and for what one device of it hands to the next."""
    del argument, reference
    size = report.target.topology.axes.get(PP, 1)
    if size == 1:
        return no(f"no two devices lie along an axis {PP}")
    layers = [leaf for leaf in used_arguments(report, Role.PARAMS) if f"['{LAYERS}']" in leaf.path and leaf.shape]
    if not layers or any(PP not in (leaf.mesh_axes or ()) for leaf in layers):
        return no(f"the program takes no stacked layers that are all divided over {PP}={size}")
    handed_on = sum(each.count for each in report.collectives if each.kind == "collective-permute" and PP in each.axes)
    sentence = (
        f"each device has {layers[0].shape[0] // size} of {layers[0].shape[0]} layers, and hands arrays on to the next"
        f" one along {PP}={size} {handed_on} times a step"
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
        f" {size} devices along {PP}: change either.",
    )
    sharing = prod(axes[axis] for axis in batch_axes(train_config) if axis != PP and axis in axes)
    num_minibatches = train_config.num_minibatches
    parts = num_minibatches * num_microbatches * sharing
    minibatches = f" in each of {num_minibatches} minibatches" if num_minibatches > 1 else ""
    devices = f", each of them for {sharing} devices" if sharing > 1 else ""
    require(
        config.batch_size % parts == 0,
        f"batch_size is {config.batch_size}, but it must be a multiple of {parts}: there are {num_microbatches}"
        f" microbatches{minibatches}{devices}.",
    )


PIPELINE = Technique(
    name="pp",
    about="""The layers are divided over the axis `pp`, and microbatches go from one device to the next (GPipe).

    A device has the parameters, gradients and optimizer state of its layers, and the activations of its layers for all
    microbatches, since the backward pass begins when the forward pass has ended; `remat` leaves of them what goes into
    the layers. Embeddings, final norm and head are on every device, which works on its part of the batch there.

    With S devices and M microbatches there are M + S - 1 ticks, in S - 1 of which a device has nothing to do. It
    computes all the same, since it runs the program of all, and keeps what the backward pass would need: the bubble
    costs operations and activations by a factor of (M + S - 1) / M. Without a number there are as many microbatches as
    devices; more of them make the bubble smaller.""",
    summary="layers divided over the axis pp, the batch handed on in M microbatches (default: as many as devices)",
    how_to=HowTo(
        sentence="Stack the layers' parameters, divide them over the axis by jax.shard_map, and hand microbatches on.",
    ),
    reference="Huang et al. 2018, GPipe, arXiv:1811.06965",
    family="pipeline",
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
