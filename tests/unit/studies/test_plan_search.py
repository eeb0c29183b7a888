"""How a plan is found: what is compiled for which budget, of a step whose footprint is added up and not compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, get_args, get_type_hints

import pytest

from memprof.analysis.hlo.decoded import FreshCapture
from memprof.analysis.records.capture import NO_COMPILER, Speeds
from memprof.analysis.records.checkpoints import Block, Checkpoints, Operation, Signature
from memprof.analysis.records.roofline import Roofline
from memprof.errors import Interrupted, MemprofError
from memprof.reports.json.answers import PlanPointJson
from memprof.studies.changes.attention import attention_kernels
from memprof.studies.changes.chunks import in_chunks
from memprof.studies.changes.donation import donations
from memprof.studies.changes.minibatches import accumulated_more_and_more, chunked_more_and_more
from memprof.studies.changes.read_rows import only_read_rows
from memprof.studies.plan import allowed, search, steps
from memprof.studies.plan.allowed import Allowed
from memprof.studies.plan.candidates import best_within, point_of
from memprof.studies.plan.plan import (
    AS_IT_IS,
    CHOSEN,
    DOTS,
    DOTS_WITHOUT_BATCH,
    NOTHING_KEPT,
    CheckpointPlan,
    PlannedChange,
    PlanPoint,
    ranking_seconds,
)

_BASE = 1000  # of the footprint: what no checkpoint changes
_BASE_SECONDS = 100.0  # of the bound, likewise
# Memory so fast that keeping a result takes no time.
_SPEEDS = Speeds(
    operations_per_second={}, memory_bytes_per_second=1e30, link_bytes_per_second=1.0, host_bytes_per_second=1.0
)


def _operation(name: str, size_bytes: int, seconds: float, *, numbers: str = "None") -> Operation:
    signature = Signature(name, (((4,), "float32"),), numbers)
    return Operation(signature=signature, inputs=(), size_bytes=size_bytes, seconds=seconds, is_needed=True)


# With all of them kept a layer takes 1000 bytes. By time for its size: norm (0.05), up (0.04), scores (0.02), gelu.
_OPERATIONS = (
    _operation("dot_general", 400, 16.0, numbers="(((1,), (0,)), ((), ()))"),
    _operation("gelu", 300, 3.0),
    _operation("dot_general", 200, 4.0, numbers="(((2,), (2,)), ((0,), (0,)))"),
    _operation("norm", 100, 5.0),
)
_UP, _GELU, _SCORES, _NORM = (each.signature for each in _OPERATIONS)
_ALL = frozenset({_UP, _GELU, _SCORES, _NORM})


@dataclass
class _Compiler:
    """In place of JAX and XLA.

    Attributes:
        extra_bytes: what the compiler takes beyond the sizes of what is kept, by the number of the compile.
        pool_bytes: of the target.
        saved_bytes: what changes of the step save, by the label of the changed step.
        traced: labels of the traced steps.
        waited_seconds: the time that a step with offloaded results waits for them.
        seconds_per_byte: the time that each kept byte adds to a step.
        place: the best place for checkpoints; with several, the next one is the answer to the next question.
        enough: the estimates that were enough, by question.
    """

    blocks: list[Block]
    extra_bytes: Callable[[int], int] = lambda number: 0
    pool_bytes: int | None = None
    is_loop: bool = False
    differentiates: bool = True
    checkpoints: Checkpoints | None = None
    num_compiles: int = 0
    said: list[str] = field(default_factory=list)
    saved_bytes: dict[str, int] = field(default_factory=dict)
    traced: list[str] = field(default_factory=list)
    speeds: Speeds | None = field(default_factory=lambda: _SPEEDS)
    waited_seconds: float = 0.0
    seconds_per_byte: float = 0.0
    place: Any = None
    enough: list[int] = field(default_factory=list)

    @contextmanager
    def checkpointed(self, checkpoints: Checkpoints | None) -> Iterator[list[Any]]:
        self.checkpoints = checkpoints
        equation = SimpleNamespace(primitive=SimpleNamespace(name="scan" if self.is_loop else "dot_general"))
        functions = [SimpleNamespace(jaxpr=SimpleNamespace(eqns=[equation]))] if self.differentiates else []
        yield functions
        self.checkpoints = None

    def kept_bytes_and_flops(self) -> tuple[int, int]:
        kept_bytes, flops, number = 0, 0, 0
        for block in self.blocks:
            for _ in range(block.count):
                kept = None if self.checkpoints is None else self.checkpoints.kept_by(number)
                number += 1
                for each in block.operations:
                    if kept is None or each.signature in kept:
                        kept_bytes += each.size_bytes
                    elif each.signature not in self.offloaded():
                        flops += int(each.seconds)
        return kept_bytes, flops

    def offloaded(self) -> frozenset[Signature]:
        return frozenset() if self.checkpoints is None else self.checkpoints.offloaded

    def host_bytes(self) -> int:
        operations = (each for block in self.blocks for _ in range(block.count) for each in block.operations)
        return sum(each.size_bytes for each in operations if each.signature in self.offloaded())

    def traced_jaxpr(self, spec: Any, target: Any) -> Any:
        """The trace; what it keeps is the estimate of both orders."""
        self.traced.append(spec.label)
        return SimpleNamespace(jaxpr=(self.kept_bytes_and_flops()[0],) * 2)

    def capture_of(self, spec: Any, target: Any, progress: Any) -> Any:
        progress("compiling")
        self.num_compiles += 1
        kept_bytes, flops = self.kept_bytes_and_flops()
        has_checkpoints = self.checkpoints is not None and self.checkpoints.kept
        extra_bytes = self.extra_bytes(self.num_compiles) if has_checkpoints else 0
        waited_seconds = self.waited_seconds if self.host_bytes() else 0.0
        at_least_seconds = _BASE_SECONDS + flops + self.seconds_per_byte * kept_bytes + waited_seconds
        capture = SimpleNamespace(
            target=target,
            recomputed_flops=flops,
            footprint_bytes=_BASE + kept_bytes + extra_bytes - self.saved_bytes.get(spec.label, 0),
            verdict=SimpleNamespace(pool_bytes=self.pool_bytes),
            compiler=NO_COMPILER,
            memory_spaces={"host": self.host_bytes()},
            roofline=None
            if self.speeds is None
            else Roofline(
                at_least_seconds=at_least_seconds,
                compute_share=1.0,
                memory_share=0.0,
                communication_share=waited_seconds / at_least_seconds,
                priced_share=1.0,
            ),
        )
        return FreshCapture(capture=capture)  # type: ignore[arg-type]

    def analyze(self, capture: Any, decoded: Any, *, with_order: bool) -> Any:
        """The report; all that is read of one."""
        del decoded, with_order
        capture.unpressed = capture
        return capture

    def best_place(self, spec: Any, target: Any, *, enough_bytes: int) -> Any:
        """The best place, which takes traces: no step without functions of the user is asked for it."""
        assert self.place is not None
        self.enough.append(enough_bytes)
        return self.place.pop(0) if isinstance(self.place, list) else self.place

    def plan(self, monkeypatch: pytest.MonkeyPatch, budget_bytes: int | None, **options: Any) -> CheckpointPlan:
        for name in ("checkpointed", "traced_jaxpr", "capture_of", "analyze"):
            monkeypatch.setattr(steps, name, getattr(self, name))
        monkeypatch.setattr(steps, "estimated_peaks", lambda jaxpr: jaxpr)
        monkeypatch.setattr(steps, "differentiated_loops", lambda jaxpr: jaxpr.eqns if self.is_loop else [])
        monkeypatch.setattr(steps, "find_repeated", lambda jaxpr: None if self.is_loop else jaxpr)
        monkeypatch.setattr(steps, "layers_of", lambda closed: [])
        monkeypatch.setattr(steps, "large_functions", lambda closed: [] if self.place is None else [self.place])
        monkeypatch.setattr(steps, "best_place", self.best_place)
        monkeypatch.setattr(steps, "blocks_of_functions", lambda spec, target, functions: range(len(self.blocks)))
        monkeypatch.setattr(
            steps, "checkpointed_functions", lambda functions, checkpoints: self.checkpointed(checkpoints)
        )
        monkeypatch.setattr(steps, "blocks_of", lambda closed: range(len(self.blocks)))
        monkeypatch.setattr(steps, "block_of", lambda number, speeds, **_: self.blocks[number])
        target: Any = SimpleNamespace(
            name="a100-40gb", platform="cuda", speeds=self.speeds, topology=SimpleNamespace(num_devices=1)
        )
        spec: Any = SimpleNamespace(label="net")
        return search.plan_step(spec, target, budget_bytes=budget_bytes, progress=self.said.append, **options)


def _layers(count: int = 1) -> Block:
    return Block(operations=_OPERATIONS, count=count)


def _rows(plan: CheckpointPlan) -> list[tuple[str, int, int, float, int]]:
    return [
        (each.name, each.footprint_bytes, each.kept_bytes, each.repeated_seconds, each.recomputed_flops)
        for each in plan.points
    ]


_AS_IT_IS = ("as it is", 2000, 1000, 0.0, 0)
_NOTHING_KEPT = ("nothing kept", 1000, 0, 28.0, 28)


@pytest.mark.parametrize("budget_bytes", [2000, 9000])
def test_a_step_within_the_budget_stays_as_it_is(monkeypatch: pytest.MonkeyPatch, budget_bytes: int) -> None:
    plan = _Compiler([_layers()]).plan(monkeypatch, budget_bytes)
    assert _rows(plan) == [_AS_IT_IS]
    assert plan.best is plan.points[0]
    assert (plan.checkpoints, plan.code, plan.placement.num_blocks, plan.budget_bytes) == (None, "", 1, budget_bytes)


def test_a_choice_that_comes_close_to_the_budget_is_the_last_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = _Compiler([_layers()])
    # 1515 - 1000 less a margin of 7 is room for 508: up and norm take 500, and 15 of 1515 are left.
    plan = compiler.plan(monkeypatch, 1515)
    assert _rows(plan) == [_AS_IT_IS, _NOTHING_KEPT, ("chosen", 1500, 500, 7.0, 7)]
    assert plan.best is plan.points[2]
    assert plan.checkpoints == Checkpoints(kept=frozenset({_UP, _NORM}))
    compiled = ["1: as it is", "2: nothing kept", "3: chosen"]
    first, *others = (f"{each}, compiling" for each in compiled)
    assert compiler.said == [first, "choosing", *others]


def test_an_interrupted_search_gives_the_plan_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(number: int) -> int:
        assert number == 3
        raise Interrupted

    so_far: list[CheckpointPlan] = []
    with pytest.raises(Interrupted):
        _Compiler([_layers()], extra_bytes=interrupt).plan(monkeypatch, 1515, interrupted=so_far.append)
    (plan,) = so_far
    assert _rows(plan) == [_AS_IT_IS, _NOTHING_KEPT]
    assert plan.best is plan.points[1]


def test_the_margin_is_left_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """1508 less 0.5% is 1500, exactly what up and norm come to. 1507 is less, so they come after a smaller choice."""
    assert [row[2] for row in _rows(_Compiler([_layers()]).plan(monkeypatch, 1508))] == [1000, 0, 500]
    assert [row[2] for row in _rows(_Compiler([_layers()]).plan(monkeypatch, 1507))] == [1000, 0, 400, 500]


def test_what_the_compiler_takes_beyond_a_choice_is_added_to_the_next_prediction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Up and norm, 500, come to 1650 with 150 of the compiler's, 50 too much. So up is predicted as 1548, by
    the 150 of the nearest compile, and a little of what the first two took."""
    plan = _Compiler([_layers()], extra_bytes=lambda number: 150).plan(monkeypatch, 1600)
    name = "dots_with_no_batch_dims_saveable"
    assert _rows(plan)[2:] == [("chosen", 1650, 500, 7.0, 7), (name, 1550, 400, 12.0, 12)]
    assert [each.predicted_bytes for each in plan.points] == [None, 1000, 1500, 1548]
    assert plan.best is plan.points[3]


