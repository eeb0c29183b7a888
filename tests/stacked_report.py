"""A small report whose buffers have Python stacks: a network of two kinds of layer, a loss, and an optimizer."""

from __future__ import annotations

from dataclasses import replace

from report_builder import buffer, report

from memprof.analysis.records.categories import Category, Phase
from memprof.analysis.records.live_buffer import LiveBuffer, StackFrame
from memprof.analysis.records.report import Report

_TRAIN, _NET, _BLOCKS = "/home/me/project/train.py", "/home/me/project/net/net.py", "/home/me/project/net/blocks.py"
STEP = StackFrame(_TRAIN, "step", 30, is_own=True)
_LOSS = StackFrame(_TRAIN, "step.<locals>.loss", 12, is_own=True)
_CALL = StackFrame(_NET, "Net.__call__", 8, is_own=True)
_WRAPPER = StackFrame("flax/linen/module.py", "wrapped", 500, is_own=False)
_DROPOUT = StackFrame("flax/linen/stochastic.py", "Dropout.__call__", 107, is_own=False)
_MEBI = 2**20


def stacked() -> Report:
    """16 MiB at the peak, of which 4 layers of attention have 2 MiB each at line 69 and dropout of 1 MiB at line 70.

    Beside them 1 MiB each of the loss, of parameters, of an update, and of a constant without a source line.
    """
    attention = [
        _made(2, f"layers_{layer}/attention", "dot", _WRAPPER, StackFrame(_BLOCKS, "Attention.__call__", 69, True))
        for layer in range(4)
    ]
    dropouts = [
        replace(
            _made(1, f"layers_{layer}/attention", "mul", StackFrame(_BLOCKS, "Attention.__call__", 70, True), _DROPOUT),
            library="flax/linen/stochastic.py:107",
        )
        for layer in range(4)
    ]
    loss = buffer((_MEBI // 4,), "f32", Category.COTANGENTS, op="jit(step)/sub", source=f"{_TRAIN}:14")
    update = buffer((_MEBI // 4,), "f32", Category.OUTPUTS, op="jit(step)/add", source=f"{_TRAIN}:30")
    return report(
        [
            *attention,
            *dropouts,
            replace(loss, stack=(STEP, replace(_LOSS, line=14))),
            replace(update, stack=(STEP,)),
            buffer((_MEBI // 4,), "f32", Category.PARAMS, op="params['w']", phase=Phase.ARGUMENT),
            buffer((_MEBI // 4,), "f32", Category.CONSTANTS, phase=Phase.CONSTANT),
        ],
        label="net stacked",
    )


def _made(mebibytes: int, module: str, op: str, *calls: StackFrame) -> LiveBuffer:
    """A buffer made within the network; its source is the innermost call of the user's own."""
    own = [call for call in calls if call.is_own][-1]
    made = buffer(
        (mebibytes * _MEBI // 4,),
        "f32",
        Category.ACTIVATIONS,
        module=module,
        op=f"jit(step)/jvp(Net)/{module}/{op}",
        source=f"{own.file}:{own.line}",
    )
    return replace(made, stack=(STEP, _LOSS, _CALL, *calls))
