"""Programs that others have compiled: found in what they leave, and captured by the program alone."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any

import pytest
from hlo import Step
from hlo_nodes import BACKWARD, FORWARD, PLAIN, array, f32, tuple_of

from memprof.analysis.pipeline import analyze
from memprof.analysis.records.categories import Role
from memprof.errors import InternalError, MemprofError
from memprof.sources.dumps.dumps import programs_in
from memprof.sources.dumps.importing import import_program, sizes_of
from memprof.sources.jax.running.xprof_log import write_compiled_session
from memprof.sources.jax.targets.nvidia.catalogue import gpus
from memprof.sources.jax.targets.resolve import resolve

pytestmark = pytest.mark.with_one_jax

GPU = "module_0001.jit_step.sm_9.0a_gpu_after_optimizations.hlo.pb"


def training_step(*, names: dict[str, str] | None = None) -> Step:
    """Momentum: new_m = m + dw, new_w = w - new_m; a counter, an average of the weights, and two arrays of data."""
    step = Step()
    names = names or {}

    def argument(path: str, role: Role, shape: Any) -> Any:
        return step.argument(names.get(path, path), role, shape, donated=role is not Role.BATCH)

    w = argument("weights", Role.PARAMS, f32(8, 4))
    m = argument("velocity", Role.OPTIMIZER_STATE, f32(8, 4))
    average = argument("slow", Role.OTHER_STATE, f32(8, 4))
    count = argument("count", Role.OTHER_STATE, array("s32"))
    x = argument("x", Role.BATCH, f32(2, 8))
    y = argument("y", Role.BATCH, array("s32", 2))
    h = step.op("h", "dot", f32(2, 4), [x, w], FORWARD)
    picked = step.op("picked", "gather", f32(2, 4), [h, y], FORWARD)
    dw = step.op("dw", "dot", f32(8, 4), [x, picked], BACKWARD)
    new_m = step.op("new_m", "add", f32(8, 4), [m, dw], PLAIN)
    new_w = step.op("new_w", "subtract", f32(8, 4), [w, new_m], PLAIN)
    new_average = step.op("new_average", "add", f32(8, 4), [average, new_w], PLAIN)
    one = step.op("one", "constant", array("s32"), [])
    step.result(new_w, new_m, new_average, step.op("next", "add", array("s32"), [count, one], PLAIN))
    return step


def proto_of(step: Step, *, with_names: bool = True) -> bytes:
    """The program as XLA writes it: the paths of the arguments are in the metadata of the parameters."""
    proto = step.proto()
    for instruction in proto.hlo_module.computations[0].instructions:
        if instruction.opcode == "parameter":
            instruction.metadata.op_name = instruction.name if with_names else ""
    data: bytes = proto.SerializeToString()
    return data


def imported(path: Path, **roles: str) -> Any:
    (found,) = programs_in([path])
    return import_program(found, roles=roles, target=None).capture


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    folder = tmp_path / "dump"
    folder.mkdir()
    (folder / GPU).write_bytes(proto_of(training_step()))
    return folder


def test_roles_are_those_of_the_step_whatever_the_arguments_are_called(dump: Path) -> None:
    for with_names in (True, False):
        (dump / GPU).write_bytes(proto_of(training_step(), with_names=with_names))
        found = imported(dump)
        assert [leaf.role for leaf in found.arguments] == [leaf.role for leaf in training_step()._arguments]
    assert [leaf.path for leaf in found.arguments] == [f"arguments[{n}]" for n in range(6)]
    assert "does not name 6 of its 6 arguments" in found.doubts[-1]


def test_a_key_of_the_path_says_what_training_does_not(dump: Path) -> None:
    step = training_step(names={"velocity": "momentum['params']", "x": "params['table']", "slow": "opt_state.slow"})
    (dump / GPU).write_bytes(proto_of(step))
    roles = {leaf.path: leaf.role for leaf in imported(dump).arguments}
    assert roles["params['table']"] is Role.PARAMS
    assert roles["momentum['params']"] is Role.OPTIMIZER_STATE  # it mirrors parameters, names and all
    assert roles["opt_state.slow"] is Role.OTHER_STATE  # an average is one wherever it is kept


def test_a_cache_is_known_by_the_names_that_libraries_give_it(dump: Path) -> None:
    step = Step()
    cache = {"past_key_values['h']['cached_key']": f32(2, 8), "kv_cache[0]": f32(2, 8), "caches[0].k": array("s8", 16)}
    levels = {"past_key_values['h']['cache_index']": array("s32"), "caches[0].levels": array("s32", 2)}
    names, shapes = zip(*cache.items(), *levels.items(), strict=True)
    arguments = [step.argument(name, Role.KV_CACHE, shape) for name, shape in zip(names, shapes, strict=True)]
    step.result(*(step.op(f"next_{n}", "add", shapes[n], [each, each], FORWARD) for n, each in enumerate(arguments)))
    (dump / GPU).write_bytes(proto_of(step))
    found = [leaf.role for leaf in imported(dump).arguments]
    assert found == [Role.KV_CACHE] * 3 + [Role.OTHER_STATE] * 2


def test_training_has_caches_that_are_no_keys_and_values(dump: Path) -> None:
    (dump / GPU).write_bytes(proto_of(training_step(names={"x": "cache['features']"})))
    assert {leaf.path: leaf.role for leaf in imported(dump).arguments}["cache['features']"] is Role.BATCH


def test_a_program_whose_collectives_xla_has_combined_is_read(dump: Path) -> None:
    step = Step()
    v = step.argument("v", Role.PARAMS, f32(1))
    w = step.argument("w", Role.PARAMS, f32(2))
    both = step.op("both", "all-gather", tuple_of(f32(4), f32(8)), [v, w], FORWARD)
    step.result(step.element(both, 1))
    (dump / GPU).write_bytes(proto_of(step))
    assert [leaf.path for leaf in imported(dump).arguments] == ["v", "w"]


def test_the_user_has_the_last_word(dump: Path) -> None:
    roles = {leaf.path: leaf.role for leaf in imported(dump, slow="params", y="other_state").arguments}
    assert (roles["slow"], roles["y"], roles["x"]) == (Role.PARAMS, Role.OTHER_STATE, Role.BATCH)
    with pytest.raises(MemprofError, match="a role was given for 'z', but the step has no such argument"):
        imported(dump, z="params")


def test_the_report_is_that_of_the_capture_of_the_same_step(dump: Path) -> None:
    ours, theirs = analyze(training_step().capture()), analyze(imported(dump))
    assert theirs.categories == ours.categories
    assert (theirs.footprint_bytes, theirs.live_peak_bytes) == (ours.footprint_bytes, ours.live_peak_bytes)
    (found,) = programs_in([dump])
    assert sizes_of(found).live_peak_bytes == ours.live_peak_bytes


def test_the_target_is_the_one_that_the_dump_names(dump: Path) -> None:
    assert (imported(dump).target.name, imported(dump).target.compute_capability) == ("gpu", "9.0")
    (dump / "module_0001.jit_step.gpu_target_config.pbtxt").write_text(gpus()["h100-80gb"].target_config())
    assert imported(dump).target.name == "h100-80gb"
    other = gpus()["h100-80gb"].target_config().replace("NVIDIA H100 80GB HBM3", "NVIDIA Next")
    (dump / "module_0001.jit_step.gpu_target_config.pbtxt").write_text(other)
    assert (imported(dump).target.name, imported(dump).target.memory_bytes) == ("nvidia-next", 84942979072)
    (dump / GPU).rename(dump / "module_0001.jit_step.cpu_after_optimizations.hlo.pb")
    assert imported(dump).target.platform == "cpu"


def test_programs_are_found_packed_in_log_directories_and_in_traces_and_each_once(dump: Path, tmp_path: Path) -> None:
    (dump / f"{GPU}.gz").write_bytes(gzip.compress((dump / GPU).read_bytes()))
    assert len(list(programs_in([dump, dump / GPU]))) == 1
    session = write_compiled_session(imported(dump), tmp_path / "logs", name="session")
    (beside,) = session.glob("*.hlo_proto.pb")
    assert [found.name for found in programs_in([tmp_path / "logs"])] == ["jit_step"]
    beside.unlink()
    (found,) = programs_in([tmp_path / "logs"])
    assert (found.name, found.hlo_proto) == ("jit_step", (dump / GPU).read_bytes())


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        (
            "a.cpu_after_optimizations.txt",
            b"HloModule",
            "a.cpu.*-buffer-assignment.txt is missing.*--xla_dump_hlo_as_proto",
        ),
        ("notes.md", b"", "contains no compiled program"),
        (GPU, b"\xff", "truncated, damaged, or not a compiled program"),
        ("a.xplane.pb", b"\xff", "is not a trace"),
        ("a.xplane.pb", b"", "without the stat `Hlo Proto`"),
        ("a.hlo_proto.pb.gz", b"no gzip", "cannot be read: Not a gzipped file"),
    ],
)
def test_what_is_no_program_is_refused_in_one_sentence(
    tmp_path: Path, name: str, content: bytes, sentence: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(MemprofError, match=sentence):
        [sizes_of(found) for found in programs_in([tmp_path])]


def test_a_dump_of_texts_without_what_lies_beside_them_tells_the_sum_alone(tmp_path: Path) -> None:
    stem = "module_0001.jit_step.sm_9.0a_gpu_after_optimizations"
    (tmp_path / f"{stem}.txt").write_text("HloModule jit_step")
    report = tmp_path / f"{stem}-memory-usage-report.txt"
    report.write_text("Memory Space: default (color=0)\nTotal bytes: 226044 (220.7KiB)\n")
    (found,) = programs_in([tmp_path])
    with pytest.raises(MemprofError, match=r"-buffer-assignment.txt is missing, .* \(226,044 bytes in total\)"):
        sizes_of(found)
    with pytest.raises(MemprofError, match="belongs to a program: give its folder"):
        list(programs_in([report]))


def test_a_proto_cut_short_or_without_its_buffer_assignment_is_refused(dump: Path) -> None:
    whole = (dump / GPU).read_bytes()
    (dump / GPU).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(MemprofError, match=r"truncated, damaged|without its buffer assignment"):
        imported(dump)
    proto = training_step().proto()
    proto.ClearField("buffer_assignment")
    (dump / GPU).write_bytes(proto.SerializeToString())
    with pytest.raises(MemprofError, match="without its buffer assignment"):
        imported(dump)


def test_a_program_for_a_tpu_has_its_platform_and_the_target_that_the_user_gives(dump: Path) -> None:
    os.rename(dump / GPU, dump / "module_0001.jit_step.cl_933746096.after_optimizations.hlo.pb")
    (found,) = programs_in([dump])
    assert (found.name, found.platform, sizes_of(found).target.name) == ("jit_step", "tpu", "tpu")
    capture = import_program(found, roles={}, target=resolve("v5e")).capture
    assert (capture.target.name, capture.target.is_deviceless) == ("v5e", False)


def test_the_text_of_a_program_for_a_tpu_is_refused(dump: Path) -> None:
    os.rename(dump / GPU, dump / "module_0001.jit_step.after_optimizations.txt")
    (found,) = programs_in([dump])
    for read in (sizes_of, lambda found: import_program(found, roles={}, target=None)):
        with pytest.raises(MemprofError, match="text of a program for a TPU"):
            read(found)


def test_a_program_that_does_not_hold_together_is_damage_to_its_file(dump: Path) -> None:
    proto = training_step().proto()
    del proto.buffer_assignment.heap_simulator_traces[0].events[0]
    (dump / GPU).write_bytes(proto.SerializeToString())
    (found,) = programs_in([dump])
    for read in (sizes_of, lambda found: import_program(found, roles={}, target=None)):
        with pytest.raises(MemprofError, match=f"{GPU} is damaged, or from a version of XLA") as caught:
            read(found)
        assert not isinstance(caught.value, InternalError)


@pytest.mark.parametrize("report", [b"\xff", bytes([0x0A, 2, 8, 77])])
def test_a_damaged_memory_report_is_not_blamed_on_the_program(dump: Path, report: bytes) -> None:
    (dump / GPU.replace(".hlo.pb", "-memory-usage-report.pb")).write_bytes(report)
    (found,) = programs_in([dump])
    with pytest.raises(MemprofError, match="the memory report beside it disagree"):
        sizes_of(found)
