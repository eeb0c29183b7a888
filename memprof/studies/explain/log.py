"""What the log of a run says of the memory that it ran out of: a text for people, made into records.

XLA has a form of its own for each place where memory can run out, and has changed them from version to version: the
TPU's compiler refuses a program, a device's pool has no block left, the host's allocator gives none. Known are those of
jax 0.2 to 0.12, and what TensorFlow and PyTorch/XLA print of the same allocator and compiler. Around the message stand
lists that tell more: the program's buffers, the chunks of the pool, XLA's own attempt to use less.

    read_log(text).asked_bytes
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from memprof.errors import MemprofError
from memprof.untrusted import clean

_AMOUNT = r"(\d[\d.,]*) ?([KMGTPE]?)(?:i?B)?\b"
_UNITS = {unit: 1024**power for power, unit in enumerate(["", "K", "M", "G", "T", "P", "E"])}


class Moment(StrEnum):
    """When the memory ran out."""

    COMPILING = "compiling"
    LOADING = "loading"
    RUNNING = "running"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedBuffer:
    """A buffer as XLA lists it.

    Attributes:
        size_bytes: with padding, as rounded in the list (`2.00G`).
        array: type and shape, `f32[4096,128,3]`.
        op, source: JAX's name of the operation that makes it, and the line (`model.py:12`); empty of an argument.
        label: XLA's name of the instruction.
        kind: XLA's word on what it is: `HLO temp`, `argument`; empty where there is none.
    """

    size_bytes: int
    array: str = ""
    op: str = ""
    source: str = ""
    label: str = ""
    kind: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """The allocator's pool when it had no block left.

    Attributes:
        limit_bytes, in_use_bytes: of the pool; None where the log does not tell.
        free_bytes: in blocks that are free, all together, in the pool.
        largest_free_bytes: the largest of them.
        largest_chunks: the sizes of blocks in use that take most, with how many there are.
        share_in_use: by XLA's picture of the pool, a line of `*` and `_`.
    """

    limit_bytes: int | None = None
    in_use_bytes: int | None = None
    free_bytes: int | None = None
    largest_free_bytes: int | None = None
    largest_chunks: tuple[tuple[int, int], ...] = ()
    share_in_use: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rematerialization:
    """XLA's own attempt to use less memory: what it aimed at, what it came to, and where it began."""

    limit_bytes: int
    reduced_bytes: int
    original_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """What a log says. None and empty is what it does not say.

    Attributes:
        message: XLA's own line.
        device: `GPU`, `TPU` or `CPU`; empty where the message does not tell.
        space: the memory that it is about: `hbm`, `vmem`; empty of a GPU's and the host's.
        asked_bytes: what was asked for and could not be had; of a program that was refused all that it needs.
        free_bytes: what was free then.
        capacity_bytes: how much there is.
        parts: what the program needs, by XLA's words for it, in bytes.
        buffers: the largest buffers of the program, as XLA lists them.
        is_rounded: whether the log has `asked_bytes` in three or four digits only.
        num_messages: how often the log says that memory ran out.
        num_tries: how often XLA's autotuner asked in vain, which is no failure.
    """

    message: str
    when: Moment
    device: str
    asked_bytes: int | None
    space: str = ""
    free_bytes: int | None = None
    capacity_bytes: int | None = None
    parts: Mapping[str, int] = field(default_factory=dict)
    buffers: tuple[ListedBuffer, ...] = ()
    rematerialization: Rematerialization | None = None
    pool: Pool | None = None
    is_rounded: bool = False
    num_messages: int = 1
    num_tries: int = 0


@dataclass(frozen=True, slots=True)
class _Form:
    """One way in which XLA says it: a pattern with the groups `asked`, `free`, `has` and `space` that it has."""

    pattern: re.Pattern[str]
    when: Moment
    device: str


def _form(text: str, when: Moment, device: str) -> _Form:
    for group in ("asked", "free", "has"):
        text = text.replace(f"<{group}>", rf"(?P<{group}>\d[\d.,]* ?[KMGTPE]?)(?:i?B)?\b")
    return _Form(re.compile(text), when, device)


