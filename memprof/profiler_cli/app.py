"""The Typer app: the commands in the order of `memprof --help`."""

from __future__ import annotations

from typing import Annotated

import typer

from memprof.profiler_cli import (
    advise,
    cache,
    check,
    compare,
    doctor,
    explain,
    export,
    fit,
    import_programs,
    list_names,
    mcp_server,
    plan,
    run,
    serve_plan,
    show,
    trace,
    watch,
)
from memprof.profiler_cli.verb import Commands, Verb
from memprof.version import __version__

app = typer.Typer(
    name="memprof",
    cls=Commands,
    help="Account for every byte of a JAX training step's device memory, for any GPU, without needing one.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run", cls=Verb)(run.run)
app.command("compare", cls=Verb)(compare.compare)
app.command("trace", cls=Verb)(trace.trace)
app.command("fit", cls=Verb)(fit.fit)
app.command("plan", cls=Verb)(plan.plan)
app.command("serve-plan", cls=Verb)(serve_plan.serve_plan)
app.command("check", cls=Verb)(check.check)
app.command("advise", cls=Verb)(advise.advise)
app.command("show", cls=Verb)(show.show)
app.command("watch", cls=Verb, context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False})(
    watch.watch
)
app.command("import", cls=Verb)(import_programs.import_programs)
app.command("export", cls=Verb)(export.export)
app.command("explain", cls=Verb)(explain.explain)
app.command("list", cls=Verb)(list_names.list_names)
app.command("cache", cls=Verb)(cache.cache)
app.command("doctor", cls=Verb)(doctor.doctor)
app.command("mcp", cls=Verb)(mcp_server.mcp)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"memprof {__version__}")
        raise typer.Exit


@app.callback()
def _callback(
    version: Annotated[
        bool, typer.Option("-V", "--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of memprof itself."""
