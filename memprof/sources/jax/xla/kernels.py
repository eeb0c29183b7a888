"""What the Pallas kernels of a compiled program for a TPU ask of VMEM, and of the other memories on the chip.

    kernels, doubts = known_kernels(hlo_proto, target)

The module combines two sources: a kernel's body (see `mosaic.py`) lists its blocks and its scratch memory, and the
program around the kernel has the layouts of its operands. Rules observed with libtpu 0.0.42 to 0.0.50, on v2 to tpu7x:

- A block is stored in the tiles of its operand. All its buffers together take a multiple of 1024 bytes.
- Scratch memory is stored in tiles of 8 x 128 elements, with fewer rows if it has fewer. It begins at a multiple of
  512 bytes.
- An operand or a result that XLA keeps in VMEM as a whole needs no block.
- SMEM is counted likewise, but an array of one dimension is not padded to whole words, and scratch memory that the
  body does not use counts. Scalar prefetch operands lie in it as a whole.
- A semaphore takes 4 bytes of a memory of its own (`sflag`): 2 KiB on v4 to v6e, 16 KiB on tpu7x.
- The compiler adds temporaries of its own while it generates code, which no plan tells. They are in its report of a
  finished compile, and in its sentence if all else is within the limit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from memprof.analysis.hlo.hlo_proto import message_classes, parse_proto, parse_shape
from memprof.analysis.hlo.tiling import padded_elements
from memprof.analysis.records.capture import Target
from memprof.analysis.records.kernel import Kernel, KernelBuffer, Kind
from memprof.errors import MemprofError
from memprof.sources.jax.xla.mosaic import MosaicArray, MosaicKernel, read_kernels
from memprof.untrusted import clean

_CALL = "tpu_custom_call"
_BLOCK_ALIGNMENT, _SCRATCH_ALIGNMENT = 1024, 512  # bytes
_ROWS, _LANES, _WORD_BITS = 8, 128, 32
_VMEM = 1  # XLA's number for the memory space
_FINISHED, _SETTINGS = "*after_codegen.hlo.pb", "*tpu_comp_env.pb"
# Fields of libtpu's compile settings (0.0.42 to 0.0.50); -1 means the default.
_SETTINGS_MESSAGES = {"Settings": {"xla_tpu_scoped_vmem_limit_kib": (418, "int64")}}
_Settings: Any = message_classes("memprof.libtpu", _SETTINGS_MESSAGES)["Settings"]


def known_kernels(
    hlo_proto: bytes, target: Target, limit_bytes: int = 0, used_bytes: Mapping[str, int] | None = None
) -> tuple[tuple[Kernel, ...], tuple[str, ...]]:
    """Return the kernels of a program, or a sentence that says why they are unknown. See `kernels_of`."""
    try:
        return kernels_of(hlo_proto, target, limit_bytes, used_bytes), ()
    except MemprofError as error:
        return (), (f"The VMEM of Pallas kernels is not shown: {error}.",)


def kernels_of(
    hlo_proto: bytes, target: Target, limit_bytes: int = 0, used_bytes: Mapping[str, int] | None = None
) -> tuple[Kernel, ...]:
    """Return the TensorCore kernels of a program, in the order of the proto.

    Args:
        limit_bytes: VMEM limit of a kernel that sets no limit itself; 0 means the target's limit.
        used_bytes: VMEM use that the compiler reports, by the name of the call (see `used_vmem_bytes`).

    Raises:
        MemprofError: jaxlib cannot read the kernels' bodies.
    """
    calls = _calls(hlo_proto)
    bodies = [config["custom_call_config"]["body"] for _, config, _ in calls]
    default_bytes, chip_bytes = limit_bytes or target.kernel_vmem_bytes, target.chip_bytes.get("vmem", 0)
    kernels = []
    for (message, config, shapes), body in zip(calls, read_kernels(bodies) if bodies else (), strict=True):
        if body is None:
            continue
        limits = _scoped_bytes(config, "scoped_memory_configs") or default_bytes, chip_bytes
        kernels.append(
            Kernel(
                instruction=clean(message.name),
                buffers=tuple(_buffers(body.arrays, body, message, shapes)),
                limit_bytes=min(filter(None, limits), default=None),
                used_bytes=(used_bytes or {}).get(message.name),
                smem_buffers=tuple(_buffers(body.smem_arrays, body, message, shapes)),
                smem_limit_bytes=target.chip_bytes.get("smem"),
                num_semaphores=body.num_semaphores,
            )
        )
    return tuple(kernels)


def used_vmem_bytes(folder: Path) -> dict[str, int]:
    """Return the VMEM use that the compiler reports for each kernel, by the name of its call.

    Empty if no code was generated.

    Args:
        folder: the folder of XLA's dump.
    """
    return {
        message.name: _scoped_bytes(config, "used_scoped_memory_configs")
        for path in folder.glob(_FINISHED)
        for message, config, _ in _calls(path.read_bytes())
    }


def scoped_limit_bytes(folder: Path) -> int:
    """Return the limit per kernel that the compiler option `xla_tpu_scoped_vmem_limit_kib` sets, or 0 if it is unset.

    Args:
        folder: the folder of XLA's dump.
    """
    limit_kib = 0
    for path in folder.glob(_SETTINGS):
        with suppress(DecodeError):
            limit_kib = max(limit_kib, _Settings.FromString(path.read_bytes()).xla_tpu_scoped_vmem_limit_kib)
    return limit_kib << 10


def _calls(hlo_proto: bytes) -> list[tuple[Any, Any, dict[int, bytes]]]:
    """Return the kernel calls: message, configuration, and the shapes of its computation's instructions by id."""
    if _CALL.encode() not in hlo_proto:
        return []
    found = []
    for computation in parse_proto(hlo_proto).hlo_module.computations:
        shapes = {each.id: each.shape for each in computation.instructions}
        for message in computation.instructions:
            if message.opcode == "custom-call" and message.custom_call_target == _CALL:
                try:
                    config = json.loads(message.backend_config)
                    config["custom_call_config"]["body"]
                except (ValueError, KeyError, TypeError) as error:
                    raise MemprofError(
                        f"the configuration of the kernel {clean(message.name)} cannot be read"
                    ) from error
                found.append((message, config, shapes))
    return found


