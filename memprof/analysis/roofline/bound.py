"""A lower bound on the time of a step, from the plan and the peaks of the device.

Each kernel takes at least the larger of two times: the time of its matrix products at the peak for their dtype
(`operations.py`), and the time of the bytes that it touches at the memory's bandwidth (`touched.py`). Kernels run one
after another, so their times add up. A loop counts once per iteration; a loop of unknown trip count counts as zero. For
a conditional, the cheapest branch counts.

Communication uses its own resources: the link between devices (`links.py`) and the link to the host, in each direction.
Communication overlaps with the kernels that XLA schedules between its start and its end; if it takes longer than they
do, the device waits for the rest. So the bound is the largest of five sums: all kernels and the waiting time, all
traffic of the device's memory, all traffic between devices, all traffic to the host, and all traffic from the host.

On a TPU, the compiler copies values into memory on the chip in parallel with other work, and kernels read them there.
Access to that memory is free in this model, and each copy counts as traffic of the device's memory.

The bound ignores launches, dependencies between kernels and partly filled units, which every real step has. It assumes
that each kernel reads its operands from memory, so a small step whose values stay in the L2 cache can be faster.
Elementwise operations are priced by their bytes alone.

Reference: Williams, Waterman and Patterson, "Roofline: an insightful visual performance model", CACM 52(4), 2009.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from math import isfinite

from memprof.analysis.hlo.program import COLLECTIVES, Instruction, Program, ResultLeaf
from memprof.analysis.records.capture import Speeds, Target
from memprof.analysis.records.device_family import HBM, HOST, DeviceFamily, family_of
from memprof.analysis.records.roofline import Roofline
from memprof.analysis.roofline.links import seconds_of_collective
from memprof.analysis.roofline.operations import seconds_of_product
from memprof.analysis.roofline.touched import Touched, touched

_MIN_PRICED_SHARE = 0.95
# These move no data, or end an operation that another instruction began.
_FREE = frozenset(
    "parameter constant tuple get-tuple-element bitcast reshape after-all add-dependency optimization-barrier domain"
    " partition-id replica-id get-dimension-size async-update async-done copy-done send-done recv-done"
    " all-gather-done all-reduce-done collective-permute-done".split()
)
_ALLOCATION = "AllocateBuffer"  # a custom call that only reserves memory
# Library calls without matrix products that read all operands and write all results.
_STREAMING_CALLS = ("__cub$DeviceRadixSort", "__gpu$TopK", "cu_threefry2x32")
_UNPRICED = frozenset({"cholesky", "triangular-solve", "infeed", "outfeed", "send", "recv"})


@dataclass(frozen=True, slots=True)
class _Work:
    """Seconds and kernels of some instructions; all fields add up.

    `compute` and `memory` are the seconds of kernels by their limit. `link`, `to_host` and `from_host` are the seconds
    of communication, and `waited` is the part of it that no kernel hides. `traffic` is the time of all traffic of the
    device's memory, including kernels with another limit.
    """

    compute: float = 0.0
    memory: float = 0.0
    waited: float = 0.0
    link: float = 0.0
    to_host: float = 0.0
    from_host: float = 0.0
    num_kernels: float = 0.0
    num_priced: float = 0.0
    traffic: float = 0.0

    def __add__(self, other: _Work) -> _Work:
        return _Work(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))

    def times(self, count: int | None) -> _Work:
        """Return the work of a loop with this trip count. Args: count: None if unknown."""
        if count is None:
            return _Work(num_kernels=self.num_kernels)
        return _Work(*(getattr(self, each.name) * float(count) for each in fields(self)))

    @property
    def busy(self) -> float:
        return self.compute + self.memory + self.waited

    @property
    def bound(self) -> float:
        return max(self.busy, self.traffic, self.link, self.to_host, self.from_host)


_UNKNOWN = _Work(num_kernels=1.0)


def roofline(program: Program, target: Target) -> Roofline | None:
    """Compute the bound of a step on a target.

    Returns:
        The bound; None if the peaks of the target are unknown, or too few kernels have a price.
    """
    if target.speeds is None:
        return None
    try:
        work = _Pricing(program, target.speeds, target.topology.num_devices, family_of(target.platform)).work()
    except (RecursionError, OverflowError):  # no compiler nests or repeats this much
        return None
    seconds = work.bound
    if not (isfinite(seconds) and seconds > 0 and work.num_priced >= _MIN_PRICED_SHARE * work.num_kernels):
        return None
    beside = seconds - work.busy  # the time by which the busiest resource exceeds all kernels
    is_memory = seconds == work.traffic
    return Roofline(
        at_least_seconds=seconds,
        compute_share=work.compute / seconds,
        memory_share=(work.memory + (beside if is_memory else 0.0)) / seconds,
        communication_share=(work.waited + (0.0 if is_memory else beside)) / seconds,
        priced_share=work.num_priced / work.num_kernels,
    )


class _Pricing:
    """Prices the instructions of one program."""

    def __init__(self, program: Program, speeds: Speeds, num_devices: int, family: DeviceFamily) -> None:
        self._program, self._speeds, self._num_devices, self._family = program, speeds, num_devices, family
        self._work: dict[int, _Work] = {}  # by the number of a computation

    def work(self) -> _Work:
        entry = next(n for n, each in enumerate(self._program.computations) if each is self._program.entry)
        return self._of_computation(entry)

    def _of_computation(self, number: int) -> _Work:
        if number not in self._work:
            self._work[number] = self._of_sequence(self._program.computations[number].instructions)
        return self._work[number]

    def _of_sequence(self, indices: Sequence[int]) -> _Work:
        total = _Work()
        ends: dict[int, float] = {}  # by the instruction that starts it: the earliest end of a communication
        for index in indices:
            instruction = self._program.instructions[index]
            for operand in instruction.operands if instruction.opcode.endswith("-done") else ():
                end = ends.pop(self._start(operand), 0.0)
                total += _Work(waited=max(end - total.busy, 0.0))
            if instruction.opcode in _FREE or instruction.custom_call_target == _ALLOCATION:
                continue
            work = self._of_instruction(instruction, index)
            if instruction.opcode.endswith("-start"):
                ends[index] = total.busy + work.link + work.to_host + work.from_host
            total += work
        return total

    def _start(self, index: int) -> int:
        instruction = self._program.instructions[index]
        while instruction.opcode == "async-update":
            index = instruction.operands[0]
            instruction = self._program.instructions[index]
        return index

    def _of_instruction(self, instruction: Instruction, index: int) -> _Work:
        opcode = instruction.opcode
        if opcode == "while":
            body, condition = (self._of_computation(number) for number in instruction.called)
            count = instruction.trip_count
            return body.times(count) + condition.times(None if count is None else count + 1)
        if opcode == "conditional":
            return _cheapest([self._of_computation(number) for number in instruction.called])
        if opcode == "call":
            return self._of_computation(instruction.called[0])
        if opcode == "async-start":
            # It runs in parallel with the kernels, on another stream or on the host.
            work = self._of_computation(instruction.called[0])
            parts = work.link, work.to_host, work.from_host, work.num_kernels, work.num_priced, work.traffic
            return _Work(0.0, 0.0, 0.0, *parts)
        if opcode in COLLECTIVES:
            return self._of_collective(instruction)
        if opcode == "copy-start":
            return self._of_transfer(instruction)
        return self._of_kernel(instruction, index)

    def _of_collective(self, instruction: Instruction) -> _Work:
        speed = self._speeds.link_bytes_per_second
        seconds = seconds_of_collective(
            self._program, instruction, num_devices=self._num_devices, bytes_per_second=speed
        )
        if seconds is None:
            return _UNKNOWN
        overlaps = instruction.opcode.endswith("-start")
        return _Work(waited=0.0 if overlaps else seconds, link=seconds, num_kernels=1.0, num_priced=1.0)

    def _of_transfer(self, instruction: Instruction) -> _Work:
        """Price an asynchronous copy. Its result holds the destination and the source."""
        leaves = instruction.shape.leaves
        work = _Work(num_kernels=1.0, num_priced=1.0)
        if len(leaves) < 2:
            return work
        if leaves[0].is_on_host == leaves[1].is_on_host:
            num_ends = sum(not self._is_on_chip(leaf) for leaf in leaves[:2])
            if num_ends == 2:
                return work
            return work + _Work(traffic=num_ends * leaves[0].size_bytes / self._speeds.memory_bytes_per_second)
        seconds = leaves[0].size_bytes / self._speeds.host_bytes_per_second
        return work + (_Work(to_host=seconds) if leaves[0].is_on_host else _Work(from_host=seconds))

    def _of_kernel(self, instruction: Instruction, index: int) -> _Work:
        opcode, target = instruction.opcode, instruction.custom_call_target
        is_call = opcode == "custom-call"
        is_known_call = instruction.product is not None or target.startswith(_STREAMING_CALLS)
        if opcode in _UNPRICED or (is_call and not is_known_call):
            return _UNKNOWN
        found = touched(self._program, instruction, index)
        compute = self._of_products(found)
        if compute is None:
            return _UNKNOWN
        memory, from_host, to_host = self._of_bytes(instruction, found)
        longest = max(compute, memory, from_host, to_host)
        return _Work(
            compute=compute if compute == longest else 0.0,
            memory=memory if memory == longest > compute else 0.0,
            waited=longest if longest > max(compute, memory) else 0.0,
            to_host=to_host,
            from_host=from_host,
            num_kernels=1.0,
            num_priced=1.0,
            traffic=memory,
        )

    def _of_products(self, found: Touched) -> float | None:
        peaks, seconds = self._speeds.operations_per_second, 0.0
        for index, share in found.products:
            one = seconds_of_product(self._program, self._program.instructions[index], peaks)
            if one is None:
                return None
            seconds += one * share
        return seconds

    def _of_bytes(self, instruction: Instruction, found: Touched) -> tuple[float, float, float]:
        """Return the seconds of the device's memory, of reads from the host and of writes to the host."""
        written = found.written_bytes
        if instruction.opcode == "custom-call" and instruction.product is not None and len(written) > 1:
            written = written[:-1]  # the last result of a library call is its scratch memory
        on_device = from_host = to_host = 0
        for operand, size in zip(instruction.operands, found.read_bytes, strict=False):
            leaves = self._program.instructions[operand].shape.leaves
            if any(leaf.is_on_host for leaf in leaves):
                from_host += size
            elif not all(map(self._is_on_chip, leaves)):
                on_device += size
        for leaf, size in zip(instruction.shape.leaves, written, strict=False):
            if leaf.is_on_host:
                to_host += size
            elif not self._is_on_chip(leaf):
                on_device += size
        host = self._speeds.host_bytes_per_second
        return on_device / self._speeds.memory_bytes_per_second, from_host / host, to_host / host

    def _is_on_chip(self, leaf: ResultLeaf) -> bool:
        """Whether it lies in memory on the chip, which is much faster than the device's own memory."""
        return self._family.space_of(leaf.memory_space) not in (HBM, HOST)


def _cheapest(branches: Sequence[_Work]) -> _Work:
    """Return the least work of a conditional, whichever branch runs."""
    if not branches:
        return _Work()
    least = min(branches, key=lambda work: work.busy)
    return _Work(
        compute=least.compute,
        memory=least.memory,
        waited=least.waited,
        link=min(work.link for work in branches),
        to_host=min(work.to_host for work in branches),
        from_host=min(work.from_host for work in branches),
        num_kernels=least.num_kernels,
        num_priced=least.num_priced,
        traffic=min(work.traffic for work in branches),
    )
