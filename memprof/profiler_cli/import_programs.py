"""`memprof import`: captures of programs compiled elsewhere, and of PyTorch's memory snapshots, from their files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from memprof.errors import MemprofError, unknown_name
from memprof.files import IfTaken, as_argument, check_folder_writable, check_writable, make_folder
from memprof.profiler_cli import options
from memprof.profiler_cli.capture_names import stem
from memprof.profiler_cli.console import say, stages, write
from memprof.profiler_cli.endings import is_capture
from memprof.profiler_cli.memory_profiles import memory_profile_in, print_profile
from memprof.profiler_cli.render import print_report, rendering

if TYPE_CHECKING:
    from memprof.analysis.records.capture import Capture, Target
    from memprof.analysis.records.report import Report
    from memprof.profiler_cli.render import Rendering
    from memprof.reports.views.imported import ImportedProgram
    from memprof.sources.dumps.dumps import FoundProgram
    from memprof.sources.dumps.importing import Sizes

_Paths = Annotated[
    list[Path],
    typer.Argument(
        help="Dumps of XLA (--xla_dump_to), log directories of XProf or TensorBoard, or files of them; StableHLO"
        " (*.mlir) and what jax.export has serialized, which are compiled for --target; memory profiles of JAX"
        " (*.prof); memory snapshots of PyTorch (*.pickle).",
        metavar="PATH",
    ),
]
_Programs = Annotated[
    list[str],
    typer.Option(
        "--program",
        help="A program to capture, by its name in the table; repeatable. For a memory profile: a capture of the step.",
        metavar="NAME",
    ),
]
_Largest = Annotated[
    int | None,
    typer.Option(
        "--largest",
        min=1,
        max=options.MOST,
        help="The number of programs to capture, the largest first; by default one.",
    ),
]
_Output = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--output",
        help="The folder to write captures to, or the file (*.memprof) of a single capture; of a memory profile, the"
        " report.",
        metavar="FOLDER|FILE",
    ),
]
_Target = Annotated[
    str | None,
    typer.Option(
        "--target",
        help="The device of the programs, if they do not name it; StableHLO is compiled for it.",
        metavar="NAME",
        autocompletion=options.complete_targets,
    ),
]  # fmt: skip


def import_programs(
    paths: _Paths,
    program: _Programs = [],  # noqa: B006 - Typer copies it
    largest: _Largest = None,
    role: options.Roles = [],  # noqa: B006
    target: _Target = None,
    output: _Output = None,
    force: options.Force = False,
    width: options.Width = None,
) -> None:
    """Make captures of programs compiled elsewhere.

    Compiled programs are read as they are, without JAX. If there are several, a table lists what each takes, and the
    largest is captured, or those that --program names.

        XLA_FLAGS="--xla_dump_to=dump --xla_dump_hlo_as_proto" python train.py
        memprof import dump

        memprof import logs/plugins/profile/2026_11_22 --program jit_train_step
        memprof import dump --role 'model.scale=other_state'

    A file of jax.profiler.save_device_memory_profile becomes a report of the arrays that were live:

        memprof import memory.prof --program train-step.memprof

    A memory snapshot of PyTorch (torch.cuda.memory._dump_snapshot) is read without torch, and without running anything
    in the file.

        memprof import snapshot.pickle --target a100-80gb
    """
    from memprof.analysis.pipeline import analyze
    from memprof.reports.formats.terminal import lower
    from memprof.reports.views.imported import imported_document
    from memprof.sources.capture_file import write_capture
    from memprof.sources.dumps.importing import import_program, sizes_of
    from memprof.sources.jax.roles.leaf import parse_roles
    from memprof.sources.jax.targets.resolve import resolve
    from memprof.sources.snapshot.capture import import_snapshot, is_snapshot

    snapshots = [path for path in paths if is_snapshot(path)]
    if snapshots and len(snapshots) < len(paths):
        raise MemprofError("import either memory snapshots of PyTorch or compiled programs")
    if snapshots and (program or largest or role):
        raise MemprofError("--program, --largest and --role apply to compiled programs, but a memory snapshot has none")
    for path in paths:
        if is_capture(str(path)):
            raise MemprofError(f"{path} is a memprof capture: show it with `memprof show`")
    profile = memory_profile_in(paths)
    if profile is not None:
        print_profile(profile, program, rendering(None, output=output, force=force, width=width))
        return
    show = rendering("terminal", width=width, full=False)
    aim, roles = None if target is None else resolve(target), parse_roles(role)
    file = output if output is not None and is_capture(output.name) and not output.is_dir() else None
    folder = Path() if output is None else output
    if file is not None:
        check_writable(file, overwrite=force)
    else:
        check_folder_writable(folder)
    if_taken = IfTaken.REPLACE if force else IfTaken.REFUSE
    if snapshots:
        if file is not None and len(snapshots) > 1:
            raise MemprofError(
                f"{file} holds a single capture, and {len(snapshots)} snapshots are imported: name a folder"
            )
        with stages("import") as stage:
            stage("reading")
            captures = [import_snapshot(path, target=aim) for path in snapshots]
            reports = [analyze(capture) for capture in captures]
        written = _written(captures, folder) if file is None else [write_capture(captures[0], file, if_taken=if_taken)]
        _print_written(reports, written, show)
        return
    with stages("import") as stage:
        found: list[tuple[FoundProgram, Sizes]] = []
        damaged: list[MemprofError] = []
        for each in _programs(paths, aim, stage):
            if not found and not damaged:  # that there is nothing to read is one sentence, alone
                stage("reading")
            try:
                found.append((each, sizes_of(each)))
            except MemprofError as error:  # a job that was killed leaves a file cut short among the others
                damaged.append(error)
        if not found:
            raise damaged[0]
        found.sort(key=lambda pair: -pair[1].footprint_bytes)
        chosen = _chosen([each for each, _ in found], program, largest)
        if file is not None and len(chosen) > 1:
            raise MemprofError(f"{file} holds a single capture, and {len(chosen)} programs are captured: name a folder")
        captures, reports = [], []
        for each in chosen:
            fresh = import_program(each, roles=roles, target=aim)
            captures.append(fresh.capture)
            reports.append(analyze(fresh.capture, fresh.decoded))
    if len(found) > 1:
        write(lower(imported_document(_as_rows(found)), show.options))
    written = _written(captures, folder) if file is None else [write_capture(captures[0], file, if_taken=if_taken)]
    for each_damaged in damaged:
        say(f"left out: {each_damaged}")
    _print_written(reports, written, show)


def _print_written(reports: Sequence[Report], written: Sequence[Path], show: Rendering) -> None:
    """Print the report of a single capture, and where captures are."""
    if len(reports) == 1:
        print_report(reports[0], show.of_capture(written[0]))
    for path in written:
        say(f"capture written to {path}; show it again with: memprof show {as_argument(path)}")


def _programs(paths: Sequence[Path], target: Target | None, stage: Callable[[str], None]) -> Iterator[FoundProgram]:
    """Those that are compiled, and those that are lowered, as soon as they are compiled."""
    from memprof.sources.dumps.dumps import programs_in
    from memprof.sources.dumps.lowered_files import compile_lowered, lowered_module

    modules = {path: module for path in paths if (module := lowered_module(path))}
    yield from programs_in([path for path in paths if path not in modules])
    for path, module in modules.items():
        yield compile_lowered(path, module, target, progress=stage)


def _chosen(found: Sequence[FoundProgram], names: Sequence[str], largest: int | None) -> list[FoundProgram]:
    """Those that are captured, largest first."""
    if not names:
        return list(found[: largest or 1])
    known = dict.fromkeys(each.name for each in found)
    for name in names:
        if name not in known:
            raise unknown_name("program", name, known)
    return [each for each in found if each.name in names][: largest or len(found)]


def _as_rows(found: Sequence[tuple[FoundProgram, Sizes]]) -> list[ImportedProgram]:
    from memprof.reports.views.imported import ImportedProgram

    return [
        ImportedProgram(
            name=each.name,
            device=sizes.target.name,
            footprint_bytes=sizes.footprint_bytes,
            live_peak_bytes=sizes.live_peak_bytes,
            written=each.written,
            file=each.file.name.partition(".")[0],
        )
        for each, sizes in found
    ]


def _written(captures: Sequence[Capture], folder: Path) -> list[Path]:
    from memprof.sources.capture_file import write_capture

    make_folder(folder)
    return [
        write_capture(capture, folder / f"{stem(capture)}.memprof", if_taken=IfTaken.NUMBER) for capture in captures
    ]