def test_a_choice_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """1550 has room for up and norm alone, again and again: 50 bytes are left, more than 1%."""
    plan = _Compiler([_layers()]).plan(monkeypatch, 1550)
    assert [row[2] for row in _rows(plan)] == [1000, 0, 500]


def test_four_compiles_beyond_the_first_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each compile takes 110 bytes more than the one before, so no choice for 2900 is within it, but the smallest."""
    operations = tuple(_operation(f"op{number}", 100, 10.0 + number) for number in range(20))
    compiler = _Compiler([Block(operations=operations, count=1)], extra_bytes=lambda number: 110 * number)
    plan = compiler.plan(monkeypatch, 2900)
    assert [row[1:3] for row in _rows(plan)] == [(3000, 2000), (1000, 0), (3130, 1800), (2940, 1500), (1650, 100)]
    assert plan.best is plan.points[-1]


def test_if_nothing_fits_the_smallest_predictions_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = _Compiler([_layers()]).plan(monkeypatch, 980)
    assert [row[2] for row in _rows(plan)] == [1000, 0, 100, 300, 400]
    assert (plan.best, plan.code) == (None, "")


def test_of_predictions_that_are_equally_small_the_fastest_is_tried_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """1080 is within 3% of 1050, and a prediction may be wrong by as much; it computes b once less."""
    parts = (("a", 50, 5.0), ("b", 30, 4.0), ("c", 920, 1.0))
    block = Block(operations=tuple(_operation(*part) for part in parts), count=1)
    plan = _Compiler([block]).plan(monkeypatch, 980)
    assert [row[2:4] for row in _rows(plan)] == [(1000, 0.0), (0, 10.0), (80, 1.0), (50, 5.0)]


def test_a_prediction_above_the_budget_is_compiled_if_it_may_be_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """65% of what three layers keep: 2100 with the rest is exactly 3100. The margin lets 1500 come first."""
    plan = _Compiler([_layers(2), _layers(1)]).plan(monkeypatch, 3100)
    assert [row[2] for row in _rows(plan)] == [3000, 0, 1500, 2100]
    assert plan.best is plan.points[-1]
    # More than 3% above the budget is not compiled: 2050 and 1500.
    assert [row[2] for row in _rows(_Compiler([_layers(2), _layers(1)]).plan(monkeypatch, 3000))] == [3000, 0, 1500]


def test_the_policies_of_jax_are_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    """dots_saveable keeps 600, and repeats 4 seconds; norm, 1 second for 100 bytes, is not worth its bytes."""
    cheap = Block(operations=(*_OPERATIONS[:3], _operation("norm", 100, 1.0)), count=1)
    found = _Compiler([cheap]).plan(monkeypatch, 1650)
    assert _rows(found)[1:] == [("nothing kept", 1000, 0, 24.0, 24), ("dots_saveable", 1600, 600, 4.0, 4)]
    assert found.best is found.points[-1]


def test_nothing_kept_is_the_answer_only_after_the_smallest_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    """1003 leaves 3 bytes beside nothing kept. All choices take 400 less than what they keep."""
    plan = _Compiler([_layers()], extra_bytes=lambda number: -400).plan(monkeypatch, 1003)
    assert [row[1:3] for row in _rows(plan)] == [(2000, 1000), (1000, 0), (700, 100), (900, 300)]
    assert plan.best is plan.points[-1]


def test_the_last_of_equal_layers_have_no_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten layers, 4800 bytes: the first eight keep the norm, 100, and two keep all 1000. The next plan has one more.

    Before them, all ten keep the norm and the scores. A first mixture leaves 3% of the budget free, because its
    prediction may be wrong.
    """
    plan = _Compiler([_layers(10)]).plan(monkeypatch, 4800)
    uniform = ("chosen", 4000, 3000, 190.0, 190)
    assert _rows(plan)[2:] == [uniform, ("chosen", 3800, 2800, 184.0, 184), ("chosen", 4700, 3700, 161.0, 161)]
    assert [each.checkpoints for each in plan.points[3:]] == [
        Checkpoints(kept=frozenset({_NORM}), num_first=number) for number in (8, 7)
    ]
    assert plan.best is plan.points[-1]
    assert plan.placement.num_blocks == 10