def _scoped_bytes(config: Any, name: str) -> int:
    """Return the bytes of VMEM in a call's configuration, whose numbers are strings (protobuf's JSON)."""
    return sum(int(each["size"]) for each in config.get(name, ()) if int(each.get("memory_space", 0)) == _VMEM)


def _buffers(
    found: Sequence[MosaicArray], kernel: MosaicKernel, message: Any, shapes: Mapping[int, Any]
) -> list[KernelBuffer]:
    operands = [parse_shape(shapes[number]) for number in message.operand_ids][kernel.num_prefetched :]
    shape = parse_shape(message.shape)
    arrays = [*operands, *(shape.tuple_shapes or [shape])]
    return [_buffer(each, arrays, num_inputs=len(operands)) for each in found]


def _buffer(array: MosaicArray, arrays: Sequence[Any], *, num_inputs: int) -> KernelBuffer:
    if array.window is None:
        kind: Kind = "prefetch" if array.is_prefetched else "scratch"
        return _made(array, kind, _scratch_bits(array), _SCRATCH_ALIGNMENT)
    kind = "input" if array.window < num_inputs else "output"
    if array.is_in_smem:
        return _made(array, kind, _scratch_bits(array), _SCRATCH_ALIGNMENT)
    return _made(array, kind, _block_bits(array, arrays[array.window]), _BLOCK_ALIGNMENT)


def _made(array: MosaicArray, kind: Kind, bits: int, alignment: int) -> KernelBuffer:
    return KernelBuffer(
        kind=kind,
        dtype=array.dtype,
        shape=array.shape,
        num_buffers=array.num_buffers,
        size_bytes=_aligned(array.num_buffers * bits // 8, alignment),
    )


def _block_bits(array: MosaicArray, whole: Any) -> int:
    """Return the size of a block. Args: whole: the shape of the operand or result, with its layout."""
    layout = whole.layout
    if layout.memory_space == _VMEM:
        return 0
    if len(whole.dimensions) == len(array.shape) == len(layout.minor_to_major) and layout.tiles:
        tiles = tuple(tuple(tile.dimensions) for tile in layout.tiles)
        return array.bits * padded_elements(array.shape, layout.minor_to_major, tiles)
    return _scratch_bits(array)


def _scratch_bits(array: MosaicArray) -> int:
    *others, rows, columns = (1, 1, *array.shape)
    packed = max(_WORD_BITS // array.bits, 1)  # rows in one word
    if array.is_in_smem and len(array.shape) == 1:
        packed = 1
    tile = _ROWS if rows > _ROWS else max(1 << (rows - 1).bit_length(), packed)
    return prod(others) * _aligned(rows, tile) * _aligned(columns, _LANES) * array.bits


def _aligned(size: int, step: int) -> int:
    return -(-size // step) * step
