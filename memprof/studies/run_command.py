"""The command line that profiles a subject as it was profiled."""

from __future__ import annotations

import shlex

from memprof.analysis.capture import Target
from memprof.capture.targets.resolve import option_of
from memprof.studies.subject import Subject


def run_command(subject: Subject, target: Target | None, techniques: str) -> str:
    """`memprof run` with all the choices of a subject, quoted for a shell."""
    arguments = subject.arguments
    words = ["memprof", "run", arguments["workload"] if subject.is_built_in else arguments["reference"]]
    aim = option_of(target) if target is not None else None
    for option, text in (
        ("--preset", arguments.get("preset")),
        ("--target", aim),
        ("-t", techniques),
    ):
        words += [option, text] if text else []
    for override in arguments["overrides"]:
        words += ["--set", override]
    for path, role in arguments.get("roles", {}).items():
        words += ["--role", f"{path}={role}"]
    own = arguments.get("arguments", [])
    return shlex.join([*words, *(["--", *own] if own else [])])