def test_the_last_layers_are_considered_if_nothing_fits_and_if_something_recomputes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Beside 1000 bytes, two layers keep 1000 each; the gelu costs nothing to recompute, so it need not be kept."""
    operations = (replace(each, seconds=each.seconds * (each.signature != _GELU)) for each in _OPERATIONS)
    free = Block(operations=tuple(operations), count=2)
    assert _Compiler([free]).plan(monkeypatch, 900).best is None
    plan = _Compiler([free]).plan(monkeypatch, 2450)
    assert plan.best is not None
    assert plan.best.footprint_bytes <= 2450
    enough = _Compiler([free]).plan(monkeypatch, 2500)
    assert enough.best is not None
    assert enough.best.repeated_seconds == 0.0


def test_different_blocks_are_not_mixed(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = _Compiler([_layers(5), _layers(5)]).plan(monkeypatch, 5000)
    assert all(each.checkpoints is None or each.checkpoints.num_first is None for each in plan.points)
    assert (plan.placement.is_loop, plan.placement.num_blocks) == (False, 10)


def test_turns_of_a_loop_are_mixed_when_no_choice_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside 1000 that stay there is room for the scores (2000) and norm (1000) of all turns; the last keeps all."""
    plan = _Compiler([_layers(10)], is_loop=True).plan(monkeypatch, 4800)
    mixed = ("chosen", 4700, 3700, pytest.approx(171.0), 171)
    assert _rows(plan)[1:] == [("nothing kept", 1000, 0, 280.0, 280), ("chosen", 4000, 3000, 190.0, 190), mixed]
    assert plan.best is plan.points[-1]
    assert [each.checkpoints and each.checkpoints.num_first for each in plan.points] == [None, None, None, 9]
    assert (plan.placement.is_loop, plan.placement.num_blocks) == (True, 10)


