"""What `--format json` prints of a server's plan, for an engine to read before it loads anything."""

# Without `from __future__ import annotations`: from texts msgspec makes these types in three times the time.

from typing import Annotated

from msgspec import Struct

from memprof.reports.json.types import Size, about, filled
from memprof.studies.serving import Sequences, ServedProgram, ServingPlan


class ServingJson(Struct, frozen=True, kw_only=True, tag_field="schema", tag="memprof.serving/1"):
    """The memory of a server's programs on one device, and the number of cache tokens that fit."""

    label: str
    target: str
    pool_bytes: Annotated[Size | None, about("JAX's memory pool; null if it is unknown.")]
    max_tokens: Annotated[int | None, about("Number of cache tokens that fit the pool; null if the pool is unknown.")]
    weights_bytes: Annotated[Size, about("Weights of all programs, each array once.")]
    cache_bytes_per_token: Size
    cache_tokens: Annotated[int, about("Number of tokens in the compiled cache.")]
    cache_bytes: Annotated[Size, about("Size of that cache.")]
    state_bytes: Annotated[Size, about("Other state that is held between calls.")]
    constant_bytes: Annotated[Size, about("Constants of all programs.")]
    footprint_bytes: Annotated[Size, about("Total memory with that cache and the program that needs most.")]
    programs: Annotated[tuple[ServedProgram, ...], about("The programs, most unshared memory first.")]
    sequences: tuple[Sequences, ...]


def serving_json(plan: ServingPlan) -> ServingJson:
    """What is printed of a server's plan."""
    return filled(ServingJson, plan, target=plan.target.name)
