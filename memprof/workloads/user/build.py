"""Build the profiled step from a reference to the user's code. Runs in the child process."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from memprof.errors import MemprofError, unknown_name
from memprof.sources.jax.targets.resolve import DEVICES, AskedTarget
from memprof.sources.jax.tracing.step import StepSpec
from memprof.workloads import registry
from memprof.workloads.composition import applied_techniques, apply_techniques, check_applicable, check_target
from memprof.workloads.overrides import parse_value
from memprof.workloads.technique import AppliedTechnique, ChosenTechnique
from memprof.workloads.train_config import TrainConfig
from memprof.workloads.user.reference import Reference, load

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from memprof.workloads.user.train_spec import TrainSpec

_MESH = "mesh"  # the parameter of the user's function that receives a mesh
# The technique-owned model fields that can be applied around a loss.
_HONOURS = frozenset({"compute_dtype", "param_dtype", "remat_modules", "remat_policy", "remat_names"})


@dataclass(frozen=True, slots=True, kw_only=True)
class UserStep:
    """A request for a step in the user's code: a reference that is valid in any folder, and the choices to apply.

    Attributes:
        reference: names a `StepSpec`, a `TrainSpec` or a function that returns one.
        overrides: names and texts for the parameters of that function.
        techniques: the applied techniques; all except compiler options need a `TrainSpec`.
        roles: roles by path prefix; they override those of the spec.
        arguments: arguments for the code's `sys.argv`.
        program: number of the server's program; None for a single step.
    """

    imports: ClassVar[tuple[str, ...]] = ()

    reference: Reference
    overrides: tuple[tuple[str, str], ...] = ()
    techniques: tuple[ChosenTechnique, ...] = ()
    roles: dict[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    program: int | None = None

    def build(self, target: AskedTarget = None) -> StepSpec:
        """Return the step.

        Args:
            target: the requested target. If it is a mesh, the user's function receives it as its parameter `mesh`, and
                a step that is built around a loss is shared by its devices.

        Raises:
            MemprofError: a choice is wrong; the message is one sentence.
        """
        from memprof.sources.jax.targets.mesh import mesh_of
        from memprof.workloads.user.serving_spec import ServingSpec
        from memprof.workloads.user.train_spec import TrainSpec

        where = self.reference
        if where.is_script:
            return self._of_script()
        found = load(where, self.arguments)
        mesh = mesh_of(target)  # after the import of the user's code, which may still configure JAX
        spec, config = _make_spec(found, self.overrides, where.label, mesh)
        if self.program is not None:
            spec = _program(spec, self.program, where)
        if isinstance(spec, TrainSpec):
            step = step_around(spec, applied_techniques(self.techniques), where.label, mesh)
        elif isinstance(spec, StepSpec):
            step = _with_compiler_options(spec, applied_techniques(self.techniques), where)
        elif isinstance(spec, ServingSpec):
            raise MemprofError(f"{where} is a server of several programs: use memprof serve-plan {where}")
        else:
            raise MemprofError(
                f"{where} gives {_described(spec)}, not a step: it must be a memprof.StepSpec, a"
                " memprof.TrainSpec, or a function that returns one"
            )
        name = where.label if step.workload == "step" else step.workload
        return replace(step, workload=name, roles={**step.roles, **self.roles}, config={**config, **step.config})

    def _of_script(self) -> StepSpec:
        from memprof.workloads.user.script import training_call

        step = training_call(self.reference, self.arguments, self.overrides)
        step = _with_compiler_options(step, applied_techniques(self.techniques), self.reference)
        return replace(step, roles=self.roles)


def _program(spec: Any, number: int, where: Reference) -> StepSpec:
    """Return one program of a server; raise `MemprofError` if the spec is not a server."""
    from memprof.workloads.user.serving_spec import ServingSpec

    if not isinstance(spec, ServingSpec):
        raise MemprofError(
            f"{where} gives {_described(spec)}, not a server: it must be a memprof.ServingSpec, or a function that"
            " returns one"
        )
    return spec.program(number)


def unchangeable(where: Reference) -> str:
    """Return a sentence that says that techniques cannot change a finished step."""
    kind = "script" if where.is_script else "StepSpec, a step"
    return (
        f"{where} is a finished {kind}, which techniques cannot change: give a TrainSpec (loss, parameters,"
        " optimizer, batch), and memprof builds the step around it"
    )


def _with_compiler_options(step: StepSpec, applied: Sequence[AppliedTechnique], where: Reference) -> StepSpec:
    """Return a finished step under techniques that only affect its compile."""
    if any(set(each.technique.sets) != {"compiler_options"} for each in applied):
        raise MemprofError(unchangeable(where))
    options = apply_techniques(TrainConfig(), applied).compiler_option_values()
    return replace(
        step,
        compiler_options={**step.compiler_options, **options},
        techniques=(*step.techniques, *(each.label for each in applied)),
    )


def _make_spec(
    found: Any, overrides: Sequence[tuple[str, str]], label: str, mesh: Mesh | None
) -> tuple[Any, dict[str, Any]]:
    """Return the spec, from a call if the found object is a function, and the values of the function's parameters."""
    from memprof.workloads.user.returns import check_returns_step

    if not callable(found):  # a spec, or an unrelated object
        if overrides:
            raise MemprofError(f"{label} is not a function, so it has no parameters for --set to change")
        return found, {}
    parameters = {
        name: parameter
        for name, parameter in inspect.signature(found).parameters.items()
        if parameter.kind in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    }
    values: dict[str, Any] = {}
    for name, value in overrides:
        if name not in parameters:
            raise unknown_name(f"parameter of {label}", name, parameters)
        values[name] = parse_value(name, value, _type_of(parameters[name], found))
    if mesh is not None and _MESH in parameters:
        values[_MESH] = _named(mesh, label)
    missing = [n for n, p in parameters.items() if p.default is inspect.Parameter.empty and n not in values]
    if _MESH in missing:
        raise MemprofError(f"{label} takes a mesh: give its axes, for example --mesh fsdp=4,tp=2")
    if missing:
        raise MemprofError(
            f"{label} takes {', '.join(missing)}, without a default: name a function that returns"
            f" memprof.StepSpec(step, arguments), or give numbers and texts with --set {missing[0]}=VALUE"
        )
    check_returns_step(found, label)
    settings = {name: parameter.default for name, parameter in parameters.items()} | values
    return found(**values), {n: v for n, v in settings.items() if isinstance(v, (str, int, float, bool, type(None)))}


