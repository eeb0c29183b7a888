"""The memory of a server: several programs share weights and a cache, and one of them runs at a time.

    device memory = weights + cache + other state + constants of all programs
                    + the largest own memory of a single program

A program's own memory is its temp block, its results and its inputs. The rest of JAX's memory pool is for the cache.
It is divided by the bytes of cache per token to find the number of tokens that fit.

The cache is compiled with a certain number of tokens. If a program copies it, the copies grow with it and are counted
with each token. The rest of a program is assumed to be constant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace

from memprof.analysis.records.capture import ArgumentLeaf, Target
from memprof.analysis.records.categories import Category, Role
from memprof.analysis.records.report import Report
from memprof.errors import MemprofError
from memprof.studies.advice.step_kind import MADE_IN_PASSES
from memprof.studies.advice.weights import kind_of

_STATE = tuple(role for role in Role if role not in (Role.PARAMS, Role.BATCH, Role.KV_CACHE))
_SHARED = (Role.KV_CACHE, Role.PARAMS, *_STATE)
_SHORTEST_CONTEXT = 1024
_NUM_CONTEXTS = 8

_Identity = tuple[str, tuple[int, ...], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedProgram:
    """One program of a server.

    Attributes:
        footprint_bytes: footprint of the program by itself, weights and cache included.
        own_bytes: unshared memory while it runs: temp block, results and inputs.
        constant_bytes: memory that it holds while it is loaded.
        copied_cache_bytes: the part of `own_bytes` that copies the cache, and grows with it.
    """

    name: str
    footprint_bytes: int
    own_bytes: int
    constant_bytes: int
    copied_cache_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequences:
    """The number of sequences of one context length that the cache holds."""

    context_len: int
    num_sequences: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingPlan:
    """The memory of a server, and the largest size of its cache.

    Attributes:
        target: the device.
        pool_bytes: JAX's memory pool on the device; None if it is unknown.
        weights_bytes, cache_bytes, state_bytes: memory that the programs share, each array once.
        constant_bytes: constants of all programs.
        cache_tokens: number of tokens in the compiled cache.
        cache_bytes_per_token: bytes per token of all caches.
        programs: the programs, largest own memory first.
        max_tokens: number of cache tokens that fit; None if the pool is unknown, 0 if even an empty cache does not fit.
    """

    label: str
    target: Target
    pool_bytes: int | None
    weights_bytes: int
    cache_bytes: int
    state_bytes: int
    constant_bytes: int
    cache_tokens: int
    cache_bytes_per_token: int
    programs: tuple[ServedProgram, ...]
    max_tokens: int | None

    @property
    def largest(self) -> ServedProgram:
        """The program with the largest own memory."""
        return self.programs[0]

    @property
    def footprint_bytes(self) -> int:
        """The total memory of the server with the compiled cache."""
        return self.fixed_bytes + self.cache_bytes + self.largest.own_bytes

    @property
    def fixed_bytes(self) -> int:
        """The memory that it always holds, without the cache."""
        return self.weights_bytes + self.state_bytes + self.constant_bytes

    @property
    def sequences(self) -> tuple[Sequences, ...]:
        """The sequences that fit, for contexts of 1,024 tokens and each doubling, up to the last that fits once."""
        if self.max_tokens is None:
            return ()
        contexts = (_SHORTEST_CONTEXT << n for n in range(_NUM_CONTEXTS))
        found = (Sequences(context_len=each, num_sequences=self.max_tokens // each) for each in contexts)
        return tuple(each for each in found if each.num_sequences)


def serving_plan(reports: Sequence[Report], *, label: str, cache_tokens: int) -> ServingPlan:
    """Combine the programs of a server.

    Args:
        reports: reports of all programs, for one device. Plans without memory pressure count.
        cache_tokens: number of tokens that their caches hold.

    Raises:
        MemprofError: no program has a cache, or the cache is not a whole number of bytes per token.
    """
    reports = [report.unpressed for report in reports]
    shared = _shared_bytes(reports)
    cache_bytes = shared[Role.KV_CACHE]
    if not cache_bytes:
        raise MemprofError(
            f"no cache was found in the programs of {label}: if one has a cache, name its argument,"
            " StepSpec(..., roles={'cache': 'kv_cache'})"
        )
    if cache_bytes % cache_tokens:
        raise MemprofError(
            f"the cache of {label} holds {cache_bytes:,} bytes, which is not a multiple of cache_tokens ="
            f" {cache_tokens:,}: give the number of tokens that its arrays can hold"
        )
    roles = _roles(reports)
    caches = {
        kind_of(buffer) for report in reports for buffer in report.buffers if buffer.category is Category.KV_CACHE
    }
    programs = sorted((_program(report, roles, caches) for report in reports), key=lambda each: -each.own_bytes)
    target, pool_bytes = reports[0].target, reports[0].verdict.pool_bytes
    plan = ServingPlan(
        label=label,
        target=target,
        pool_bytes=pool_bytes,
        weights_bytes=shared[Role.PARAMS],
        cache_bytes=cache_bytes,
        state_bytes=sum(shared[role] for role in _STATE),
        constant_bytes=sum(each.constant_bytes for each in programs),
        cache_tokens=cache_tokens,
        cache_bytes_per_token=cache_bytes // cache_tokens,
        programs=tuple(programs),
        max_tokens=None,
    )
    return plan if pool_bytes is None else replace(plan, max_tokens=_max_tokens(plan, pool_bytes))


def _max_tokens(plan: ServingPlan, pool_bytes: int) -> int:
    """Return the largest number of tokens with which every program fits."""
    left = pool_bytes - plan.fixed_bytes

    def of_program(program: ServedProgram) -> int:
        free = left - (program.own_bytes - program.copied_cache_bytes)
        # Multiply before dividing, because the bytes of copies per token need not be a whole number.
        return max(0, free * plan.cache_tokens // (plan.cache_bytes + program.copied_cache_bytes))

    return min(map(of_program, plan.programs))


def _program(
    report: Report, roles: Mapping[_Identity, Role], caches: Set[tuple[str, tuple[int, ...]]]
) -> ServedProgram:
    held = sum(report.categories[Category(role.value)] for role in _SHARED)
    # A program that only moves the cache does not show its role, but another program does.
    held += sum(
        report.device_bytes(leaf)
        for leaf in report.arguments
        if leaf.role not in _SHARED and leaf.parameter_number is not None and _identity(leaf) in roles
    )
    constant_bytes = report.categories[Category.CONSTANTS]
    copies = (
        buffer.size_bytes
        for buffer in report.buffers
        if buffer.category in MADE_IN_PASSES | {Category.OUTPUTS} and kind_of(buffer) in caches
    )
    return ServedProgram(
        name=report.workload,
        footprint_bytes=report.footprint_bytes,
        own_bytes=report.footprint_bytes - held - constant_bytes,
        constant_bytes=constant_bytes,
        copied_cache_bytes=sum(copies),
    )


def _roles(reports: Sequence[Report]) -> dict[_Identity, Role]:
    """Return the role of each shared array; if roles conflict, a cache wins over parameters, and these over others."""
    roles: dict[_Identity, Role] = {}
    for report in reports:
        for leaf in report.arguments:
            if leaf.role in _SHARED and leaf.parameter_number is not None:
                of_others = roles.get(_identity(leaf), leaf.role)
                roles[_identity(leaf)] = min(leaf.role, of_others, key=_SHARED.index)
    return roles


def _shared_bytes(reports: Sequence[Report]) -> dict[Role, int]:
    """Return the bytes that the programs share on one device, by role, each array once."""
    sizes = {
        _identity(leaf): report.device_bytes(leaf)
        for report in reports
        for leaf in report.arguments
        if leaf.parameter_number is not None
    }
    shared = dict.fromkeys(_SHARED, 0)
    for identity, role in _roles(reports).items():
        shared[role] += sizes[identity]
    return shared


def _identity(leaf: ArgumentLeaf) -> _Identity:
    return leaf.path, leaf.shape, leaf.dtype
