"""The laws of device families: each folder of `targets/` passes them, and a new one goes from a name to a report."""

from __future__ import annotations

import ast
import dataclasses
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import memprof
from memprof.analysis.records.capture import Toolchain, Topology
from memprof.analysis.records.device_family import HBM, HOST, all_families, family_of
from memprof.errors import MemprofError
from memprof.sources.jax import targets
from memprof.sources.jax.targets import choose, facts, folders
from memprof.sources.jax.targets.choose import choose_target
from memprof.sources.jax.targets.families import catalogue, compiler_of, families, is_host, target_family
from memprof.sources.jax.targets.family import TargetFamily
from memprof.sources.jax.targets.resolve import CPU, LOCAL, LocalDevice, catalogued, option_of, resolve

pytestmark = pytest.mark.with_one_jax

PACKAGE = Path(memprof.__file__).parent
FAMILIES = pytest.mark.parametrize("family", families(), ids=lambda family: family.facts.platform)
DEVICES = pytest.mark.parametrize("name", [*catalogue()])


def test_each_folder_is_one_family_and_no_two_share_a_name() -> None:
    assert sorted(each.facts.platform for each in families()) == sorted(each.platform for each in facts())
    assert facts() == all_families()
    assert len(families()) == len(folders()) == len({each.facts.platform for each in families()})
    names = [name for family in families() for name in family.catalogue()]
    assert len(names) == len(set(names))
    assert sorted(catalogued()) == sorted([*names, LOCAL])
    assert catalogued()[-2:] == [LOCAL, CPU]


def test_no_two_families_claim_the_same_device_dump_or_program() -> None:
    for attribute in ("mark", "dumped_as"):
        given = [value for each in all_families() if (value := getattr(each, attribute))]
        assert len(given) == len(set(given)), attribute
    # One family at most leaves no name in its dumps: those are taken for its own.
    assert sum(not each.dumped_as for each in all_families()) <= 1
    platforms = [each.jax_platform for each in families() if each.jax_platform]
    assert len(platforms) == len(set(platforms))
    assert [each.facts.platform for each in families() if each.facts.is_host] == [CPU]


@FAMILIES
def test_the_facts_of_a_family_hold_together(family: TargetFamily) -> None:
    found = family.facts
    assert target_family(found.platform) is family
    assert family_of(found.platform) is found
    assert (found.space_of(0), found.space_of(5)) == (HBM, HOST)
    assert found.collective_spaces <= set(found.memory_spaces)
    assert 0 < found.planned_percent <= 100
    assert found.has_fixed_memory != found.is_host
    assert not (found.is_host and found.has_share_pool)
    re.compile(found.dumped_as)


@FAMILIES
def test_the_versions_of_a_family_are_fields_of_a_toolchain(family: TargetFamily) -> None:
    assert set(family.versions()) <= {each.name for each in dataclasses.fields(Toolchain)}


@FAMILIES
def test_a_family_describes_itself_to_doctor_in_whole_lines(family: TargetFamily) -> None:
    for finding in family.findings():
        assert finding.what
        assert finding.found
        assert finding.ok is not False or finding.advice
    assert not family.example or family.example in family.catalogue()


@DEVICES
def test_a_name_becomes_a_whole_target_once(name: str) -> None:
    device, target = catalogue()[name], resolve(name)
    family = target_family(target.platform)
    assert family.catalogue()[name] is device
    assert resolve(name.upper()) == target
    assert (target.name, target.description, target.memory_bytes) == (name, device.description, device.memory_bytes)
    assert target.compute_capability == device.compute_capability
    assert target.topology == Topology()
    assert option_of(target) == name
    assert (target.usable_bytes is None) == family.facts.is_host
    assert target.is_deviceless == (not family.facts.is_host)
    assert all(0 < size < (target.memory_bytes or 0) for size in target.chip_bytes.values())
    assert set(target.chip_bytes) <= set(family.facts.memory_spaces.values())
    if target.is_deviceless:
        assert family.device_of_kind(device.description) in (device, None)  # None: several have that description


