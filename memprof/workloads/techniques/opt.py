"""opt: another optimizer, and with it another optimizer state.

Adam's two moments are 8 bytes a parameter in float32, twice the parameters themselves. Optimizers that keep less (one
moment, sums over rows and columns, 8-bit codes, a subspace) are the way to lower what neither a smaller batch nor
rematerialisation can. `memprof list optimizers` tells what each keeps.
"""

from __future__ import annotations

import dataclasses

from memprof.analysis.categories import Category
from memprof.workloads import registry
from memprof.workloads.evidence.optimizer import optimizer_evidence
from memprof.workloads.technique import Argument, ArgumentValue, HowTo, Technique
from memprof.workloads.train_config import TrainConfig


def parse(text: str) -> str:
    """Returns the name of an optimizer; raises `MemprofError` with all names where there is none of that name."""
    return registry.optimizer(text).name


def apply(config: TrainConfig, argument: ArgumentValue | None) -> TrainConfig:
    """Returns `config` with the optimizer of that name."""
    return dataclasses.replace(config, optimizer=str(argument))


TECHNIQUE = Technique(
    name="opt",
    summary="another optimizer: memprof list optimizers tells what each keeps",
    how_to=HowTo(
        sentence="Make another optimizer, which is another training: choose the learning rate anew.",
        code="optimizer = <NAME>",
        argument_code=lambda name: registry.optimizer(str(name)).code,
    ),
    reference="optax documentation, Optimizers: https://optax.readthedocs.io/en/latest/api/optimizers.html",
    family="optimizer",
    sets=("optimizer",),
    apply=apply,
    # Any text, so that the error for a wrong name can list the right ones. The example keeps less than the baseline.
    argument=Argument(spelling="opt=<NAME>", pattern="[^+]+", example="momentum", parse=parse),
    shrinks=(Category.OPTIMIZER_STATE,),
    tolerance=None,
    evidence=optimizer_evidence,
)
