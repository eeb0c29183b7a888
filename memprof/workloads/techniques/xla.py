"""xla:<FLAG=VALUE>: an option of the compiler, for this compile alone.

It goes to XLA as it is (`jax.jit(...).lower(...).compile(compiler_options=...)`) and is recorded with the report. It
may be given several times. Options and their values differ between versions; XLA rejects those that it does not know.
"""

from __future__ import annotations

import dataclasses

from memprof.errors import MemprofError
from memprof.workloads.evidence.options import option_evidence
from memprof.workloads.technique import Argument, ArgumentValue, HowTo, Technique
from memprof.workloads.train_config import TrainConfig


def apply(config: TrainConfig, argument: ArgumentValue | None) -> TrainConfig:
    """Returns `config` with one more option; raises `MemprofError` where it has another value already."""
    assert isinstance(argument, str)
    name, value = argument.split("=", 1)
    options = dict(option.split("=", 1) for option in config.compiler_options.split())
    if options.setdefault(name, value) != value:
        raise MemprofError(f"Option {name} is given twice, as {options[name]} and {value}: give it one value.")
    return dataclasses.replace(config, compiler_options=" ".join(f"{key}={text}" for key, text in options.items()))


TECHNIQUE = Technique(
    name="xla",
    summary="a compiler option, passed to XLA and recorded; may be repeated",
    how_to=HowTo(
        sentence="Give the compiler the option when the step is compiled.",
        code="compiled = jax.jit(train_step).lower(state, batch).compile(compiler_options=dict([<FLAG=VALUE>]))",
        argument_code=lambda option: str(tuple(str(option).split("=", 1))),
    ),
    reference="OpenXLA, XLA flags guidance: https://openxla.org/xla/flags_guidance",
    family="compiler",
    sets=("compiler_options",),
    apply=apply,
    argument=Argument(
        spelling="xla:<FLAG=VALUE>",
        pattern=r"[a-z0-9_]+=[^\s+]*",
        example="xla_gpu_enable_triton_gemm=false",
        parse=str,
    ),
    evidence=option_evidence,
    is_repeatable=True,
)
