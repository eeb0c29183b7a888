"""Options of the compiler: nothing in a program says which it was compiled with, so only a difference can tell."""

from __future__ import annotations

from memprof.analysis.comparison import Verdict
from memprof.errors import MemprofError
from memprof.workloads.evidence import is_same_program, no, undecided, yes
from memprof.workloads.intents import Aim, Means
from memprof.workloads.technique import ARGUMENT, Argument, ArgumentValue, Observation, Technique


def option_evidence(seen: Observation) -> Verdict:
    """Looks for any difference from the reference."""
    recorded = f"{seen.argument} was passed to XLA and recorded"
    if seen.reference is None:
        return undecided(f"{recorded}; its effect shows only in comparison with a row without it")
    if is_same_program(seen.report, seen.reference):
        return no(
            f"{recorded}, but the program equals the reference's: the same buffers at the peak, loops and operations"
        )
    return yes(f"{recorded}, and the program differs from the reference's")


def _join_options(options: str, argument: ArgumentValue) -> str:
    """Returns the options with one more; raises `MemprofError` where it has another value already."""
    name, value = str(argument).split("=", 1)
    known = dict(option.split("=", 1) for option in options.split())
    if known.setdefault(name, value) != value:
        raise MemprofError(f"Option {name} is given twice, as {known[name]} and {value}: give it one value.")
    return " ".join(f"{key}={text}" for key, text in known.items())


XLA = Technique(
    name="xla",
    about="""Pass an option to the compiler, for this compile only.

    It is passed to XLA unchanged (`jax.jit(...).lower(...).compile(compiler_options=...)`) and recorded with the
    report. It may be given several times. Options and their values differ between versions; XLA rejects unknown
    ones.""",
    summary="a compiler option, passed to XLA and recorded; may be repeated",
    instruction="Pass the option to the compiler when the step is compiled.",
    code="step = jax.jit(step, compiler_options=dict([<FLAG=VALUE>]))",
    argument_code=lambda option: str(tuple(str(option).split("=", 1))),
    reference="OpenXLA, XLA flags guidance: https://openxla.org/xla/flags_guidance",
    sets={"compiler_options": ARGUMENT},
    join=_join_options,
    argument=Argument(
        spelling="xla:<FLAG=VALUE>",
        pattern=r"[a-z0-9_]+=[^\s+]*",
        example="xla_gpu_enable_triton_gemm=false",
        parse=str,
    ),
    evidence=option_evidence,
)

TECHNIQUES = (XLA,)
# The pass of XLA that delays operations so that they run beside communication. The flag that is named after it does
# not turn it off everywhere: with several devices jaxlib 0.10.2 runs it whatever the flag says.
_LATENCY_HIDING = "xla_disable_hlo_passes=latency-hiding-scheduler"


def _with_flag(flag: str) -> str:
    """Code that adds a flag of XLA to those that are set."""
    flags = 'os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "")'
    return f'import os\n{flags} + " --{flag}"  # before jax is imported'


MEANS = {
    Aim.REMOVE_BARRIER: Means(
        words="Use the operands of jax.lax.optimization_barrier directly, instead of its results."
    ),
    Aim.SCHEDULE_FOR_MEMORY: Means(code=_with_flag(_LATENCY_HIDING), technique=f"xla:{_LATENCY_HIDING}"),
    Aim.GENERATE_PRODUCTS: Means(
        code=_with_flag("xla_gpu_cublas_fallback=false"), technique="xla:xla_gpu_cublas_fallback=false"
    ),
}
