"""The Python API, exported by `import memprof`.

For example:

    profile = memprof.profile(train_step, state, batch, donate_argnums=(0,), target="h100-80gb")
    profile.footprint_bytes, profile.by("category"), profile.buffers[:10]
    print(profile)                              # prints the report of `memprof run`
    profile.save("step.memprof")                # memprof.load("step.memprof") reads it
    memprof.compare({"baseline": before, "remat": after})
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, overload

from memprof.amounts import parse_bytes
from memprof.analysis import comparison as comparisons
from memprof.analysis.memory.card import judge_reserved
from memprof.analysis.memory.verdict import judge
from memprof.analysis.pipeline import analyze
from memprof.analysis.records.capture import Capture
from memprof.analysis.records.categories import Category, Role
from memprof.analysis.records.live_buffer import LiveBuffer
from memprof.analysis.records.pool import Answer, PoolSettings, Verdict
from memprof.analysis.records.pressure import Pressure
from memprof.analysis.records.report import ModuleNode, Report
from memprof.errors import MemprofError
from memprof.files import IfTaken
from memprof.progress import rows_shown, stages_shown
from memprof.reports.document import Document
from memprof.reports.format import format_named
from memprof.reports.formats.html import comparison_fragment, document_fragment, html_fragment
from memprof.reports.formats.json import render_object
from memprof.reports.formats.terminal import lower
from memprof.reports.json.report import BufferJson
from memprof.reports.json.serving import serving_json
from memprof.reports.options import RenderOptions
from memprof.reports.views.advice import advice_document
from memprof.reports.views.serving import serving_document
from memprof.sources.capture_file import read_capture, write_capture
from memprof.sources.jax.tracing.step_checks import check_label, shown
from memprof.sources.pool_settings import parse_pool
from memprof.studies.advice.advice import Advice
from memprof.studies.advice.advise import without_saving
from memprof.studies.advice.known import known_advice, known_changes
from memprof.studies.serving import ServingPlan

if TYPE_CHECKING:
    from pandas import DataFrame

    from memprof.sources.jax.tracing.step import StepSpec
    from memprof.sources.torch.step_spec import TorchStepSpec
    from memprof.workloads.user.serving_spec import ServingSpec
    from memprof.workloads.user.train_spec import TrainSpec

_MAX_COLUMNS = 1000

Key = Literal["category", "module", "source", "dtype", "phase"]


@dataclass(frozen=True, slots=True)
class Profile:
    """One compiled step, and the breakdown of its memory.

    Attributes:
        capture: the compiled program with its buffer assignment, or the trace of a PyTorch step. `save` writes it.
        report: all facts about the step, as records.
    """

    capture: Capture
    report: Report

    @property
    def footprint_bytes(self) -> int:
        """Bytes that the allocator must hold to run the step: arguments, results, temporaries and constants."""
        return self.report.footprint_bytes

    @property
    def live_peak_bytes(self) -> int:
        """The largest number of bytes that are live at once."""
        return self.report.live_peak_bytes

    @property
    def categories(self) -> Mapping[Category, int]:
        """Bytes by category; they add up to the footprint."""
        return self.report.categories

    @property
    def buffers(self) -> Sequence[LiveBuffer]:
        """The buffers that are live at the peak, largest first."""
        return self.report.buffers

    @property
    def fits(self) -> bool | None:
        """Whether the step fits JAX's memory pool on the target; None if the target's memory is unknown."""
        return self.report.fits

    @property
    def verdict(self) -> Verdict:
        """Whether the step fits, or the memory fraction with which it would; with the pool size, and as a sentence."""
        return self.report.verdict

    @property
    def pressure(self) -> Pressure | None:
        """The values that XLA itself recomputes because the target has too little memory; None if there are none."""
        return self.report.pressure

    @property
    def advice(self) -> AdviceList:
        """Ways to lower the peak: first the savings that `memprof.advise` has compiled, then upper bounds."""
        return AdviceList(self.report, known_advice(self.report), of_step=False)

    def by(self, key: Key) -> dict[str, int]:
        """Return the footprint by category, module, source line, dtype or phase, in bytes, largest first.

        The bytes of a module exclude its submodules, so every breakdown adds up to the footprint. The empty key holds
        the bytes that belong to no module, line, dtype or phase.

        Args:
            key: `category`, `module`, `source`, `dtype` or `phase`.

        Raises:
            MemprofError: the key does not exist.
        """
        sums: Mapping[str, Mapping[Any, int]] = {
            "category": self.report.categories,
            "module": _by_module(self.report.modules),
            "source": self.report.by_source,
            "dtype": self.report.by_dtype,
            "phase": self.report.by_phase,
        }
        if not isinstance(key, str) or key not in sums:
            raise MemprofError(f"There is no key {key!r}: choose from {', '.join(sums)}.")
        found = {str(name): size for name, size in sums[key].items() if size}
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def render(self, format: str = "terminal", *, width: int = 100) -> str | bytes:  # noqa: A002 - as on the command line
        """Render the report in a format of `memprof show`: terminal (plain text), json, html, ...

        Args:
            format: the name of the format.
            width: the width of a terminal in columns, from 1 to 1000. Other formats ignore it.

        Returns:
            The output as text, or as bytes for binary formats such as `png`.

        Raises:
            MemprofError: the format does not exist, or the width is out of range.
        """
        options = RenderOptions(width=_columns(width), advice=known_advice(self.report))
        return format_named(format).render_report(self.report, options)

    def to_dict(self) -> dict[str, Any]:
        """Return all facts as plain values, with the fields of `--format json` (docs/schema/report.json)."""
        facts: dict[str, Any] = json.loads(self.render("json"))
        return facts

    def to_pandas(self, by: Key | Literal["buffer"] = "buffer") -> DataFrame:
        """Return a `pandas.DataFrame` of the buffers that are live at the peak, or of the footprint by a key.

        Args:
            by: `buffer` for one row for each buffer, with the fields of `--format json`; or a key of `Profile.by`, for
                the columns of the key and `size_bytes`.

        Raises:
            MemprofError: pandas is not installed, or the key does not exist.
        """
        try:
            from pandas import DataFrame
        except ImportError as error:
            raise MemprofError('to_pandas needs pandas: install it with pip install "jax-memprof[notebook]"') from error
        if by != "buffer":
            return DataFrame(list(self.by(by).items()), columns=[by, "size_bytes"])
        return DataFrame(self.to_dict()["buffers"], columns=list(BufferJson.__struct_fields__))

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the capture to a file. `memprof.load` and `memprof show` recreate the report from it.

        Args:
            path: the file to write, for example `step.memprof`.
            overwrite: whether to replace an existing file.

        Returns:
            The path of the file.

        Raises:
            MemprofError: the file exists and `overwrite` is False, or it cannot be written.
        """
        if_taken = IfTaken.REPLACE if overwrite else IfTaken.REFUSE
        return write_capture(self.capture, _path(path), if_taken=if_taken)

    def __str__(self) -> str:
        return str(self.render())

    def _repr_html_(self) -> str:
        """Return the HTML that a notebook shows."""
        return html_fragment(self.report)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Print the text that IPython shows in a terminal."""
        del cycle
        printer.text(str(self))

    def __repr__(self) -> str:
        return f"<memprof.Profile {self.report.label}: {self.footprint_bytes:,} bytes on {self.report.target.name}>"


class AdviceList(tuple[Advice, ...]):
    """Pieces of advice about a report, shown as a table."""

    report: Report
    of_step: bool  # whether the changes were compiled

    def __new__(cls, report: Report, advice: Sequence[Advice], *, of_step: bool) -> AdviceList:
        made = super().__new__(cls, advice)
        made.report, made.of_step = report, of_step
        return made

    @overload
    def __getitem__(self, place: SupportsIndex) -> Advice: ...
    @overload
    def __getitem__(self, place: slice) -> AdviceList: ...
    def __getitem__(self, place: SupportsIndex | slice) -> Advice | AdviceList:
        if isinstance(place, slice):
            return AdviceList(self.report, super().__getitem__(place), of_step=self.of_step)
        return super().__getitem__(place)

    def __str__(self) -> str:
        return str(lower(self._document(), RenderOptions()))

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        """Return the HTML that a notebook shows."""
        return document_fragment(self._document())

    def _document(self) -> Document:
        idle = without_saving(self.report, known_changes(self.report))
        return advice_document(self.report, self, of_step=self.of_step, without_saving=idle)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Several profiles, compared with the first one.

    Attributes:
        result: the rows and the effects, as records.
    """

    result: comparisons.ReportComparison

    def render(self, format: str = "terminal", *, width: int = 100) -> str | bytes:  # noqa: A002 - as on the command line
        """Render the comparison in a format of `memprof compare`: terminal (plain text), json, html, ...

        Args:
            format: the name of the format.
            width: the width of a terminal in columns, from 1 to 1000. Other formats ignore it.

        Returns:
            The output as text, or as bytes for binary formats such as `png`.

        Raises:
            MemprofError: the format does not exist or shows no comparisons, or the width is out of range.
        """
        return format_named(format).render_comparison(self.result, RenderOptions(width=_columns(width)))

    def __str__(self) -> str:
        return str(self.render())

    def _repr_html_(self) -> str:
        """Return the HTML that a notebook shows."""
        return comparison_fragment(self.result)


