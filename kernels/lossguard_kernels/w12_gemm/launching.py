"""From tensors to a launch of gemm.cu or decode.cu on the current stream."""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lossguard_kernels.w12_gemm.failures import driver_refused, missing_compiler, unsupported_device
from lossguard_kernels.w12_gemm.program import LOWEST_ARCHITECTURE, decode_code, gemm_code
from lossguard_kernels.w12_gemm.variants import Device, Launch, Variant
from lossguard_kernels.w12_gemm.weights import KernelWeights

_POINTERS = (
    "hi", "lo", "x", "y", "bias", "base", "escape_start", "escape_place", "escape_bits", "partials", "counters",
)  # fmt: skip
_NUMBERS = ("bands", "k_tiles", "m", "x_stride", "parts", "slices", "base_step")
_DECODE_POINTERS = ("hi", "lo", "base", "escape_start", "escape_place", "escape_bits", "dense")
_DECODE_NUMBERS = ("bands", "k_tiles", "rows", "columns", "base_step")
_DECODE_THREADS, _PATCH_THREADS = 256, 128
_PIECES_PER_TILE = 64
_OVERLAP_ARCHITECTURE = 90


class Problem(ctypes.Structure):
    """``struct Problem`` of gemm.cu."""

    _fields_ = [*((name, ctypes.c_void_p) for name in _POINTERS), *((name, ctypes.c_int) for name in _NUMBERS)]


class Source(ctypes.Structure):
    """``struct Source`` of decode.cu."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in _DECODE_POINTERS),
        *((name, ctypes.c_int) for name in _DECODE_NUMBERS),
    ]


def problem_of(launch: Launch, weights: KernelWeights, x: Tensor, y: Tensor, partials: Tensor | None) -> Problem:
    """The kernel's argument for x [m, 64 * tiles] and y [m, 16 * bands], both bf16; no bias."""
    return Problem(
        hi=weights.hi.data_ptr(),
        lo=weights.lo.data_ptr(),
        x=x.data_ptr(),
        y=y.data_ptr(),
        bias=None,
        base=weights.base.data_ptr(),
        escape_start=weights.escape_start.data_ptr(),
        escape_place=weights.escape_place.data_ptr(),
        escape_bits=weights.escape_bits.data_ptr(),
        partials=None if partials is None else partials.data_ptr(),
        counters=weights.counters.data_ptr(),
        bands=weights.num_bands,
        k_tiles=weights.num_tiles,
        m=x.shape[0],
        x_stride=x.stride(0),
        parts=launch.parts,
        slices=launch.slices,
        base_step=int(weights.base.numel() > 1),
    )


def launch_gemm(launch: Launch, problem: Problem, device: torch.device, *, overlap: bool = True) -> None:
    """Run the kernel on the current stream. ``overlap`` lets it fetch weights while the kernel before it ends."""
    variant = launch.variant
    grid = _Grid(
        num_blocks=launch.parts * launch.slices,
        num_threads=variant.num_threads,
        shared_bytes=variant.shared_bytes,
        overlap=overlap,
    )
    _launch(_gemm_function(variant, _index(device)), grid, problem, _index(device))


