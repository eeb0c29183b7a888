"""Every field of the documents that commands print, of inputs in which every field says something.

The recordings of formats (`test_formats_golden.py`) show what a reader sees at one width; these show also what is left
out there: which column goes first where room is short, how texts are cut, what a cell links to.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from full_report import full_report
from oom_logs import POSTED
from outline import outline
from recorded import check_recorded
from report_builder import H100, buffer, report
from reports_data import REPORTS
from stacked_report import stacked
from unit.reports.test_fit_techniques_view import BROKEN, DONATE, RESULT
from unit.reports.test_kernels_view import BLOCK, KIB, MIB, OUTPUT, SCRATCH, _calls, _with_smem
from unit.reports.test_memory_profile_view import AFTER, BEFORE, FOUND, beside
from unit.studies.test_advice import CASES
from unit.studies.test_fitting import _result
from unit.studies.test_gate import _step

from memprof.analysis.comparison import FailedRow, Verdict, compare, diff
from memprof.analysis.records.capture import Speeds
from memprof.analysis.records.categories import Category, Phase, Role
from memprof.analysis.records.checkpoints import Checkpoints, Signature
from memprof.analysis.records.pressure import Pressure
from memprof.analysis.records.report import Report, Schedule
from memprof.analysis.records.rewrites import OnlyReadRows
from memprof.analysis.records.watched import SeenCall, SeenCompile
from memprof.analysis.records.why_live import Link, Operation, Reason, WhyLive
from memprof.reports.document import Document
from memprof.reports.format import format_named
from memprof.reports.formats.json import render_object
from memprof.reports.json.answers import advice_list_json, check_json, fit_json, fit_techniques_json, plan_json
from memprof.reports.json.comparison import diff_json
from memprof.reports.json.fit_curve import fit_curve_json
from memprof.reports.json.memory_profile import memory_profile_diff_json, memory_profile_json
from memprof.reports.json.runs import job_json
from memprof.reports.json.serving import serving_json
from memprof.reports.layout.lines import Paper, Span
from memprof.reports.layout.page import page_lines
from memprof.reports.options import By, Order, RenderOptions
from memprof.reports.views.advice import advice_document
from memprof.reports.views.check import check_document
from memprof.reports.views.comparison import comparison_document
from memprof.reports.views.diff import diff_document
from memprof.reports.views.explain import explanation_document
from memprof.reports.views.first_screen import first_screen_document
from memprof.reports.views.fit import fit_curve_document, fit_document, techniques_document
from memprof.reports.views.imported import ImportedProgram, imported_document
from memprof.reports.views.job import job_document
from memprof.reports.views.kernels import kernel_blocks
from memprof.reports.views.memory_profile import memory_profile_diff_document, memory_profile_document
from memprof.reports.views.modules import model_summary_document
from memprof.reports.views.plan import plan_document
from memprof.reports.views.report import by_document, summary_document
from memprof.reports.views.serving import serving_document
from memprof.reports.views.why import why_document
from memprof.studies.advice.advice import Compiled as Outcome
from memprof.studies.advice.advice import Meaning
from memprof.studies.advice.advise import advise
from memprof.studies.changes.checkpoint_code import PLAIN, Written
from memprof.studies.check.baseline import baseline_of
from memprof.studies.check.check import check
from memprof.studies.explain.explanation import AskedFor, explain
from memprof.studies.explain.log import read_log
from memprof.studies.fit.cheapest import Cost
from memprof.studies.fit.results import Batch, CurvePoint, FitCurve, LargerValue
from memprof.studies.plan.placement import Placement
from memprof.studies.plan.plan import AS_IT_IS, CHOSEN, NOTHING_KEPT, CheckpointPlan, PlannedChange, PlanPoint
from memprof.studies.serving import ServedProgram, ServingPlan
from memprof.studies.watch.job import Job
from memprof.studies.watch.moments import Growth, LargestMoment, OtherArrays
from memprof.studies.watch.programs import Compiled, JobProgram
from memprof.studies.watch.recompiles import Recompile

_PRESSURE = Pressure(planned_bytes=2**30, recomputed_values=1, recomputed_flops=0, footprint_without_limit_bytes=2**31)


def _smaller() -> Report:
    """Half of what each layer makes; one device; measured by nobody."""
    half = full_report("net baseline", scale=2)
    return replace(half, target=H100, measured=None, op_costs=(), pressure=None, without_limit=None, refusal="")


def _comparison(by: By | None, order: Order, top: int) -> Document:
    rows = [_smaller(), full_report(), replace(full_report("net bf16"), recomputed_flops=0, measured=None)]
    verdicts = {
        "net bf16+scan": [
            Verdict(took_effect=True, evidence="scan: a loop"),
            Verdict(took_effect=False, evidence="no"),
        ],
        "net bf16": [Verdict(took_effect=None, evidence="bf16: cannot tell")],
    }
    failures = [FailedRow(label="net remat", reason="it broke")]
    made = compare(rows, baseline="net baseline", verdicts=verdicts, failures=failures)
    return comparison_document(made, RenderOptions(by=by, depth=3, top=top, order=order))


def _diff(by: By | None, top: int) -> Document:
    return diff_document(diff(_smaller(), full_report(scale=3)), RenderOptions(by=by, depth=3, top=top))


def _many_rows() -> Document:
    """Seven rows that fit, one that needs a larger pool and one that does not fit."""
    made = [
        report(
            [buffer((16 * 2**30 * size // 4,), "f32", Category.ACTIVATIONS, op="jit(f)/dot")], label=f"net t{number}"
        )
        for number, size in enumerate((1, 1, 1, 2, 1, 1, 3, 4, 8))
    ]
    return comparison_document(compare(made, baseline="net t3"), RenderOptions(depth=1, top=2, order=Order.FOOTPRINT))


def _why() -> Document:
    """A buffer of each reason; the last waits for six operations, by a chain of fourteen parts."""
    made = replace(
        full_report(),
        schedule=Schedule(bound_bytes=full_report().live_peak_bytes - 900, other_bytes=19_000),
    )

    def operation(number: int, source: str = "/home/me/net/net.py:3") -> Operation:
        return Operation(
            name=f"add.{number}",
            op=f"jit(step)/add_{number}" if number % 2 else "",
            source=source,
            module="head",
            phase=Phase.BACKWARD,
            position=1000 * number,
        )

    chain = tuple(
        Link(
            phase=Phase.BACKWARD if number else Phase.NONE,
            module=f"layers_{number}" if number % 3 else "",
            op=f"jit(step)/mul_{number}",
            num_operations=1000 + number,
        )
        for number in range(14)
    )
    last = made.buffers[-2]
    users = tuple(operation(number) for number in range(1, 7))
    reasons = [
        WhyLive(buffer=made.buffers[0], reason=Reason.WHOLE_STEP, at_peak=None),
        WhyLive(buffer=last, reason=Reason.ANY_ORDER, at_peak=operation(8)),
        WhyLive(buffer=last, reason=Reason.EARLY, at_peak=operation(8), users=users[:4], chain=chain[:12]),
        WhyLive(buffer=last, reason=Reason.WAITING, at_peak=operation(8), users=users[:1], ready=0),
        WhyLive(buffer=last, reason=Reason.WAITING, at_peak=operation(8), users=users[:1]),
        WhyLive(buffer=last, reason=Reason.WAITING, at_peak=operation(8), users=users, ready=1234, chain=chain),
        WhyLive(buffer=last, reason=Reason.WAITING, at_peak=operation(8), users=users),
    ]
    return why_document(made, reasons, top=6)


def _compiled(number: int, size_bytes: int | None, call: str | None = "train_step") -> Compiled:
    return Compiled(
        seen=SeenCompile(name=f"jit_{call}", call=call and str(number), began=float(number), seconds=1.25 * number),
        call=None if call is None else SeenCall(id=str(number), function=call, place="train.py:9", jit=1),
        folder=Path(),
        roles={Role.PARAMS: {"float32[4]": 2}} if call else {},
        footprint_bytes=size_bytes,
        live_peak_bytes=None if size_bytes is None else size_bytes // 2,
    )


def _program(name: str, *compiles: Compiled, times: tuple[int, ...] = ()) -> JobProgram:
    return JobProgram(
        name=name,
        place=f"{name}.py:9",
        kind="train step",
        compiles=compiles,
        state={"float32[4]": 2, "float32[8]": 1} if name != "init" else {},
        recompiles=tuple(Recompile(times=each, reason=f"reason {each}") for each in times),
    )


_OTHERS = tuple(
    OtherArrays(type=f"float32[{size}]", count=1000 * size, size_bytes=4000 * size, what=f"held by {size}")
    for size in (5, 3, 2, 1)
)
_MOMENT = LargestMoment(
    program="train_step",
    footprint_bytes=2**20,
    seconds=12.4,
    is_seen=True,
    others=_OTHERS,
    live_bytes=2**21,
    in_use_bytes=2**21 + 1024,
)
JOB = Job(
    label="train.py --fast",
    programs=(
        _program("train_step", *(_compiled(n, 2**20 - n) for n in (1, 2, 3)), times=(1, 2, 3, 1000)),
        _program("evaluate", _compiled(4, 2**19), _compiled(5, 2**18)),
        _program("grad", _compiled(6, 2**17)),
        _program("init", _compiled(7, None, "init")),
    ),
    of_jax=tuple(_compiled(number, size, None) for number, size in enumerate((None, 64, 128, 32), start=1)),
    moment=_MOMENT,
    growth=tuple(
        Growth(type=f"float32[{n}]", from_count=n, to_count=1000 * n, grown_bytes=4000 * n, seconds=9.6, what="held")
        for n in (3, 2, 1)
    ),
    not_followed={"evaluate": "it has no roles"},
    ending=None,
)


def _job(job: Job, *, top: int) -> Document:
    advice_of = CASES["donate_state"][0]()
    pressed = replace(advice_of, pressure=_PRESSURE)
    return job_document(job, top=top, report=pressed, advice=advise(advice_of))


SERVING = ServingPlan(
    label="engine",
    target=H100,
    pool_bytes=10_000_000,
    weights_bytes=4_000_000,
    cache_bytes=64_000,
    state_bytes=100,
    constant_bytes=2_000,
    cache_tokens=64,
    cache_bytes_per_token=1_000,
    programs=(
        ServedProgram(
            name="decode",
            footprint_bytes=4_200_000,
            own_bytes=136_000,
            constant_bytes=2_000,
            copied_cache_bytes=128_000,
        ),
        ServedProgram(name="embed", footprint_bytes=4_064_100, own_bytes=10, constant_bytes=0, copied_cache_bytes=0),
    ),
    max_tokens=1_996,
)

_SIGNATURE = Signature("tanh", (((4,), "float32"),), "None")


def _plan_point(name: str, kept: bool | None, kept_bytes: int, footprint_bytes: int, flops: int) -> PlanPoint:
    checkpoints = None if kept is None else Checkpoints(kept=frozenset({_SIGNATURE} if kept else ()))
    return PlanPoint(
        name=name,
        checkpoints=checkpoints,
        kept_bytes=kept_bytes,
        repeated_seconds=1e-12 * flops,
        footprint_bytes=footprint_bytes,
        recomputed_flops=flops,
        at_least_seconds=0.010 + 1e-12 * flops,
    )


def plan(*, budget_bytes: int, best: int | None) -> CheckpointPlan:
    """As it is, nothing kept, a choice, and two mixtures; `best` by its number."""
    chosen = _plan_point(CHOSEN, True, 1000, 6000, 3 * 10**9)
    assert chosen.checkpoints is not None
    points = (
        _plan_point(AS_IT_IS, None, 4000, 9000, 0),
        _plan_point(NOTHING_KEPT, False, 0, 5000, 9 * 10**9),
        chosen,
        replace(chosen, checkpoints=replace(chosen.checkpoints, num_first=1197), footprint_bytes=6100),
        replace(
            chosen,
            checkpoints=replace(chosen.checkpoints, num_first=2, kept_by_rest=frozenset()),
            footprint_bytes=6200,
            recomputed_flops=4 * 10**9,
        ),
    )
    return CheckpointPlan(
        label="net",
        target=H100,
        budget_bytes=budget_bytes,
        points=points,
        best=None if best is None else points[best],
        placement=Placement(num_blocks=1200, is_loop=best == 2),
    )


def _in_a_scan(plan: CheckpointPlan) -> CheckpointPlan:
    return replace(plan, placement=replace(plan.placement, is_loop=True))


def plan_around_functions() -> CheckpointPlan:
    """Return a plan with checkpoints around two functions of two files, in place of blocks."""
    functions = [
        Written(title=name, definition=name, target=target, file=file, line=1, is_loop=False, form=PLAIN)
        for name, target, file in (("Block", "Block.__call__", "net.py"), ("head", "head", "loss.py"))
    ]
    found = plan(budget_bytes=6000, best=2)
    placement = Placement(num_blocks=1200, is_loop=False, functions=tuple(functions), has_blocks=False)
    return replace(found, points=found.points[:3], placement=placement)


def plan_in_groups() -> CheckpointPlan:
    """Return the plan of a scan that only fits with its iterations in groups."""
    found = plan(budget_bytes=2000, best=2)
    nothing = found.points[1]
    grouped = replace(nothing, checkpoints=Checkpoints(kept=frozenset(), group_size=34), footprint_bytes=1500)
    placement = replace(found.placement, titles=("body at rollout.py:12",))
    return replace(found, points=(*found.points[:2], grouped), best=grouped, placement=placement)


def unchanged_plan() -> CheckpointPlan:
    """Return the plan of a step that fits unchanged, so only the unchanged step was compiled."""
    found = plan(budget_bytes=9000, best=0)
    return replace(found, points=found.points[:1])


def plan_without_gradients() -> CheckpointPlan:
    """Return the plan of a step that generates, of which a change does not save enough."""
    found = plan(budget_bytes=4999, best=None)
    points = (found.points[0], _plan_point("whole_prompt_logits", None, 0, 7000, 0))
    change = PlannedChange(rule="whole_prompt_logits", code="", rewrite=OnlyReadRows())
    return replace(found, points=points, changes=(change,), placement=replace(found.placement, num_blocks=0))


def slow_plan() -> CheckpointPlan:
    """Return a curve of a step that fits unchanged, but is slower than with the chosen checkpoints."""
    found = plan(budget_bytes=9000, best=0)
    points = (replace(found.points[0], at_least_seconds=0.020), *found.points[1:])
    return replace(_in_a_scan(found), points=points, best=points[0])


def _explanation() -> Document:
    """A temp block of a program that lists more buffers than are shown, every other one of which it has itself."""
    found, program = explain(read_log(POSTED["tpu, compiling, buffers listed (jax 0.4)"].text), []), full_report()
    (first,) = found.listed
    listed = tuple(
        replace(
            first,
            listed=replace(first.listed, size_bytes=2**30 + number, op="" if number == 2 else first.listed.op),
            phase=list(Phase)[number],
            buffer=program.buffers[number] if number % 2 else None,
        )
        for number in range(6)
    )
    return explanation_document(
        replace(found, program=program, asked=program.buffers[:5], asked_for=AskedFor.TEMP_BLOCK, listed=listed), top=4
    )


def _fit() -> Document:
    found = _result((1, 500), (2, 900), (4, 700), (8, 2000), (9, 2500))
    tried = tuple(
        replace(trial, pressure=_PRESSURE, pressed_footprint_bytes=100) if trial.value >= 8 else trial
        for trial in found.tried
    )
    return fit_document(
        replace(
            found,
            tried=tried,
            techniques=("bf16", "remat"),
            step=4,
            step_reason="the batch is divided by 4",
            num_devices=4,
            mesh="fsdp=4",
            batch=Batch(in_all=16, on_a_device=4),
            larger=LargerValue(value=9, mem_fraction=0.9, footprint_bytes=2500),
        )
    )


def _curve() -> FitCurve:
    """A length at which nothing fits, one with a largest value, and one without a next value."""
    on_mesh = replace(
        _result((4, 500), (8, 900), (1024, 920), (1028, 2500)),
        techniques=("bf16", "remat"),
        value=1024,
        next_value=1028,
        step=4,
        step_reason="of 4 microbatches",
        mesh="fsdp=4",
        num_devices=4,
        command="memprof run mlp --set batch_size=1024",
    )
    return FitCurve(
        against="length",
        points=(
            CurvePoint(at=1000, found=None, refusal="not even batch_size=1 fits."),
            CurvePoint(at=2000, found=on_mesh),
            CurvePoint(at=4000, found=replace(_result((1, 930)), next_value=None)),
        ),
    )


def _techniques() -> Document:
    timed = replace(DONATE, step_seconds=0.5, at_least_seconds=0.02, host_bytes=3, cost=Cost(recomputed_flops=10**9))
    other = replace(DONATE, techniques=("opt=lion",), cost=Cost(changes_training=True), at_least_seconds=0.03)
    return techniques_document(replace(RESULT, ranked=(other, timed), others=(BROKEN,)))


def _check() -> Document:
    """More changes of each kind than are shown."""
    before = full_report(scale=2)
    result = check(full_report(scale=5), baseline=baseline_of(before))
    return check_document(result, top=1)


def _compiled_advice() -> Document:
    """A saving that was compiled, with and without a bound, one that was refused, and one that is a bound."""
    (first, *_) = advise(CASES["donate_state"][0]())
    outcome = Outcome(
        footprint_bytes=10**6, saving_bytes=3 * 2**10, recomputed_flops=4 * 10**9, seconds=0.0125, meaning=Meaning.EQUAL
    )
    unpriced = replace(outcome, saving_bytes=2**10, recomputed_flops=0, seconds=None, meaning=Meaning.DIFFERENT)
    rows = (
        replace(first, compiled=outcome, bound_bytes=3 * 2**10),
        replace(first, compiled=unpriced, bound_bytes=2**10),
        replace(first, refusal="XLA refuses it"),
        first,
    )
    return advice_document(full_report(), rows, of_step=True, without_saving=(first, first))


def _kernels() -> Document:
    kernels = (
        _calls(BLOCK, BLOCK, OUTPUT, SCRATCH, limit_bytes=16 * MIB, used_bytes=5 * MIB),
        _with_smem(16 * KIB, num_semaphores=3),
        _with_smem(None),
        _calls(BLOCK, limit_bytes=None),
    )
    return Document(blocks=kernel_blocks(kernels, top=2))


_IMPORTED = [
    ImportedProgram(name="jit_f", device="h100", footprint_bytes=2048, live_peak_bytes=0, written=0.0, file="a.pb")
]

DOCUMENTS: dict[str, Callable[[], Document]] = {
    "summary": lambda: summary_document(
        full_report(), RenderOptions(depth=2, top=2, with_advice=True, advice=advise(CASES["donate_state"][0]()))
    ),
    "summary_of_one_device": lambda: summary_document(_smaller(), RenderOptions(depth=1, top=100)),
    "summary_of_nothing": lambda: summary_document(
        REPORTS["empty"](), RenderOptions(depth=1, top=1, with_advice=True, advice=())
    ),
    **{
        f"by_{by.value}": (
            lambda by=by: by_document(full_report(), by, RenderOptions(depth=2, top=2, capture="-a b.memprof"))
        )  # type: ignore[misc]
        for by in By
    },
    "by_stack_of_calls": lambda: by_document(stacked(), By.STACK, RenderOptions(depth=1, top=1)),
    "first_screen": lambda: first_screen_document(
        full_report(), RenderOptions(advice=advise(CASES["donate_state"][0]()), capture="a.memprof")
    ),
    "first_screen_unsaved": lambda: first_screen_document(
        _smaller(),
        RenderOptions(advice=advise(CASES["donate_state"][0]()), with_advice=True, with_configuration=False),
    ),
    "model_summary": lambda: model_summary_document(full_report(), depth=2),
    "model_summary_whole": lambda: model_summary_document(full_report(), depth=9),
    "compare": lambda: _comparison(None, Order.FOOTPRINT, 2),
    "compare_by_module": lambda: _comparison(By.MODULE, Order.RECOMPUTED, 2),
    "compare_by_source": lambda: _comparison(By.SOURCE, Order.STEP, 2),
    "compare_by_dtype": lambda: _comparison(By.DTYPE, Order.GIVEN, 1),
    "compare_by_phase": lambda: _comparison(By.PHASE, Order.GIVEN, 1),
    "compare_by_category": lambda: _comparison(By.CATEGORY, Order.GIVEN, 1),
    "compare_many": _many_rows,
    "diff": lambda: _diff(None, 2),
    "diff_by_buffer": lambda: _diff(By.BUFFER, 1),
    "why": _why,
    "job": lambda: _job(JOB, top=2),
    "job_not_seen": lambda: _job(
        replace(JOB, moment=replace(_MOMENT, is_seen=False, others=(), in_use_bytes=2**21 - 2048), growth=()), top=4
    ),
    "job_of_nothing": lambda: job_document(
        replace(JOB, programs=(), of_jax=(), moment=None, growth=(), not_followed={}), top=1
    ),
    "serve_plan": lambda: serving_document(SERVING),
    "serve_plan_too_large": lambda: serving_document(replace(SERVING, max_tokens=0)),
    "serve_plan_unknown": lambda: serving_document(replace(SERVING, max_tokens=None, pool_bytes=None)),
    "plan": lambda: plan_document(plan(budget_bytes=6100, best=3)),
    "plan_of_a_loop": lambda: plan_document(plan(budget_bytes=6000, best=2)),
    "plan_around_functions": lambda: plan_document(plan_around_functions()),
    "plan_in_groups": lambda: plan_document(plan_in_groups()),
    "plan_fits": lambda: plan_document(unchanged_plan()),
    "plan_fits_in_a_scan": lambda: plan_document(_in_a_scan(unchanged_plan())),
    "plan_fits_but_is_slow": lambda: plan_document(slow_plan()),
    "plan_without_gradients": lambda: plan_document(plan_without_gradients()),
    "plan_fits_nothing": lambda: plan_document(plan(budget_bytes=4999, best=None)),
    "explain": _explanation,
    "fit": _fit,
    "fit_curve": lambda: fit_curve_document(_curve()),
    "fit_techniques": _techniques,
    "check": _check,
    "advice": lambda: advice_document(CASES["donate_state"][0](), advise(CASES["donate_state"][0]()), of_step=False),
    "advice_of_a_step": lambda: advice_document(
        CASES["donate_state"][0](), advise(CASES["donate_state"][0]()), of_step=True
    ),
    "advice_compiled": _compiled_advice,
    "imported": lambda: imported_document(_IMPORTED),
    "kernels": _kernels,
    "memory_profile": lambda: memory_profile_document(FOUND, beside(pool_bytes=2**23), top=1),
    "memory_profile_diff": lambda: memory_profile_diff_document(BEFORE, AFTER, top=1),
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_outline_is_as_recorded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "localtime", time.gmtime)
    check_recorded(outline(DOCUMENTS[name]()), f"outlines/{name}.txt")


def _marked(span: Span) -> str:
    """A span with its looks behind it: its key, and whether it is bold or filled."""
    looks = [str(span.key)] if span.key else []
    looks += [name for name in ("bold", "filled") if getattr(span, name)]
    return f"{span.text}<{' '.join(looks)}>" if looks else span.text


@pytest.mark.parametrize(("name", "width"), [("summary", 60), ("compare", 90), ("fit", 70)])
def test_the_looks_of_each_text_are_as_recorded(name: str, width: int) -> None:
    lines = page_lines(DOCUMENTS[name](), Paper(width=width, unicode=True))
    text = "".join(f"{''.join(map(_marked, line))}\n" for line in lines)
    check_recorded(text, f"outlines/looks_of_{name}.txt")


def _text(rendered: str | bytes) -> str:
    return rendered.decode() if isinstance(rendered, bytes) else rendered


@pytest.mark.parametrize("kind", ["csv", "json", "markdown", "terminal"])
def test_a_report_with_every_field_is_as_recorded(kind: str) -> None:
    options = RenderOptions(width=100, top=3, depth=2)
    check_recorded(_text(format_named(kind).render_report(full_report(), options)), f"outlines/{kind}.txt")


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("plan", lambda: plan_json(plan(budget_bytes=6100, best=3))),
        ("plan_around_functions", lambda: plan_json(plan_around_functions())),
        ("plan_fits_nothing", lambda: plan_json(plan(budget_bytes=4999, best=None))),
        ("serve_plan", lambda: serving_json(SERVING)),
        ("check", lambda: check_json(check(full_report(scale=5), baseline=baseline_of(_step())))),
        ("fit", lambda: fit_json(_result((1, 500), (2, 900), (4, 700), (8, 2000)))),
        ("fit_curve", lambda: fit_curve_json(_curve())),
        ("fit_techniques", lambda: fit_techniques_json(RESULT)),
        ("memory_profile", lambda: memory_profile_json(FOUND, beside(pool_bytes=2**23))),
        ("memory_profile_diff", lambda: memory_profile_diff_json(BEFORE, AFTER)),
        ("job", lambda: job_json(JOB, exit_code=3, explanation=None, report=full_report(), advice=())),
        ("job_of_nothing", lambda: job_json(replace(JOB, of_jax=()), exit_code=0, explanation=None)),
        ("diff", lambda: diff_json(diff(_smaller(), full_report(scale=3)))),
        ("advice", lambda: advice_list_json(full_report(), advise(CASES["donate_state"][0]()))),
    ],
)
def test_the_json_of_a_command_is_as_recorded(name: str, made: Callable[[], object]) -> None:
    check_recorded(render_object(made()), f"outlines/{name}.json")  # type: ignore[arg-type]


def test_offloading_is_offered_once() -> None:
    speeds = Speeds(
        operations_per_second={}, memory_bytes_per_second=1.0, link_bytes_per_second=1.0, host_bytes_per_second=1.0
    )
    target = replace(H100, speeds=speeds)
    nothing_fits = replace(_in_a_scan(plan(budget_bytes=4999, best=None)), target=target)
    assert "With --offload" in str(plan_document(nothing_fits))
    assert "With --offload" not in str(plan_document(replace(nothing_fits, may_offload=True)))
