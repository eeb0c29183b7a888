"""What a plan keeps: hand-worked blocks, and every choice of small blocks tried."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, combinations, product
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
from hypothesis import given, settings
from hypothesis import strategies as st
from report_builder import H100

from memprof.analysis.records.checkpoints import LAYER_INPUT, Block, Checkpoints, Operation, Signature
from memprof.sources.jax.checkpointing.block_programs import BlockProgram
from memprof.sources.jax.checkpointing.operations import block_of
from memprof.sources.jax.checkpointing.policies import signature_of
from memprof.studies.plan.candidates import built_in_policies
from memprof.studies.plan.choice import Choice, cheapest_choice, choice_of, notable_repeats
from memprof.studies.plan.code import code_of
from memprof.studies.plan.mixtures import mixtures
from memprof.studies.plan.placement import Placement
from memprof.studies.plan.plan import CheckpointPlan, PlannedChange, PlanPoint
from memprof.studies.plan.times import StepTime


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


def _seconds(choice: Choice) -> float:
    """Add up the times of a choice, without a price for keeping."""
    return StepTime().of(choice)


def test_what_a_choice_comes_to() -> None:
    nothing = choice_of([_LAYERS], ())
    assert (nothing.size_bytes, _seconds(nothing)) == (0, 63.0)  # 3 * (10 + 1 + 10)
    one = choice_of([_LAYERS], {_signature("up"), _signature("unknown")})
    assert (one.size_bytes, _seconds(one), one.kept) == (1200, 33.0, frozenset({_signature("up")}))  # 3 * (1 + 10)


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
    assert notable_repeats(blocks, Checkpoints(kept=frozenset())) == {"random_bits": 2, "psum": 2}
    assert notable_repeats(blocks, Checkpoints(kept=frozenset({_signature("lt")}))) == {"psum": 2}
    assert notable_repeats(blocks, Checkpoints(kept=frozenset({_signature("lt"), _signature("psum")}))) == {}


def test_what_takes_longer_to_keep_than_to_recompute_is_not_kept() -> None:
    """`up` saves 30 s with 1200 bytes, and what else may be kept less for its bytes (see above)."""
    kept = [
        {each.primitive for each in cheapest_choice([_LAYERS], 2700, seconds_per_byte=seconds).kept}
        for seconds in (0.024, 0.026)  # 30 s / 1200 bytes = 0.025 s for a byte
    ]
    assert ["up" in each for each in kept] == [True, False]


def test_a_budget_below_nothing_keeps_nothing() -> None:
    assert cheapest_choice([_LAYERS], -1).kept == frozenset()


def test_what_nobody_needs_is_neither_kept_nor_computed_again() -> None:
    block = Block(
        operations=(_operation("a", 8, 5.0), _operation("b", 8, 1.0, 0, is_needed=True), _operation("c", 8, 7.0, 1)),
        count=1,
    )
    assert _seconds(choice_of([block], {_signature("b")})) == 0.0
    assert _seconds(choice_of([block], ())) == 6.0  # b, and a that it is made of


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
@given(_blocks(), st.integers(0, 300), st.sampled_from([0.0, 0.5, 3.0]))
def test_no_other_choice_within_the_budget_costs_less(
    blocks: list[Block], budget_bytes: int, seconds_per_byte: float
) -> None:
    signatures = {each.signature for block in blocks for each in block.operations}
    sizes = {
        kept: sum(
            block.count * each.size_bytes for block in blocks for each in block.operations if each.signature in kept
        )
        for kept in map(frozenset, chain.from_iterable(combinations(signatures, n) for n in range(len(signatures) + 1)))
    }
    # The program counts all results of a kept signature, also those that the backward pass does not need.
    costs = {kept: _seconds(choice_of(blocks, kept)) + seconds_per_byte * size for kept, size in sizes.items()}
    best = min(costs[kept] for kept, size in sizes.items() if size <= budget_bytes)
    found = cheapest_choice(blocks, budget_bytes, seconds_per_byte=seconds_per_byte)
    assert found.size_bytes <= budget_bytes
    assert costs[found.kept] <= best * 1.002


_MIB = 2**20
_HOST = 4.0 * _MIB  # bytes per second


def test_results_wait_on_the_host_where_the_link_keeps_up_with_the_kernels() -> None:
    """Two layers; at 4 MiB a second, 8 MiB of "up" take 2 s, 40 MiB of "down" 10 s in each direction.

    A layer runs for 12 s forward and 24 s backward. Half of it hides transfers: 12 s for both, and 24 s.
    """
    operations = (
        _operation("up", 8 * _MIB, 9.0, is_needed=True),
        _operation("down", 40 * _MIB, 3.0, is_needed=True),
    )
    blocks = [Block(operations=operations, count=2)]
    up, down = _signature("up"), _signature("down")
    one = choice_of(blocks, (), {up}, _HOST)
    assert (one.kept, one.offloaded) == (frozenset(), {up})
    assert (one.size_bytes, one.repeated_seconds, one.waiting_seconds) == (0, 6.0, 0.0)  # 4 s of 12 and of 24
    both = choice_of(blocks, (), {up, down}, _HOST)
    assert (both.repeated_seconds, both.waiting_seconds, _seconds(both)) == (0.0, 12.0, 12.0)  # 24 s: 12 hidden, and 24
    assert choice_of(blocks, {up}, {up, down}, _HOST).offloaded == {down}
    assert cheapest_choice(blocks, 0, _HOST) == one  # 6 s again, rather than to wait for 12 s
    assert _seconds(cheapest_choice(blocks, 0)) == 24.0
    assert cheapest_choice(blocks, 96 * _MIB, _HOST).offloaded == frozenset()  # all can be kept
    # 6 s of recomputation that count three times are worse than to wait for 12 s.
    assert cheapest_choice(blocks, 0, _HOST, recomputation=3.0).offloaded == {up, down}
    storing = 0.1 / _MIB  # on the device or on the host
    assert cheapest_choice(blocks, 96 * _MIB, _HOST, seconds_per_byte=storing).offloaded == frozenset()
    assert cheapest_choice(blocks, 0, 2.0 * _HOST).offloaded == {up, down}  # 12 s are hidden completely


def test_the_results_of_a_scan_within_a_block_are_never_kept() -> None:
    """JAX asks a policy about the operations in the inner scan alone, so it is recomputed whatever is kept."""
    operations = (_operation("scan", 100, 9.0, is_needed=True), _operation("up", 100, 3.0, is_needed=True))
    found = cheapest_choice([Block(operations=operations, count=1)], 1000)
    assert (found.kept, _seconds(found)) == ({_signature("up")}, 9.0)


def test_the_code_says_which_functions_are_the_bodies() -> None:
    kept = Checkpoints(kept=frozenset({_signature("tanh")}))
    places = ("down at net.py:9", "up at net.py:13")
    assert "# Around down at net.py:9, the body of the scan, in place" in code_of(kept, is_loop=True, places=places[:1])
    both = code_of(kept, is_loop=True, places=places)
    assert "# Around down at net.py:9, up at net.py:13, the bodies of the scans, in place" in both
    assert "# Around each layer (up at net.py:13); with the same policy" in code_of(
        kept, is_loop=False, places=places[1:]
    )


def test_small_results_are_not_offloaded() -> None:
    blocks = [Block(operations=(_operation("mean", _MIB - 1, 1.0, is_needed=True),), count=1)]
    assert cheapest_choice(blocks, 0, 1e12).offloaded == frozenset()


def test_an_input_that_is_too_small_to_be_offloaded_is_kept_in_any_case() -> None:
    """A layer carries 1 KiB and 2 MiB, and recomputes from both: the small one may not exceed a budget of 0 bytes."""
    inputs = tuple(
        Operation(
            signature=Signature(LAYER_INPUT, (((size,), "uint8"),), "None"), inputs=(), size_bytes=size, seconds=0.0,
            is_needed=True, is_input=True,
        )
        for size in (1024, 2 * _MIB)
    )  # fmt: skip
    blocks = [Block(operations=(*inputs, _operation("up", 8 * _MIB, 5.0, 0, 1, is_needed=True)), count=3)]
    found = cheapest_choice(blocks, 0, 1e9)
    assert inputs[1].signature in found.offloaded
    assert (found.kept, found.size_bytes) == (frozenset(), 3 * 1024)


def test_the_input_of_a_layer_is_kept_or_offloaded_but_not_recomputed() -> None:
    start = Operation(
        signature=Signature(LAYER_INPUT, (((4,), "float32"),), "None"), inputs=(), size_bytes=2 * _MIB, seconds=0.0,
        is_needed=False, is_input=True,
    )  # fmt: skip
    blocks = [Block(operations=(start, _operation("up", 8 * _MIB, 5.0, 0, is_needed=True)), count=3)]
    nothing = choice_of(blocks, ())
    assert (nothing.kept, nothing.size_bytes, _seconds(nothing)) == (frozenset(), 6 * _MIB, 15.0)
    everything = choice_of(blocks, {_signature("up")})
    assert everything.size_bytes == 24 * _MIB  # nothing is recomputed from the input
    found = cheapest_choice(blocks, 0, 1e9)
    assert (found.size_bytes, found.offloaded) == (0, {_signature("up")})  # its transfer is hidden
    slow = cheapest_choice(blocks, 0, 0.5 * _MIB)  # 24 MiB take 48 s, 6 MiB 12 s, of which 7.5 s and 15 s are hidden
    assert (slow.offloaded, slow.repeated_seconds, slow.waiting_seconds) == ({start.signature}, 15.0, 4.5)


@settings(max_examples=25, deadline=None)
@given(_blocks(), st.integers(0, 300), st.floats(0.05, 20.0))
def test_no_other_choice_with_a_host_costs_less(blocks: list[Block], budget: int, speed: float) -> None:
    """All ways to keep, offload or recompute the result of each operation, for sizes in MiB.

    Each has a signature of its own: the model counts the transfers of all operations of a signature, also of those
    that the backward pass does not need.
    """
    blocks = [
        Block(
            operations=tuple(
                replace(each, signature=_signature(f"{place}.{number}"), size_bytes=each.size_bytes * _MIB)
                for number, each in enumerate(block.operations)
            ),
            count=block.count,
        )
        for place, block in enumerate(blocks[:1])
    ]
    signatures = sorted({each.signature for block in blocks for each in block.operations})
    choices = []
    for places in product("khr", repeat=len(signatures)):
        kept, moved = ({each for each, at in zip(signatures, places, strict=True) if at == here} for here in "kh")
        size = sum(
            block.count * each.size_bytes for block in blocks for each in block.operations if each.signature in kept
        )
        if size <= budget * _MIB:
            choices.append(choice_of(blocks, kept, moved, speed * _MIB))
    found = cheapest_choice(blocks, budget * _MIB, speed * _MIB)
    assert found.size_bytes <= budget * _MIB
    assert _seconds(found) <= min(map(_seconds, choices)) * 1.002 + 1e-3


def test_the_code_of_an_offloading_policy_names_the_input_of_the_layer() -> None:
    moved = frozenset({Signature(LAYER_INPUT, (((4,), "float32"),), "None"), _signature("tanh")})
    checkpoints = Checkpoints(kept=frozenset({_signature("sin")}), offloaded=moved)
    found: dict[str, Any] = {"body": lambda carry, layer: (jnp.sin(jnp.tanh(carry) * layer), None)}
    exec(code_of(checkpoints, is_loop=True), found)
    assert (found["KEPT"], found["OFFLOADED"]) == ({tuple(_signature("sin"))}, {tuple(each) for each in moved})
    policy, four = found["checkpoint_policy"], jax.ShapeDtypeStruct((4,), "float32")
    asked = [("sin", {}), ("tanh", {}), ("cos", {}), ("name", {"name": LAYER_INPUT}), ("name", {"name": "theirs"})]
    answers = [policy(SimpleNamespace(name=primitive), four, **params) for primitive, params in asked]
    assert answers == [True, found["TO_HOST"], False, found["TO_HOST"], False]
    grads = jax.grad(lambda x: jnp.sum(jax.lax.scan(found["body"], x, jnp.ones(3))[0]))
    assert str(jax.make_jaxpr(grads)(jnp.ones(4))).count("host") > 0
    without = code_of(replace(checkpoints, offloaded=frozenset({_signature("tanh")})), is_loop=True)
    assert "with_named_input" not in without


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
        assert "# Around each of the first 5 layers; with" in code
        assert line in code
    assert "# Around the first layer; with" in code_of(Checkpoints(kept=kept, num_first=1), is_loop=False)


def test_the_code_of_a_scan_within_a_scan_checkpoints_both_bodies_for_groups() -> None:
    checkpoints = Checkpoints(kept=frozenset({_signature("tanh")}), group_size=4)
    found: dict[str, object] = {"body": len, "outer_body": len}
    code = code_of(checkpoints, is_loop=True, is_nested=True, places=["substep at ode.py:7"])
    exec(code, found)
    assert found["body"] is not len
    assert found["outer_body"] is not len
    assert "# Around substep at ode.py:7, the body of the scan, in place of any checkpoint that is there:" in code
    alone = code_of(replace(checkpoints, group_size=None), is_loop=True, is_nested=True)
    assert "outer_body" not in alone


def test_the_code_of_a_plan_has_the_imports_of_all_its_changes_at_the_top() -> None:
    point = replace(_point(100, 1.0), checkpoints=Checkpoints(kept=frozenset({_signature("tanh")})))
    changes = (
        PlannedChange(rule="donate_state", code="import jax\n\n# after make\nstep = jax.jit(step)"),
        PlannedChange(rule="chunked_loss", code="from mine import in_chunks\n\nstep = in_chunks(step)\n"),
    )
    plan = CheckpointPlan(
        label="net", target=H100, budget_bytes=100, points=(point,), best=point,
        placement=Placement(num_blocks=2, is_loop=False),
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
    found = mixtures(points, StepTime(), num_blocks=8, budget_bytes=804)
    assert [(each.low, each.high, each.num_rest, each.seconds) for each in found] == [
        (points[1], points[0], 5, 15.0),  # 40 - 5/8 * 40
        (points[2], points[0], 3, 18.75),  # 30 - 3/8 * 30
    ]
    assert mixtures(points, StepTime(), num_blocks=8, budget_bytes=2000) == []  # all fits
    assert mixtures(points, StepTime(), num_blocks=8, budget_bytes=100) == []  # none fits
    assert mixtures(points[:2], StepTime(), num_blocks=8, budget_bytes=290) == []  # not even one layer may keep more


def test_the_policies_of_jax_keep_what_they_say() -> None:
    """A product with weights, one with a batch, a convolution and other operations: JAX itself is asked about each."""

    def forward(x: jax.Array, w: jax.Array, image: jax.Array, kernel: jax.Array) -> jax.Array:
        hidden = jnp.tanh(x @ w)
        scores = jnp.einsum("bij,bkj->bik", hidden, hidden)
        pixels = jax.lax.conv_general_dilated(image, kernel, (1, 1), "SAME")
        return jnp.sum(jnp.sin(scores)) + jnp.sum(jnp.sin(pixels))

    arrays = [jnp.ones(shape) for shape in ((2, 4, 8), (8, 8), (1, 3, 16, 16), (5, 3, 3, 3))]
    closed = jax.make_jaxpr(forward)(*arrays)
    found = built_in_policies([block_of(BlockProgram(closed=closed, count=1), None)])
    equations = [each for each in closed.jaxpr.eqns if each.primitive.name not in ("jit", "pjit")]
    assert {"dot_general", "conv_general_dilated", "sin"} <= {each.primitive.name for each in equations}
    for name, kept in found.items():
        policy = getattr(jax.checkpoint_policies, name)
        for each in equations:
            avals = [atom.aval for atom in each.invars]
            is_kept = signature_of(each.primitive, avals, each.params) in kept
            assert is_kept == bool(policy(each.primitive, *avals, **each.params)), (name, each.primitive.name)
