"""An mkdocs hook that makes pages from the code that they describe: of the commands and the techniques.

A command's page is its `--help`; a technique's page is the docstring of its file, what it declares, and what it changed
in `benchmarks/results/technique_effects-*.json`, which `python -m benchmarks.technique_effects` measures.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from memprof.profiler_cli.app import app
from memprof.reports.formats.markdown import escape_markdown
from memprof.reports.units import format_bytes, format_flops, format_ratio, format_signed_bytes
from memprof.workloads.registry import techniques
from memprof.workloads.technique import Technique

_INDEX_HEAD = ("| technique | what it does | compiled | footprint |", "|---|---|---|---:|")
_RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the made pages into the navigation."""
    families: dict[str, list[str]] = {}
    for technique in techniques():
        families.setdefault(technique.family, []).append(f"techniques/{technique.name}.md")
    assert config.nav is not None
    config.nav[2:2] = [
        {"Commands": [f"commands/{name}.md" for name in _commands()]},
        {"Techniques": ["techniques/index.md", *({family: pages} for family, pages in families.items())]},
    ]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Make the pages."""
    for name, command in _commands().items():
        files.append(File.generated(config, f"commands/{name}.md", content=command_page(name, command)))
    result = newest_result()
    for technique in techniques():
        page = technique_page(technique, result)
        files.append(File.generated(config, f"techniques/{technique.name}.md", content=page))
    files.append(File.generated(config, "techniques/index.md", content=techniques_index(result)))
    return files


def newest_result() -> dict[str, Any]:
    """The last measurement of what the techniques change."""
    newest = max(_RESULTS.glob("technique_effects-*.json"))
    parsed: dict[str, Any] = json.loads(newest.read_text(encoding="utf-8"))
    return parsed


def command_page(name: str, command: Any) -> str:
    """What `memprof NAME --help` says."""
    prose, examples = _help(command)
    context = typer.Context(command, info_name=f"memprof {name}")
    lines = [f"# memprof {name}", "", prose, ""]
    if examples:
        lines += ["```sh", *examples, "```", ""]
    lines += ["```text", command.get_usage(context), "```", "", "| option | what it does |", "|---|---|"]
    for parameter in command.params:
        if getattr(parameter, "hidden", False):
            continue
        is_option = parameter.param_type_name == "option"
        spelling = _spelling(parameter) if is_option else parameter.metavar or parameter.name.upper()
        lines.append(f"| {_code(spelling)} | {getattr(parameter, 'help', None) or ''} |")
    lines += ["", "Options that are seldom needed: [Configuration](../configuration.md)."]
    return "\n".join(lines) + "\n"


def technique_page(technique: Technique, result: Mapping[str, Any]) -> str:
    """What a technique is, what it declares, and what it changed."""
    _, *text = inspect.cleandoc(technique.about).split("\n")
    codes = {
        "should shrink": technique.shrinks,
        "may grow": technique.grows,
        "needs": technique.needs,
        "shows together with": technique.shows_with,
        "sets": tuple(technique.sets),
    }
    mesh = f"--mesh {technique.axis}=8 " if technique.axis else ""
    facts = {
        "use it with": _code(f"{mesh}-t {'+'.join((*technique.needs, technique.usage))}"),
        **{name: ", ".join(map(_code, values)) for name, values in codes.items() if values},
        "reference": escape_markdown(technique.reference),
    }
    effects = [effect for effect in result["effects"] if effect["technique"] == technique.name]
    return "\n".join(
        [
            f"# {technique.usage.replace('<', '&lt;')}",
            "",
            f"*{escape_markdown(technique.summary)}*",
            "",
            *text,
            "",
            *(f"- {name}: {value}" for name, value in facts.items()),
            "",
            "## What it changes",
            "",
            *(_effect_lines(effects[0], result) if effects else [_why_not_measured(technique, result)]),
            "",
        ]
    )


def techniques_index(result: Mapping[str, Any]) -> str:
    """All techniques in one table, with what each changed."""
    effects = {effect["technique"]: effect for effect in result["effects"]}
    lines = ["# Techniques", "", _conditions(result), "", *_INDEX_HEAD]
    for technique in techniques():
        effect = effects.get(technique.name)
        ratio = format_ratio(effect["after_bytes"] / effect["before_bytes"]) if effect else ""
        link = f"[{_code(technique.usage)}]({technique.name}.md)"
        rows = f"{_code(effect['row'])} / {_code(effect['against'])}" if effect else ""
        lines.append(f"| {link} | {escape_markdown(technique.summary)} | {rows} | {ratio} |")
    return "\n".join(lines) + "\n"


def _effect_lines(effect: Mapping[str, Any], result: Mapping[str, Any]) -> Iterable[str]:
    before, after = effect["before_bytes"], effect["after_bytes"]
    yield _conditions(result)
    yield ""
    yield f"| | {_code(effect['against'])} | {_code(effect['row'])} | change |"
    yield "|---|---:|---:|---:|"
    change = f"{format_signed_bytes(after - before)} ({format_ratio(after / before)})"
    yield f"| footprint | {format_bytes(before)} | {format_bytes(after)} | {change} |"
    largest = sorted(effect["categories_delta"].items(), key=lambda item: -abs(item[1]))
    for category, delta in largest:
        yield f"| {_code(category)} | | | {format_signed_bytes(delta)} |"
    if effect["flops_after"] != effect["flops_before"]:
        flops = [format_flops(effect[key]) for key in ("flops_before", "flops_after")]
        yield f"| work | {flops[0]} | {flops[1]} | {format_ratio(effect['flops_after'] / effect['flops_before'])} |"
    if effect["host_bytes"]:
        yield f"| host memory | | {format_bytes(effect['host_bytes'])} | |"
    if effect["evidence"]:
        yield ""
        yield f"Found in the compiled program: {escape_markdown(effect['evidence'])}."


def _why_not_measured(technique: Technique, result: Mapping[str, Any]) -> str:
    """Why there is no measurement: it could not be compiled, it changes nothing, or not on one device."""
    if technique.axis is not None:
        return "It needs a mesh: [Many devices](../meshes.md) sets it beside the others of its family."
    row = "+".join((*technique.needs, *technique.shows_with, technique.example))
    for failure in result["failures"]:
        if failure["label"] == f"{result['workload']} {row}":
            return f"It could not be compiled for this table: {escape_markdown(failure['reason'])}"
    return "It is what the others are set against."


def _conditions(result: Mapping[str, Any]) -> str:
    tools = result["toolchain"]
    command = f"memprof compare {result['workload']} --preset {result['preset']}"
    overrides = " ".join(f"--set {override}" for override in result["overrides"])
    return (
        f"Compiled, not measured on a device: {_code(f'{command} {overrides} --target ' + result['target'])}, "
        f"jax {tools['jax']}, Python {tools['python']}."
    )


def _commands() -> dict[str, Any]:
    group: Any = typer.main.get_command(app)
    return dict(group.commands)


def _help(command: Any) -> tuple[str, list[str]]:
    """The sentences of a command's help, and its examples: the lines that begin with `memprof`."""
    lines = inspect.cleandoc(command.help or "").replace("\b", "").split("\n")
    examples = [line.strip() for line in lines if line.strip().startswith("memprof ")]
    prose = "\n".join(line.strip() for line in lines if not line.strip().startswith("memprof "))
    return prose.strip(), examples


def _spelling(option: Any) -> str:
    names = "/".join((*option.opts, *option.secondary_opts))
    return names if option.is_flag else f"{names} {option.metavar or option.name.upper()}"


def _code(text: str) -> str:
    escaped = text.replace("|", "\\|")
    return f"`{escaped}`"
