"""Reading pprof's messages, from bytes written by hand after google/pprof `proto/profile.proto`."""

from __future__ import annotations

from memprof.analysis.memory.pprof import Profile


def _number(field: int, value: int) -> bytes:
    """A field of a small number, as protobuf writes it."""
    return bytes([field << 3, value])


def _message(field: int, content: bytes) -> bytes:
    """A field of text, of packed numbers or of a message."""
    return bytes([field << 3 | 2, len(content)]) + content


def test_every_field_has_its_number_in_the_format() -> None:
    profile = Profile.FromString(
        _message(1, _number(1, 11) + _number(2, 12))  # a type of samples: its name and unit
        + _message(
            2,  # a sample: two locations, two values, a label
            _message(1, bytes([21, 22]))
            + _message(2, bytes([23, 24]))
            + _message(3, _number(1, 31) + _number(2, 32) + _number(3, 33) + _number(4, 34)),
        )
        + _message(4, _number(1, 41) + _message(4, _number(1, 42) + _number(2, 43)))  # a location, and its line
        + _message(5, _number(1, 51) + _number(2, 52) + _number(3, 53) + _number(4, 54))  # a function
        + _message(6, b"bytes")
        + _message(13, bytes([61]))
        + _number(14, 62)
    )
    (kind,), (sample,), (location,), (function,) = (
        profile.sample_type,
        profile.sample,
        profile.location,
        profile.function,
    )
    assert (kind.type, kind.unit) == (11, 12)
    assert (list(sample.location_id), list(sample.value)) == ([21, 22], [23, 24])
    (label,) = sample.label
    assert (label.key, label.str, label.num, label.num_unit) == (31, 32, 33, 34)
    (line,) = location.line
    assert (location.id, line.function_id, line.line) == (41, 42, 43)
    assert (function.id, function.name, function.system_name, function.filename) == (51, 52, 53, 54)
    assert list(profile.string_table) == ["bytes"]
    assert (list(profile.comment), profile.default_sample_type) == ([61], 62)
