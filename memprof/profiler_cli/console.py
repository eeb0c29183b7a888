"""What the two streams are: colour, width and characters of stdout, and progress on stderr; and the exit codes.

stdout carries data alone. stderr carries progress, which is drawn on a terminal only, and messages.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING, Literal, TextIO, cast

from memprof.errors import MemprofError
from memprof.profiler_cli.options import MAX_WIDTH, MIN_WIDTH
from memprof.progress import on_change

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

_PIPED_WIDTH = 100
_ENDS = ("done", "failed")  # the last stages of a row
_SECONDS_ALONE = 90  # from then on, minutes
_is_quiet = False  # with -q; set once, before a command does anything
_LONGEST_WORD, _LONGEST_MESSAGE = 240, 2000
_GAP, _NARROWEST = 2, 24  # columns between those of a table, and the least of its widest one


class ExitCode(IntEnum):
    """What a command's end means to a script."""

    FINE = 0
    CHECK_FAILED = 1
    WRONG_USAGE = 2
    WORKLOAD_FAILED = 3
    OUT_OF_MEMORY = 4
    DEFECT = 70
    INTERRUPTED = 130
    TERMINATED = 143


def prepare_streams() -> None:
    """Make the streams, and what the environment says of them, such that all libraries can use them."""
    for name in ("stdout", "stderr"):
        # Python has None for a stream that was closed when the process began (`>&-`); what is written there is dropped.
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - it stays open to the end
    for name in ("COLUMNS", "LINES"):
        if not re.fullmatch("[0-9]{1,6}", os.environ.get(name, "0")):  # rich takes "\u00b2" for a number
            del os.environ[name]


def finish_streams() -> bool:
    """Write what is still held back. Returns whether all that was written has arrived, or nobody wants it any more."""
    for stream in (sys.stderr, sys.stdout):
        try:
            stream.flush()
        except OSError as error:
            _discard_remaining(stream)
            if stream is sys.stdout and not isinstance(error, BrokenPipeError):
                say_error(f"the output cannot be written: {error.strerror}")
                return False
    return True


def be_quiet(wanted: bool) -> None:
    """From now on, whether stderr carries errors alone."""
    global _is_quiet
    _is_quiet = wanted


def say(message: str) -> None:
    """Tell the user something that is not data."""
    if not _is_quiet:
        _print(message)


def say_error(message: str) -> None:
    """Tell the user in one sentence why the command ends."""
    sentence = one_line(message).rstrip(".")
    _print(sentence if sentence.endswith("?") else f"{sentence}.", label="memprof:")


def say_lines(text: str) -> None:
    """Show lines that are not ours: a traceback of the user's code, what the compiler wrote last."""
    _print(text.rstrip())


