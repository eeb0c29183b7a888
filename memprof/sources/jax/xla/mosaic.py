"""Reader of Mosaic modules, the bodies of Pallas kernels for TPUs, in a separate process because C++ may abort it.

    python -m memprof.sources.jax.xla.mosaic < BODIES.json > READ.json

A body is MLIR bytecode. jaxlib contains the dialect and upgrades earlier versions of it. The
reader does not import JAX itself.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

from msgspec import Struct, convert

from memprof.errors import MemprofError

_DESERIALIZE = "builtin.module(mosaic-serde{serialize=false})"
_VMEM, _SMEM, _SEMAPHORES = (f"#tpu.memory_space<{name}>" for name in ("vmem", "smem", "semaphore_mem"))
_SPACES = (_VMEM, _SMEM, _SEMAPHORES)
_ALLOCATE = ("memref.alloca", "tpu.sem_alloc")


class MosaicArray(Struct, frozen=True, kw_only=True):
    """An array that a kernel receives as a reference or allocates in its body.

    Attributes:
        window: index of the array's operand or result, counted together; None for scratch memory.
        dtype: MLIR's name of the element type.
        shape: of the block, with the dimensions that the kernel does not see.
        num_buffers: 2 for a block that changes from one iteration to the next, unless the kernel asks for one.
        is_prefetched: it is a scalar prefetch operand, which comes before the windows.
    """

    window: int | None
    dtype: str
    bits: int
    shape: tuple[int, ...]
    num_buffers: int = 1
    is_in_smem: bool = False
    is_prefetched: bool = False


class MosaicKernel(Struct, frozen=True, kw_only=True):
    """A kernel of a TensorCore.

    Attributes:
        num_prefetched: operands before the first window: sizes of the grid, and scalars.
        arrays: those in VMEM.
        smem_arrays: those in SMEM.
        num_semaphores: that the kernel asks for.
    """

    num_prefetched: int
    arrays: tuple[MosaicArray, ...]
    smem_arrays: tuple[MosaicArray, ...] = ()
    num_semaphores: int = 0


def read_kernels(bodies: Sequence[str]) -> list[MosaicKernel | None]:
    """Read kernel bodies in XLA's base64 encoding; None stands for a SparseCore kernel or one with dynamic sizes.

    Raises:
        MemprofError: jaxlib cannot read the bodies.
    """
    command = [sys.executable, "-P", "-m", "memprof.sources.jax.xla.mosaic"]
    ended = subprocess.run(command, input=json.dumps(bodies).encode(), capture_output=True)
    if ended.returncode:
        raise MemprofError("jaxlib cannot read the bodies of this program's Pallas kernels")
    return convert(json.loads(ended.stdout), list[MosaicKernel | None])


def _read(body: str) -> Mapping[str, Any] | None:
    from jaxlib.mlir import ir, passmanager

    module = ir.Module.parse(base64.b64decode(body))
    passmanager.PassManager.parse(_DESERIALIZE).run(module.operation)
    functions = {ir.StringAttr(each.attributes["sym_name"]).value: each for each in module.body.operations}
    # The first function is the kernel; the others map an iteration to its block.
    kernel = next(iter(functions.values()))
    attributes = {each: kernel.attributes[each] for each in kernel.attributes}
    if "<tc>" not in str(attributes.get("tpu.core_type", "<tc>")):
        return None
    bounds = [*attributes["iteration_bounds"]] if "iteration_bounds" in attributes else []
    windows = attributes.get("window_params")
    num_scalars, num_scratch = (_integer(attributes, name) for name in ("scalar_prefetch", "scratch_operands"))
    (block,) = kernel.regions[0].blocks
    arguments = list(block.arguments)[len(bounds) :]
    scalars, references = arguments[:num_scalars], arguments[num_scalars:]
    first_scratch = len(references) - num_scratch
    own: dict[str, list[dict[str, Any]]] = {space: [] for space in _SPACES}
    own[_SMEM] = [_array(each.type) | {"is_prefetched": True} for each in scalars if _space(each.type) == _SMEM]
    for number, reference in enumerate(references):
        space = _space(reference.type)
        if space not in own:
            continue
        array = _array(reference.type)
        if number >= first_scratch:
            if space == _VMEM and not list(reference.uses):
                continue  # libtpu drops it, but not from the other memories
        else:
            array["window"] = number
            if windows is not None and "window_bounds" in windows[number]:
                array |= _window(windows[number], functions, bounds)
        own[space].append(array)
    arrays = {space: own[space] + _allocations([block], space) for space in _SPACES}
    if any(size < 0 for each in arrays.values() for array in each for size in array["shape"]):
        return None
    is_dynamic = [bound < 0 for bound in bounds]
    return {
        "num_prefetched": sum(is_dynamic) + num_scalars,
        "arrays": arrays[_VMEM],
        "smem_arrays": arrays[_SMEM],
        "num_semaphores": sum(prod(array["shape"]) for array in arrays[_SEMAPHORES]),
    }


def _integer(attributes: Mapping[str, Any], name: str) -> int:
    return int(attributes[name].value) if name in attributes else 0


def _space(reference: Any) -> str:
    """The memory of a reference; empty for a scalar."""
    from jaxlib.mlir import ir

    try:
        return str(ir.MemRefType(reference).memory_space)
    except ValueError:
        return ""


def _array(reference: Any) -> dict[str, Any]:
    from jaxlib.mlir import ir

    element = ir.MemRefType(reference).element_type
    return {
        "is_in_smem": _space(reference) == _SMEM,
        "window": None,
        "dtype": str(element),
        "bits": getattr(element, "width", 32),
        "shape": [*ir.MemRefType(reference).shape],
    }


def _window(window: Any, functions: Mapping[str, Any], bounds: Sequence[int]) -> dict[str, Any]:
    """Return the block shape of an operand or a result, and its number of buffers in VMEM."""
    from jaxlib.mlir import ir

    transform = functions[ir.FlatSymbolRefAttr(window["transform_indices"]).value]
    is_alone = "pipeline_mode" in window and "synchronous" in str(window["pipeline_mode"])
    changes = not is_alone and _changes(transform, bounds)
    return {"shape": [*ir.DenseI64ArrayAttr(window["window_bounds"])], "num_buffers": 2 if changes else 1}


def _changes(transform: Any, bounds: Sequence[int]) -> bool:
    """Whether a block depends on a grid index that takes more than one value."""
    (block,) = transform.regions[0].blocks
    changing = {argument for argument, bound in zip(block.arguments, bounds, strict=False) if bound != 1}
    *operations, end = block.operations
    for operation in operations:
        if not changing.isdisjoint(_read_by(operation.operation)):
            changing.update(operation.operation.results)
    return not changing.isdisjoint(end.operation.operands)


def _read_by(operation: Any) -> set[Any]:
    """Return the values that an operation reads, including reads in its regions."""
    inner = (each for region in operation.regions for block in region.blocks for each in block.operations)
    return {*operation.operands}.union(*(_read_by(each.operation) for each in inner))


def _allocations(blocks: Iterable[Any], space: str) -> list[dict[str, Any]]:
    """What the body allocates in a memory (`pl.run_scoped`): the larger of two in a row, and both of two nested."""
    found: list[dict[str, Any]] = []
    for block in blocks:
        own: list[dict[str, Any]] = []
        inner: list[dict[str, Any]] = []
        for each in block.operations:
            operation = each.operation
            if operation.name in _ALLOCATE and _space(operation.results[0].type) == space:
                own.append(_array(operation.results[0].type))
            below = _allocations((block for region in operation.regions for block in region.blocks), space)
            inner = max(inner, below, key=_elements)
        found = max(found, own + inner, key=_elements)
    return found


def _elements(arrays: Iterable[Mapping[str, Any]]) -> int:
    return sum(int(array["bits"]) * prod(array["shape"]) for array in arrays)


def _main() -> int:
    from jaxlib.mlir import ir
    from jaxlib.mlir._mlir_libs import _tpu_ext

    with ir.Context() as context, ir.Location.unknown():
        _tpu_ext.register_dialect(context)
        context.load_all_available_dialects()
        context.allow_unregistered_dialects = True
        print(json.dumps([_read(body) for body in json.load(sys.stdin)]))
    return 0


if __name__ == "__main__":
    raise SystemExit(_main())
