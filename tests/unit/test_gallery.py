"""The gallery's table: its commands are of programs that there are, and its names lead to the pages that there are."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from memprof.sources.jax.targets.resolve import resolve_asked
from memprof.studies.subject import find_subject

pytestmark = pytest.mark.with_one_jax
PROJECT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def gallery() -> ModuleType:
    found = importlib.util.spec_from_file_location("gallery", PROJECT / "docs" / "gallery.py")
    assert found is not None
    assert found.loader is not None
    made = importlib.util.module_from_spec(found)
    found.loader.exec_module(made)
    return made


def test_the_table_has_ten_programs_that_there_are(gallery: ModuleType) -> None:
    commands = {name: line.split() for name, line in gallery.commands().items()}
    assert len(commands) == 10
    for _, program, *options in commands.values():
        value = dict(zip(options[::2], options[1::2], strict=True))
        target = resolve_asked(value["--target"], mesh=value.get("--mesh"))
        overrides = [value["--set"]] if "--set" in value else []
        subject = find_subject(program, preset=value.get("--preset"), overrides=overrides)
        assert subject.is_built_in or (PROJECT / program).is_file()
        assert subject.task(value.get("-t", ""), target=target)


def test_a_name_leads_to_its_page_where_there_is_a_capture(
    gallery: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gallery, "CAPTURES", tmp_path)
    (tmp_path / "lora.memprof").touch()
    table = (PROJECT / "docs" / "gallery" / "index.md").read_text()
    made = gallery.on_page_markdown(table, SimpleNamespace(file=SimpleNamespace(src_uri="gallery/index.md")))
    assert "| [lora](lora.html) | adapters" in made
    assert "| gpt2 | " in made
    other = SimpleNamespace(file=SimpleNamespace(src_uri="index.md"))
    assert gallery.on_page_markdown(table, other) == table
