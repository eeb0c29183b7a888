r"""Read why a run ran out of memory from its log: text for people becomes records.

XLA reports it in one form for each place: the TPU compiler rejects a program, the pool of a device has no free block,
the host allocator fails. The forms change between versions. Those of jax 0.2 to 0.12 are known, and those that
TensorFlow and PyTorch/XLA print for the same allocator and compiler. Lists around the message add detail: the buffers
of the program, the chunks of the pool, XLA's own attempt to use less memory.

A log can be large and hostile. It is read block by block, and only the blocks near a word about memory are split into
lines. Every pattern is bounded, so the time is linear in the length of the log; `tests/property/test_explain_laws.py`
checks the patterns.

    with open("slurm-1234.out", errors="replace") as file:
        read_log(file).asked_bytes
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TextIO

from memprof.errors import MemprofError
from memprof.studies.explain.records import ListedBuffer, Moment, OutOfMemory, Pool, Rematerialization
from memprof.untrusted import MAX_BYTES, clean

_BLOCK_CHARS = 1 << 16
_MAX_LINE = 1 << 16
_MAX_MESSAGE = 300
_MAX_ITEM_LINES = 40
_MAX_BUFFERS = 10_000  # XLA lists 10 to 20
# Each block of an XLA report contains one of these.
_OPENERS = (
    "ut of memory", "memory space", "enough memory", "exceed memory", "memory use below", "xhausted", "XHAUSTED",
    "HbmOom", "HLO temporaries", "Attempting to ", "Failed to allocate", "allocator", "Allocator",
)  # fmt: skip

_NUMBER = r"(?:\d{1,3}(?:,\d{3}){1,6}|\d{1,19})(?:\.\d{1,6})?"
_INTEGER = r"\d{1,19}"
_AMOUNT = rf"{_NUMBER} ?[KMGTPE]?(?:i?B)?(?!\w|[.,]\d)"
_UNITS = {unit: 1024**power for power, unit in enumerate(["", "K", "M", "G", "T", "P", "E"])}
_ONE_AMOUNT = re.compile(rf"({_NUMBER}) ?([KMGTPE]?)(?:i?B)?")


@dataclass(frozen=True, slots=True)
class _Form:
    """One form of the message: a pattern with any of the groups `asked`, `free`, `has` and `space`."""

    pattern: re.Pattern[str]
    when: Moment
    device: str


def _form(text: str, when: Moment, device: str) -> _Form:
    for group in ("asked", "free", "has"):
        text = text.replace(f"<{group}>", rf"(?P<{group}>{_AMOUNT})")
    return _Form(re.compile(text), when, device)


_ALLOCATOR = r"Allocator \(GPU[^)]{0,40}\) ran out of memory trying to allocate "
# The most informative form comes first; later forms repeat it.
_FORMS = (
    _form(
        r"Ran out of memory in memory space (?P<space>\w{1,20})\. Used <asked> of <has> \w", Moment.COMPILING, "TPU"
    ),  # 2020 to 2026
    _form(r"HLO temporaries \(<asked>\) exceeds available HBM \(<has>\)", Moment.COMPILING, "TPU"),  # libtpu 0.0.50
    _form(r"unlikely to have enough memory\. Requires <asked>, has <has> available", Moment.COMPILING, "TPU"),
    _form(r"Allocation \(size=<asked>\) would exceed memory \(size=<has>\)", Moment.COMPILING, "TPU"),  # 2026
    _form(r"Attempting to reserve <asked> at the bottom of memory.{0,80}?There are <free> free", Moment.LOADING, "TPU"),
    _form(r"Attempting to allocate <asked>\. That was not possible\. There are <free> free", Moment.RUNNING, "TPU"),
    _form(r"Failed to allocate request for [\d.]{1,20}\w{0,4} \(<asked>\) on device ordinal \d", Moment.RUNNING, "GPU"),
    _form(r"[Oo]ut of memory while trying to allocate <asked>", Moment.RUNNING, "GPU"),
    _form(r"[Oo]ut of memory allocating <asked>", Moment.RUNNING, "CPU"),  # jax 0.4 to 0.12
    _form(_ALLOCATOR + r"\S{1,40} \(rounded to <asked>\)", Moment.RUNNING, "GPU"),
    _form(_ALLOCATOR + r"<asked>(?! with freed)", Moment.RUNNING, "GPU"),
)
_NOT_A_FAILURE = "The caller indicates that this is not a failure"
_SIGN = re.compile(r"RESOURCE_EXHAUSTED|[Rr]esource exhausted|CompileTimeHbmOom|ran out of memory|[Oo]ut of memory")
_REMAT = re.compile(
    rf"Can't reduce memory use below {_AMOUNT} \(({_INTEGER}) bytes\) by rematerialization; only reduced to {_AMOUNT}"
    rf" \(({_INTEGER}) bytes\), down from {_AMOUNT} \(({_INTEGER}) bytes\)"
)
# From a GPU's program ("parameter allocation:  6.00MiB") and a TPU's ("    arguments  478.07M (89.4% utilization)").
_PART = re.compile(
    r"\s{0,40}(parameter allocation|constant allocation|maybe_live_out allocation|preallocated temp allocation"
    r"|total allocation|total fragmentation|reserved|program|arguments|output|global|scoped|HLO temp|overlays"
    rf"|heap allocations)\b[^:\n\d]{{0,40}}:?\s{{1,40}}({_NUMBER}(?:[KMGTPE](?:i?B)?|B))(?![\w.])"
)
_ITEM = re.compile(r"\s{0,40}(?:Buffer (\d{1,9}):\s{0,40}(?:$|(?=Size: ))|(\d{1,9})\.\s{1,40}(?=Size: ))")
_ITEM_SIZE = re.compile(rf"\s{{0,40}}Size: ({_AMOUNT})")
_ITEM_END = "====="
_ARGUMENT_ITEM = "Entry Parameter Subshape"
_ITEM_FIELDS = {
    "op": re.compile(r'op_name="((?:[^"\\]|\\.){0,2000})"'),
    "file": re.compile(r'source_file="([^"]{0,1000})"'),
    "line": re.compile(r"source_line=(\d{1,9})"),
    "array": re.compile(r"(?:Entry Parameter Subs|S)hape: (\w{1,20}\[[\d,]{0,200}\])"),
    "label": re.compile(r"XLA [Ll]abel: (.{1,500})"),
    "kind": re.compile(r"Allocation type: (.{1,100})"),
}
_STAT = re.compile(rf"\s{{0,40}}(Limit|InUse|LargestFreeBlock):\s{{1,40}}({_INTEGER})\s{{0,8}}$")
_FREE_CHUNK = re.compile(rf"\bFree {{1,4}}at \w{{1,20}} (?:next \d{{1,19}} )?of size ({_INTEGER})(?!\d)")
_FREE_STATE = re.compile(rf"Size: ({_AMOUNT}) \| Requested Size: [^|]{{0,40}} \| in_use: 0")
_USED_CHUNKS = re.compile(rf"(?<!\d)({_INTEGER}) Chunks of size ({_INTEGER}) totalling")
_BIN = re.compile(
    rf"Bin \(\d{{1,19}}\):\s{{1,8}}Total Chunks: \d{{1,19}}, Chunks in use: \d{{1,19}}\.? ({_AMOUNT}) allocated for"
    rf" chunks\.(?: {_AMOUNT} client-requested for chunks\.)? ({_AMOUNT}) in use in bin"
)
_PICTURE = re.compile(r"\] ([*x_]{40,400})\s{0,8}$")
# Job launchers (`0: `) and quotations (`> `) prefix every line.
_PREFIX = re.compile(r"(?:\[?\d{1,9}\]?: |> ?)")


def read_log(log: str | TextIO) -> OutOfMemory:
    """Read the report of an out-of-memory error from a log.

    If a log has several messages, the first message of the most informative form counts.

    Raises:
        MemprofError: the log has no such report.
    """
    reader = _Reader()
    for line in _lines_near_openers(io.StringIO(log) if isinstance(log, str) else log):
        reader.read(line)
    return reader.result()


def _lines_near_openers(log: TextIO) -> Iterator[str]:
    """Yield the lines of each block that has an opener, and of the block after it, where a list may continue."""
    is_open = False
    while block := log.read(_BLOCK_CHARS) + log.readline(_MAX_LINE):
        was_open, is_open = is_open, any(word in block for word in _OPENERS)
        if was_open or is_open:
            yield from block.splitlines()


@dataclass(slots=True)
class _Message:
    """The first message of a form, and the number of such messages."""

    text: str
    groups: dict[str, str | None]
    count: int = 1


@dataclass(slots=True)
class _Reader:
    """Collect the information in each line."""

    messages: dict[_Form, _Message] = field(default_factory=dict)
    num_tries: int = 0
    sign: str = ""
    parts: dict[str, int] = field(default_factory=dict)
    rematerialization: Rematerialization | None = None
    buffers: _BufferList = field(default_factory=lambda: _BufferList())
    pool: _PoolDump = field(default_factory=lambda: _PoolDump())

    def read(self, line: str) -> None:
        if not line or line.isspace():
            return
        line = clean(_strip_prefix(line).expandtabs(4))
        if _NOT_A_FAILURE in line:
            self.num_tries += 1
            return
        if any(word in line for word in _OPENERS):
            self._read_message(line)
        self._read_part(line)
        self.buffers.read(line)
        self.pool.read(line)

    def _read_message(self, line: str) -> None:
        for form in _FORMS:
            for match in form.pattern.finditer(line):
                if any(_bytes(match[name]) is None for name in ("asked", "free", "has") if name in match.groupdict()):
                    continue
                if form in self.messages:
                    self.messages[form].count += 1
                else:
                    self.messages[form] = _Message(_shortened(line, match.start()), match.groupdict())
        if not self.sign and (sign := _SIGN.search(line)):
            self.sign = _shortened(line, sign.start())
        if self.rematerialization is None and (remat := _REMAT.search(line)):
            limit, reduced, original = (int(number) for number in remat.groups())
            self.rematerialization = Rematerialization(
                limit_bytes=limit, reduced_bytes=reduced, original_bytes=original
            )

    def _read_part(self, line: str) -> None:
        """Read one part of the program's memory; the first line of each name counts."""
        match = _PART.match(line)
        size_bytes = _bytes(match[2]) if match else None
        if match is not None and size_bytes is not None:
            self.parts.setdefault(match[1], size_bytes)

    def result(self) -> OutOfMemory:
        form = next((form for form in _FORMS if form in self.messages), None)
        if form is None:
            raise self._no_report()
        message = self.messages[form]
        asked = message.groups["asked"] or ""
        return OutOfMemory(
            message=message.text,
            when=form.when,
            device=form.device,
            space=message.groups.get("space") or "",
            asked_bytes=_bytes(asked),
            is_rounded=not asked.replace(",", "").isdecimal(),
            free_bytes=_bytes(message.groups.get("free") or ""),
            capacity_bytes=_bytes(message.groups.get("has") or ""),
            parts=self.parts,
            buffers=self.buffers.result(),
            rematerialization=self.rematerialization,
            pool=self.pool.result(),
            num_messages=message.count,
            num_tries=self.num_tries,
        )

    def _no_report(self) -> MemprofError:
        if self.sign:
            return MemprofError(
                f"the log reports an out-of-memory error in a form that memprof does not know: {self.sign}"
            )
        if self.num_tries:
            return MemprofError(
                f"the log has {self.num_tries} warnings of XLA's autotuner, which tried allocations and continued; it"
                " has no error that ended the run"
            )
        return MemprofError("the log has no out-of-memory error (such as RESOURCE_EXHAUSTED); give the complete stderr")