@DEVICES
def test_a_device_that_is_here_is_described_as_the_catalogue_has_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    device = catalogue()[name]
    family = target_family(resolve(name).platform)
    here = SimpleNamespace(
        platform=family.jax_platform, device_kind=device.description, memory_stats=lambda: {"bytes_limit": 12 << 30}
    )
    monkeypatch.setattr(choose.jax, "local_devices", lambda: [here])
    for variable in ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION", "TF_FORCE_UNIFIED_MEMORY"):
        monkeypatch.delenv(variable, raising=False)
    target = choose_target(LocalDevice())
    assert is_host(here) == family.facts.is_host
    if family.facts.is_host:
        assert target.name == name
        return
    assert (target.name, target.platform, target.description) == (LOCAL, family.facts.platform, device.description)
    # By default JAX's pool is 75% of a card; other devices give programs all that they report.
    assert target.memory_bytes == (16 << 30 if family.facts.has_share_pool else 12 << 30)
    assert not target.is_deviceless
    if family.device_of_kind(device.description) is device:
        known = resolve(name)
        assert (target.speeds, target.chip_bytes) == (known.speeds, known.chip_bytes)


@FAMILIES
def test_a_family_with_absent_devices_says_what_compiling_for_them_takes(family: TargetFamily) -> None:
    absent = [target for name in family.catalogue() if (target := resolve(name)).is_deviceless]
    assert bool(absent) == (family.compiler is not None)
    for target in absent:
        compiler = compiler_of(target)
        assert compiler is not None
        assert all(isinstance(each, str) and each for each in compiler.missing())
        assert "pip install" in compiler.install
        options = compiler.options((), True)
        assert all(isinstance(value, str) for value in options.values())
        if compiler.with_ample_memory is not None:
            ample = compiler.with_ample_memory(target)
            assert ample.compiler_config != target.compiler_config
            assert dataclasses.replace(ample, compiler_config="") == dataclasses.replace(target, compiler_config="")


@FAMILIES
def test_a_file_that_is_of_no_family_is_a_mistake_in_one_sentence(family: TargetFamily, tmp_path: Path) -> None:
    path = tmp_path / "target.txt"
    path.write_text("nothing that anybody wrote")
    if family.read_file is not None:
        with pytest.raises(MemprofError, match=re.escape(str(path))):
            family.read_file(str(path), Topology())
        assert all(family.file_row)


def test_nobody_outside_the_folders_compares_the_name_of_a_platform() -> None:
    platforms = {each.platform for each in all_families()} | {each.jax_platform for each in families()}
    found = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if not any(Path(str(folder.__file__)).parent in path.parents for folder in folders())
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Compare)
        for side in (node.left, *node.comparators)
        if _is_platform(side) and any(name in platforms for name in _texts(node))
    ]
    assert found == []


def _is_platform(node: ast.expr) -> bool:
    """Whether it reads `.platform` of anything."""
    return isinstance(node, ast.Attribute) and node.attr == "platform"


def _texts(node: ast.Compare) -> list[object]:
    return [each.value for each in ast.walk(node) if isinstance(each, ast.Constant)]


