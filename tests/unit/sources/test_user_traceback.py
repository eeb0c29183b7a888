"""Which frames of a traceback are the user's."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from memprof.sources.jax.user_traceback import first_line, is_of_user_code, user_traceback


def _error(path: Path) -> BaseException:
    path.parent.mkdir(parents=True)
    path.write_text("raise ValueError('wrong')\n")
    with pytest.raises(ValueError, match="wrong") as caught:
        runpy.run_path(str(path))
    error = caught.value
    assert error.__traceback__ is not None
    error.__traceback__ = error.__traceback__.tb_next  # without the frame of this function
    return error


@pytest.mark.parametrize("folder", ["site-packages", "dist-packages"])
def test_a_package_is_a_library_in_any_environment(tmp_path: Path, folder: str) -> None:
    """For example in the user's site, or in the environment under one with `--system-site-packages`."""
    error = _error(tmp_path / ".local" / "lib" / "python3.11" / folder / "library" / "code.py")
    assert not is_of_user_code(error)
    assert user_traceback(error) == "ValueError: wrong"


def test_other_files_are_the_users(tmp_path: Path) -> None:
    error = _error(tmp_path / "my-packages" / "code.py")
    assert is_of_user_code(error)
    assert "raise ValueError('wrong')" in user_traceback(error)


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("", ""),
        ("INTERNAL: no room\nmore", "INTERNAL: no room"),
        (
            'INTERNAL: custom_partitioner: Traceback (most recent call last):\n  File "a.py", line 1, in divide\n'
            "    raise ValueError(note)\nValueError: Not divisible.\n\n  at b.py",
            "INTERNAL: custom_partitioner: ValueError: Not divisible.",
        ),
        ("INTERNAL: Traceback (most recent call last):", "INTERNAL: Traceback (most recent call last):"),
    ],
)
def test_the_first_line_has_the_error_of_a_quoted_traceback(message: str, line: str) -> None:
    assert first_line(RuntimeError(message)) == line
