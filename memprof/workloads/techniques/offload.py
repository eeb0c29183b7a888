"""State in host memory between steps."""

from __future__ import annotations

from memprof.analysis.comparison import Verdict
from memprof.analysis.records.capture import Target
from memprof.analysis.records.categories import Category, Role
from memprof.analysis.records.device_family import family_of
from memprof.errors import MemprofError
from memprof.workloads.evidence import in_words, no, used_arguments, yes
from memprof.workloads.intents import Aim, Means
from memprof.workloads.technique import Observation, Technique


def offloaded_optimizer_evidence(seen: Observation) -> Verdict:
    """Looks for the optimizer state in host memory, and for its absence among the device's arguments."""
    state = sum(seen.report.device_bytes(leaf) for leaf in used_arguments(seen.report, Role.OPTIMIZER_STATE))
    on_host, on_device = seen.report.program.host_bytes, seen.report.categories[Category.OPTIMIZER_STATE]
    sentence = (
        f"the program holds {in_words(on_host)} in host memory, and {in_words(on_device)} of the {in_words(state)} of"
        " optimizer state on the device"
    )
    return yes(sentence) if on_host >= state > 0 and on_device == 0 else no(sentence)


def check_has_host_memory(target: Target) -> None:
    """Raises `MemprofError` for the CPU, whose memory is the host's: XLA takes pinned_host there for the same."""
    if family_of(target.platform).is_host:
        raise MemprofError(
            "Offloading moves arrays from device memory to host memory, which are the same on the CPU: choose a GPU "
            "with --target, for example h100-80gb."
        )


OFFLOAD_OPT = Technique(
    name="offload-opt",
    about="""Keep the optimizer state in pinned host memory between steps.

    It is copied to the device only for the update, when all gradients exist and the activations are freed: a barrier
    prevents XLA from fetching it earlier. So the gradients wait for each other, and the peak contains the state beside
    gradients and parameters at most, or not at all if the peak is in the forward or backward pass. Each step moves the
    state over the bus and back.""",
    summary="optimizer state in host memory (pinned_host) between steps",
    instruction="Keep the optimizer state in host memory, and fetch it only for the update.",
    code="opt_state = jax.device_put(opt_state, jax.memory.Space.Device)",
    reference="Ren et al. 2021, ZeRO-Offload, arXiv:2101.06840",
    sets={"offload_optimizer": True},
    evidence=offloaded_optimizer_evidence,
    shrinks=(Category.OPTIMIZER_STATE,),
    grows=(Category.UPDATE_TEMPS, Category.GRADIENTS),
    check_target=check_has_host_memory,
)

TECHNIQUES = (OFFLOAD_OPT,)
MEANS = {
    Aim.OFFLOAD_OPTIMIZER_STATE: Means(
        code="gradients, opt_state = jax.lax.optimization_barrier((gradients, opt_state))\n"
        "opt_state = jax.device_put(opt_state, jax.memory.Space.Device)"
        "  # it lies in jax.memory.Space.Host before and after",
        technique=OFFLOAD_OPT.name,
    )
}
