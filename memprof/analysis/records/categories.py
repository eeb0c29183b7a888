"""The terms of a report: roles of arguments, phases of a training step, and categories of device memory.

Every byte of the footprint belongs to exactly one category. Reports that do not sort by size list the members in this
order.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Self


class Role(StrEnum):
    """The role of an argument of the step. Each value is also the category of the argument's bytes."""

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
    """The category of a buffer, determined by the origin and the uses of its value.

    This table holds all differences between categories. A new category needs a row here, and an attribution rule that
    claims it.

    Attributes:
        letter: its letter in every report, so that colour is never the only signal.
        color: its colour in charts; see `reports/palette.py` on the hues.
        column: its column in comparisons; the last column is `other`.
        is_fixed: whether its size is independent of the batch size.
        is_of_passes: whether it is made in the forward and backward passes, and is not a gradient of a parameter.
        meaning: a short description, for legends.
    """

    letter: str
    color: str
    column: str
    is_fixed: bool
    is_of_passes: bool
    meaning: str

    def __new__(
        cls,
        value: str,
        letter: str = "",
        color: str = "",
        column: str = "",
        is_fixed: bool = False,
        is_of_passes: bool = False,
        meaning: str = "",
    ) -> Self:
        member = str.__new__(cls, value)
        member._value_ = value
        member.letter, member.color, member.column = letter, color, column
        member.is_fixed, member.is_of_passes, member.meaning = is_fixed, is_of_passes, meaning
        return member

    # fmt: off
    # value, letter, color, column, is_fixed, is_of_passes, meaning
    PARAMS = ("params", "P", "#3d96e0", "params", True, False,
        "parameters passed to the step, including frozen ones")
    OPTIMIZER_STATE = ("optimizer_state", "O", "#e69f00", "optim", True, False,
        "optimizer state passed to the step")
    BATCH = ("batch", "B", "#f0e442", "other", False, False,
        "input data passed to the step")
    KV_CACHE = ("kv_cache", "V", "#d0f488", "cache", False, False,
        "keys and values that attention reads, written at an index at each step of inference")
    OTHER_STATE = ("other_state", "S", "#bdb23a", "other", True, False,
        "rng keys, counters, statistics and all other arguments of the step")
    GRADIENTS = ("gradients", "G", "#e0643a", "grads", True, False,
        "gradients of parameters and their accumulators")
    ACTIVATIONS = ("activations", "A", "#1fa67c", "acts", False, True,
        "values of the forward pass kept for the backward pass")
    RECOMPUTED = ("recomputed", "R", "#8fd9bf", "temps", False, True,
        "values of the forward pass recomputed in the backward pass")
    PARAM_COPIES = ("param_copies", "C", "#a5d0f4", "temps", True, False,
        "values that depend only on parameters: casts, transposes")
    GATHERED_PARAMS = ("gathered_params", "H", "#7fb4a8", "temps", False, False,
        "parameters gathered from other devices, and values that depend only on them")
    COTANGENTS = ("cotangents", "D", "#f4b39a", "temps", False, True,
        "values of the backward pass that are not parameter gradients")
    FORWARD_TEMPS = ("forward_temps", "F", "#cc79a7", "temps", False, True,
        "values of the forward pass that are not kept for the backward pass, and of rollouts and metrics")
    UPDATE_TEMPS = ("update_temps", "U", "#f7d58c", "temps", False, False,
        "values of the optimizer update")
    OUTPUTS = ("outputs", "X", "#5cd3dc", "other", True, False,
        "results that alias no argument")
    WORKSPACE = ("workspace", "W", "#e6c3d8", "temps", False, False,
        "scratch memory of library calls")
    COLLECTIVES = ("collectives", "N", "#a48be0", "temps", False, False,
        "buffers of cross-device communication")
    CONSTANTS = ("constants", "K", "#b9aa93", "other", False, False,
        "compile-time constants and values that depend on no argument")
    FRAGMENTATION = ("fragmentation", "~", "#9a9a9a", "other", False, False,
        "unused bytes of the temp block at the peak")
    UNATTRIBUTED = ("unattributed", "?", "#f5f5f5", "other", False, False,
        "values that no rule explains")
    # fmt: on