@dataclass(slots=True)
class _BufferList:
    """The first list of buffers; a log of several processes repeats it."""

    items: list[list[str]] = field(default_factory=list)
    numbers: set[str] = field(default_factory=set)
    is_complete: bool = False

    def read(self, line: str) -> None:
        if self.is_complete:
            return
        if match := _ITEM.match(line):
            number = match[1] or match[2]
            self.is_complete = number in self.numbers or len(self.items) == _MAX_BUFFERS
            if not self.is_complete:
                self.numbers.add(number)
                self.items.append([line[match.end() :]])
        elif self.items and len(self.items[-1]) < _MAX_ITEM_LINES and not self.items[-1][-1].endswith(_ITEM_END):
            self.items[-1].append(_ITEM_END if _ITEM_END in line else line[:_MAX_LINE])

    def result(self) -> tuple[ListedBuffer, ...]:
        return tuple(buffer for lines in self.items if (buffer := _listed_buffer(lines)) is not None)


def _listed_buffer(lines: list[str]) -> ListedBuffer | None:
    """Return the buffer of one item; None if it has no size, as in the numbered list of another program."""
    sizes = (match for line in lines[:2] if (match := _ITEM_SIZE.match(line)))
    size_bytes = next((_bytes(match[1]) for match in sizes), None)
    if size_bytes is None:
        return None
    fields: dict[str, str] = {}
    for line in lines:
        for name, pattern in _ITEM_FIELDS.items():
            if name not in fields and (match := pattern.search(line)):
                fields[name] = match[1]
    is_argument = any(_ARGUMENT_ITEM in line for line in lines)
    return ListedBuffer(
        size_bytes=size_bytes,
        array=fields.get("array", ""),
        op=fields.get("op", "").replace("\\'", "'"),
        source=":".join(filter(None, (fields.get("file", ""), fields.get("line", "")))),
        label=fields.get("label", "").partition(" = ")[0].strip(),
        kind="argument" if is_argument else fields.get("kind", "").strip(),
    )


