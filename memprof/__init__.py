"""memprof: every byte of a JAX training step's device memory, explained, for any GPU, without needing one.

    import jax, memprof

    @jax.jit
    def train_step(params, batch): ...

    profile = memprof.profile(train_step, params, batch, target="h100-80gb")  # arrays or jax.ShapeDtypeStructs
    print(profile)                                # whether it fits, and where its memory goes
    profile.footprint_bytes, profile.by("module")  # the numbers
    profile.advice                                # ways to lower the peak
    profile.save("step.memprof")                  # for `memprof show step.memprof`

On the command line: `memprof run train.py:step_spec --target h100-80gb`; `memprof --help` lists all commands.

docs/architecture.md describes the rooms of the package.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from memprof.analysis.records.device_family import add_families
from memprof.plugin_complaints import leave_out_plugin_complaints
from memprof.sources.jax.targets import facts
from memprof.version import __version__

if TYPE_CHECKING:
    from memprof.analysis.records.categories import Category, Role
    from memprof.analysis.records.rewrites import (
        ExamplesInChunks,
        FusedAttention,
        InChunks,
        InGroups,
        InMinibatches,
        NarrowSums,
        OnlyReadRows,
        StepInMinibatches,
        Unrolled,
    )
    from memprof.api import Comparison, Profile, advise, compare, fits, load, profile, profile_torch
    from memprof.batching import largest, peak
    from memprof.errors import MemprofError, WorkloadError
    from memprof.measuring import measure
    from memprof.out_of_memory import explain_oom
    from memprof.planning import apply, plan
    from memprof.sources.jax.checkpointing.unrolled import in_layers
    from memprof.sources.jax.targets.mesh import mesh
    from memprof.sources.jax.tracing.step import Feed, StepSpec
    from memprof.sources.torch.step_spec import TorchStepSpec
    from memprof.summarizing import summary
    from memprof.workloads.user.train_spec import TrainSpec

# The module that defines each name. It is imported on first access, which keeps `import memprof` quick.
_HOMES = {
    "Category": "memprof.analysis.records.categories",
    "Comparison": "memprof.api",
    "Feed": "memprof.sources.jax.tracing.step",
    "FusedAttention": "memprof.analysis.records.rewrites",
    "InChunks": "memprof.analysis.records.rewrites",
    "ExamplesInChunks": "memprof.analysis.records.rewrites",
    "InGroups": "memprof.analysis.records.rewrites",
    "InMinibatches": "memprof.analysis.records.rewrites",
    "MemprofError": "memprof.errors",
    "NarrowSums": "memprof.analysis.records.rewrites",
    "OnlyReadRows": "memprof.analysis.records.rewrites",
    "Profile": "memprof.api",
    "Role": "memprof.analysis.records.categories",
    "ServingSpec": "memprof.workloads.user.serving_spec",
    "StepInMinibatches": "memprof.analysis.records.rewrites",
    "StepSpec": "memprof.sources.jax.tracing.step",
    "TorchStepSpec": "memprof.sources.torch.step_spec",
    "TrainSpec": "memprof.workloads.user.train_spec",
    "Unrolled": "memprof.analysis.records.rewrites",
    "WorkloadError": "memprof.errors",
    "advise": "memprof.api",
    "apply": "memprof.planning",
    "compare": "memprof.api",
    "explain_oom": "memprof.out_of_memory",
    "fits": "memprof.api",
    "in_layers": "memprof.sources.jax.checkpointing.unrolled",
    "largest": "memprof.batching",
    "load": "memprof.api",
    "measure": "memprof.measuring",
    "mesh": "memprof.sources.jax.targets.mesh",
    "peak": "memprof.batching",
    "plan": "memprof.planning",
    "profile": "memprof.api",
    "profile_torch": "memprof.api",
    "serving": "memprof.api",
    "summary": "memprof.summarizing",
}
# Only IPython looks up this name, for `%load_ext memprof`.
_IPYTHON_HOOK = "load_ipython_extension"

__all__ = [
    "Category",
    "Comparison",
    "ExamplesInChunks",
    "Feed",
    "FusedAttention",
    "InChunks",
    "InGroups",
    "InMinibatches",
    "MemprofError",
    "NarrowSums",
    "OnlyReadRows",
    "Profile",
    "Role",
    "ServingSpec",
    "StepInMinibatches",
    "StepSpec",
    "TorchStepSpec",
    "TrainSpec",
    "Unrolled",
    "WorkloadError",
    "__version__",
    "advise",
    "apply",
    "compare",
    "explain_oom",
    "fits",
    "in_layers",
    "largest",
    "load",
    "measure",
    "mesh",
    "peak",
    "plan",
    "profile",
    "profile_torch",
    "serving",
    "summary",
]

add_families(facts())
leave_out_plugin_complaints()  # at import, because the user's next line may start JAX


def __getattr__(name: str) -> Any:
    if name == _IPYTHON_HOOK:
        return importlib.import_module("memprof.notebook").load_ipython_extension
    if name not in _HOMES:
        raise AttributeError(f"module 'memprof' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