_ALLOCATOR = r"Allocator \(GPU[^)]*\) ran out of memory trying to allocate "
# Asked in this order, so that the one that says most comes before those that repeat it.
_FORMS = (
    _form(
        r"Ran out of memory in memory space (?P<space>\w+)\. Used <asked> of <has> \w+", Moment.COMPILING, "TPU"
    ),  # 2020 to 2026
    _form(r"HLO temporaries \(<asked>\) exceeds available HBM \(<has>\)", Moment.COMPILING, "TPU"),  # libtpu 0.0.50
    _form(r"unlikely to have enough memory\. Requires <asked>, has <has> available", Moment.COMPILING, "TPU"),
    _form(r"Allocation \(size=<asked>\) would exceed memory \(size=<has>\)", Moment.COMPILING, "TPU"),  # 2026
    _form(r"Attempting to reserve <asked> at the bottom of memory[^\n]*?There are <free> free", Moment.LOADING, "TPU"),
    _form(r"Attempting to allocate <asked>\. That was not possible\. There are <free> free", Moment.RUNNING, "TPU"),
    _form(r"Failed to allocate request for [\d.]+\w+ \(<asked>\) on device ordinal \d+", Moment.RUNNING, "GPU"),
    _form(r"[Oo]ut of memory while trying to allocate <asked>", Moment.RUNNING, "GPU"),
    _form(r"[Oo]ut of memory allocating <asked>", Moment.RUNNING, "CPU"),  # jax 0.4 to 0.12
    _form(_ALLOCATOR + r"\S+ \(rounded to <asked>\)", Moment.RUNNING, "GPU"),
    _form(_ALLOCATOR + r"<asked>(?! with freed)", Moment.RUNNING, "GPU"),
)
_NO_FAILURE = "The caller indicates that this is not a failure"
_SIGN = re.compile(r"RESOURCE_EXHAUSTED|[Rr]esource exhausted|CompileTimeHbmOom|ran out of memory|[Oo]ut of memory")
_REMAT = re.compile(
    rf"Can't reduce memory use below {_AMOUNT} \((\d+) bytes\) by rematerialization; only reduced to {_AMOUNT}"
    rf" \((\d+) bytes\), down from {_AMOUNT} \((\d+) bytes\)"
)
# Of a GPU's program ("parameter allocation:  6.00MiB") and of a TPU's ("    arguments  478.07M (89.4% utilization)").
_PART = re.compile(
    r"^\s*(parameter allocation|constant allocation|maybe_live_out allocation|preallocated temp allocation"
    r"|total allocation|total fragmentation|reserved|program|arguments|output|global|scoped|HLO temp|overlays"
    rf"|heap allocations)\b[^:\n\d]{{0,40}}:?\s+{_AMOUNT}",
    re.M,
)
_LIST_ITEM = re.compile(r"^\s*(?:Buffer \d+:|\d+\.)\s*\n?\s*Size: " + _AMOUNT, re.M)
_ITEM_FIELDS = {
    "op": re.compile(r'op_name="((?:[^"\\]|\\.)*)"'),
    "file": re.compile(r'source_file="([^"]*)"'),
    "line": re.compile(r"source_line=(\d+)"),
    "array": re.compile(r"(?:Entry Parameter Subs|S)hape: ([\w]+\[[\d,]*\])"),
    "label": re.compile(r"XLA [Ll]abel: ([^\n]+)"),
    "kind": re.compile(r"Allocation type: ([^\n]+)"),
}
_OF_ARGUMENT = "Entry Parameter Subshape"
_STAT = re.compile(r"^\s*(Limit|InUse|LargestFreeBlock):\s+(\d+)\s*$", re.M)
_FREE_CHUNK = re.compile(r"\bFree\s+at \w+ (?:next \d+ )?of size (\d+)")
_FREE_STATE = re.compile(rf"Size: {_AMOUNT} \| Requested Size: [^|]* \| in_use: 0")
_USED_CHUNKS = re.compile(r"(\d+) Chunks of size (\d+) totalling")
_BIN = re.compile(
    rf"Bin \(\d+\):\s+Total Chunks: \d+, Chunks in use: \d+\.? {_AMOUNT} allocated for chunks\."
    rf"(?: {_AMOUNT} client-requested for chunks\.)? {_AMOUNT} in use in bin"
)
_PICTURE = re.compile(r"\] ([*x_]{40,})\s*$", re.M)
# What job launchers (`0: `) and those who quote (`> `) put before each line.
_BEFORE_LINE = re.compile(r"^(?:\[?\d+\]?: |> ?)", re.M)
_LONGEST_MESSAGE, _LONGEST_ITEM = 300, 4000


def read_log(text: str) -> OutOfMemory:
    """What a log says of running out of memory, by its first message that says most.

    Raises:
        MemprofError: it says nothing of that.
    """
    lines = [clean(line.expandtabs(4)) for line in _BEFORE_LINE.sub("", text).splitlines()]
    failures = [line for line in lines if _NO_FAILURE not in line]
    text, num_tries = "\n".join(failures), len(lines) - len(failures)
    found = next(_messages(text), None)
    if found is None:
        raise _nothing_said(text, num_tries)
    form, match, num_messages = found
    groups = match.groupdict()
    return OutOfMemory(
        message=_line_around(text, match.start()),
        when=form.when,
        device=form.device,
        space=groups.get("space") or "",
        asked_bytes=_amount(groups["asked"]),
        is_rounded=not groups["asked"].replace(",", "").rstrip(". ").isdecimal(),
        free_bytes=_amount(groups["free"]) if groups.get("free") else None,
        capacity_bytes=_amount(groups["has"]) if groups.get("has") else None,
        parts=_parts(text),
        buffers=tuple(_listed(text)),
        rematerialization=_rematerialization(text),
        pool=_pool(text),
        num_messages=num_messages,
        num_tries=num_tries,
    )


