"""What the command knows of a step, and what a child process gets of it: the same choices, checked and read once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from memprof.analysis.records.capture import Topology
from memprof.errors import MemprofError
from memprof.sources.jax.processes.task import CountingTask, Task, decoded_task, encoded_task
from memprof.sources.jax.targets.resolve import resolve
from memprof.sources.jax.xla.portable_program import CompileSettings
from memprof.studies.subject import Subject, advise_command, find_subject, run_command
from memprof.workloads import registry
from memprof.workloads.build import BuiltInStep, plan
from memprof.workloads.train_config import inference_fields
from memprof.workloads.user.build import UserStep

ONE = Topology()


def sent(subject: Subject, techniques: str, topology: Topology = ONE) -> Task:
    """The task that the child decodes."""
    task = subject.task(
        techniques,
        target=resolve("l4", topology),
        label="a",
        num_steps=3,
        settings=CompileSettings(complete=True, timeout_seconds=2.5, cluster="tcp://host:8786"),
    )
    found = decoded_task(encoded_task(task))
    assert found == task
    assert isinstance(found, Task)
    assert found.target is not None
    assert found.target.compiler_config == resolve("l4").compiler_config
    return found


@pytest.mark.parametrize("workload", registry.workloads(), ids=lambda each: each.name)
def test_the_plan_of_every_preset_arrives_as_it_was(workload: registry.Workload) -> None:
    for preset in workload.presets:
        recipe = sent(find_subject(workload.name, preset=preset), "").recipe
        assert isinstance(recipe, BuiltInStep)
        assert repr(recipe.plan().flat_config()) == repr(plan(workload=workload.name, preset=preset).flat_config())


@pytest.mark.parametrize("technique", registry.techniques(), ids=lambda each: each.name)
def test_every_technique_arrives_with_its_argument(technique: registry.Technique) -> None:
    labels, axes = [*technique.needs, technique.example], {technique.axis: 2} if technique.axis else {}
    topology = Topology(num_devices=2, axes=axes) if axes else ONE
    workload = "decoder" if set(technique.sets) & inference_fields() else "transformer"
    wanted = plan(workload=workload, preset="tiny", techniques=labels, axes=axes, overrides=technique.settings)
    subject = find_subject(workload, preset="tiny", overrides=technique.settings)
    recipe = sent(subject, "+".join(labels), topology).recipe
    assert isinstance(recipe, BuiltInStep)
    assert recipe.plan() == wanted
    assert repr(recipe.plan().flat_config()) == repr(wanted.flat_config())


def test_what_the_user_wrote_of_their_own_code_arrives(tmp_path: Path) -> None:
    path = tmp_path / "train\udcff.py"  # a name that is no UTF-8
    path.write_text("")
    subject = find_subject(f"{path}:make", overrides=["n = 3"], roles=["a.b=params"], arguments=["--x", "\udcfe"])
    recipe = sent(subject, "bf16+accum2").recipe
    assert isinstance(recipe, UserStep)
    assert (recipe.reference.path, recipe.reference.name) == (path, "make")
    assert (recipe.overrides, recipe.roles, recipe.arguments) == (
        (("n", "3"),),
        {"a.b": "params"},
        ("--x", "\udcfe"),
    )
    assert [(each.name, each.argument) for each in recipe.techniques] == [("bf16", None), ("accum", 2)]


def test_several_steps_to_count_arrive() -> None:
    subject = find_subject("mlp", preset="tiny")
    task = CountingTask(
        recipes=(subject.plan("bf16"), subject.plan()), target=None, settings=CompileSettings(timeout_seconds=1.0)
    )
    assert decoded_task(encoded_task(task)) == task


def test_a_mistake_is_found_where_the_plan_is_made() -> None:
    with pytest.raises(MemprofError, match="expects a whole number"):
        find_subject("mlp", overrides=["batch_size=many"]).task("", target=None)
    with pytest.raises(MemprofError, match="not a setting"):
        find_subject("package.train:step", overrides=["many"]).task("", target=None)


def test_a_field_is_overridden_once() -> None:
    subject = find_subject("mlp", overrides=["batch_size = 4", "seed=1"])
    assert subject.with_override("batch_size", 8).overrides == ("seed=1", "batch_size=8")
    assert subject.sets("batch_size")
    assert not subject.sets("batch")


def test_the_command_has_all_choices() -> None:
    subject = find_subject("package.train:step", overrides=["a=b c"], roles=["x=params"], arguments=["-v"])
    assert run_command(subject, resolve("l4"), "bf16") == (
        "memprof run package.train:step --target l4 -t bf16 --set 'a=b c' --role x=params -- -v"
    )


@pytest.mark.parametrize(
    ("topology", "options"),
    [
        (Topology(), ""),
        (Topology(num_devices=8, axes={"fsdp": 4, "tp": 2}), " --mesh fsdp=4,tp=2"),
        (Topology(num_devices=8, num_hosts=2, axes={"fsdp": 8}), " --mesh fsdp=8 --hosts 2"),
        (Topology(num_devices=8, num_slices=2, axes={"fsdp": 8}), " --mesh fsdp=8 --slices 2"),
        # The chips of a slice imply its hosts.
        (
            Topology(num_devices=16, num_hosts=4, axes={"fsdp": 16}, chips=(4, 4)),
            " --mesh fsdp=16 --topology 4x4",
        ),
    ],
)
def test_both_commands_have_the_mesh_its_hosts_and_its_slices(topology: Topology, options: str) -> None:
    subject, target = find_subject("mlp", preset="tiny"), replace(resolve("l4"), topology=topology)
    for command, verb in ((run_command, "run"), (advise_command, "advise")):
        said = command(subject, target, "bf16")
        assert said == f"memprof {verb} mlp --preset tiny --target l4{options} -t bf16"
        assert command(subject, None, "") == f"memprof {verb} mlp --preset tiny"
    engine = run_command(subject, target, "", engine="tensorrt", framework="torch")
    assert engine == f"memprof run mlp --framework torch --preset tiny --engine tensorrt --target l4{options}"


def test_rows_of_techniques_are_refused_for_a_step_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("import memprof\nspec = memprof.StepSpec(step, (x,))\n", encoding="utf-8")
    subject = find_subject(f"{file}:spec")
    for rows in ([], ["bf16"], ["xla:a=1", "bf16"]):
        with pytest.raises(MemprofError, match="is a finished StepSpec, a step, which techniques cannot change"):
            subject.check_changeable(rows)
    subject.check_changeable(["xla:a=1", "xla:a=2"])
    find_subject("mlp").check_changeable(["baseline", "bf16"])
