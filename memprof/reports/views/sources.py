"""Source lines as people name them: without the folders that all of them have in common."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile


def short_names(sources: Iterable[str]) -> dict[str, str]:
    """What each source line is called: `/home/me/project/net/mlp.py:12` is `net/mlp.py:12` beside `net/loss.py`'s.

    What is in the report stays whole; this is for display alone.
    """
    split = {source: source.split("/") for source in sources if source}
    # The last part is the file itself: it always stays.
    levels = zip(*(parts[:-1] for parts in split.values()), strict=False)
    num_common = sum(1 for _ in takewhile(lambda folders: len(set(folders)) == 1, levels))
    return {"": "", **{source: "/".join(parts[num_common:]) for source, parts in split.items()}}