def _named(mesh: Mesh, label: str) -> Mesh:
    if mesh.axis_names == (DEVICES,):
        raise MemprofError(
            f"--mesh {mesh.size} does not name the axes of the mesh that {label} takes: write --mesh "
            f"data={mesh.size}, for example"
        )
    return mesh


def _type_of(parameter: inspect.Parameter, function: Callable[..., Any]) -> Any:
    """Return the type of a parameter: its annotation, else the type of its default; `str` if it has neither."""
    annotation = inspect.get_annotations(function, eval_str=True).get(parameter.name)
    if annotation is not None:
        return annotation
    return str if parameter.default in (inspect.Parameter.empty, None) else type(parameter.default)


def step_around(spec: TrainSpec, applied: Sequence[AppliedTechnique], label: str, mesh: Mesh | None) -> StepSpec:
    """Return the step around a loss, under techniques, on the devices of a mesh if there is one.

    Raises:
        MemprofError: a technique does not apply to the loss.
    """
    from memprof.workloads.train_step import Trainer
    from memprof.workloads.user.train_spec import UserConfig, UserModel

    config = apply_techniques(TrainConfig(), applied)
    model = UserModel(spec, config)
    if config.remat_modules not in ("none", "block") or config.remat_policy == "names":
        wanted = next(each.label for each in applied if "remat_modules" in each.technique.sets)
        raise MemprofError(f"Technique '{wanted}' changes modules of the model itself, which {label} does not name.")
    check_applicable(
        applied,
        name=label,
        honours=_HONOURS,
        config=UserConfig(model.num_examples),
        train_config=config,
        axes={} if mesh is None else dict(mesh.shape),
    )
    chosen = any("optimizer" in each.technique.sets for each in applied)
    optimizer = registry.optimizer(config.optimizer).create(config) if chosen else spec.optimizer
    trainer = Trainer(model=model, optimizer=optimizer, config=config, mesh=mesh)
    return replace(
        trainer.spec(num_examples=model.num_examples),
        techniques=tuple(each.label for each in applied),
        check_target=functools.partial(check_target, applied),
    )


def _described(value: Any) -> str:
    return f"an object of type {type(value).__name__}" if value is not None else "nothing"
