"""XLA's parser of HLO text, run in a separate process because damaged text can crash it.

    python -m memprof.sources.jax.xla.hlo_parser < PROGRAM.txt > MODULE.pb

The parser checks some of its input with C++ assertions, which abort the process.
"""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys

from memprof.errors import MemprofError

_MAX_TEXT = 200


def hlo_module_of_text(text: str) -> bytes:
    """Parse a text dump of XLA into a serialized `xla.HloModuleProto`, without starting a backend.

    Raises:
        MemprofError: jaxlib cannot parse the text.
    """
    command = [sys.executable, "-P", "-m", "memprof.sources.jax.xla.hlo_parser"]
    ended = subprocess.run(command, input=text.encode(errors="replace"), capture_output=True)
    if ended.returncode:
        said = ended.stderr.decode(errors="replace").partition("*** Check failure")[0]
        reason = " ".join(said.rpartition("Check failed: ")[2].split())[:_MAX_TEXT]
        raise MemprofError(
            f"jaxlib {importlib.metadata.version('jaxlib')} cannot parse the text of its program ({reason})"
        )
    return ended.stdout


def _parse() -> int:
    from jaxlib import _hlo

    try:
        module: bytes = _hlo.hlo_module_from_text(sys.stdin.buffer.read().decode()).as_serialized_hlo_module_proto()
    except (RuntimeError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    sys.stdout.buffer.write(module)
    return 0


if __name__ == "__main__":
    raise SystemExit(_parse())
