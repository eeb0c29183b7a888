"""Source lines as people name them: without the folders that all of them have in common."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import takewhile

from memprof.analysis.report import LiveBuffer


def short_names(sources: Iterable[str]) -> dict[str, str]:
    """What each source line is called: `/home/me/project/net/mlp.py:12` is `net/mlp.py:12` beside `net/loss.py`'s.

    What is in the report stays whole; this is for display alone.
    """
    split = {source: source.split("/") for source in sources if source}
    # The last part is the file itself: it always stays.
    levels = zip(*(parts[:-1] for parts in split.values()), strict=False)
    num_common = sum(1 for _ in takewhile(lambda folders: len(set(folders)) == 1, levels))
    return {"": "", **{source: "/".join(parts[num_common:]) for source, parts in split.items()}}


def places(buffers: Sequence[LiveBuffer]) -> dict[tuple[str, str], str]:
    """What the lines of each buffer are called, by its `source` and `library`.

    The library's line is there where it says more: where one line of the user stands for several of the library.
    """
    names = short_names(buffer.source for buffer in buffers)
    beneath: dict[str, set[str]] = defaultdict(set)
    for buffer in buffers:
        beneath[buffer.source].add(buffer.library)
    return {
        (source, library): f"{names[source]} > {library}" if library and len(libraries) > 1 else names[source]
        for source, libraries in beneath.items()
        for library in libraries
    }
