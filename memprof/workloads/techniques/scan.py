"""scan: one loop over the layers instead of one copy of the program for each.

The layers' parameters are stacked, so that they are one array with the layer as its first axis. Compile time no longer
grows with depth. Every residual of the forward pass is written to a stack and read again in the backward pass, in the
form that JAX saved it: what XLA could fuse or drop across an unrolled layer's forward and backward pass is kept, so
activations usually grow. Together with `remat` there is little to stack, and most of the difference goes.
"""

from __future__ import annotations

import dataclasses

from memprof.analysis.categories import Category
from memprof.workloads.evidence.loops import layer_loop_evidence
from memprof.workloads.technique import ArgumentValue, HowTo, Technique
from memprof.workloads.train_config import TrainConfig


def apply(config: TrainConfig, argument: ArgumentValue | None) -> TrainConfig:
    """Returns `config` with a loop over the layers."""
    del argument
    return dataclasses.replace(config, scan_layers=True)


TECHNIQUE = Technique(
    name="scan",
    summary="a loop over the layers, their parameters stacked (nn.scan), instead of a copy of the program for each",
    how_to=HowTo(
        sentence="Loop over one block whose parameters are stacked, instead of calling a block for each layer.",
        code='Layers = nn.scan(Block, variable_axes={"params": 0}, split_rngs={"params": True, "dropout": True}, '
        "length=num_layers)",
    ),
    reference="Flax documentation, flax.linen.scan: https://flax.readthedocs.io",
    family="structure",
    sets=("scan_layers",),
    apply=apply,
    evidence=layer_loop_evidence,
    grows=(Category.ACTIVATIONS, Category.GRADIENTS),
)