def test_a_mixture_that_costs_more_than_a_choice_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 5250 all turns keep norm and up; a mixture would repeat 168 seconds."""
    plan = _Compiler([_layers(10)], is_loop=True).plan(monkeypatch, 5250)
    assert _rows(plan)[2:] == [("dots_with_no_batch_dims_saveable", 5000, 4000, 120.0, 120)]


def test_a_mixture_that_comes_out_too_large_is_not_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a single policy, 8000, and a mixture, a second mixture is predicted to take 8900, and takes 300 more."""
    plan = _Compiler([_layers(10)], extra_bytes=lambda number: 300 if number > 4 else 0).plan(monkeypatch, 9000)
    assert [row[1] for row in _rows(plan)[2:]] == [8000, 8600, 9200]
    assert plan.points[-1].predicted_bytes == 8900
    assert plan.best is plan.points[-2]


def test_turns_of_a_loop_that_are_mixed_and_too_large_keep_one_turn_less(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = _Compiler([_layers(10)], is_loop=True, extra_bytes=lambda number: 300 if number > 3 else 0)
    plan = compiler.plan(monkeypatch, 9000)
    mixed = [each.checkpoints.num_first for each in plan.points if each.checkpoints and each.checkpoints.num_first]
    assert mixed == [7, 8]
    assert plan.best is plan.points[-1]


def test_a_curve_has_the_policies_of_jax_and_choices_for_five_budgets(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = _Compiler([_layers()]).plan(monkeypatch, 9000, with_curve=True)
    assert [(row[0], row[2]) for row in _rows(plan)] == [
        ("as it is", 1000),
        ("nothing kept", 0),
        ("dots_saveable", 600),
        ("dots_with_no_batch_dims_saveable", 400),
        ("chosen", 100),  # of 200: scores take as much time as norm does less than half of it, so norm alone
        ("chosen", 300),
        ("chosen", 500),
        ("chosen", 700),
    ]  # of 800 too, up, scores and norm are best: known
    assert plan.best is plan.points[0]
    assert [each.footprint_bytes for each in plan.curve] == [2000, 1700, 1500, 1400, 1300, 1100, 1000]


def test_the_policies_of_jax_keep_products_of_which_others_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """The backward pass reads the activation alone; the product is what it is made of."""
    product = replace(_operation("dot_general", 400, 16.0, numbers="(((1,), (0,)), ((), ()))"), is_needed=False)
    block = Block(operations=(product, replace(_operation("relu", 300, 3.0), inputs=(0,))), count=1)
    plan = _Compiler([block]).plan(monkeypatch, 9000, with_curve=True)
    assert ("dots_saveable", 400, 3.0) in {(each.name, each.kept_bytes, each.repeated_seconds) for each in plan.points}


def test_without_a_budget_the_pool_of_the_target_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = _Compiler([_layers()], pool_bytes=1515).plan(monkeypatch, None)
    assert (plan.budget_bytes, len(plan.points)) == (1515, 3)
    with pytest.raises(MemprofError, match="a100-40gb has no fixed amount of memory"):
        _Compiler([_layers()]).plan(monkeypatch, None)


def test_a_step_without_gradients_has_no_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = _Compiler([], differentiates=False).plan(monkeypatch, 10, with_curve=True)
    assert _rows(plan) == [("as it is", 1000, 0, 0.0, 0)]
    assert (plan.best, plan.placement.num_blocks, plan.code) == (None, 0, "")
    with pytest.raises(MemprofError, match="no layers in a scan"):
        _Compiler([], differentiates=False, speeds=_LINK).plan(monkeypatch, 10, offload=True)


_MIB = 2**20
_LINK = replace(_SPEEDS, host_bytes_per_second=100.0 * _MIB)


def _large() -> Block:
    operations = (replace(each, size_bytes=each.size_bytes * _MIB) for each in _OPERATIONS)
    return Block(operations=tuple(operations), count=1)


@pytest.mark.parametrize(
    ("waited_seconds", "names"),
    [
        (2.0, {"norm", "gelu", "dot_general"}),
        (60.0, set()),
    ],
)
def test_results_wait_on_the_host_if_that_takes_less_time_than_to_recompute_them(
    monkeypatch: pytest.MonkeyPatch, waited_seconds: float, names: set[str]
) -> None:
    """A layer runs for 28 s; the link takes 10 s for all of its 1000 MiB, less than half of that.

    So the model expects no waiting at all. If the compiled schedule waits longer than twice the recomputation (28 s),
    the step that keeps nothing is the plan.
    """
    compiler = _Compiler([_large()], is_loop=True, speeds=_LINK, waited_seconds=waited_seconds)
    plan = compiler.plan(monkeypatch, 100 * _MIB, offload=True)
    assert plan.best is not None
    assert plan.best.checkpoints is not None
    assert {each.primitive for each in plan.best.checkpoints.offloaded} == names
    assert (plan.best.host_bytes, _seconds_of(plan)) == ((1000 * _MIB, 102.0) if names else (0, 156.0))
    offloading = [point for point in plan.points if point.is_offloading]
    assert [point.waiting_seconds for point in offloading] == pytest.approx([waited_seconds] * len(offloading))
    assert offloading


def test_nothing_is_offloaded_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = _Compiler([_large()], is_loop=True, speeds=_LINK).plan(monkeypatch, 100 * _MIB)
    assert not any(point.is_offloading for point in plan.points)


def test_only_loops_and_known_links_allow_offloading(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MemprofError, match="no layers in a scan"):
        _Compiler([_large()], speeds=_LINK).plan(monkeypatch, 100 * _MIB, offload=True)
    with pytest.raises(MemprofError, match="cannot plan offloading for a100-40gb"):
        _Compiler([_large()], is_loop=True, speeds=None).plan(monkeypatch, 100 * _MIB, offload=True)


def test_allowed_changes_are_named_after_their_advice() -> None:
    assert [(each.rule, each.family) for each in Allowed] == [
        ("donate_state", donations),
        ("whole_prompt_logits", only_read_rows),
        ("accumulated_gradients", accumulated_more_and_more),
        ("chunked_examples", chunked_more_and_more),
        ("chunked_loss", in_chunks),
        ("flash_attention", attention_kernels),
        ("chunked_attention", in_chunks),
    ]
    assert allowed.parse_allowed(" chunked-loss, donate,") == (Allowed.CHUNKED_LOSS, Allowed.DONATE)
    assert allowed.parse_allowed("none") == allowed.parse_allowed("") == ()
    for names in ("none,donate", "chunked_loss"):
        with pytest.raises(MemprofError, match=r"a plan cannot be allowed '.*': there are donate, only-read-rows, acc"):
            allowed.parse_allowed(names)


def test_the_json_has_a_name_for_each_compile() -> None:
    """Reports know no studies, so both list the names."""
    names = get_args(get_args(get_type_hints(PlanPointJson, include_extras=True)["name"])[0])
    compiles = [AS_IT_IS, NOTHING_KEPT, CHOSEN, DOTS, DOTS_WITHOUT_BATCH, *(each.rule for each in Allowed)]
    assert sorted(names) == sorted(compiles)


class TestAllowedChanges:
    """The step as it is takes 2000 bytes, with nothing kept 1000."""

    @pytest.fixture(autouse=True)
    def _families(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each change adds its name to the label of the step."""
        self.asked: list[tuple[str, str, int]] = []
        self.missing: set[Allowed] = set()
        self.degrees: dict[Allowed, list[str]] = {}

        def family(each: Allowed) -> Callable[[Any], Iterator[Any]]:
            def changes(step: Any) -> Iterator[Any]:
                self.asked.append((each.value, step.spec.label, step.report.footprint_bytes))
                assert step.advice == "advice"
                intent = SimpleNamespace(num_parts=1)
                yield SimpleNamespace(rule="another rule", spec=None, code="", rewrite=None, intent=intent)
                for name in [] if each in self.missing else self.degrees.get(each, [each.value]):
                    spec = SimpleNamespace(label=f"{step.spec.label}+{name}")
                    yield SimpleNamespace(
                        rule=each.rule, spec=spec, code=f"code of {name}", rewrite=each, intent=intent
                    )

            return changes

        monkeypatch.setattr(allowed, "_FAMILIES", {each: family(each) for each in Allowed})
        monkeypatch.setattr(search, "upper_bounds", lambda report: "advice")

    def test_changes_are_made_one_upon_the_other_until_the_step_fits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        saved_bytes = {"net+donate": 300, "net+donate+chunked-loss": 500}
        compiler = _Compiler([_layers()], saved_bytes=saved_bytes)
        every = (Allowed.CHUNKED_ATTENTION, Allowed.CHUNKED_LOSS, Allowed.DONATE)
        plan = compiler.plan(monkeypatch, 1500, allowed=every)
        assert self.asked == [("donate", "net", 2000), ("chunked-loss", "net+donate", 1700)]
        assert _rows(plan) == [
            _AS_IT_IS,
            ("donate_state", 1700, 1000, 0.0, 0),
            ("chunked_loss", 1500, 1000, 0.0, 0),
        ]
        assert plan.changes == (
            PlannedChange(rule="donate_state", code="code of donate", rewrite=Allowed.DONATE),  # type: ignore[arg-type]
            PlannedChange(rule="chunked_loss", code="code of chunked-loss", rewrite=Allowed.CHUNKED_LOSS),  # type: ignore[arg-type]
        )
        assert plan.best is plan.points[-1]
        assert (plan.label, plan.checkpoints) == ("net", None)
        assert compiler.traced == ["net", "net+donate", "net+donate+chunked-loss"]

    def test_a_step_within_the_budget_is_not_changed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        plan = _Compiler([_layers()]).plan(monkeypatch, 2000, allowed=tuple(Allowed))
        assert (self.asked, plan.changes, len(plan.points)) == ([], (), 1)

    def test_a_change_that_saves_nothing_is_taken_back(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The loss in chunks takes as much as before, so checkpoints are chosen for the donating step."""
        saved_bytes = {"net+donate": 100, "net+donate+chunked-loss": 100, "net+donate+fused-attention": 50}
        compiler = _Compiler([_layers()], saved_bytes=saved_bytes)
        asked = (Allowed.DONATE, Allowed.CHUNKED_LOSS, Allowed.FUSED_ATTENTION)
        plan = compiler.plan(monkeypatch, 1415, allowed=asked)
        assert [each.rule for each in plan.changes] == ["donate_state"]
        assert self.asked == [
            ("donate", "net", 2000),
            ("chunked-loss", "net+donate", 1900),
            ("fused-attention", "net+donate", 1900),
        ]
        assert compiler.traced[-1] == "net+donate"
        assert [(row[0], row[1]) for row in _rows(plan)] == [
            ("as it is", 2000),
            ("donate_state", 1900),
            ("chunked_loss", 1900),
            ("flash_attention", 1950),
            ("nothing kept", 900),
            ("chosen", 1400),  # up and norm, 500: 15 are left
        ]
        assert plan.best is plan.points[-1]

    def test_a_change_that_saves_nothing_is_tried_again_after_others(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The attention makes the peak, and after it the loss does."""
        saved_bytes = {"net+fused-attention": 100, "net+fused-attention+chunked-loss": 600}
        compiler = _Compiler([_layers()], saved_bytes=saved_bytes)
        plan = compiler.plan(monkeypatch, 1400, allowed=(Allowed.CHUNKED_LOSS, Allowed.FUSED_ATTENTION))
        assert [(row[0], row[1]) for row in _rows(plan)] == [
            ("as it is", 2000),
            ("chunked_loss", 2000),
            ("flash_attention", 1900),
            ("chunked_loss", 1400),
        ]
        assert [each.rule for each in plan.changes] == ["flash_attention", "chunked_loss"]

    def test_a_step_without_gradients_has_changes_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        saved_bytes = {"net+only-read-rows": 200, "net+only-read-rows+fused-attention": 300}
        compiler = _Compiler([], differentiates=False, saved_bytes=saved_bytes)
        asked = (Allowed.ONLY_READ_ROWS, Allowed.FUSED_ATTENTION)
        plan = compiler.plan(monkeypatch, 700, allowed=asked)
        assert [(row[0], row[1]) for row in _rows(plan)] == [
            ("as it is", 1000),
            ("whole_prompt_logits", 800),
            ("flash_attention", 700),
        ]
        assert plan.best is plan.points[-1]
        assert [each.rule for each in plan.changes] == ["whole_prompt_logits", "flash_attention"]
        assert compiler.plan(monkeypatch, 699, allowed=asked).best is None

    def test_a_change_that_the_step_does_not_have_is_not_compiled(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.missing = {Allowed.DONATE}
        compiler = _Compiler([_layers()], saved_bytes={"net+chunked-loss": 1000})
        plan = compiler.plan(monkeypatch, 1500, allowed=(Allowed.DONATE, Allowed.CHUNKED_LOSS))
        assert [row[0] for row in _rows(plan)] == ["as it is", "chunked_loss"]
        assert [each.rule for each in plan.changes] == ["chunked_loss"]

    @pytest.mark.parametrize(
        ("budget_bytes", "tried", "kept"),
        [
            (1800, ["2", "4"], "code of 4"),  # the first that fits
            (1705, ["2", "4", "8"], "code of 4"),  # eight take more than four, so checkpoints follow
        ],
    )
    def test_a_change_in_degrees_goes_as_far_as_it_has_to(
        self, monkeypatch: pytest.MonkeyPatch, budget_bytes: int, tried: list[str], kept: str
    ) -> None:
        self.degrees = {Allowed.ACCUMULATE: ["2", "4", "8", "16"]}
        compiler = _Compiler([_layers()], saved_bytes={"net+2": 100, "net+4": 200, "net+8": 150, "net+16": 900})
        plan = compiler.plan(monkeypatch, budget_bytes, allowed=(Allowed.ACCUMULATE,))
        assert [f"net+{each}" for each in tried] == [each for each in compiler.traced if "+" in each][: len(tried)]
        assert sum(each.name == "accumulated_gradients" for each in plan.points) == len(tried)
        assert [each.code for each in plan.changes] == [kept]
        assert compiler.traced[-1] == "net+4"
        assert plan.best is not None
        assert plan.best.footprint_bytes <= budget_bytes


def _seconds_of(plan: CheckpointPlan) -> float:
    assert plan.best is not None
    return ranking_seconds(plan.points)(plan.best)


def _ranked(flops: int, repeated: float, size: int, *, is_unchanged: bool = False, bound: float | None = 10.0) -> Any:
    return PlanPoint(
        name=CHOSEN,
        checkpoints=None if is_unchanged else Checkpoints(kept=frozenset()),
        kept_bytes=0,
        repeated_seconds=repeated,
        footprint_bytes=size,
        recomputed_flops=flops,
        at_least_seconds=bound,
    )


def test_of_points_within_the_budget_the_fastest_wins() -> None:
    points = [_ranked(1, 9.0, 9), _ranked(2, 3.0, 1), _ranked(1, 3.0, 9), _ranked(1, 3.0, 8), _ranked(1, 0.0, 10)]
    assert best_within(points, 9) is points[3]  # the last one is too large
    unchanged = _ranked(0, 20.0, 9, is_unchanged=True)  # a step that fits as it is needs no checkpoints
    assert best_within([*points, unchanged], 9) is unchanged
    assert best_within(points, 0) is None


def test_if_a_point_has_no_bound_recomputation_ranks_all() -> None:
    slow, fast = _ranked(1, 2.0, 9, bound=30.0), _ranked(1, 5.0, 9, bound=20.0)
    assert best_within([slow, fast], 9) is fast  # 20 + 5 is less than 30 + 2
    assert best_within([slow, fast, _ranked(1, 3.0, 9, bound=None)], 9) is slow


def test_results_that_are_slow_to_keep_are_recomputed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 8 layers of 1000 bytes and 28 s: recomputing `gelu` twice takes 6 s, keeping its 300 bytes 300 * 0.03 = 9 s.

    For the others, twice the recomputation takes longer than keeping: 32 and 12, 8 and 6, 10 and 3 s.
    """
    compiler = _Compiler([Block(operations=_OPERATIONS, count=8)], is_loop=True, seconds_per_byte=0.03)
    plan = compiler.plan(monkeypatch, _BASE + 7900)
    assert plan.best is not None
    assert plan.best.checkpoints is not None
    assert plan.best.checkpoints.kept == _ALL - {_GELU}
    assert _seconds_of(plan) == pytest.approx(_BASE_SECONDS + 8 * (6 + 0.03 * 700))


def test_a_step_that_is_slow_to_keep_is_left_alone_if_it_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = _Compiler([Block(operations=_OPERATIONS, count=8)], is_loop=True, seconds_per_byte=1.0)
    plan = compiler.plan(monkeypatch, _BASE + 8000, with_curve=True)
    assert plan.best is plan.points[0]
    assert ranking_seconds(plan.points)(plan.curve[-1]) < _seconds_of(plan)  # the curve still shows what is faster


def test_unrolled_layers_store_at_the_price_of_memory_first_and_recompute_less_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Writing and reading a byte takes 0.03 s: without the gelu, as above. Then mixtures, which recompute less."""
    speeds = replace(_SPEEDS, memory_bytes_per_second=2 / 0.03)
    plan = _Compiler([_layers(10)], speeds=speeds, seconds_per_byte=0.03).plan(monkeypatch, 9000)
    first, *last = (each.checkpoints for each in plan.points[2:])
    assert first == Checkpoints(kept=_ALL - {_GELU})
    assert last
    assert all(each is not None and each.num_first is not None for each in last)
    assert plan.best is plan.points[2]  # they take longer


def test_a_scan_for_which_nothing_fits_takes_all_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Storing a byte takes so long that only nothing kept is worthwhile. It is 200 bytes too large, but XLA decides."""
    plan = _Compiler([_layers(10)], is_loop=True, seconds_per_byte=1.0).plan(monkeypatch, _BASE - 200)
    assert plan.best is None
    assert len(plan.points) == 5  # the unchanged step and four more


def test_a_curve_does_not_change_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Choices of a curve recompute as little as their size allows; the plan may keep less."""
    compiler = _Compiler([_layers(10)], is_loop=True, seconds_per_byte=0.015)
    without = compiler.plan(monkeypatch, 9900)
    with_curve = compiler.plan(monkeypatch, 9900, with_curve=True)
    assert with_curve.best is not None
    assert without.best is not None
    assert with_curve.best.checkpoints == without.best.checkpoints


def test_bytes_and_bound_of_a_point_are_those_of_the_plan_without_memory_pressure() -> None:
    unpressed = SimpleNamespace(
        footprint_bytes=9, roofline=SimpleNamespace(at_least_seconds=2.0), memory_spaces={"host": 3}
    )
    pressed: Any = SimpleNamespace(
        footprint_bytes=5,
        roofline=SimpleNamespace(at_least_seconds=4.0),
        memory_spaces={},
        unpressed=unpressed,
        recomputed_flops=1,
    )
    point = point_of(AS_IT_IS, pressed, None, kept_bytes=0, repeated_seconds=0.0)
    assert (point.footprint_bytes, point.at_least_seconds, point.host_bytes) == (9, 2.0, 3)


@pytest.mark.parametrize(
    ("has_blocks", "peak_bytes", "functions"),
    [
        (False, 950, 1),
        (False, 951, 0),  # it says nothing: the unchanged step has 1000
        (True, 0, 1),  # the estimate of the blocks that keep nothing
        (True, 1, 0),  # so the functions are not exactly the blocks
    ],
)
def test_functions_are_a_place_by_the_estimates_alone(
    monkeypatch: pytest.MonkeyPatch, has_blocks: bool, peak_bytes: int, functions: int
) -> None:
    written = (SimpleNamespace(is_loop=False),)
    compiler = _Compiler([_layers()])
    compiler.place = SimpleNamespace(written=written, has_blocks=has_blocks, peak_bytes=peak_bytes)
    plan = compiler.plan(monkeypatch, 1515)
    assert len(plan.placement.functions) == functions
    assert plan.placement.has_blocks == (has_blocks or not functions)
    assert _rows(plan) == [_AS_IT_IS, _NOTHING_KEPT, ("chosen", 1500, 500, 7.0, 7)]


def test_blocks_that_are_estimated_to_fit_are_the_place_unless_they_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the step's 2000 bytes, 990 are 49.5%, and so are 495 of its estimate of 1000. But 1000 of 2000 stay."""
    blocks = SimpleNamespace(written=None, has_blocks=True, peak_bytes=495)
    written = (SimpleNamespace(is_loop=False),)
    functions = SimpleNamespace(written=written, has_blocks=False, peak_bytes=300)
    compiler = _Compiler([_layers()], place=[blocks, functions])
    plan = compiler.plan(monkeypatch, 990)
    assert compiler.enough == [495, 0]
    assert [row[:2] for row in _rows(plan)[:3]] == [("as it is", 2000), ("nothing kept", 1000), ("nothing kept", 1000)]
    assert plan.placement.functions == written
    assert len(plan.points) <= 5
    # A function that is not enough, either, gives way to the blocks.
    function = SimpleNamespace(written=written, has_blocks=False, peak_bytes=400)
    compiler = _Compiler([_layers()], place=[function, SimpleNamespace(written=None, has_blocks=True, peak_bytes=300)])
    plan = compiler.plan(monkeypatch, 990)
    assert (plan.placement.functions, plan.placement.has_blocks) == ((), True)
    # What is above that is no reason to stop: all places have been compared.
    blocks.peak_bytes = 496
    compiler = _Compiler([_layers()], place=[blocks])
    assert compiler.plan(monkeypatch, 990).placement.functions == ()
    assert compiler.enough == [495]
    compiler = _Compiler([_layers()], place=[blocks])
    compiler.plan(monkeypatch, 990, with_curve=True)
    assert compiler.enough == [0]
