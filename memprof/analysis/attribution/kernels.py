"""Pallas kernels with the places in the user's code that call them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from memprof.analysis.attribution.sources import Sources
from memprof.analysis.attribution.values import Values
from memprof.analysis.hlo.program import Instruction, Program
from memprof.analysis.records.kernel import Kernel, KernelCalls
from memprof.errors import InternalError

_NUMBER = re.compile(r"(\.\d+)+$")


def kernel_calls(
    kernels: Sequence[Kernel], program: Program, values: Values, sources: Sources
) -> tuple[KernelCalls, ...]:
    """Return the kernels of a program, largest VMEM request first; equal calls from one line are grouped.

    Raises:
        InternalError: a kernel is no call of the program, or is given twice.
    """
    by_instruction = {kernel.instruction: kernel for kernel in kernels}
    alike: defaultdict[tuple[str, str, Kernel], list[tuple[Kernel, Instruction]]] = defaultdict(list)
    for instruction in program.instructions if by_instruction else ():
        kernel = by_instruction.pop(instruction.name, None) if instruction.opcode == "custom-call" else None
        if kernel is not None:
            name, source = _NUMBER.sub("", kernel.instruction), sources.lines(instruction).user
            alike[name, source, replace(kernel, instruction="")].append((kernel, instruction))
    if sum(map(len, alike.values())) != len(kernels):
        raise InternalError("the kernels are not those of the compiled program")
    found = [
        KernelCalls(
            name=_NUMBER.sub("", calls[0][0].instruction),
            kernel=calls[0][0],
            num_calls=len(calls),
            module=values.module_of(calls[0][1]),
            source=sources.lines(calls[0][1]).user,
        )
        for calls in alike.values()
    ]
    return tuple(sorted(found, key=lambda each: -each.kernel.asked_bytes))
