from __future__ import annotations

import pytest

from memprof.errors import MemprofError
from memprof.profiler_cli.doctor import doctor
from memprof.sources.doctor import example_targets
from memprof.sources.jax.processes import launch
from memprof.sources.jax.targets.tpu import compiler


@pytest.mark.parametrize("libtpu", [None, "libtpu 0.0.50.1"])
def test_it_compiles_to_the_end_for_it_may_be_the_assembler_that_is_missing(
    libtpu: str | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tasks = []

    def compile_in_child(task, **_):
        tasks.append(task)
        raise MemprofError("nothing is compiled here")

    monkeypatch.setattr(launch, "compile_in_child", compile_in_child)
    monkeypatch.setattr(compiler, "libtpu_version", lambda: libtpu)
    doctor()
    found = [(task.target.name, task.settings.complete) for task in tasks]
    assert found == [(target.name, is_complete) for target, is_complete in example_targets()]
    assert found[0] == ("cpu", True)
    assert ("h100-80gb", True) in found
    assert (("v5e", False) in found) == (libtpu is not None)
    assert capsys.readouterr().out.count("nothing is compiled here") == len(found)
