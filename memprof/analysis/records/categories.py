"""The words of a report: roles of arguments, phases of a training step, and the categories of device memory.

Every byte of the footprint belongs to exactly one category. The order of the members is the order in which the
reports list them where they do not sort by size.
"""

from __future__ import annotations

from enum import StrEnum


class Role(StrEnum):
    """What an argument of the step is for. The values are the category that the argument's bytes belong to."""

    PARAMS = "params"
    OPTIMIZER_STATE = "optimizer_state"
    BATCH = "batch"
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
    """What a buffer is, decided by where its value comes from and where it is used."""

    PARAMS = "params"
    OPTIMIZER_STATE = "optimizer_state"
    BATCH = "batch"
    OTHER_STATE = "other_state"
    GRADIENTS = "gradients"
    ACTIVATIONS = "activations"
    RECOMPUTED = "recomputed"
    PARAM_COPIES = "param_copies"
    GATHERED_PARAMS = "gathered_params"
    COTANGENTS = "cotangents"
    FORWARD_TEMPS = "forward_temps"
    UPDATE_TEMPS = "update_temps"
    OUTPUTS = "outputs"
    WORKSPACE = "workspace"
    COLLECTIVES = "collectives"
    CONSTANTS = "constants"
    FRAGMENTATION = "fragmentation"
    UNATTRIBUTED = "unattributed"


CATEGORY_MEANINGS: dict[Category, str] = {
    Category.PARAMS: "parameters passed to the step, frozen ones too",
    Category.OPTIMIZER_STATE: "optimizer state passed to the step",
    Category.BATCH: "input data passed to the step",
    Category.OTHER_STATE: "rng keys, counters, statistics and whatever else is passed to the step",
    Category.GRADIENTS: "gradients of parameters and their accumulators",
    Category.ACTIVATIONS: "values of the forward pass kept for the backward pass",
    Category.RECOMPUTED: "values of the forward pass computed again in the backward pass",
    Category.PARAM_COPIES: "values that depend on parameters alone: casts, transposes",
    Category.GATHERED_PARAMS: "parameters gathered from other devices, and what depends on them alone",
    Category.COTANGENTS: "values of the backward pass that are not parameter gradients",
    Category.FORWARD_TEMPS: "values of the forward pass that die in it, and of rollouts, metrics",
    Category.UPDATE_TEMPS: "values of the optimizer update",
    Category.OUTPUTS: "results that alias no argument",
    Category.WORKSPACE: "scratch memory of library calls",
    Category.COLLECTIVES: "buffers of cross-device communication",
    Category.CONSTANTS: "compile-time constants and values that depend on no argument",
    Category.FRAGMENTATION: "bytes of the temp block that hold nothing at the peak",
    Category.UNATTRIBUTED: "what no rule explains",
}
