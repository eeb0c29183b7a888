"""Code that a user pastes: pieces in one, with a place for their imports."""

from __future__ import annotations


def pasteable(*pieces: str) -> str:
    """Return pieces of code in one, with all imports under a comment that says where they go.

    An import within a function would make its name local there, and fail all earlier uses of that name.
    """
    imports: dict[str, None] = {}
    rest: list[str] = []
    for piece in filter(None, pieces):
        lines = piece.splitlines()
        num_imports = next((n for n, line in enumerate(lines) if not line.startswith(("import ", "from "))), len(lines))
        imports.update(dict.fromkeys(lines[:num_imports]))
        rest.append("\n".join(lines[num_imports:]).strip("\n") if num_imports else piece.rstrip("\n"))
    if not imports:
        return "\n\n".join(rest)
    return "\n".join(["# at the top of the file", *imports, "", "\n\n".join(rest)])
