"""An MLP on flat inputs: `config.py` is what a user chooses, `network.py` is made of it."""

from memprof.workloads.models.mlp.config import WORKLOAD

__all__ = ["WORKLOAD"]