def _messages(text: str) -> Iterator[tuple[_Form, re.Match[str], int]]:
    """The messages of the forms that the log has, the one that says most first, with how often each is there."""
    for form in _FORMS:
        matches = list(form.pattern.finditer(text))
        if matches:
            yield form, matches[0], len(matches)


def _nothing_said(text: str, num_tries: int) -> MemprofError:
    if num_tries:
        return MemprofError(
            f"the log has {num_tries} warnings of XLA's autotuner, which asked for memory in vain and went on; nothing"
            " in it says that the run ended for want of memory"
        )
    sign = _SIGN.search(text)
    if sign:
        return MemprofError(
            "the log says it in a form that memprof does not know, so nothing can be read from it:"
            f" {_line_around(text, sign.start())}"
        )
    return MemprofError("nothing in the log says that a run was out of memory (RESOURCE_EXHAUSTED); give all of stderr")


def _line_around(text: str, place: int) -> str:
    line = text[text.rfind("\n", 0, place) + 1 :].partition("\n")[0].strip()
    return line if len(line) <= _LONGEST_MESSAGE else f"{line[:_LONGEST_MESSAGE]}..."


def _amount(text: str) -> int:
    """Bytes: `6291456`, `26.83GiB`, `63.80G` and `420.0K`, all by 1024. Where it is rounded, so are they."""
    match = re.match(_AMOUNT, text)
    assert match is not None
    return _bytes(match[1], match[2])


def _bytes(number: str, unit: str) -> int:
    rounded: int = round(float(number.rstrip(".,").replace(",", "")) * _UNITS[unit])
    return rounded


def _parts(text: str) -> dict[str, int]:
    """What the program needs, part by part: the first time that each is named."""
    parts: dict[str, int] = {}
    for name, number, unit in _PART.findall(text):
        parts.setdefault(name, _bytes(number, unit))
    return parts


def _listed(text: str) -> Iterator[ListedBuffer]:
    """The buffers in the first list of them: a log of several processes repeats it."""
    seen: list[list[str]] = []
    items = list(_LIST_ITEM.finditer(text))
    ends = [*(item.start() for item in items[1:]), len(text)]
    for item, end in zip(items, ends[: len(items)], strict=True):
        number = item[0].partition("Size:")[0].split()
        if number in seen:
            return
        seen.append(number)
        part = text[item.end() : min(end, item.end() + _LONGEST_ITEM)].partition("=====")[0]
        fields = {name: match[1] for name, pattern in _ITEM_FIELDS.items() if (match := pattern.search(part))}
        source = ":".join(filter(None, (fields.get("file", ""), fields.get("line", ""))))
        yield ListedBuffer(
            size_bytes=_bytes(item[1], item[2]),
            array=fields.get("array", ""),
            op=fields.get("op", "").replace("\\'", "'"),
            source=source,
            label=fields.get("label", "").partition(" = ")[0].strip(),
            kind="argument" if _OF_ARGUMENT in part else fields.get("kind", "").strip(),
        )


def _rematerialization(text: str) -> Rematerialization | None:
    match = _REMAT.search(text)
    if match is None:
        return None
    return Rematerialization(limit_bytes=int(match[3]), reduced_bytes=int(match[6]), original_bytes=int(match[9]))


def _pool(text: str) -> Pool | None:
    """The pool by the allocator's dump; what is in it depends on the version, and on how much was logged."""
    stats = {name: int(number) for name, number in _STAT.findall(text)}
    free = [int(size) for size in _FREE_CHUNK.findall(text)]
    states = [_bytes(number, unit) for number, unit in _FREE_STATE.findall(text)]
    bins = [
        _bytes(match[1], match[2]) - _bytes(match[5], match[6]) for match in _BIN.finditer(text)
    ]  # the bytes of each bin that are not in use, as rounded in the table
    chunks = sorted(((int(count), int(size)) for count, size in _USED_CHUNKS.findall(text)), key=_total)
    picture = _PICTURE.search(text)
    if not (stats or free or bins or chunks or picture):
        return None
    return Pool(
        limit_bytes=stats.get("Limit"),
        in_use_bytes=stats.get("InUse"),
        free_bytes=sum(free) if free else sum(bins) if bins else None,
        largest_free_bytes=max((*free, *states), default=stats.get("LargestFreeBlock") or None),
        largest_chunks=tuple((size, count) for count, size in chunks[-3:][::-1]),
        share_in_use=1 - picture[1].count("_") / len(picture[1]) if picture else None,
    )


def _total(chunk: tuple[int, int]) -> int:
    num_chunks, size_bytes = chunk
    return num_chunks * size_bytes
