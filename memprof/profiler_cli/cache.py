"""`memprof cache`: the plans that earlier compiles have left on this machine."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from memprof.profiler_cli.console import say, write_table
from memprof.reports.units import format_bytes


class Action(StrEnum):
    """What is done with the cache."""

    INFO = "info"
    CLEAR = "clear"


def cache(action: Annotated[Action, typer.Argument(help="Show the cache, or clear it.")]) -> None:
    """Show or clear the cache of XLA's plans.

    The cache answers identical compiles. MEMPROF_CACHE_DIR sets its folder and MEMPROF_CACHE_SIZE its limit (0: no
    cache); the least recently used plans are removed first.

        memprof cache info
    """
    from memprof.sources.jax.xla.plan_cache import PlanCache

    cached = PlanCache.of_user()
    if action is Action.CLEAR:
        before = cached.clear()
        say(f"plans removed: {before.num_plans}, {format_bytes(before.size_bytes)}")
        return
    usage, why_unused = cached.usage(), cached.why_unused()
    only_read = "read-only: the folder cannot be written to" if cached.is_read_only() else ""
    rows = [
        ("folder", str(cached.folder)),
        ("plans", str(usage.num_plans)),
        ("size", f"{format_bytes(usage.size_bytes)} of {format_bytes(cached.limit_bytes)} at most"),
        ("in use", f"no: {why_unused}" if why_unused else only_read or "yes"),
    ]
    write_table(("cache", ""), rows)