def launch_decode(weights: KernelWeights, dense: Tensor, *, hi_only: bool = False) -> None:
    """Decode into ``dense`` [rows, columns], bf16, on the current stream; ``hi_only`` leaves out LO and the escapes."""
    index = _index(weights.device)
    source = Source(
        hi=weights.hi.data_ptr(),
        lo=None if hi_only else weights.lo.data_ptr(),
        base=weights.base.data_ptr(),
        escape_start=weights.escape_start.data_ptr(),
        escape_place=weights.escape_place.data_ptr(),
        escape_bits=weights.escape_bits.data_ptr(),
        dense=dense.data_ptr(),
        bands=weights.num_bands,
        k_tiles=weights.num_tiles,
        rows=weights.rows,
        columns=weights.columns,
        base_step=int(weights.base.numel() > 1),
    )
    decode, patch = _decode_functions(index)
    num_blocks = -(-weights.num_bands * weights.num_tiles * _PIECES_PER_TILE // _DECODE_THREADS)
    _launch(decode, _Grid(num_blocks=num_blocks, num_threads=_DECODE_THREADS), source, index)
    if weights.escape_bits.numel() and not hi_only:
        _launch(patch, _Grid(num_blocks=weights.num_bands, num_threads=_PATCH_THREADS), source, index)


@functools.cache
def device_of(index: int) -> Device:
    """What limits launches on a CUDA device. Raises UsageError LG1705."""
    found = torch.cuda.get_device_properties(index)
    if 10 * found.major + found.minor < LOWEST_ARCHITECTURE:
        raise unsupported_device(f"{found.name} (compute capability {found.major}.{found.minor})")
    return Device(
        name=found.name,
        num_multiprocessors=found.multi_processor_count,
        shared_bytes_per_block=_attribute(index, "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Grid:
    num_blocks: int
    num_threads: int
    shared_bytes: int = 0
    overlap: bool = False


def _attribute(index: int, name: str) -> int:
    driver = driver_bindings()
    device = call_driver("cuDeviceGet", driver.cuDeviceGet(index))
    attribute = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
    return int(call_driver("cuDeviceGetAttribute", driver.cuDeviceGetAttribute(attribute, device)))


def _index(device: torch.device) -> int:
    return torch.cuda.current_device() if device.index is None else device.index


def _architecture(index: int) -> int:
    device_of(index)
    major, minor = torch.cuda.get_device_capability(index)
    return 10 * major + minor


@functools.cache
def _gemm_function(variant: Variant, index: int) -> Any:
    driver = driver_bindings()
    function = _functions(gemm_code(variant, _architecture(index)), index, b"w12_gemm")[0]
    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    call_driver("cuFuncSetAttribute", driver.cuFuncSetAttribute(function, attribute, variant.shared_bytes))
    return function


@functools.cache
def _decode_functions(index: int) -> tuple[Any, ...]:
    return _functions(decode_code(_architecture(index)), index, b"w12_decode", b"w12_patch")


def _functions(code: bytes, index: int, *names: bytes) -> tuple[Any, ...]:
    driver = driver_bindings()
    with torch.cuda.device(index):
        torch.cuda.current_stream()  # the context of the device is current from here on
        module = call_driver("cuModuleLoadData", driver.cuModuleLoadData(code))
        return tuple(call_driver("cuModuleGetFunction", driver.cuModuleGetFunction(module, name)) for name in names)


def _launch(function: Any, grid: _Grid, argument: ctypes.Structure, index: int) -> None:
    driver = driver_bindings()
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = grid.num_blocks, 1, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = grid.num_threads, 1, 1
    config.sharedMemBytes = grid.shared_bytes
    config.hStream = driver.CUstream(torch.cuda.current_stream(index).cuda_stream)
    if grid.overlap and _architecture(index) >= _OVERLAP_ARCHITECTURE:
        overlap = driver.CUlaunchAttribute()
        overlap.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        overlap.value.programmaticStreamSerializationAllowed = 1
        config.attrs, config.numAttrs = [overlap], 1
    pointers = (ctypes.c_void_p * 1)(ctypes.addressof(argument))
    call_driver("cuLaunchKernelEx", driver.cuLaunchKernelEx(config, function, ctypes.addressof(pointers), 0))


def call_driver(name: str, returned: tuple[Any, ...]) -> Any:
    """The value of a driver call. Raises EngineError LG1703."""
    status = returned[0]
    if status != driver_bindings().CUresult.CUDA_SUCCESS:
        raise driver_refused(name, str(status))
    return returned[1] if len(returned) > 1 else None


@functools.cache
def driver_bindings() -> Any:
    """CUDA's driver. Raises UsageError LG1701."""
    try:
        from cuda.bindings import driver
    except ModuleNotFoundError as error:
        raise missing_compiler() from error
    return driver