@dataclass(slots=True)
class _PoolDump:
    """The allocator's dump of its pool; its content depends on the version and on the log level."""

    stats: dict[str, int] = field(default_factory=dict)
    free_bytes: int = 0
    free_bytes_of_bins: int = 0
    largest_free_bytes: int = 0
    largest_chunks: tuple[tuple[int, int], ...] = ()
    picture: str = ""
    was_seen: bool = False

    def read(self, line: str) -> None:
        if match := _STAT.match(line):
            self.stats[match[1]] = int(match[2])
        elif match := _FREE_CHUNK.search(line):
            self.free_bytes += int(match[1])
            self.largest_free_bytes = max(self.largest_free_bytes, int(match[1]))
        elif match := _FREE_STATE.search(line):
            self.largest_free_bytes = max(self.largest_free_bytes, _bytes(match[1]) or 0)
        elif match := _BIN.search(line):
            self.free_bytes_of_bins += (_bytes(match[1]) or 0) - (_bytes(match[2]) or 0)
        elif match := _USED_CHUNKS.search(line):
            chunks = (*self.largest_chunks, (int(match[2]), int(match[1])))
            self.largest_chunks = tuple(sorted(chunks, key=_product, reverse=True)[:3])
        elif match := _PICTURE.search(line):
            self.picture = self.picture or match[1]
        else:
            return
        self.was_seen = True

    def result(self) -> Pool | None:
        if not self.was_seen:
            return None
        return Pool(
            limit_bytes=self.stats.get("Limit"),
            in_use_bytes=self.stats.get("InUse"),
            free_bytes=self.free_bytes or max(self.free_bytes_of_bins, 0) or None,
            largest_free_bytes=self.largest_free_bytes or self.stats.get("LargestFreeBlock") or None,
            largest_chunks=self.largest_chunks,
            share_in_use=1 - self.picture.count("_") / len(self.picture) if self.picture else None,
        )


def _bytes(amount: str) -> int | None:
    """Read an amount by 1024: `6291456`, `26.83GiB`, `63.80G`; None if it is malformed or exceeds any memory."""
    match = _ONE_AMOUNT.fullmatch(amount)
    if match is None:
        return None
    size_bytes = round(Fraction(match[1].replace(",", "")) * _UNITS[match[2]])
    return size_bytes if size_bytes <= MAX_BYTES else None


def _strip_prefix(line: str) -> str:
    match = _PREFIX.match(line)
    return line[match.end() :] if match else line


def _shortened(line: str, start: int) -> str:
    """Return the line around the message that begins at `start`, shortened."""
    line = line.strip() if len(line) <= _MAX_MESSAGE or start < _MAX_MESSAGE // 2 else line[start:].strip()
    return line if len(line) <= _MAX_MESSAGE else f"{line[:_MAX_MESSAGE]}..."


def _product(chunk: tuple[int, int]) -> int:
    size_bytes, num_chunks = chunk
    return size_bytes * num_chunks
