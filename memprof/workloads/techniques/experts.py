"""Experts of a mixture on several devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memprof.analysis.comparison import Verdict
from memprof.analysis.records.categories import Category, Role
from memprof.workloads.evidence import in_words, no, total_bytes, used_arguments, yes
from memprof.workloads.mesh_axes import EP
from memprof.workloads.scopes import EXPERTS
from memprof.workloads.technique import Observation, Technique
from memprof.workloads.techniques.sharding import check_batch, check_divides
from memprof.workloads.train_config import TrainConfig, require


def experts_evidence(seen: Observation) -> Verdict:
    """Looks for experts that are divided over the axis, and for tokens that are sent to them and back along it."""
    size = seen.report.target.topology.axes.get(EP, 1)
    if size == 1:
        return no(f"no two devices lie along an axis {EP}")
    experts = [leaf for leaf in used_arguments(seen.report, Role.PARAMS) if f"['{EXPERTS}']" in leaf.path]
    if not experts or any(EP not in (leaf.mesh_axes or ()) for leaf in experts):
        return no(f"the program takes no experts that are all sharded over {EP}={size}")
    sent = [each for each in seen.report.collectives if each.kind.endswith("all-to-all") and EP in each.axes]
    sentence = f"{in_words(total_bytes(experts))} of experts are sharded over {EP}={size}"
    if not sent:
        return no(f"{sentence}, but no all-to-all sends tokens along it")
    count, size_bytes = sum(each.count for each in sent), sum(each.size_bytes for each in sent)
    return yes(f"{sentence}, and {in_words(size_bytes)} of tokens are sent along it in {count} all-to-all")


def check_config(config: Any, train_config: TrainConfig) -> None:
    """Raises `MemprofError` where there are no experts."""
    require(
        config.num_experts > 0,
        "Technique 'ep' shards experts, but num_experts is 0: choose a preset with experts, for example moe, or "
        "leave 'ep' out.",
    )


def check_axes(config: Any, train_config: TrainConfig, axes: Mapping[str, int]) -> None:
    """Raises `MemprofError` unless each device gets equally many experts and examples."""
    check_divides("num_experts", config.num_experts, EP, axes)
    check_batch(config, train_config, axes)


EXPERT = Technique(
    name="ep",
    about="""Shard the experts of each layer, and the batch, over the axis `ep`.

    Each device has some of the experts, with their parameters, gradients and optimizer state; everything else is
    replicated. A device routes the tokens of its part of the batch, and an all-to-all sends them to the devices with
    their experts; another all-to-all returns the results. Each device receives the same number of tokens whatever the
    router decides, because an expert takes no more than its capacity and empty slots are sent, too: a smaller
    `capacity_factor` sends and holds less, and drops more tokens.""",
    summary="experts and batch sharded over the axis ep; tokens sent to their experts and back by all-to-all",
    instruction="Shard the experts' parameters over the axis, and shard their inputs by expert, not by example.",
    code="x = jax.lax.with_sharding_constraint(x, "
    'jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(None, "ep")))',
    reference="Lepikhin et al. 2020, GShard, arXiv:2006.16668",
    sets={"expert_parallel": True},
    settings=("num_experts=8",),
    axis=EP,
    evidence=experts_evidence,
    check_config=check_config,
    check_axes=check_axes,
    shrinks=(Category.PARAMS, Category.OPTIMIZER_STATE, Category.BATCH, Category.ACTIVATIONS),
)

TECHNIQUES = (EXPERT,)
