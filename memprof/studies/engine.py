"""Build an inference engine for a GPU that need not be present: the library behind `--engine tensorrt`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from memprof.analysis.hlo.decoded import FreshCapture
from memprof.analysis.records.capture import NO_COMPILER, ArgumentLeaf, Capture, Target, Timings, Toolchain
from memprof.analysis.records.categories import Role
from memprof.analysis.records.pool import Allocator, PoolSettings
from memprof.errors import MemprofError
from memprof.sources.jax.processes.launch import exported_in_child
from memprof.sources.jax.processes.task import plain
from memprof.sources.jax.processes.work_folder import work_folder
from memprof.sources.jax.targets.resolve import option_of, resolve
from memprof.sources.jax.xla.portable_program import CompileSettings
from memprof.sources.jax.xla.toolchain import toolchain
from memprof.sources.tensorrt.build import BuiltEngine, build_engine, capability_of, check_installed
from memprof.sources.tensorrt.request import BuildRequest, Dimension, NamedArray
from memprof.studies.export import as_inference, export_task
from memprof.studies.subject import Subject, is_model_file
from memprof.workloads.composition import ENGINE_TECHNIQUES, INT8, VARYING, parse_techniques
from memprof.workloads.overrides import split_override

TENSORRT, XLA = "tensorrt", "xla"
_SMALLEST_VARYING = 3
_DEFAULT_TARGET = "rtx-4090"
_FILE = "model.onnx"
# No pool: an engine allocates the free memory of the card.
POOL = PoolSettings(allocator=Allocator.CUDA_ASYNC)


def engine_target(name: str | None) -> Target:
    """Return the device to build for; None means an RTX 4090.

    Raises:
        MemprofError: there is no such target, or TensorRT for RTX does not support it.
    """
    target = resolve(_DEFAULT_TARGET if name is None else name)
    capability_of(target)
    return target if name is not None else replace(target, reason="the default of --engine tensorrt")


def of_model(techniques: str) -> str:
    """Return the techniques that apply to the model: all except those for engines."""
    return "+".join(label for label in techniques.split("+") if label not in ENGINE_TECHNIQUES)


def of_engine(techniques: str) -> tuple[str, ...]:
    """Return the techniques for engines only."""
    return tuple(label for label in techniques.split("+") if label in ENGINE_TECHNIQUES)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineBuild:
    """An engine to build.

    Attributes:
        subject: a workload or a step, or an ONNX file whose dynamic dimensions the overrides set.
        techniques: labels joined by `+`.
        label: its name in the report; if empty, subject and techniques.
    """

    subject: Subject
    techniques: str
    target: Target
    label: str = ""
    timeout_seconds: float | None = None

    @property
    def digest(self) -> str:
        """Return a digest of the request (see `request_digest`)."""
        subject = as_inference(self.subject)
        facts = [TENSORRT, plain(subject), self.techniques, option_of(self.target)]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def check(self) -> None:
        """Raise `MemprofError` for mistakes that are found before the build."""
        check_installed()
        for applied in parse_techniques(of_model(self.techniques)):
            if applied.technique.sets.get("weight_dtype", "param") != "param":
                raise MemprofError(
                    f"Technique '{applied.label}' is for programs that XLA compiles; for TensorRT, quantise weights"
                    f" with -t {INT8}"
                )
        if not is_model_file(self.subject.name):
            export_task(self.subject, of_model(self.techniques), file_name=_FILE)
            return
        if of_model(self.techniques):
            raise MemprofError(
                f"{self.subject.name} is a finished model, so techniques can only quantise its products: leave out -t,"
                f" or give -t {INT8}"
            )
        if any(label in VARYING for label in self._labels()):
            raise MemprofError(
                f"{self.subject.name} is a finished model, so no other dimension can be made dynamic: leave out"
                f" {' and '.join(VARYING)}"
            )
        self._maxima()

    def capture(self, *, progress: Callable[[str], None]) -> FreshCapture:
        """Build it.

        Raises:
            MemprofError: the request has a mistake, or TensorRT rejects the model.
            WorkloadError: the step or the builder failed.
        """
        self.check()
        capture = self._of_file(progress) if is_model_file(self.subject.name) else self._of_step(progress)
        label = self.label or " ".join(filter(None, (capture.workload, self.techniques)))
        techniques = (*capture.techniques, *of_engine(self.techniques))
        return FreshCapture(capture=replace(capture, label=label, techniques=techniques, request=self.digest))

    def _of_file(self, progress: Callable[[str], None]) -> Capture:
        maxima = self._maxima()
        built = self._built(Path(self.subject.name), maxima, progress)
        return Capture(
            label=self.subject.label,
            workload=self.subject.label,
            techniques=(),
            config=dict(maxima),
            target=self.target,
            toolchain=_tools(built.engine.version),
            compiler=NO_COMPILER,
            arguments=tuple(_weight(number, each) for number, each in enumerate(built.weights)),
            flops=0,
            recomputed_flops=0,
            timings=Timings(lower_seconds=0.0, compile_seconds=built.seconds),
            hlo_proto=b"",
            engine=built.engine,
            pool=POOL,
        )

    def _of_step(self, progress: Callable[[str], None]) -> Capture:
        with ExitStack() as files:
            capture, model = self._exported(self.subject, files, progress)
            varying = self._varying(capture)
            smaller = []
            for fields in list(product(*(((each, each.size), (each, each.smaller)) for each in reversed(varying))))[1:]:
                subject = self.subject
                for dimension, size in fields:
                    subject = subject.with_override(dimension.name, size)
                smaller.append(str(self._exported(subject, files, progress)[1]))
            built = self._built(model, {each.name: each.size for each in varying}, progress, varying, tuple(smaller))
        return replace(
            capture,
            target=self.target,
            toolchain=replace(capture.toolchain, xla_flags="", cuda_plugin=None, tensorrt=built.engine.version),
            compiler=NO_COMPILER,
            timings=replace(capture.timings, compile_seconds=built.seconds),
            engine=built.engine,
            pool=POOL,
        )

    def _exported(self, subject: Subject, files: ExitStack, progress: Callable[[str], None]) -> tuple[Capture, Path]:
        """Return the step's capture, and the path of its model, which exists until `files` closes."""
        settings = CompileSettings(timeout_seconds=self.timeout_seconds)
        task = export_task(subject, of_model(self.techniques), file_name=_FILE, settings=settings)
        capture, _, written = files.enter_context(exported_in_child(task, progress=progress))
        return capture, written[0].resolve()

    def _varying(self, capture: Capture) -> tuple[Dimension, ...]:
        """Return the dimensions that the techniques make dynamic.

        Raises:
            MemprofError: the workload has no such field, or its value is too small.
        """
        found = []
        for label in filter(VARYING.__contains__, self._labels()):
            name = next((each for each in VARYING[label] if each in capture.config), None)
            if name is None:
                raise MemprofError(
                    f"Technique '{label}' does not apply to {capture.workload}, which has no such dimension"
                )
            size = int(str(capture.config[name]))
            if size < _SMALLEST_VARYING:
                raise MemprofError(
                    f"Technique '{label}' needs a {name} of at least {_SMALLEST_VARYING}, but it is {size}"
                )
            found.append(Dimension(name=name, size=size, smaller=size - 1))
        return tuple(found)

    def _built(
        self,
        model: Path,
        maxima: dict[str, int],
        progress: Callable[[str], None],
        varying: tuple[Dimension, ...] = (),
        smaller_models: tuple[str, ...] = (),
    ) -> BuiltEngine:
        progress("building the engine")
        request = BuildRequest(
            model=str(model.resolve()),
            name=self.subject.label,
            compute_capability=capability_of(self.target),
            maxima=maxima,
            varying=varying,
            smaller_models=smaller_models,
            int8=INT8 in self._labels(),
        )
        with work_folder() as folder:
            return build_engine(request, folder, timeout_seconds=self.timeout_seconds)

    def _labels(self) -> tuple[str, ...]:
        return tuple(filter(None, self.techniques.split("+")))

    def _maxima(self) -> dict[str, int]:
        maxima = {}
        for name, text in map(split_override, self.subject.overrides):
            if not (text.isascii() and text.isdecimal() and int(text)):
                raise MemprofError(
                    f"--set {name}={text} is not a size: give the maximum of the dimension, a whole number"
                )
            maxima[name] = int(text)
        return maxima


def _tools(version: str) -> Toolchain:
    """Return the toolchain of an engine that is built from a model file, without JAX."""
    return replace(toolchain(None, "", {}), jax="", jaxlib="", flax=None, optax=None, tensorrt=version)


def _weight(number: int, array: NamedArray) -> ArgumentLeaf:
    return ArgumentLeaf(
        path=array.name,
        role=Role.PARAMS,
        shape=array.shape,
        dtype=array.dtype,
        size_bytes=array.size_bytes,
        donated=False,
        parameter_number=number,
    )
