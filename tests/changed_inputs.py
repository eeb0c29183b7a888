"""Kinds of inputs from which a training step can be made, with a change of each. Each decides the size of one array.

`SCRIPT` is the code of the user, `write_inputs` writes its files, `command` has arguments and variables. A row that was
taken over although an input has changed would have the earlier array.
"""

from __future__ import annotations

import json
import os
import pickle
import py_compile
import sqlite3
from pathlib import Path

import numpy as np

SIZES = {1: 100, 2: 200}
FILES = (
    "text", "bytes_path", "append_mode", "npz", "pickled", "json_file", "yaml_by_os", "pathlib_read", "globbed",
    "stat_size", "exists", "listdir", "environment_file", "subprocess_output", "pyc", "sqlite", "imported",
    "package_module", "exec_file", "symlink", "mmap", "fifo_like", "xla_flags_file",
)  # fmt: skip
VARIABLES = ("XDG_SIZE", "PYTEST_SIZE", "LINES", "MY_SIZE", "TERM_SIZE", "PS9")
KINDS = (*FILES, *VARIABLES, "argv", "config_field")

SCRIPT = """
import glob, importlib.util, json, mmap, os, pathlib, pickle, runpy, sqlite3, subprocess, sys
import jax, jax.numpy as jnp, numpy as np, optax, memprof
import imported, package.module

def pyc():
    spec = importlib.util.spec_from_file_location("compiled", "compiled.pyc")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.SIZE

def mapped():
    with open("mmap", "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return int(content[:].decode())

def append_mode():
    with open("append_mode", "a+") as file:
        file.seek(0)
        return int(file.read())

def with_descriptor(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return int(os.read(descriptor, 20))
    finally:
        os.close(descriptor)

def step_spec(config_field: int = 100):
    sizes = {
        "text": int(open("text").read()),
        "bytes_path": int(open(b"bytes_path").read()),
        "append_mode": append_mode(),
        "npz": int(np.load("npz.npz")["size"]),
        "pickled": pickle.loads(pathlib.Path("pickled").read_bytes()),
        "json_file": json.load(open("json_file"))["size"],
        "yaml_by_os": with_descriptor("yaml_by_os"),
        "pathlib_read": int(pathlib.Path("pathlib_read").read_text()),
        "globbed": 100 * len(glob.glob("globbed/*")),
        "stat_size": os.stat("stat_size").st_size,
        "exists": 200 if os.path.exists("exists") else 100,
        "listdir": 100 * len(os.listdir("listdir")),
        "environment_file": int(dict(line.split("=") for line in open("environment_file"))["SIZE"]),
        "subprocess_output": int(subprocess.run(["cat", "subprocess_output"], capture_output=True).stdout),
        "pyc": pyc(),
        "sqlite": sqlite3.connect("sqlite").execute("select size from sizes").fetchone()[0],
        "imported": imported.SIZE,
        "package_module": package.module.SIZE,
        "exec_file": runpy.run_path("exec_file")["SIZE"],
        "symlink": int(open("symlink").read()),
        "mmap": mapped(),
        "fifo_like": int(open(f"/proc/self/cwd/fifo_like").read()),
        "xla_flags_file": int(open("xla_flags_file").read()),
        **{name: int(os.environ[name]) for name in VARIABLES},
        "argv": int(sys.argv[1]),
        "config_field": config_field,
    }
    params = {name: jax.ShapeDtypeStruct((size,), jnp.float32) for name, size in sizes.items()}
    batch = {"x": jax.ShapeDtypeStruct((4,), jnp.float32)}
    loss = lambda params, batch, rng: sum(jnp.sum(each**2) for each in params.values()) * jnp.sum(batch["x"])
    return memprof.TrainSpec(loss_fn=loss, params=params, optimizer=optax.sgd(0.1), batch=batch)
""".replace("VARIABLES", repr(VARIABLES))


def write_inputs(folder: Path, changed: frozenset[str]) -> None:
    """Write all inputs, those in `changed` at their second version."""

    def size(kind: str) -> int:
        return SIZES[2 if kind in changed else 1]

    def write(name: str, content: str | bytes) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)

    write("train.py", SCRIPT)
    plain = (
        "text",
        "bytes_path",
        "append_mode",
        "yaml_by_os",
        "pathlib_read",
        "subprocess_output",
        "mmap",
        "fifo_like",
    )
    for name in (*plain, "xla_flags_file"):
        write(name, str(size(name)))
    np.savez(folder / "npz.npz", size=size("npz"))
    write("pickled", pickle.dumps(size("pickled")))
    write("json_file", json.dumps({"size": size("json_file")}))
    for name in ("globbed", "listdir"):
        write(f"{name}/first", "")
        if name in changed:
            write(f"{name}/second", "")
    write("stat_size", "x" * size("stat_size"))
    if "exists" in changed:
        write("exists", "")
    write("environment_file", f"SIZE={size('environment_file')}")
    write("compiled.py", f"SIZE = {size('pyc')}\n")
    py_compile.compile(str(folder / "compiled.py"), cfile=str(folder / "compiled.pyc"), doraise=True)
    (folder / "compiled.py").unlink()
    (folder / "sqlite").unlink(missing_ok=True)
    with sqlite3.connect(folder / "sqlite") as database:
        database.execute("create table sizes (size)")
        database.execute("insert into sizes values (?)", (size("sqlite"),))
    database.close()
    write("imported.py", f"SIZE = {size('imported')}\n")
    write("package/module.py", f"SIZE = {size('package_module')}\n")
    write("exec_file", f"SIZE = {size('exec_file')}\n")
    for number in SIZES.values():
        write(f"target_{number}", str(number))
    (folder / "symlink").unlink(missing_ok=True)
    os.symlink(f"target_{size('symlink')}", folder / "symlink")


def command(changed: frozenset[str]) -> tuple[list[str], dict[str, str]]:
    """The arguments of `memprof`, and the environment."""
    size = {kind: str(SIZES[2 if kind in changed else 1]) for kind in KINDS}
    fields = ["--set", f"config_field={size['config_field']}"]
    rows = ["-t", "baseline", "--target", "cpu", "-o", "rows", "--format", "json"]
    arguments = ["compare", "train.py:step_spec", *fields, *rows, "--", size["argv"]]
    return arguments, {name: size[name] for name in VARIABLES}
