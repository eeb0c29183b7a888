"""The words of a report: roles of arguments, phases of a training step, and the categories of device memory.

Every byte of the footprint belongs to exactly one category. The order of the members is the order in which the
reports list them where they do not sort by size.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Self


class Role(StrEnum):
    """What an argument of the step is for. The values are the category that the argument's bytes belong to."""

    PARAMS = "params"
    OPTIMIZER_STATE = "optimizer_state"
    BATCH = "batch"
    KV_CACHE = "kv_cache"
    OTHER_STATE = "other_state"


class Phase(StrEnum):
    """The part of the training step that makes a value."""

    ARGUMENT = "argument"
    FORWARD = "forward"
    RECOMPUTE = "recompute"
    BACKWARD = "backward"
    UPDATE = "update"
    UNDIFFERENTIATED = "undifferentiated"  # a rollout, shuffled data, a reference model, a metric
    CONSTANT = "constant"
    NONE = "none"


class Category(StrEnum):
    """What a buffer is, decided by where its value comes from and where it is used.

    Attributes:
        meaning: the same in a few words, for legends.
    """

    meaning: str

    def __new__(cls, value: str, meaning: str = "") -> Self:
        member = str.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        return member

    PARAMS = "params", "parameters passed to the step, frozen ones too"
    OPTIMIZER_STATE = "optimizer_state", "optimizer state passed to the step"
    BATCH = "batch", "input data passed to the step"
    KV_CACHE = "kv_cache", "keys and values that attention reads, written at an index at each step of inference"
    OTHER_STATE = "other_state", "rng keys, counters, statistics and whatever else is passed to the step"
    GRADIENTS = "gradients", "gradients of parameters and their accumulators"
    ACTIVATIONS = "activations", "values of the forward pass kept for the backward pass"
    RECOMPUTED = "recomputed", "values of the forward pass computed again in the backward pass"
    PARAM_COPIES = "param_copies", "values that depend on parameters alone: casts, transposes"
    GATHERED_PARAMS = "gathered_params", "parameters gathered from other devices, and what depends on them alone"
    COTANGENTS = "cotangents", "values of the backward pass that are not parameter gradients"
    FORWARD_TEMPS = "forward_temps", "values of the forward pass that die in it, and of rollouts, metrics"
    UPDATE_TEMPS = "update_temps", "values of the optimizer update"
    OUTPUTS = "outputs", "results that alias no argument"
    WORKSPACE = "workspace", "scratch memory of library calls"
    COLLECTIVES = "collectives", "buffers of cross-device communication"
    CONSTANTS = "constants", "compile-time constants and values that depend on no argument"
    FRAGMENTATION = "fragmentation", "bytes of the temp block that hold nothing at the peak"
    UNATTRIBUTED = "unattributed", "what no rule explains"


# Memory that the caller holds between steps: one category for each role of an argument.
ARGUMENT_CATEGORIES = tuple(Category(role.value) for role in Role)