def one_line(message: str) -> str:
    """A message without line ends and control characters, and with no more than a line of whatever it quotes."""
    shown = "".join(character if character.isprintable() else _escaped(character) for character in message)
    shortened = re.sub(rf"\S{{{_LONGEST_WORD},}}", lambda match: _middle_left_out(match.group(), 80), shown)
    return shortened if len(shortened) <= _LONGEST_MESSAGE else _middle_left_out(shortened, _LONGEST_MESSAGE // 2)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", errors="surrogatepass").decode("ascii")


def _middle_left_out(text: str, num_kept: int) -> str:
    return f"{text[:num_kept]}...{text[-num_kept // 2 :]}"


@contextmanager
def stages(what: str) -> Iterator[Callable[[str], None]]:
    """Show which stage the work is at: on a terminal with the time that it has taken, else a line for each.

    Yields:
        A function to call with the name of each stage as it begins.
    """
    if not sys.stderr.isatty():
        yield on_change(lambda stage: _print_stage(what, stage))
        return
    with _progress() as progress:
        task = progress.add_task(what)
        yield lambda stage: progress.update(task, description=f"{what}: {stage}")


@contextmanager
def row_stages(labels: Sequence[str]) -> Iterator[Callable[[str, str], None]]:
    """Show which stage each row is at: on a terminal a line for each row with its time, else a line for each stage.

    With each row that ends, it says how many have, and about how long the others will take.

    Args:
        labels: the labels of the rows, in order; labels that are appended later become rows when they begin.

    Yields:
        A function to call with a row's label and the name of each stage as it begins; `done` or `failed` ends the row.
    """
    started, ended = time.monotonic(), set[str]()

    def outlook(label: str, stage: str) -> str:
        if stage not in _ENDS:
            return ""
        ended.add(label)
        return time_to_go(len(ended), len(labels), time.monotonic() - started)

    if not sys.stderr.isatty():

        def say_with_outlook(label: str, stage: str) -> None:
            left = outlook(label, stage)
            _print_stage(label, stage, f" ({left})" if left else "")

        rows: dict[str, Callable[[str], None]] = {}

        def say_change(label: str, stage: str) -> None:
            rows.setdefault(label, on_change(partial(say_with_outlook, label)))(stage)

        yield say_change
        return
    with _progress() as progress:
        total = progress.add_task(f"{len(labels)} rows", total=1, visible=len(labels) > 1)
        tasks = {label: progress.add_task(f"{label}: waiting", start=False, total=1) for label in labels}

        def show(label: str, stage: str) -> None:
            if label not in tasks:
                tasks[label] = progress.add_task(label, start=False, total=1)
            progress.start_task(tasks[label])
            progress.update(tasks[label], description=f"{label}: {stage}", completed=int(stage in _ENDS))
            left = outlook(label, stage)
            if left:
                progress.update(total, description=left, visible=True)

        yield show


def time_to_go(num_ended: int, num_rows: int, seconds: float) -> str:
    """How far a command is, and how long it will still take at this pace: `2 of 6 rows, about 40 s to go`."""
    if num_ended >= num_rows:
        return ""
    left = seconds / num_ended * (num_rows - num_ended)
    amount = f"{left:.0f} s" if left < _SECONDS_ALONE else f"{left / 60:.0f} min"
    return f"{num_ended} of {num_rows} rows, about {amount} to go"


def _progress() -> Progress:
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(finished_text=" "), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    return Progress(*columns, console=_stderr(), transient=True, disable=_is_quiet)


def _print_stage(what: str, stage: str, outlook: str = "") -> None:
    """A line for a log: whoever reads it sees that something goes on."""
    say(f"{what}: {stage}{outlook}" if stage in _ENDS else f"{what}: {stage} ...")


def width() -> int:
    """Columns of stdout: the terminal's; for a pipe or a file what COLUMNS says, else enough for a log."""
    if sys.stdout.isatty():
        from rich.console import Console

        return Console(file=sys.stdout).width
    columns = os.environ.get("COLUMNS", "")
    if not re.fullmatch("[0-9]+", columns):
        return _PIPED_WIDTH
    return min(max(int(columns), MIN_WIDTH), MAX_WIDTH)


def color_system() -> Literal["standard", "256", "truecolor"] | None:
    """The colours of stdout: none for a pipe or a file, or with NO_COLOR, unless FORCE_COLOR asks for them."""
    from rich.console import Console

    system = Console(file=sys.stdout).color_system
    if system == "windows":  # the console of old Windows versions has the standard colours
        return "standard"
    return cast(Literal["standard", "256", "truecolor"], system) if system in ("standard", "256", "truecolor") else None


def has_unicode() -> bool:
    """Whether block characters can be written to stdout."""
    try:
        "█▏├─".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def write(data: str | bytes) -> None:
    """Write data to stdout. What its encoding lacks is replaced rather than failed on.

    That the reader of a pipe, such as `head`, has gone is no error: it has what it wanted.

    Raises:
        MemprofError: stdout takes no more, because the disk is full for example.
    """
    stream = cast(TextIO, sys.stdout)
    encoding = stream.encoding or "ascii"
    try:
        if isinstance(data, bytes):
            stream.buffer.write(data)
        else:
            stream.write(data.encode(encoding, errors="replace").decode(encoding))
        stream.flush()
    except OSError as error:
        _discard_remaining(stream)
        if not isinstance(error, BrokenPipeError):
            raise MemprofError(f"the output cannot be written: {error.strerror}") from error


def write_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Write a plain table of texts to stdout: aligned columns, of which the widest one, and lists, are wrapped."""
    from rich.cells import cell_len
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    columns = list(zip(titles, *rows, strict=True))
    longest = [max(map(cell_len, column)) for column in columns]
    wraps = [length == max(longest) or any(", " in cell for cell in column) for length, column in
             zip(longest, columns, strict=True)]  # fmt: skip
    # Names are never broken: in a list the longest of them has room, and in sentences any word of a usual length.
    least = [min(length, _NARROWEST) if wrapped else length for length, wrapped in zip(longest, wraps, strict=True)]
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, _GAP, 0, 0))
    for title, columns_needed, wrapped in zip(titles, least, wraps, strict=True):
        table.add_column(title, no_wrap=not wrapped, min_width=columns_needed, overflow="fold")
    for row in rows:
        table.add_row(*(escape(cell) for cell in row))
    console = Console(file=sys.stdout, width=max(width(), sum(least) + _GAP * len(least)), highlight=False, emoji=False)
    with console.capture() as capture:
        console.print(table)
    write("".join(f"{line.rstrip()}\n" for line in capture.get().splitlines()))


def _print(text: str, *, label: str = "") -> None:
    """Write to stderr, after a label in red. A stderr that nobody reads any more is no error."""
    from rich.markup import escape

    markup = f"[bold red]{label}[/] {escape(text)}" if label else escape(text)
    try:
        _stderr().print(markup, highlight=False, soft_wrap=True)
        sys.stderr.flush()
    except OSError:
        _discard_remaining(sys.stderr)


def _discard_remaining(stream: TextIO) -> None:
    """What is in a stream's buffer would fail again when Python exits."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _stderr() -> Console:
    from rich.console import Console

    return Console(file=sys.stderr, emoji=False)  # `train:train:` is no train
