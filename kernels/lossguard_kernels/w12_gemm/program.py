"""The CUDA kernel as machine code: compiled by NVRTC once per device kind and variant, and kept on disk."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import platformdirs

from lossguard_kernels.w12_gemm.failures import cannot_compile, missing_compiler
from lossguard_kernels.w12_gemm.variants import Variant

GEMM_PARTS = ("memory.cu", "gemm.cu")
CACHE_VARIABLE = "LOSSGUARD_KERNEL_CACHE"
LOWEST_ARCHITECTURE = 80


def cache_folder() -> Path:
    """Where machine code and tuned launches are kept: ``$LOSSGUARD_KERNEL_CACHE``, or the user's cache folder."""
    given = os.environ.get(CACHE_VARIABLE)
    return Path(given) if given else platformdirs.user_cache_path("lossguard") / "kernels"


def gemm_source() -> str:
    """CUDA C++ of the product: its files one after the other, each with its own line numbers."""
    return "".join(f'#line 1 "{name}"\n{_text(name)}' for name in GEMM_PARTS)


def gemm_code(variant: Variant, architecture: int) -> bytes:
    """Machine code of one variant for an architecture such as 90. Raises UsageError LG1701 or EngineError LG1702."""
    return _code("gemm.cu", gemm_source(), variant.defines(), architecture)


def decode_code(architecture: int) -> bytes:
    """Machine code of the decoder. Raises UsageError LG1701 or EngineError LG1702."""
    return _code("decode.cu", _text("decode.cu"), (), architecture)


def _text(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _code(name: str, source: str, defines: tuple[str, ...], architecture: int) -> bytes:
    options = (f"--gpu-architecture=sm_{architecture}", "--std=c++17", "-lineinfo", *defines)
    text = source.encode()
    key = hashlib.sha256(repr(options).encode() + text).hexdigest()[:32]
    kept = cache_folder() / f"{name.removesuffix('.cu')}-{key}.cubin"
    if kept.is_file():
        return kept.read_bytes()
    code = compile_source(text, name, options)
    kept.parent.mkdir(parents=True, exist_ok=True)
    partial = kept.with_suffix(f".{os.getpid()}.partial")
    partial.write_bytes(code)
    partial.replace(kept)
    return code


def compile_source(text: bytes, name: str, options: Sequence[str]) -> bytes:
    """Compile CUDA C++ to a cubin. Raises UsageError LG1701 or EngineError LG1702."""
    nvrtc = _nvrtc()
    success = nvrtc.nvrtcResult.NVRTC_SUCCESS
    status, program = nvrtc.nvrtcCreateProgram(text, name.encode(), 0, [], [])
    if status != success:
        raise cannot_compile(name, str(status))
    try:
        encoded = [option.encode() for option in options]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(encoded), encoded)
        if status != success:
            raise cannot_compile(name, _log(nvrtc, program))
        _, size = nvrtc.nvrtcGetCUBINSize(program)
        code = bytes(size)
        nvrtc.nvrtcGetCUBIN(program, code)
        return code
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _log(nvrtc: Any, program: Any) -> str:
    _, size = nvrtc.nvrtcGetProgramLogSize(program)
    log = bytes(size)
    nvrtc.nvrtcGetProgramLog(program, log)
    return log.decode(errors="replace").strip("\0 \n")


@functools.cache
def _nvrtc() -> Any:
    try:
        from cuda.bindings import nvrtc
    except ModuleNotFoundError as error:
        raise missing_compiler() from error
    return nvrtc