@dataclass(frozen=True, slots=True)
class Serving:
    """The memory of a server, and the cached tokens that fit beside its programs.

    Attributes:
        plan: the same facts, as records.
    """

    plan: ServingPlan

    @property
    def max_tokens(self) -> int | None:
        """The number of cache tokens that fit JAX's memory pool; None if the size of the pool is unknown."""
        return self.plan.max_tokens

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain values, in the schema `memprof.serving/1`."""
        parsed: dict[str, Any] = json.loads(render_object(serving_json(self.plan)))
        return parsed

    def __str__(self) -> str:
        return str(lower(serving_document(self.plan), RenderOptions()))

    def _repr_html_(self) -> str:
        """Return the HTML that a notebook shows."""
        return document_fragment(serving_document(self.plan))


def profile(
    step: Callable[..., Any] | StepSpec | TrainSpec,
    /,
    *args: Any,
    target: str | Path | None = None,
    donate_argnums: Sequence[int] | int = (),
    static_argnums: Sequence[int] | int = (),
    roles: Mapping[str, Role | str] | None = None,
    label: str | None = None,
    compiler_options: Mapping[str, str] | None = None,
    complete: bool = False,
    pool: float | str | None = None,
    **kwargs: Any,
) -> Profile:
    """Compile a step for a device, present or absent, and explain every byte of its memory.

    The step is not run, and no device memory is allocated: only the shapes and dtypes of arrays are used.

    Args:
        step: the function; a jitted function keeps its own options. A `memprof.StepSpec` or `memprof.TrainSpec` needs
            no other arguments than `target`, `label`, `complete` and `pool`.
        args: the positional arguments of the step: pytrees of arrays or of `jax.ShapeDtypeStruct`.
        target: a GPU of `memprof list targets`, an exported `gpu_target_config.pbtxt`, `local` or `cpu`. None: the
            local accelerator if there is one; otherwise an H100 if the packages to compile for it are installed;
            otherwise the CPU.
        donate_argnums, static_argnums: as for `jax.jit`.
        roles: the roles of arguments by path, for example `{"state.ema": "other_state"}`, if they cannot be inferred.
        label: the name of the step in reports; None: the function's name.
        compiler_options: XLA options for this compile, by name.
        complete: whether to compile to the end and check all sizes against the compiler's own totals. If False, the
            compile stops at XLA's memory plan.
        pool: JAX's share of the device's memory, 0.9 or "90%", for the verdict; None: the share that JAX would use
            in this environment.
        kwargs: the keyword arguments of the step.

    Raises:
        MemprofError: an argument is invalid; the message is one sentence.
        Exception: any error that the step raises while it is traced.
    """
    from memprof.workloads.user.call import spec_of_call

    if label is not None:
        check_label("label", label)
    spec = spec_of_call(
        step,
        args,
        kwargs,
        donate_argnums=donate_argnums,
        static_argnums=static_argnums,
        roles=roles,
        label=label,
        compiler_options=compiler_options,
    )
    return profile_spec(spec, target=target, complete=complete, pool=pool)


def profile_spec(
    spec: StepSpec, *, target: str | Path | None = None, complete: bool = False, pool: float | str | None = None
) -> Profile:
    """Profile a step that a `memprof.StepSpec` describes.

    Args:
        spec: the step, its arguments and its options.
        target, complete, pool: as for `profile`.

    Raises:
        MemprofError: an argument is invalid; the message is one sentence.
        Exception: any error that the step raises while it is traced.
    """
    from memprof.sources.jax.compile import capture_of
    from memprof.sources.jax.hints import hint
    from memprof.sources.jax.targets.mesh import target_of_step
    from memprof.sources.jax.targets.resolve import resolve_asked
    from memprof.sources.jax.tracing.step import StepSpec
    from memprof.sources.jax.xla.portable_program import CompileSettings

    if not isinstance(spec, StepSpec):
        raise MemprofError(f"a memprof.StepSpec was expected, but this is {shown(spec)}")
    if not isinstance(complete, bool):
        raise MemprofError(f"complete is {shown(complete)}, but True or False was expected")
    judged_by = _pool(pool)
    asked = resolve_asked(None if target is None else _target_name(target))
    try:
        settings = CompileSettings(complete=complete)
        chosen = target_of_step(spec, asked)
        with stages_shown(spec.workload) as progress:
            fresh = capture_of(spec, chosen, progress=progress, settings=settings)
            progress("analysing")
            report = analyze(fresh.capture, fresh.decoded, pool=judged_by)
    except Exception as error:  # the user's own error propagates, with a remedy if memprof knows one
        if not isinstance(error, MemprofError) and (remedy := hint(error)):
            error.add_note(f"memprof: {remedy}")
        raise
    return Profile(fresh.capture, report)


def advise(
    step: Callable[..., Any] | StepSpec | TrainSpec,
    /,
    *args: Any,
    target: str | Path | None = None,
    donate_argnums: Sequence[int] | int = (),
    static_argnums: Sequence[int] | int = (),
    **kwargs: Any,
) -> AdviceList:
    """Compile a step with changes that may lower its peak, and return the true saving and the code of each.

    The changes are donation, checkpoints around layers or other functions, XLA options and, for a `memprof.TrainSpec`,
    techniques. The user's files are not modified. A change that memprof cannot apply itself has an upper bound instead
    of a saving.

    Args:
        step, args, target, donate_argnums, static_argnums, kwargs: as for `profile`.

    Raises:
        MemprofError: an argument is invalid; the message is one sentence.
        Exception: any error that the step raises while it is traced.
    """
    from memprof.sources.jax.targets.mesh import target_of_step
    from memprof.sources.jax.targets.resolve import resolve_asked
    from memprof.studies.advice.compiled import advise_step
    from memprof.workloads.user.call import spec_of_call, techniques_of

    spec = spec_of_call(step, args, kwargs, donate_argnums=donate_argnums, static_argnums=static_argnums)
    chosen = target_of_step(spec, resolve_asked(None if target is None else _target_name(target)))
    with stages_shown(spec.workload) as progress:
        return AdviceList(
            *advise_step(
                spec,
                chosen,
                progress=progress,
                rows=lambda labels: rows_shown(progress),
                with_technique=techniques_of(step),
            ),
            of_step=True,
        )


def serving(
    spec: ServingSpec, *, target: str | Path | None = None, pool: float | str | None = None, label: str = "server"
) -> Serving:
    """Compile all programs of a server, and compute how many tokens of cache fit beside them.

    Args:
        spec: the programs, and the number of tokens that their cache holds.
        target: as for `profile`.
        pool: JAX's share of the device's memory, as for `profile`.
        label: the name of the server in reports.

    Raises:
        MemprofError: an argument is invalid; the message is one sentence.
        Exception: any error that a program raises while it is traced.
    """
    from memprof.studies.serving import serving_plan
    from memprof.workloads.user.serving_spec import ServingSpec

    if not isinstance(spec, ServingSpec):
        raise MemprofError(f"a memprof.ServingSpec was expected, but this is {shown(spec)}")
    check_label("label", label)
    programs = [spec.program(number) for number in range(len(spec.programs))]
    reports = [profile_spec(program, target=target, pool=pool).report for program in programs]
    return Serving(serving_plan(reports, label=label, cache_tokens=spec.cache_tokens))


def profile_torch(
    step: TorchStepSpec | Callable[[], TorchStepSpec],
    *,
    target: str | None = None,
    mesh: str | None = None,
    label: str | None = None,
) -> Profile:
    """Trace a PyTorch training step on shapes alone, and explain every byte of its memory.

    It needs no device and allocates no device memory. It requires the extra `torch`.

    Args:
        step: a function that returns the step; it is called under fake tensors, so its model takes no memory. Or a
            step whose model exists; only shapes and dtypes are used.
        target: a GPU of `memprof list targets`, or `cpu`; None: an H100. The verdict is about this device.
        mesh: `dp=8` for DistributedDataParallel, `fsdp=8` for FSDP2; None: one device. Numbers are per device.
        label: the name of the step in reports; None: the step's own label.

    Raises:
        MemprofError: an argument is invalid; the message is one sentence.
        WorkloadError: the step fails while it is traced.
    """
    from memprof.sources.torch.step_spec import TorchStepSpec
    from memprof.studies.torch_step import capture_of_step, torch_target

    if label is not None:
        check_label("label", label)
    if isinstance(step, TorchStepSpec):
        from memprof.sources.torch.step_spec import fake_copy

        make_spec: Callable[[], TorchStepSpec] = partial(fake_copy, step)
    elif callable(step):
        make_spec = step
    else:
        raise MemprofError(f"a memprof.TorchStepSpec, or a function that makes one, was expected, not {shown(step)}")
    aim = torch_target(None if target is None else _target_name(target), mesh)
    capture = capture_of_step(make_spec, aim, label=label)
    return Profile(capture, analyze(capture))


def load(path: str | Path, *, pool: float | str | None = None) -> Profile:
    """Read a capture that `Profile.save` or `memprof run` wrote. It needs no JAX.

    Args:
        path: the file of the capture.
        pool: JAX's share of the device's memory for the verdict, as for `profile`.

    Raises:
        MemprofError: the file does not exist, or is not a capture.
    """
    capture = read_capture(_path(path))
    return Profile(capture, analyze(capture, pool=_pool(pool)))


def fits(
    profile: Profile,
    memory: int | str | None = None,
    *,
    reserve: float = 0.0,
    pool: float | str | None = None,
) -> bool:
    """Return whether a step fits JAX's memory pool, for another amount of memory, another pool, or with a reserve.

    Args:
        profile: the profile of the step.
        memory: the memory of the whole device, in bytes or as a text such as `40GiB`; None: the memory of the device
            that the step was compiled for. The footprint stays that of the compiled program. Another device may need
            another program: call `memprof.profile` with that target instead.
        reserve: the share of the memory, in [0, 1), that must stay free in the pool.
        pool: JAX's share of the device's memory, as for `memprof.profile`; None: the share that the profile used.

    Raises:
        MemprofError: an argument is invalid, or `memory` is None and the device has no fixed amount of memory.
    """
    if not isinstance(profile, Profile):
        raise MemprofError(f"the profile of a step was expected, but this is {shown(profile)}")
    if not isinstance(reserve, Real) or not 0 <= reserve < 1:
        raise MemprofError(
            f"reserve is {shown(reserve)}, but a share of the memory was expected: at least 0 and below 1"
        )
    memory_bytes = parse_bytes(memory) if isinstance(memory, str) else memory
    if memory_bytes is not None and (not isinstance(memory_bytes, int) or memory_bytes < 1):
        raise MemprofError(f"memory is {shown(memory)}, but bytes were expected, or a string such as '40GiB'")
    report = profile.report
    device = report.target if memory_bytes is None else report.target.with_memory(memory_bytes)
    memory_bytes = device.memory_bytes
    if memory_bytes is None:
        raise MemprofError(f"{report.target.name} has no fixed memory size: give the size")
    settings, reserve_bytes = _pool(pool) or report.pool, int(memory_bytes * reserve)
    if report.allocator is None:
        verdict = judge(report.pieces, device, settings, reserve_bytes=reserve_bytes)
    else:
        verdict = judge_reserved(report.footprint_bytes + reserve_bytes, device)
    return verdict.answer is Answer.FITS


def compare(profiles: Mapping[str, Profile]) -> Comparison:
    """Compare profiles with the first one, side by side.

    Args:
        profiles: the profiles, by the names of their rows; the first is the baseline.

    Raises:
        MemprofError: `profiles` is not a mapping from names to profiles, or it is empty.
    """
    if not isinstance(profiles, Mapping):
        raise MemprofError(
            f"profiles is {shown(profiles)}, but a mapping from the name of each row to its profile was expected:"
            " compare({'before': one, 'after': another})"
        )
    if not profiles:
        raise MemprofError("there is nothing to compare: give at least one profile")
    for label, each in profiles.items():
        check_label("the name of a row", label)
        if not isinstance(each, Profile):
            raise MemprofError(f"{label} is {shown(each)}, but the profile of a step was expected")
    reports = [replace(profile.report, label=label) for label, profile in profiles.items()]
    return Comparison(comparisons.compare(reports, baseline=reports[0].label, verdicts={}, failures=()))


def _by_module(node: ModuleNode) -> dict[str, int]:
    sums: dict[str, int] = {}
    pending = [node]
    while pending:
        module = pending.pop()
        own = module.size_bytes - sum(child.size_bytes for child in module.children)
        sums[module.path] = sums.get(module.path, 0) + own
        pending.extend(module.children)
    return sums


def _pool(pool: object) -> PoolSettings | None:
    """Return the settings for a share of the memory; None if no share is given."""
    if pool is None:
        return None
    if isinstance(pool, bool) or not isinstance(pool, (Real, str)):
        raise MemprofError(f"pool is {shown(pool)}, but a share of the memory was expected: 0.9, or '90%'")
    return parse_pool(str(pool), option="pool=")


def _path(path: object) -> Path:
    if not isinstance(path, (str, Path)) or not str(path):
        raise MemprofError(f"the path of a file was expected, as a string or a pathlib.Path, but this is {shown(path)}")
    return Path(path)


def _target_name(target: object) -> str:
    if not isinstance(target, (str, Path)):
        raise MemprofError(f"target is {shown(target)}, but the name of a target or the path of its file was expected")
    return str(target)


def _columns(width: object) -> int:
    if not isinstance(width, int) or not 1 <= width <= _MAX_COLUMNS:
        raise MemprofError(f"width is {shown(width)}, but columns were expected, from 1 to {_MAX_COLUMNS}")
    return width
