"""A Transformer: `config.py` is what a user chooses, `model.py` makes it of the network of the other files."""

from memprof.workloads.models.transformer.config import WORKLOAD

__all__ = ["WORKLOAD"]
