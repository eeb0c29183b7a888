"""Changes that are compiled: in which order outcomes come, what becomes of failures, and what is kept for later.

The compiler is made by hand. Compiles of real steps are in `integration/test_compiled_advice.py`.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
from report_builder import H100, buffer, report

from memprof.analysis.hlo.decoded import FreshCapture
from memprof.analysis.records.capture import Topology
from memprof.analysis.records.categories import Category
from memprof.analysis.records.report import Report
from memprof.errors import Interrupted, MemprofError
from memprof.sources.jax.tracing.step import StepSpec
from memprof.sources.jax.xla.portable_program import TO_THE_PLAN, CompileSettings
from memprof.studies.advice import compiled
from memprof.studies.advice.advice import Advice, Compiled, Meaning, Proposal
from memprof.studies.advice.advise import without_saving
from memprof.studies.advice.known import are_known, keep_changes, known_advice, known_changes
from memprof.studies.changes import compiling
from memprof.studies.changes.change import Change, Step
from memprof.studies.changes.compiling import Outcome, compile_changes
from memprof.workloads.intents import Aim, Intent

_SPEC = StepSpec(len, ())


def _change(rule: str, **fields: Any) -> Change:
    given = {"spec": _SPEC, "intent": Intent(aim=Aim.DONATE), "what": f"do {rule}", "evidence": "e", "cost": "c"}
    return Change(rule=rule, **{**given, **fields})


@dataclass
class _Compiler:
    """In place of JAX and XLA: a program is the name of its step.

    Attributes:
        held: rules whose compile waits for its event.
        said: rules with the stages that they are at.
    """

    held: dict[str, threading.Event] = field(default_factory=dict)
    said: list[tuple[str, str]] = field(default_factory=list)
    children: list[Any] = field(default_factory=list)
    settings: list[CompileSettings] = field(default_factory=list)

    def put_in_place(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(compiling, "lower_step", self.lower_step)
        monkeypatch.setattr(compiling, "planned", self.planned)
        monkeypatch.setattr(compiling, "checked", lambda plan, again: FreshCapture(capture=plan))

    def lower_step(self, spec: StepSpec, target: Any, progress: Callable[[str], None]) -> Any:
        assert target is H100
        progress("lowering")
        if spec.workload == "untraceable":
            raise ZeroDivisionError("no\nsuch step")
        if spec.workload == "warns":
            warnings.warn("Some donated buffers were not usable: f32[4]", UserWarning, stacklevel=2)
        return spec

    def planned(self, lowered: StepSpec, *, progress: Any, settings: CompileSettings, children: Any) -> Any:
        self.children.append(children)
        self.settings.append(settings)

        def plan() -> str:
            if lowered.workload in self.held:
                assert self.held[lowered.workload].wait(timeout=60)
            progress("compiling")
            if lowered.workload == "refused":
                raise MemprofError("XLA refuses it")
            if lowered.workload == "broken":
                raise RuntimeError("INTERNAL: at\nlength")
            return lowered.workload

        return plan

    def outcomes(self, changes: Iterator[Change] | Sequence[Change], *, num_jobs: int = 1) -> Iterator[Outcome]:
        return compile_changes(
            changes,
            H100,
            num_jobs=num_jobs,
            settings=TO_THE_PLAN,
            progress=lambda rule, stage: self.said.append((rule, stage)),
        )


def _named(name: str, **fields: Any) -> Change:
    return _change(name, spec=replace(_SPEC, workload=name), **fields)


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> _Compiler:
    made = _Compiler()
    made.put_in_place(monkeypatch)
    return made


class TestCompileChanges:
    def test_each_change_is_traced_then_compiled_and_its_stages_are_told(self, compiler: _Compiler) -> None:
        outcomes = {each.change.rule: each for each in compiler.outcomes([_named("a"), _named("b")])}
        assert {rule: each.fresh and each.fresh.capture for rule, each in outcomes.items()} == {"a": "a", "b": "b"}
        assert all(each.refusal == "" for each in outcomes.values())
        for rule in "ab":
            assert [stage for name, stage in compiler.said if name == rule] == ["lowering", "compiling", "done"]
        assert compiler.settings == [TO_THE_PLAN] * 2

    def test_failures_have_a_reason_and_the_others_are_compiled(self, compiler: _Compiler) -> None:
        changes = [_named(name) for name in ("untraceable", "refused", "broken", "fine")]
        outcomes = {each.change.rule: each for each in compiler.outcomes(changes)}
        assert {rule: each.refusal for rule, each in outcomes.items()} == {
            "untraceable": "ZeroDivisionError: no",
            "refused": "XLA refuses it",
            "broken": "RuntimeError: INTERNAL: at",
            "fine": "",
        }
        assert [rule for rule, each in outcomes.items() if each.fresh is not None] == ["fine"]
        for rule, last in (("untraceable", "failed"), ("refused", "failed"), ("broken", "failed"), ("fine", "done")):
            assert [stage for name, stage in compiler.said if name == rule][-1] == last

    def test_an_outcome_does_not_wait_for_the_changes_that_follow(self, compiler: _Compiler) -> None:
        """The first is compiled while further changes are looked for; its outcome is known before they all are."""
        compiler.held["first"] = threading.Event()
        found: list[str] = []

        def changes() -> Iterator[Change]:
            yield _named("first")
            yield _named("untraceable")
            assert found == ["untraceable"]
            compiler.held["first"].set()
            for _ in range(5000):
                if "first" in found:
                    break
                time.sleep(0.001)
                yield _named("untraceable")
            found.append("all are found")

        for outcome in compiler.outcomes(changes()):
            found.append(outcome.change.rule)
        assert [each for each in found if each != "untraceable"] == ["first", "all are found"]

    def test_several_are_compiled_at_a_time(self, compiler: _Compiler) -> None:
        compiler.held["first"] = threading.Event()
        outcomes = compiler.outcomes([_named("first"), _named("second")], num_jobs=2)
        assert next(outcomes).change.rule == "second"
        compiler.held["first"].set()
        assert [each.change.rule for each in outcomes] == ["first"]

    def test_the_step_is_traced_in_the_context_of_its_change_alone(self, compiler: _Compiler) -> None:
        @contextmanager
        def around() -> Iterator[None]:
            compiler.said.append(("around", "entered"))
            yield
            compiler.said.append(("around", "left"))

        list(compiler.outcomes([_named("a", around=around), _named("b")]))
        first = [each for each in compiler.said if each[0] in ("around", "a")][:3]
        assert first == [("around", "entered"), ("a", "lowering"), ("around", "left")]

    def test_that_a_batch_cannot_be_donated_is_no_warning_to_the_user(self, compiler: _Compiler) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            (outcome,) = compiler.outcomes([_named("warns")])
        assert outcome.refusal == ""

    def test_whoever_stops_early_ends_the_compiles(self, compiler: _Compiler) -> None:
        before = {*threading.enumerate()}
        compiler.held["second"] = threading.Event()
        outcomes = compiler.outcomes([_named("first"), _named("second")], num_jobs=1)
        assert next(outcomes).change.rule == "first"
        compiler.held["second"].set()
        outcomes.close()  # type: ignore[attr-defined]
        with pytest.raises(MemprofError, match="interrupted"):
            compiler.children[0].check()
        assert {*threading.enumerate()} <= before


def _report(length: int, **fields: Any) -> Report:
    return replace(report([buffer((length,), "f32", Category.ACTIVATIONS)], target=H100), **fields)


def _advice(rule: str = "donate_state", *, saving_bytes: int = 3000, **fields: Any) -> Advice:
    proposal = Proposal(
        intent=Intent(aim=Aim.DONATE, positions=(0, 2)),
        what="Donate the state",
        evidence="it is copied",
        cost="nothing",
        code="step = jax.jit(step, donate_argnums=(0, 2))",
        without=lambda buffer: None,
    )
    kept = Compiled(
        footprint_bytes=1000, saving_bytes=saving_bytes, recomputed_flops=7, seconds=0.5, meaning=Meaning.CLOSE
    )
    return Advice(**{"rule": rule, "proposal": proposal, "bound_bytes": saving_bytes, "compiled": kept, **fields})


@pytest.mark.usefixtures("empty_cache")
class TestKnown:
    @pytest.fixture
    def empty_cache(self, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
        monkeypatch.setenv("MEMPROF_CACHE_DIR", str(tmp_path_factory.mktemp("cache-of-tests-")))

    def test_a_later_report_of_the_program_has_what_was_compiled(self) -> None:
        assert not are_known(_report(1000))
        assert known_changes(_report(1000)) == ()
        keep_changes(_report(1000), [_advice(), _advice("a bound", compiled=None), _advice("worse", saving_bytes=-5)])
        found = known_changes(_report(1000, label="renamed"))
        assert are_known(_report(1000))
        assert [each.rule for each in found] == ["donate_state", "worse"]
        first = _advice()
        assert replace(found[0], proposal=first.proposal) == first
        assert replace(found[0].proposal, without=first.proposal.without) == first.proposal
        (advised,) = [each for each in known_advice(_report(1000)) if each.is_compiled]
        assert (advised.rule, advised.saving_bytes) == ("donate_state", 3000)

    def test_that_nothing_can_be_changed_is_known_too(self) -> None:
        keep_changes(_report(1000), [])
        assert are_known(_report(1000))
        assert known_changes(_report(1000)) == ()

    def test_what_could_not_be_compiled_is_tried_again(self) -> None:
        keep_changes(_report(1000), [_advice()], is_complete=False)
        assert not are_known(_report(1000))
        assert [each.rule for each in known_changes(_report(1000))] == ["donate_state"]

    def test_another_program_or_device_or_version_knows_nothing_of_it(self) -> None:
        made = _report(1000)
        keep_changes(made, [_advice()])
        (only,) = made.buffers
        others = [
            _report(1001),
            replace(made, target=replace(H100, name="a100-40gb")),
            replace(made, target=replace(H100, topology=Topology(num_devices=2, axes={"data": 2}))),
            replace(made, toolchain=replace(made.toolchain, jaxlib="0.0.1")),
            *(
                replace(made, buffers=(replace(only, **{name: value}),))
                for name, value in (
                    ("op", "other"), ("source", "other.py:1"), ("dtype", "s32"), ("shape", (10, 100)), ("start", 5),
                    ("end", 77),
                )
            ),
        ]  # fmt: skip
        assert [each for each in others if are_known(each)] == []
        assert are_known(replace(made, label="another name", workload="another"))

    def test_a_damaged_note_is_as_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        made = _report(1000)
        keep_changes(made, [_advice()])
        for note in (b"{", b'[{"rule": 3}]', b"null", b'{"advice": [{"rule": 3}], "is_complete": true}'):
            monkeypatch.setattr("memprof.studies.advice.known._note", lambda report, note=note: note)
            assert known_changes(made) == ()

    def test_an_environment_that_names_no_cache_keeps_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MEMPROF_CACHE_SIZE", "much")
        keep_changes(_report(1000), [_advice()])
        assert not are_known(_report(1000))


@dataclass
class _Advising:
    """`advise_step` with families and a compiler by hand."""

    families: tuple[Callable[[Step], Iterator[Change]], ...] = ()
    outcomes: Callable[[list[Change]], Iterable[Outcome]] = lambda changes: []
    said: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    kept: list[tuple[list[Advice], bool]] = field(default_factory=list)
    settings: list[CompileSettings] = field(default_factory=list)
    known: bool = False
    checked: list[str] = field(default_factory=list)

    def advise(self, monkeypatch: pytest.MonkeyPatch, **options: Any) -> tuple[Report, tuple[Advice, ...]]:
        def capture_of(spec: StepSpec, target: Any, *, progress: Any, settings: CompileSettings) -> FreshCapture:
            progress("compiling")
            self.settings.append(settings)
            return FreshCapture(capture=1000)  # type: ignore[arg-type]

        def compile_changes(changes: Any, target: Any, **given: Any) -> Iterable[Outcome]:
            self.settings.append(given["settings"])
            return self.outcomes([*changes])

        @contextmanager
        def rows(labels: Sequence[str]) -> Iterator[Callable[[str, str], None]]:
            assert labels == []
            yield lambda rule, stage: None
            self.labels = [*labels]

        for name, value in {
            "capture_of": capture_of,
            "analyze": lambda capture, decoded, pool=None: _report(capture),
            "compile_changes": compile_changes,
            "are_known": lambda made: self.known,
            "known_advice": lambda made: (_advice("known"),),
            "keep_changes": lambda made, found, *, is_complete: self.kept.append(([*found], is_complete)),
            "MeaningCheck": self.meaning_check,
            "FAMILIES": self.families,
        }.items():
            monkeypatch.setattr(compiled, name, value)
        rows_: Callable[[Sequence[str]], AbstractContextManager[Callable[[str, str], None]]] = rows
        return compiled.advise_step(_SPEC, H100, progress=self.said.append, rows=rows_, **options)

    def meaning_check(self, step: Step) -> Any:
        self.steps.append(step)
        return SimpleNamespace(of=lambda change: self.checked.append(change.rule) or Meaning.EQUAL)


def _yielding(*changes: Change) -> Callable[[Step], Iterator[Change]]:
    return lambda step: iter(changes)


def test_changes_of_the_passes_without_a_saving_may_save_after_others() -> None:
    """The footprint is 400,000 bytes, so 8,000 are too few to show."""
    kernel, recomputation = Intent(aim=Aim.FUSE_ATTENTION), Intent(aim=Aim.RECOMPUTE_SCAN)

    def with_intent(intent: Intent, saving_bytes: int) -> Advice:
        advice = _advice(saving_bytes=saving_bytes)
        return replace(advice, proposal=replace(advice.proposal, intent=intent))

    small, negative = with_intent(kernel, 8000), with_intent(kernel, -5)
    compiled = [small, with_intent(kernel, 8001), negative, with_intent(recomputation, 0), _advice(saving_bytes=0)]
    assert without_saving(_report(100_000), compiled) == (small, negative)


class TestAdviseStep:
    def test_what_is_known_is_not_compiled_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        advising = _Advising(known=True, families=(_yielding(_change("a")),))
        made, advice = advising.advise(monkeypatch)
        assert (made.footprint_bytes, [each.rule for each in advice]) == (4000, ["known"])
        assert advising.said == ["compiling", "analysing"]
        assert advising.kept == []
        anew = _Advising(known=True)
        _, advice = anew.advise(monkeypatch, settings=replace(TO_THE_PLAN, use_cache=False))
        assert anew.kept == [([], True)]
        assert anew.said == ["compiling", "analysing", "looking for changes"]
        assert "known" not in {each.rule for each in advice}

    def test_each_change_has_the_saving_of_its_compile(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """From 4,000 to 400 bytes; the other change could not be compiled."""

        def outcomes(changes: list[Change]) -> list[Outcome]:
            assert [each.rule for each in changes] == ["donate_state", "recompute_dots"]
            small: Any = FreshCapture(capture=100)  # type: ignore[arg-type]
            return [
                Outcome(change=changes[1], fresh=None, refusal="XLA refuses it"),
                Outcome(change=changes[0], fresh=small),
            ]

        families = (_yielding(_change("donate_state")), _yielding(_change("recompute_dots")))
        advising = _Advising(families=families, outcomes=outcomes)
        with pytest.warns(RuntimeWarning, match="memprof could not try recompute_dots: XLA refuses it"):
            _, advice = advising.advise(monkeypatch, settings=replace(TO_THE_PLAN, cluster="tcp://host:1"))
        assert advising.labels == ["donate_state", "recompute_dots"]
        (((kept,), is_complete),) = advising.kept
        assert not is_complete
        assert (kept.rule, kept.saving_bytes, kept.compiled and kept.compiled.meaning) == (
            "donate_state",
            3600,
            Meaning.EQUAL,
        )
        (first,) = [each for each in advice if each.is_compiled]
        assert (first.rule, first.saving_bytes, first.refusal) == ("donate_state", 3600, "")
        # It is compiled here, however the settings are.
        assert [each.cluster for each in advising.settings] == [None, None]
        assert advising.checked == ["donate_state"]
        assert len(advising.steps) == 1  # one check for all changes, so that it traces and runs the original once

    def test_what_was_compiled_before_an_interruption_is_kept_and_passed_on(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def outcomes(changes: list[Change]) -> Iterator[Outcome]:
            yield Outcome(change=changes[0], fresh=FreshCapture(capture=100))  # type: ignore[arg-type]
            raise Interrupted

        changes = _yielding(_change("donate_state"), _change("recompute_dots"))
        advising = _Advising(families=(changes,), outcomes=outcomes)
        passed_on: list[tuple[Report, tuple[Advice, ...]]] = []
        with pytest.raises(Interrupted):
            advising.advise(monkeypatch, interrupted=lambda *found: passed_on.append(found))
        (((kept,), is_complete),) = advising.kept
        assert (kept.rule, kept.saving_bytes, is_complete) == ("donate_state", 3600, False)
        ((report, advice),) = passed_on
        assert report.footprint_bytes == 4000
        assert [each.rule for each in advice if each.is_compiled] == ["donate_state"]

    def test_an_interruption_before_the_first_compile_passes_nothing_on(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def outcomes(changes: list[Change]) -> Iterator[Outcome]:
            raise Interrupted
            yield

        advising = _Advising(families=(_yielding(_change("donate_state")),), outcomes=outcomes)
        passed_on: list[object] = []
        with pytest.raises(Interrupted):
            advising.advise(monkeypatch, interrupted=lambda *found: passed_on.append(found))
        assert not passed_on
        assert not advising.kept

    def test_a_bound_whose_change_could_not_be_compiled_says_why(self, monkeypatch: pytest.MonkeyPatch) -> None:
        bounds = _advice("a", compiled=None), _advice("b", compiled=None)
        monkeypatch.setattr(compiled, "advise", lambda made, found: (*bounds, *found))
        families = (_yielding(_change("a")),)
        advising = _Advising(
            families=families, outcomes=lambda changes: [Outcome(change=changes[0], fresh=None, refusal="no room")]
        )
        _, advice = advising.advise(monkeypatch)
        assert [(each.rule, each.refusal) for each in advice] == [("a", "no room"), ("b", "")]
        assert advising.kept == [([], False)]

    def test_one_change_of_two_of_a_rule_could_not_be_compiled(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The other one does not bear its refusal."""
        monkeypatch.setattr(compiled, "advise", lambda made, found: (_advice("a"), *found))
        advising = _Advising(
            families=(_yielding(_change("a")),),
            outcomes=lambda changes: [Outcome(change=changes[0], fresh=None, refusal="no room")],
        )
        with pytest.warns(RuntimeWarning, match="memprof could not try a: no room"):
            _, (advice,) = advising.advise(monkeypatch)
        assert advice.refusal == ""

    def test_a_change_that_another_makes_needless_is_not_compiled(self, monkeypatch: pytest.MonkeyPatch) -> None:
        kernel, blocks, other = (_change(rule) for rule in ("flash_attention", "chunked_attention", "chunked_loss"))
        both = _Advising(families=(_yielding(kernel), _yielding(blocks, other)))
        both.advise(monkeypatch)
        assert both.labels == ["flash_attention", "chunked_loss"]
        alone = _Advising(families=(_yielding(blocks, other),))
        alone.advise(monkeypatch)
        assert alone.labels == ["chunked_attention", "chunked_loss"]

    def test_families_see_the_step_with_the_advice_of_the_rules(self, monkeypatch: pytest.MonkeyPatch) -> None:
        advising = _Advising()
        advising.advise(monkeypatch, is_built_in=True, with_technique=lambda label: _SPEC)
        (step,) = advising.steps
        assert (step.spec, step.target, step.is_built_in) == (_SPEC, H100, True)
        assert step.with_technique is not None
        assert step.report.footprint_bytes == 4000
        (plain,) = (advising := _Advising(), advising.advise(monkeypatch))[0].steps
        assert (plain.is_built_in, plain.with_technique) == (False, None)


def test_a_search_that_fails_leaves_the_other_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(step: Any) -> Iterator[Any]:
        yield SimpleNamespace(rule="first of two")
        raise TypeError("cannot reshape\nan array")

    def working(step: Any) -> Iterator[Any]:
        yield SimpleNamespace(rule="working")

    monkeypatch.setattr(compiled, "FAMILIES", (broken, working))
    labels: list[str] = []
    stages: list[tuple[str, str]] = []
    step: Any = SimpleNamespace()
    failures: dict[str, str] = {}
    found = [each.rule for each in compiled._changes(step, labels, lambda *stage: stages.append(stage), failures)]
    assert found == ["first of two", "working"]
    assert labels == ["first of two", "broken", "working"]
    assert stages == [("broken", "failed")]
    assert failures == {"broken": "TypeError: cannot reshape"}
