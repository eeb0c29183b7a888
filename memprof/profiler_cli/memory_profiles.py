"""JAX's own memory profiles on the command line: one of them, two of them, and one beside a capture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from memprof.errors import MemprofError
from memprof.profiler_cli.endings import is_capture
from memprof.profiler_cli.render import Rendering, print_document

if TYPE_CHECKING:
    from memprof.analysis.records.memory_profile import MemoryProfile


def memory_profile_in(paths: Sequence[Path]) -> MemoryProfile | None:
    """The memory profile that the user named; None if the paths are something else.

    Raises:
        MemprofError: it is one of several paths.
    """
    from memprof.sources.dumps.memory_profiles import memory_profile

    found = [profile for path in paths if (profile := memory_profile(path)) is not None]
    if found and len(paths) > 1:
        raise MemprofError(
            f"{found[0].name} is a memory profile of JAX: give it alone, or compare two with"
            " `memprof show AFTER.prof --diff BEFORE.prof`"
        )
    return found[0] if found else None


def print_profile(profile: MemoryProfile, programs: Sequence[str], show: Rendering) -> None:
    """Print what was alive, beside the capture of a step if one is named.

    Raises:
        MemprofError: the program is no capture.
    """
    from memprof.analysis.pipeline import analyze
    from memprof.reports.json.memory_profile import memory_profile_json
    from memprof.reports.views.memory_profile import memory_profile_document
    from memprof.sources.capture_file import read_capture
    from memprof.studies.live_memory import beside_step

    show.check_shows_documents("a memory profile")
    if len(programs) > 1 or any(not is_capture(each) for each in programs):
        raise MemprofError("a memory profile is compared with one capture: --program NAME.memprof")
    beside = beside_step(profile, analyze(read_capture(Path(programs[0])))) if programs else None
    top = show.options.top
    print_document(memory_profile_document(profile, beside, top=top), memory_profile_json(profile, beside), show)


def print_profile_diff(before: Path, after: MemoryProfile, show: Rendering) -> None:
    """Print what is more or less alive than before.

    Raises:
        MemprofError: the earlier file is no memory profile.
    """
    from memprof.reports.json.memory_profile import memory_profile_diff_json
    from memprof.reports.views.memory_profile import memory_profile_diff_document
    from memprof.sources.dumps.memory_profiles import memory_profile

    show.check_shows_documents("a difference of memory profiles")
    earlier = memory_profile(before)
    if earlier is None:
        raise MemprofError(
            f"{before} is not a JAX memory profile, but {after.name} is: --diff compares two files of the same kind"
        )
    document = memory_profile_diff_document(earlier, after, top=show.options.top)
    print_document(document, memory_profile_diff_json(earlier, after), show)
