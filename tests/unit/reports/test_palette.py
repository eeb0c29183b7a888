"""Letters and colours."""

from __future__ import annotations

from itertools import combinations

from memprof.analysis.records.categories import Category
from memprof.reports.document import Tone
from memprof.reports.palette import CATEGORY_COLORS, CATEGORY_LETTERS, INK, TONE_COLORS

# Linear-RGB matrices of Machado, Oliveira and Fernandes (2009) at full severity.
_VISIONS = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}
# The five that make up almost every step, and so stand next to one another in its pictures.
_MAIN = (
    Category.PARAMS,
    Category.OPTIMIZER_STATE,
    Category.GRADIENTS,
    Category.ACTIVATIONS,
    Category.FORWARD_TEMPS,
)


# Those of inference.
_OF_INFERENCE = (Category.PARAMS, Category.KV_CACHE, Category.FORWARD_TEMPS, Category.OUTPUTS)


def test_every_category_and_tone_has_its_own_sign() -> None:
    assert set(CATEGORY_LETTERS) == set(CATEGORY_COLORS) == set(Category)
    assert set(TONE_COLORS) == set(Tone)
    assert len(set(CATEGORY_LETTERS.values())) == len(set(CATEGORY_COLORS.values())) == len(Category)
    assert all(len(letter) == 1 and letter.isascii() for letter in CATEGORY_LETTERS.values())


def test_letters_are_readable_on_their_colour() -> None:
    # WCAG 2.1 asks for a contrast of 4.5.
    ink = _luminance(_linear(INK))
    for color in CATEGORY_COLORS.values():
        assert (_luminance(_linear(color)) + 0.05) / (ink + 0.05) >= 4.5


def test_the_main_categories_differ_for_colour_blind_readers() -> None:
    for vision, matrix in _VISIONS.items():
        for one, other in (*combinations(_MAIN, 2), *combinations(_OF_INFERENCE, 2)):
            distance = _distance(_seen(CATEGORY_COLORS[one], matrix), _seen(CATEGORY_COLORS[other], matrix))
            assert distance > 10, (vision, one, other, distance)


def _linear(color: str) -> tuple[float, ...]:
    values = (int(color[index : index + 2], 16) / 255 for index in (1, 3, 5))
    return tuple(value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in values)


def _luminance(rgb: tuple[float, ...]) -> float:
    return 0.2126 * rgb[0] + 0.7152 * rgb[1] + 0.0722 * rgb[2]


def _seen(color: str, matrix: tuple[tuple[float, ...], ...]) -> tuple[float, ...]:
    rgb = _linear(color)
    return tuple(max(0.0, sum(weight * value for weight, value in zip(row, rgb, strict=True))) for row in matrix)


def _distance(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    """CIE 1976 difference; about 2.3 is the least that is noticed."""
    return sum((a - b) ** 2 for a, b in zip(_lab(one), _lab(other), strict=True)) ** 0.5


def _lab(rgb: tuple[float, ...]) -> tuple[float, float, float]:
    red, green, blue = rgb
    x = (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.9505
    z = (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.089
    fx, fy, fz = (t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in (x, _luminance(rgb), z))
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)