FACTS_OF_ACME = '''
"""Invented devices."""

from memprof.analysis.records.device_family import HBM, HOST, DeviceFamily

FACTS = DeviceFamily(platform="acme", device="Core", memory_spaces={0: HBM, 1: "scratch", 5: HOST}, dumped_as="acme")
'''
FAMILY_OF_ACME = """
from dataclasses import dataclass

from memprof.analysis.records.capture import Target, Topology
from memprof.sources.jax.targets.acme import FACTS
from memprof.sources.jax.targets.deviceless import DevicelessCompiler
from memprof.sources.jax.targets.family import Finding, TargetFamily


@dataclass(frozen=True, kw_only=True)
class Acme:
    name: str = "acme-1"
    description: str = "Acme One"
    memory_bytes: int = 16 << 30
    compute_capability: None = None
    source: str = "invented"
    devices_per_chip: None = None
    peak_flops_per_second: float = 1e12

    def target(self, reason, topology=Topology()):
        return Target(
            name=self.name, description=self.description, platform=FACTS.platform, memory_bytes=self.memory_bytes,
            compute_capability=None, reason=reason, topology=topology, compiler_config="one",
        )


COMPILER = DevicelessCompiler(
    missing=lambda: ("the Acme compiler",), install="pip install acme", devices=lambda target: []
)
FAMILY = TargetFamily(
    facts=FACTS,
    jax_platform="acme",
    catalogue=lambda: {"acme-1": Acme()},
    compiler=lambda: COMPILER,
    example="acme-1",
    findings=lambda: [Finding(what="Acme", ok=False, found="missing", advice="pip install acme")],
)
"""
# The package has no line about it; `added_up_step` is a program of a few instructions.
USE_OF_ACME = """
import sys
from pathlib import Path

from added_up_step import added_up_step

import memprof
from memprof.sources.capture_file import write_capture
from memprof.sources.doctor import examine, example_targets
from memprof.sources.dumps.dumps import programs_in
from memprof.sources.dumps.importing import import_program
from memprof.sources.jax.planning import plan_key
from memprof.sources.jax.targets.resolve import resolve_asked
from memprof.sources.jax.xla.portable_program import PortableProgram

target = resolve_asked("ACME-1", mesh="fsdp=4")
print(target.name, target.platform, target.topology.num_devices, target.is_deviceless)
print(len(plan_key(PortableProgram(module=b"module", compile_options=b""), target, {})))
try:
    memprof.profile(lambda x: x, 1.0, target="acme-1")
except memprof.MemprofError as error:
    print(error)
folder = Path(sys.argv[1])
dump = folder / "module_0001.jit_step.acme_after_optimizations.hlo.pb"
dump.write_bytes(added_up_step().proto().SerializeToString())
(found,) = programs_in([folder])
capture = import_program(found, roles={}, target=None).capture
print(capture.target.name, capture.target.platform, capture.target.description)
profile = memprof.load(write_capture(capture, folder / "acme.memprof"))
print(profile.footprint_bytes, str(profile).splitlines()[0])
print([each.what for each in examine() if each.advice == "pip install acme"])
print([each.name for each, _ in example_targets() if each.platform == "acme"])
"""


def test_an_invented_family_is_one_new_folder(tmp_path: Path) -> None:
    """In a copy of the package: from a name to a target, a plan's key, a report, doctor and `memprof list targets`."""
    copy, tests = tmp_path / "memprof", Path(__file__).parents[1]
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    folder = copy / Path(str(targets.__file__)).parent.relative_to(PACKAGE) / "acme"
    folder.mkdir()
    (folder / "__init__.py").write_text(FACTS_OF_ACME)
    (folder / "family.py").write_text(FAMILY_OF_ACME)
    work = tmp_path / "work"
    work.mkdir()

    def python(*arguments: str) -> list[str]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), str(tests))), "JAX_PLATFORMS": "cpu"}
        command = [sys.executable, "-P", *arguments]
        ended = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=work, check=False)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout.splitlines()

    assert python("-c", USE_OF_ACME, str(work)) == [
        "acme-1 acme 4 True",
        "64",
        "compiling for acme-1 without the device needs the Acme compiler; install it with pip install acme, or use"
        " --target cpu",
        "core acme a Core that the dump does not name",
        "132 jit_step  memprof",
        "['Acme']",
        "[]",  # what it takes to compile for it is missing
    ]
    listed = [line.split() for line in python("-m", "memprof", "list", "targets")]
    assert ["acme-1", "16.0", "GiB", "Acme", "One", "invented"] in listed
