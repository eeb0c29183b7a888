from __future__ import annotations

import pytest

from memprof.errors import MemprofError
from memprof.profiler_cli.doctor import doctor
from memprof.sources.jax.processes import launch
from memprof.sources.jax.targets.tpu import compiler


@pytest.mark.parametrize(("libtpu", "tpus"), [(None, []), ("libtpu 0.0.50.1", [("v5e", False)])])
def test_it_compiles_to_the_end_for_it_may_be_the_assembler_that_is_missing(
    libtpu: str | None,
    tpus: list[tuple[str, bool]],
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
    assert found == [("cpu", True), ("h100-80gb", True), *tpus]
    assert capsys.readouterr().out.count("nothing is compiled here") == len(found)
