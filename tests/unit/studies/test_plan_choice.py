"""What a plan keeps: hand-worked blocks, and every choice of small blocks tried."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, combinations

from hypothesis import given, settings
from hypothesis import strategies as st
from report_builder import H100

from memprof.analysis.records.checkpoints import Block, Checkpoints, Operation, Signature
from memprof.studies.plan.choice import cheapest_choice, choice_of, notable_repeats
from memprof.studies.plan.code import code_of
from memprof.studies.plan.mixtures import mixtures
from memprof.studies.plan.plan import CheckpointPlan, PlannedChange, PlanPoint


def _signature(name: str) -> Signature:
    return Signature(name, (((4,), "float32"),), "None")


def _operation(name: str, size_bytes: int, seconds: float, *inputs: int, is_needed: bool = False) -> Operation:
    return Operation(
        signature=_signature(name), inputs=inputs, size_bytes=size_bytes, seconds=seconds, is_needed=is_needed
    )


# A product, an activation that is cheap to compute again, and another product: three layers of it.
_LAYERS = Block(
    operations=(
        _operation("up", 400, 10.0, is_needed=True),
        _operation("gelu", 400, 1.0, 0, is_needed=True),
        _operation("down", 100, 10.0, 1, is_needed=True),
    ),
    count=3,
)


def test_what_a_choice_comes_to() -> None:
    nothing = choice_of([_LAYERS], ())
    assert (nothing.size_bytes, nothing.seconds) == (0, 63.0)  # 3 * (10 + 1 + 10)
    one = choice_of([_LAYERS], {_signature("up"), _signature("unknown")})
    assert (one.size_bytes, one.seconds, one.kept) == (1200, 33.0, frozenset({_signature("up")}))  # 3 * (1 + 10)


def test_what_is_expensive_for_its_size_is_kept_first() -> None:
    kept = [{each.primitive for each in cheapest_choice([_LAYERS], budget).kept} for budget in (0, 300, 1500, 2700)]
    assert kept == [set(), {"down"}, {"up", "down"}, {"up", "gelu", "down"}]


def test_collectives_and_random_numbers_that_are_computed_again_are_counted() -> None:
    """Two layers: the mask of a dropout is kept, or made again of its random numbers; a sum over devices likewise."""
    operations = (
        _operation("random_bits", 4, 1.0),
        _operation("lt", 1, 1.0, 0, is_needed=True),
        _operation("psum", 8, 1.0, is_needed=True),
        _operation("psum", 8, 1.0),  # nobody needs it
    )
    blocks = [Block(operations=operations, count=2)]
    assert notable_repeats(blocks, ()) == {"random_bits": 2, "psum": 2}
    assert notable_repeats(blocks, {_signature("lt")}) == {"psum": 2}
    assert notable_repeats(blocks, {_signature("lt"), _signature("psum")}) == {}


def test_a_budget_below_nothing_keeps_nothing() -> None:
    assert cheapest_choice([_LAYERS], -1).kept == frozenset()


def test_what_nobody_needs_is_neither_kept_nor_computed_again() -> None:
    block = Block(
        operations=(_operation("a", 8, 5.0), _operation("b", 8, 1.0, 0, is_needed=True), _operation("c", 8, 7.0, 1)),
        count=1,
    )
    assert choice_of([block], {_signature("b")}).seconds == 0.0
    assert choice_of([block], ()).seconds == 6.0  # b, and a that it is made of


@st.composite
def _blocks(draw: st.DrawFn) -> list[Block]:
    blocks = []
    for _ in range(draw(st.integers(1, 2))):
        operations = []
        for number in range(draw(st.integers(1, 5))):
            inputs = draw(st.sets(st.integers(0, number - 1), max_size=2)) if number else set()
            operations.append(
                _operation(
                    draw(st.sampled_from("abcde")),
                    draw(st.integers(1, 50)),
                    float(draw(st.integers(1, 50))),
                    *sorted(inputs),
                    is_needed=draw(st.booleans()),
                )
            )
        blocks.append(Block(operations=tuple(operations), count=draw(st.integers(1, 3))))
    return blocks


@settings(max_examples=40, deadline=None)
@given(_blocks(), st.integers(0, 300))
def test_no_other_choice_within_the_budget_costs_less(blocks: list[Block], budget_bytes: int) -> None:
    signatures = {each.signature for block in blocks for each in block.operations}
    sizes = {
        kept: sum(
            block.count * each.size_bytes for block in blocks for each in block.operations if each.signature in kept
        )
        for kept in map(frozenset, chain.from_iterable(combinations(signatures, n) for n in range(len(signatures) + 1)))
    }
    best = min(choice_of(blocks, kept).seconds for kept, size in sizes.items() if size <= budget_bytes)
    found = cheapest_choice(blocks, budget_bytes)
    assert found.size_bytes <= budget_bytes
    assert found.seconds <= best * 1.002


def test_the_code_of_a_policy_keeps_the_same_operations() -> None:
    kept = {
        _signature("tanh"),
        Signature("dot_general", (((2, 3), "bfloat16"), ((3, 4), "bfloat16")), "(((1,), (0,)),)"),
    }
    everywhere = Checkpoints(kept=frozenset(kept))
    code, found = code_of(everywhere, is_loop=False), dict[str, object]()
    exec(code.partition("# Around")[0], found)
    assert found["KEPT"] == {tuple(each) for each in kept}
    assert "prevent_cse=False" in code_of(everywhere, is_loop=True)


def test_the_code_of_a_mixture_says_which_layers_have_which_policy() -> None:
    kept = frozenset({_signature("tanh")})
    for rest, line in (
        (None, "# The layers after them stay without a checkpoint."),
        (frozenset(), "policy=rest_policy"),
    ):
        code = code_of(Checkpoints(kept=kept, num_first=5, kept_by_rest=rest), is_loop=False)
        found: dict[str, object] = {"layer": len}
        exec(code, found)
        assert found["KEPT"] == {tuple(each) for each in kept}
        assert found.get("KEPT_BY_REST") == rest
        assert "# Around each of the first 5 layers (" in code
        assert line in code


def test_the_code_of_a_plan_has_the_imports_of_all_its_changes_at_the_top() -> None:
    point = replace(_point(100, 1.0), checkpoints=Checkpoints(kept=frozenset({_signature("tanh")})))
    changes = (
        PlannedChange(rule="donate_state", code="import jax\n\n# after make\nstep = jax.jit(step)"),
        PlannedChange(rule="chunked_loss", code="from mine import in_chunks\n\nstep = in_chunks(step)\n"),
    )
    plan = CheckpointPlan(
        label="net", target=H100, budget_bytes=100, points=(point,), best=point, num_blocks=2, is_loop=False,
        changes=changes,
    )  # fmt: skip
    assert plan.code.startswith(
        "# at the top of the file\nimport jax\nfrom mine import in_chunks\n\n"
        "# after make\nstep = jax.jit(step)\n\nstep = in_chunks(step)\n\n# The operations of a layer"
    )
    assert plan.code.count("import jax\n") == 1


def _point(footprint_bytes: int, seconds: float) -> PlanPoint:
    return PlanPoint(
        name="chosen",
        checkpoints=None,
        kept_bytes=0,
        repeated_seconds=seconds,
        footprint_bytes=footprint_bytes,
        recomputed_flops=0,
    )


def test_a_mixture_gives_the_rest_of_the_budget_to_the_last_layers() -> None:
    points = [_point(1000, 0.0), _point(200, 40.0), _point(600, 30.0)]
    # 0.995 * 804 - 200 = 599, and a layer takes (1000 - 200) / 8 = 100 more: 5 layers
    # 0.995 * 804 - 600 = 199, and a layer takes (1000 - 600) / 8 = 50 more: 3 layers
    found = mixtures(points, num_blocks=8, budget_bytes=804)
    assert [(each.low, each.high, each.num_rest, each.seconds) for each in found] == [
        (points[1], points[0], 5, 15.0),  # 40 - 5/8 * 40
        (points[2], points[0], 3, 18.75),  # 30 - 3/8 * 30
    ]
    assert mixtures(points, num_blocks=8, budget_bytes=2000) == []  # all fits
    assert mixtures(points, num_blocks=8, budget_bytes=100) == []  # none fits
    assert mixtures(points[:2], num_blocks=8, budget_bytes=290) == []  # not even one layer may keep more
