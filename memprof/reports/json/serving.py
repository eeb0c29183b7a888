"""What `--format json` prints of a server's plan, for an engine to read before it loads anything."""

# Without `from __future__ import annotations`: from texts msgspec makes these types in three times the time.

from typing import Annotated

from msgspec import Struct

from memprof.reports.json.types import Size, about, filled
from memprof.studies.serving import Sequences, ServedProgram, ServingPlan


class ServingJson(Struct, frozen=True, kw_only=True, tag_field="schema", tag="memprof.serving/1"):
    """What the programs of a server hold of one device's memory, and how many tokens of cache fit."""

    label: str
    target: str
    pool_bytes: Annotated[Size | None, about("JAX's memory pool; null if it is not known.")]
    max_tokens: Annotated[int | None, about("The tokens of cache that fit the pool; null if it is not known.")]
    weights_bytes: Annotated[Size, about("Of all programs, each array once.")]
    cache_bytes_per_token: Size
    cache_tokens: Annotated[int, about("The tokens of the cache as the programs were compiled.")]
    cache_bytes: Annotated[Size, about("Of that cache.")]
    state_bytes: Annotated[Size, about("Other state that is held between calls.")]
    constant_bytes: Annotated[Size, about("Constants of all programs.")]
    footprint_bytes: Annotated[Size, about("All of it with that cache, and the program that holds most beside it.")]
    programs: Annotated[tuple[ServedProgram, ...], about("Those that hold most beside the shared part come first.")]
    sequences: tuple[Sequences, ...]


def serving_json(plan: ServingPlan) -> ServingJson:
    """What is printed of a server's plan."""
    return filled(ServingJson, plan, target=plan.target.name)
