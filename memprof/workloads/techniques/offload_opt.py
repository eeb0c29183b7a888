"""offload-opt: the optimizer state lives in pinned host memory between steps.

It comes to the device for the update alone, when all gradients are there and the activations are gone: a barrier keeps
XLA from fetching it earlier. So the gradients wait for each other, and the peak has the state beside gradients and
parameters at most, or not at all where the peak is in the forward or backward pass. Each step moves the state over the
bus and back.
"""

from __future__ import annotations

import dataclasses

from memprof.analysis.categories import Category
from memprof.workloads.evidence.memory import offloaded_optimizer_evidence
from memprof.workloads.host_memory import check_has_host_memory
from memprof.workloads.technique import ArgumentValue, HowTo, Technique
from memprof.workloads.train_config import TrainConfig


def apply(config: TrainConfig, argument: ArgumentValue | None) -> TrainConfig:
    """Returns `config` with the optimizer state in host memory."""
    del argument
    return dataclasses.replace(config, offload_optimizer=True)


TECHNIQUE = Technique(
    name="offload-opt",
    summary="optimizer state in host memory (pinned_host) between steps",
    how_to=HowTo(
        sentence="Keep the optimizer state in host memory, and fetch it for the update alone.",
        code="opt_state = jax.device_put(opt_state, jax.memory.Space.Device)",
    ),
    reference="Ren et al. 2021, ZeRO-Offload, arXiv:2101.06840",
    family="offload",
    sets=("offload_optimizer",),
    apply=apply,
    evidence=offloaded_optimizer_evidence,
    shrinks=(Category.OPTIMIZER_STATE,),
    grows=(Category.UPDATE_TEMPS, Category.GRADIENTS),
    check_target=check_has_host_memory,
)
