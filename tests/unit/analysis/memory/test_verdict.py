"""The verdict: cards, settings and footprints by hand; public reports as they happened; what lies outside the pool."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

import pytest

from memprof.analysis.memory.verdict import (
    card_bytes,
    judge,
    largest_fraction,
    largest_settings,
    outside_pool,
    pool_bytes_of,
)
from memprof.analysis.records.capture import Target, Topology
from memprof.analysis.records.pool import Allocator, Answer, Pieces, PoolSettings
from memprof.sources.jax.targets.resolve import resolve
from memprof.sources.pool_settings import parse_pool, pool_settings

GB, GIB = 10**9, 1 << 30
FITS, WITH, NOT, UNKNOWN = Answer


def _card(memory_bytes: int, capability: str = "8.6", name: str = "card") -> Target:
    return Target(
        name=name,
        description="a card",
        platform="cuda",
        memory_bytes=memory_bytes,
        compute_capability=capability,
        reason="by hand",
    )


def _environment(text: str) -> dict[str, str]:
    short = {
        "FRACTION": "XLA_CLIENT_MEM_FRACTION",
        "OLD": "XLA_PYTHON_CLIENT_MEM_FRACTION",
        "PREALLOCATE": "XLA_PYTHON_CLIENT_PREALLOCATE",
        "ALLOCATOR": "XLA_PYTHON_CLIENT_ALLOCATOR",
        "UNIFIED": "TF_FORCE_UNIFIED_MEMORY",
    }
    return {short[name]: value for name, value in (each.split("=") for each in text.split())}


# The cards: h100-80gb 84,942,979,072 bytes, a100-40gb 42,331,013,120, l4 23,642,701,824, t4 15,828,320,256. Three
# quarters of them: 63,707,234,304, 31,748,259,840, 17,732,026,368, 11,871,240,192. Outside the pool lie 1,800 MiB on a
# card of compute capability 9.0, 1,536 on 8.x, 1,050 on 7.5: so the largest fractions are .97, .96, .93, .93.
@pytest.mark.parametrize(
    ("card", "environment", "footprint", "answer", "pool", "fraction", "short"),
    [
        # The default.
        ("h100-80gb", "", 63_707_234_304, FITS, 63_707_234_304, None, 0),
        ("h100-80gb", "", 63_707_234_305, WITH, 63_707_234_304, 0.76, 1),
        # 76% are 64,556,664,094.72 bytes, of which the allocator gives out 64,556,664,064, a multiple of 256.
        ("h100-80gb", "", 64_556_664_064, WITH, 63_707_234_304, 0.76, 849_429_760),
        ("h100-80gb", "", 64_556_664_065, WITH, 63_707_234_304, 0.77, 849_429_761),
        ("h100-80gb", "", 82_394 * 10**6, WITH, 63_707_234_304, 0.97, 18_686_765_696),
        ("h100-80gb", "", 83 * GB, NOT, 63_707_234_304, None, 19_292_765_696),
        ("a100-40gb", "", 31 * GB, FITS, 31_748_259_840, None, 0),
        ("a100-40gb", "", 36 * GB, WITH, 31_748_259_840, 0.86, 4_251_740_160),  # 85.04%
        ("a100-40gb", "", 41 * GB, NOT, 31_748_259_840, None, 9_251_740_160),  # 96.9%
        ("l4", "", 20 * GB, WITH, 17_732_026_368, 0.85, 2_267_973_632),  # 84.6%
        ("l4", "", 22 * GB, NOT, 17_732_026_368, None, 4_267_973_632),  # 93.05%
        ("t4", "", 14_700 * 10**6, WITH, 11_871_240_192, 0.93, 2_828_759_808),  # 92.9%
        ("t4", "", 14_800 * 10**6, NOT, 11_871_240_192, None, 2_928_759_808),  # 93.5%
        # The variable, by its new and by its old name. 90% of the H100 are 76,448,681,164.8.
        ("h100-80gb", "FRACTION=.9", 76_448_680_960, FITS, 76_448_681_164, None, 0),
        ("h100-80gb", "OLD=0.9", 76_448_681_165, WITH, 76_448_681_164, 0.91, 1),
        ("h100-80gb", "FRACTION=0.5", 50 * GB, WITH, 42_471_489_536, 0.59, 7_528_510_464),  # 58.9%
        # XLA lowers a fraction that the card refuses by a tenth: to 90%, or from 120% to 108 and to 97.2%.
        ("h100-80gb", "FRACTION=1.0", 76 * GB, FITS, 76_448_681_164, None, 0),
        ("h100-80gb", "FRACTION=1.2", 76 * GB, FITS, 82_564_575_657, None, 0),
        # A pool that is not preallocated has the same limit.
        ("h100-80gb", "PREALLOCATE=false", 60 * GB, FITS, 63_707_234_304, None, 0),
        ("h100-80gb", "PREALLOCATE=0 FRACTION=.5", 50 * GB, WITH, 42_471_489_536, 0.59, 7_528_510_464),
        # Without a limit: the card less the 1,887,436,800 bytes outside.
        ("h100-80gb", "ALLOCATOR=platform", 83_055_542_272, FITS, 83_055_542_272, None, 0),
        ("h100-80gb", "ALLOCATOR=platform FRACTION=.1", 83_055_542_273, NOT, 83_055_542_272, None, 1),
        ("h100-80gb", "ALLOCATOR=cuda_async FRACTION=.5", 80 * GB, FITS, 83_055_542_272, None, 0),
        # With one, but without the need for one piece.
        ("h100-80gb", "ALLOCATOR=vmm FRACTION=.9", 76_448_681_164, FITS, 76_448_681_164, None, 0),
        ("h100-80gb", "ALLOCATOR=vmm", 80 * GB, WITH, 63_707_234_304, 0.95, 16_292_765_696),  # 94.2%
        ("h100-80gb", "ALLOCATOR=BFC", 63 * GB, FITS, 63_707_234_304, None, 0),
        # Unified memory: at least the whole card, and as much of the host's memory as the fraction says.
        ("h100-80gb", "UNIFIED=1", 84 * GB, FITS, 84_942_979_072, None, 0),
        ("h100-80gb", "UNIFIED=true FRACTION=3.2", 250 * GB, FITS, 271_817_533_030, None, 0),
        ("h100-80gb", "UNIFIED=1 FRACTION=3.2", 280 * GB, WITH, 271_817_533_030, 3.3, 8_182_466_970),  # 329.6%
        ("h100-80gb", "UNIFIED=0", 84 * GB, NOT, 63_707_234_304, None, 20_292_765_696),
        # No pool is known.
        ("cpu", "FRACTION=.9", GB, UNKNOWN, None, None, 0),
    ],
)
def test_cards_settings_and_footprints(
    card: str,
    environment: str,
    footprint: int,
    answer: Answer,
    pool: int | None,
    fraction: float | None,
    short: int,
) -> None:
    target = resolve(card)
    settings = pool_settings(target, environment=_environment(environment))
    verdict = judge(Pieces(held=(footprint,)), target, settings)
    assert (verdict.answer, verdict.pool_bytes, verdict.mem_fraction, verdict.short_bytes) == (
        answer,
        pool,
        fraction,
        short,
    )
    assert verdict.fits is (None if answer is UNKNOWN else answer is FITS)
    if fraction is not None:
        # Setting the line makes it fit; a hundredth less does not.
        assert judge(Pieces(held=(footprint,)), target, replace(settings, mem_fraction=fraction)).answer is FITS
        less = replace(settings, mem_fraction=round(fraction - 0.01, 2))
        assert judge(Pieces(held=(footprint,)), target, less).answer is not FITS


def test_the_sentence_has_the_line_to_set_and_the_pool() -> None:
    a100 = resolve("a100-40gb")
    pool = "JAX's pool of 29.6 GiB (75% of a100-40gb's 39.4 GiB, the default)"
    sentences = [judge(Pieces(held=(size,)), a100, PoolSettings()).sentence for size in (20 * GIB, 36 * GIB, 40 * GIB)]
    assert sentences == [
        f"fits: footprint 20.0 GiB of {pool}, 9.57 GiB to spare",
        f"fits with XLA_CLIENT_MEM_FRACTION=.92: footprint 36.0 GiB is 6.43 GiB more than {pool}",
        f"does not fit: footprint 40.0 GiB is 10.4 GiB more than {pool}, and XLA_CLIENT_MEM_FRACTION=.96, the largest"
        " that leaves room for CUDA's libraries, gives 37.8 GiB",
    ]


def test_the_sentence_names_what_sets_the_pool() -> None:
    a100, small = resolve("a100-40gb"), Pieces(held=(GIB,))
    cases = {
        "FRACTION=.9": "JAX's pool of 35.5 GiB (90% of a100-40gb's 39.4 GiB, XLA_CLIENT_MEM_FRACTION=.9)",
        "PREALLOCATE=false": "JAX's pool of 29.6 GiB (75% of a100-40gb's 39.4 GiB, the default, not preallocated)",
        "ALLOCATOR=platform": "the 37.9 GiB that a100-40gb can give"
        " (XLA_PYTHON_CLIENT_ALLOCATOR=platform has no limit)",
        "UNIFIED=1 OLD=2": "JAX's pool of 78.8 GiB (200% of a100-40gb's 39.4 GiB, XLA_PYTHON_CLIENT_MEM_FRACTION=2, "
        "unified memory)",
    }
    for environment, words in cases.items():
        settings = pool_settings(a100, environment=_environment(environment))
        assert f"footprint 1.00 GiB of {words}" in judge(small, a100, settings).sentence


def test_the_old_variable_is_to_be_replaced() -> None:
    a100 = resolve("a100-40gb")
    settings = pool_settings(a100, environment=_environment("OLD=.5"))
    sentence = judge(Pieces(held=(30 * GIB,)), a100, settings).sentence
    # JAX refuses both variables together.
    assert sentence.startswith("fits with XLA_CLIENT_MEM_FRACTION=.77 instead of XLA_PYTHON_CLIENT_MEM_FRACTION: ")


def test_a_step_that_fits_by_its_sum_and_not_by_its_pieces_says_so() -> None:
    # A pool of 30 GiB of 40: state 15, batch 1, temp block 13.5. The sum is 29.5, but the old batch is in the way.
    card = _card(40 * GIB)
    pieces = Pieces(held=(15 * GIB,), batch=(GIB,), temps=(27 * GIB // 2,))
    verdict = judge(pieces, card, PoolSettings())
    # State, two batches and the temp block are 30.5 GiB, 76.25% of the card.
    assert (verdict.answer, verdict.mem_fraction, verdict.short_bytes) == (WITH, 0.77, GIB // 2)
    assert "fits JAX's pool of 30.0 GiB" in verdict.sentence
    assert "in total, but not block by block" in verdict.sentence
    # So does one whose sum is the whole pool.
    whole = judge(replace(pieces, temps=(14 * GIB,)), card, PoolSettings())
    assert "in total, but not block by block" in whole.sentence
    # The driver maps pages, so that there is no largest piece.
    assert judge(pieces, card, PoolSettings(allocator=Allocator.VMM)).answer is FITS


@pytest.mark.parametrize(("state_gib", "short_gib", "fraction"), [(1, 5, 0.88), (3, 8, 0.95)])
def test_a_pool_that_grows_has_borders_that_a_whole_one_lacks(state_gib: int, short_gib: int, fraction: float) -> None:
    """A temp block of 14 GiB needs one region; the regions of a growing pool hold the state and two batches of 4."""
    card, pieces = _card(40 * GIB), Pieces(held=(state_gib * GIB,), batch=(4 * GIB,), temps=(14 * GIB,))
    assert judge(pieces, card, PoolSettings()).answer is FITS
    verdict = judge(pieces, card, PoolSettings(preallocate=False))
    assert (verdict.answer, verdict.short_bytes) == (WITH, short_gib * GIB)
    assert verdict.mem_fraction == fraction


def test_a_reserve_is_kept_free_of_the_pool() -> None:
    card, pieces = _card(40 * GIB), Pieces(held=(29 * GIB,))
    assert judge(pieces, card, PoolSettings(), reserve_bytes=GIB).answer is FITS
    verdict = judge(pieces, card, PoolSettings(), reserve_bytes=2 * GIB)
    # 29 + 2 GiB of 40 are 77.5%.
    assert (verdict.pool_bytes, verdict.short_bytes, verdict.mem_fraction) == (28 * GIB, GIB, 0.78)
    assert "2.00 GiB kept free" in verdict.sentence


def test_no_card_is_asked_for_more_than_it_can_give() -> None:
    for name in ("h100-80gb", "h200", "b200", "a100-40gb", "l4", "t4", "rtx-4090", "v100-16gb"):
        target = resolve(name)
        assert target.memory_bytes is not None
        most = largest_fraction(target)
        (system, *_) = outside_pool(target)
        assert system.size_bytes is not None
        assert target.memory_bytes * most + system.size_bytes <= target.memory_bytes
        for footprint in range(0, target.memory_bytes, target.memory_bytes // 40):
            verdict = judge(Pieces(held=(footprint + 1,)), target, PoolSettings())
            assert Fraction(str(verdict.mem_fraction or 0)) <= most


def test_a_pool_tells_its_card() -> None:
    for fraction in (None, 0.5, 0.9, 0.37):
        settings = PoolSettings(mem_fraction=fraction)
        limit = pool_bytes_of(_card(84_942_979_072), settings)
        assert limit is not None
        card = card_bytes(limit, settings)
        assert abs(card - 84_942_979_072) <= 3
        assert pool_bytes_of(_card(card), settings) == limit


def test_the_pool_of_an_allocator_that_maps_pages_can_be_the_whole_card() -> None:
    """One block of 100% is lowered by a tenth; pages come until the driver has no more: 40 GiB less 1,536 MiB."""
    card = _card(40 * GIB)
    sizes = [
        pool_bytes_of(card, PoolSettings(allocator=allocator, mem_fraction=fraction))
        for allocator in (Allocator.BFC, Allocator.VMM)
        for fraction in (0.5, 1.0, 1.5)
    ]
    rest = 40 * GIB - (1536 << 20)
    # 150% are lowered to 135, 121.5, 109.35 and 98.415.
    assert sizes == [20 * GIB, 36 * GIB, int(40 * GIB * Fraction("0.98415")), 20 * GIB, rest, rest]


def test_a_pool_in_unified_memory_is_at_least_its_card() -> None:
    for fraction, card in ((0.5, 100), (1.0, 100), (2.0, 50)):
        assert card_bytes(100, PoolSettings(mem_fraction=fraction, unified_memory=True)) == card
        assert pool_bytes_of(_card(card), PoolSettings(mem_fraction=fraction, unified_memory=True)) == 100
    # Without pieces there is no unified memory.
    pages = PoolSettings(allocator=Allocator.VMM, mem_fraction=0.5, unified_memory=True)
    assert (card_bytes(100, pages), pool_bytes_of(_card(200), pages)) == (200, 100)


def test_a_reserve_larger_than_the_pool_leaves_none() -> None:
    verdict = judge(Pieces(held=(GIB,)), _card(40 * GIB), PoolSettings(), reserve_bytes=31 * GIB)
    # 1 + 31 GiB of 40 are 80%.
    assert (verdict.pool_bytes, verdict.short_bytes, verdict.mem_fraction) == (0, GIB, 0.8)


@pytest.mark.parametrize(
    ("refusal", "words"),
    [
        ("Ran out of memory in memory space hbm", "leaves no room for the program's own code"),
        ("Ran out of memory in memory space vmem", "the compiler found too little memory on the chip"),
    ],
)
def test_a_compiler_that_refuses_a_step_has_the_last_word(refusal: str, words: str) -> None:
    target = resolve("v5e")
    assert target.usable_bytes is not None
    fits = Pieces(held=(GIB,))
    verdict = judge(fits, target, PoolSettings(), refusal=refusal)
    assert (verdict.answer, verdict.short_bytes, verdict.fits) == (NOT, 1, False)
    assert words in verdict.sentence
    assert judge(fits, target, PoolSettings()).fits
    # A step that does not fit by its sum keeps the verdict that says by how much.
    large = Pieces(held=(target.usable_bytes + 7,))
    assert judge(large, target, PoolSettings(), refusal=refusal) == judge(large, target, PoolSettings())
    assert judge(large, target, PoolSettings()).short_bytes == 7


def test_what_lies_outside_has_a_source_or_is_unknown() -> None:
    one = outside_pool(resolve("h100-80gb"))
    assert [(each.name, each.size_bytes) for each in one] == [
        ("CUDA context, cuBLAS, cuDNN", 1800 << 20),
        ("CUDA graphs", None),
    ]
    many = outside_pool(replace(resolve("h100-80gb"), topology=Topology(num_devices=8)))
    assert [(each.name, each.size_bytes) for each in many[2:]] == [("NCCL", None)]
    assert all(each.source for each in many)
    assert outside_pool(resolve("cpu")) == ()


@pytest.mark.parametrize(
    ("footprint_gib", "pressed_gib", "words"),
    [
        # A pool of 30 GiB of 40, at most 38.4 (96%).
        (20, 19, "with it, 19.0 GiB"),
        (36, 30, "with it, 30.0 GiB, which fits"),
        (36, 35, "with it, 35.0 GiB, which fits with XLA_CLIENT_MEM_FRACTION=.88"),  # 87.5%
        (40, 39, "with it, 39.0 GiB, which does not fit either"),
    ],
)
def test_the_sentence_says_what_recomputation_under_pressure_changes(
    footprint_gib: int, pressed_gib: int, words: str
) -> None:
    card, pieces, pressed = (
        _card(40 * GIB),
        Pieces(held=(footprint_gib * GIB,)),
        Pieces(held=(pressed_gib * GIB,)),
    )
    plain = judge(pieces, card, PoolSettings())
    verdict = judge(pieces, card, PoolSettings(), pressed=pressed)
    amount = f"footprint {footprint_gib}.0 GiB"
    noted = plain.sentence.replace(amount, f"{amount} (without XLA's recomputation)")
    assert verdict == replace(plain, sentence=f"{noted}; {words}")


@pytest.mark.parametrize(
    ("memory_bytes", "capability", "expected"),
    [
        (100 << 20, "8.6", 100 << 20),  # no more than the card has
        ((2 << 30) - 1, "8.6", 225 << 20),  # a small card
        (2 << 30, "5.2", 500 << 20),
        (2 << 30, "6.0", 500 << 20),
        (2 << 30, "7.5", 1050 << 20),
        (2 << 30, "8.0", 1536 << 20),
        (2 << 30, "9.0", 1800 << 20),
        (2 << 30, "12.0", 1800 << 20),
    ],
)
def test_what_cuda_takes_depends_on_the_card(memory_bytes: int, capability: str, expected: int) -> None:
    assert outside_pool(_card(memory_bytes, capability))[0].size_bytes == expected


@pytest.mark.parametrize(
    ("settings", "fraction"),
    [
        (PoolSettings(), 0.96),
        (PoolSettings(mem_fraction=0.95), 0.96),
        (PoolSettings(mem_fraction=0.96), None),  # it is the largest
        (PoolSettings(mem_fraction=0.97), None),
        (PoolSettings(allocator=Allocator.PLATFORM), None),  # without a limit
    ],
)
def test_the_largest_pool_that_a_card_can_give(settings: PoolSettings, fraction: float | None) -> None:
    found = largest_settings(_card(40 * GIB), settings)
    assert found == (
        None
        if fraction is None
        else replace(settings, mem_fraction=fraction, origin=f"XLA_CLIENT_MEM_FRACTION={fraction}".replace("0.", "."))
    )
    assert largest_settings(resolve("cpu"), settings) is None


@pytest.mark.parametrize(
    ("footprint_gib", "beyond"), [(40, ""), (50, "; 10.0 GiB of it in host memory, which is slow")]
)
def test_unified_memory_is_slow_beyond_the_card(footprint_gib: int, beyond: str) -> None:
    settings = PoolSettings(mem_fraction=2.0, unified_memory=True)
    verdict = judge(Pieces(held=(footprint_gib * GIB,)), _card(40 * GIB), settings)
    assert verdict.sentence.endswith(f"{80 - footprint_gib}.0 GiB to spare{beyond}")


def test_a_pool_that_was_asked_for_replaces_the_environment() -> None:
    environment = _environment("FRACTION=.5 ALLOCATOR=platform PREALLOCATE=false")
    assert parse_pool("90%", environment=environment) == PoolSettings(
        mem_fraction=0.9, preallocate=False, origin="--pool 90%"
    )


@dataclass(frozen=True)
class Told:
    """What somebody has told of a run: the numbers are theirs, and `ran_out` is how it ended."""

    source: str
    card: Target
    environment: str
    footprint: int
    answer: Answer
    ran_out: bool
    fraction: float | None = None


# XLA's limit in a message about rematerialisation is 80% of the device's memory.
TOLD = [
    # "> 22.5 GB" by the README for LoRA; it ran out on a 4090 by default, and the maintainers ran it on one with 0.9.
    Told("openpi 284", resolve("rtx-4090"), "", 22_500 * 10**6, WITH, True, 0.89),
    Told("openpi 284", resolve("rtx-4090"), "OLD=0.9", 22_500 * 10**6, FITS, False),
    # Full training of pi0-FAST, "> 70 GB" by the README, on a 3090 and on an A6000, both with 0.9.
    Told("openpi 280", _card(25_438_126_080), "OLD=0.9", 70 * GB, NOT, True),
    Told("openpi 577", resolve("rtx-a6000"), "OLD=0.9", 70 * GB, NOT, True),
    # "total allocation: 14.44GiB" on a 3080 Ti of 12 GiB.
    Told("AFProfile 8", _card(12 * GIB), "", int(14.44 * GIB), NOT, True),
    # 48,803,099,744 bytes asked for on a 2080 Ti of 11 GB, in AlphaFold's container: unified memory, fraction 4.0.
    Told("alphafold 184", _card(11_554_717_696, "7.5"), "UNIFIED=1 OLD=4.0", 48_803_099_744, WITH, True, 4.23),
    # 163.17 GiB on the A10G of an AWS G5.
    Told("alphafold 651", resolve("a10g"), "UNIFIED=1 OLD=4.0", 175_203_296_000, WITH, True, 7.36),
    # 50,677,266,816 bytes on a 4090; XLA's limit was 20,266,891,105.
    Told("alphafold3 209", _card(20_266_891_105 * 5 // 4, "8.9"), "FRACTION=0.95", 50_677_266_816, NOT, True),
    # 36,897,554,448 bytes at least where XLA's limit was 25,890,129,182: "6000 tokens ran fine" with unified memory.
    Told("alphafold3 697", _card(25_890_129_182 * 5 // 4), "UNIFIED=true FRACTION=3.2 PREALLOCATE=false",
         36_897_554_448, FITS, False),
    # Training GraphCast on a V100 of 32 GB: XLA came down to 92,489,619,062 bytes from 102,770,769,072.
    Told("weathernext 7", _card(25_567_444_992 * 5 // 4, "7.0"), "", 92_489_619_062, NOT, True),
    # Arguments of 1,374,526,449,600 bytes where XLA's limit was 25,554,419,712.
    Told("jax 27354", _card(25_554_419_712 * 5 // 4), "", 1_374_526_449_600, NOT, True),
    # Arguments of 131,344,632,216 bytes where XLA's limit was 20,236,835,225.
    Told("blackjax 1007", _card(20_236_835_225 * 5 // 4), "", 131_344_632_216, NOT, True),
]  # fmt: skip


@pytest.mark.parametrize("told", TOLD, ids=lambda told: f"{told.source} {told.environment}".strip())
def test_public_reports_are_judged_as_they_happened(told: Told) -> None:
    settings = pool_settings(told.card, environment=_environment(told.environment))
    verdict = judge(Pieces(temps=(told.footprint,)), told.card, settings)
    assert (verdict.answer, verdict.mem_fraction) == (told.answer, told.fraction)
    assert verdict.fits is not told.ran_out
