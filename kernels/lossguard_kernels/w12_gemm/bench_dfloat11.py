"""DFloat11 beside W12 and cuBLAS: ``python -m lossguard_kernels.w12_gemm.bench_dfloat11``.

DFloat11 (the package ``dfloat11``) keeps exponents in a Huffman code: about 11 bits a weight, decoded to bf16 in memory
before torch's ``linear``. Its encoder is a loop of Python, a second for every million weights, so only the smaller
shapes of the bench are compared. Timed as the bench does: graphs, operands rotated past the cache, medians.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib.util
import io
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from lossguard_kernels.w12_gemm.bench import Operands
from lossguard_kernels.w12_gemm.bench_table import SHAPES
from lossguard_kernels.w12_gemm.failures import missing_rival
from lossguard_kernels.w12_gemm.launching import call_driver, driver_bindings
from lossguard_kernels.w12_gemm.measuring import microseconds
from lossguard_kernels.w12_gemm.operation import w12_linear

_THREADS, _BYTES_PER_THREAD = 512, 8  # what the package itself uses
_SMALL_SHAPES = ("8B o", "8B qkv", "27B out")


@dataclass(frozen=True, slots=True, kw_only=True)
class Coded:
    """A matrix as DFloat11 keeps it."""

    tables: Tensor
    exponents: Tensor
    others: Tensor
    positions: Tensor
    gaps: Tensor

    @property
    def num_bytes(self) -> int:
        """Of all parts."""
        return sum(part.nbytes for part in (self.tables, self.exponents, self.others, self.positions, self.gaps))

    @property
    def shared_bytes(self) -> int:
        """Of a block: counts of the threads, and the longest piece of output."""
        return 4 * _THREADS + 4 + 2 * int(self.positions.to(torch.int64).diff().max())

    def copy_to_device(self) -> Coded:
        """In memory of its own."""
        return Coded(
            tables=self.tables.cuda(),
            exponents=self.exponents.cuda(),
            others=self.others.cuda(),
            positions=self.positions.cuda(),
            gaps=self.gaps.cuda(),
        )


def encode(weights: Tensor) -> Coded:
    """Bf16 weights on a CPU, by the package's own encoder. Raises UsageError LG1709."""
    package = _encoder()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        _, counts = package.get_codec(weights.flatten())
        codec, _, table = package.get_32bit_codec(counts)
        exponents, others, positions, gaps, _ = package.encode_weights(
            [weights.flatten()], codec, _BYTES_PER_THREAD, _THREADS
        )
        tables = package.get_luts(table)
    return Coded(tables=tables, exponents=exponents, others=others, positions=positions, gaps=gaps)


class Decoder:
    """The package's kernel."""

    def __init__(self) -> None:
        """Raises UsageError LG1709."""
        torch.cuda.current_stream()  # the context of the device is current from here on
        driver = driver_bindings()
        code = (_folder() / "decode.ptx").read_bytes() + b"\0"
        module = call_driver("cuModuleLoadData", driver.cuModuleLoadData(code))
        self._function = call_driver("cuModuleGetFunction", driver.cuModuleGetFunction(module, b"decode"))

    def allow_shared(self, num_bytes: int) -> None:
        """Let a block have so much shared memory."""
        driver = driver_bindings()
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        call_driver("cuFuncSetAttribute", driver.cuFuncSetAttribute(self._function, attribute, num_bytes))

    def __call__(self, coded: Coded, out: Tensor, shared_bytes: int) -> Tensor:
        """Decode into ``out`` on the current stream."""
        driver = driver_bindings()
        num_bytes = coded.exponents.numel()
        parts = (coded.tables, coded.exponents, coded.others, coded.positions, coded.gaps, out)
        values: tuple[Any, ...] = (*(part.data_ptr() for part in parts), coded.tables.shape[0], num_bytes, out.numel())
        kinds = (*(ctypes.c_void_p for _ in parts), ctypes.c_int, ctypes.c_int, ctypes.c_int)
        num_blocks = -(-num_bytes // (_THREADS * _BYTES_PER_THREAD))
        stream = driver.CUstream(torch.cuda.current_stream().cuda_stream)
        grid, block = (num_blocks, 1, 1), (_THREADS, 1, 1)
        launched = driver.cuLaunchKernel(self._function, *grid, *block, shared_bytes, stream, (values, kinds), 0)
        call_driver("cuLaunchKernel", launched)
        return out


def _folder() -> Path:
    found = importlib.util.find_spec("dfloat11")
    if found is None or found.origin is None:
        raise missing_rival("dfloat11")
    return Path(found.origin).parent


def _encoder() -> ModuleType:
    """Its encoder alone: the package itself also wants cupy, accelerate and transformers."""
    spec = importlib.util.spec_from_file_location("dfloat11_encoder", _folder() / "dfloat11_utils.py")
    if spec is None or spec.loader is None:
        raise missing_rival("dfloat11")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except ModuleNotFoundError as error:
        raise missing_rival(error.name or "dahuffman") from error
    return module


def _compare(name: str, weights: Tensor, coded: Coded, decoder: Decoder, ms: list[int]) -> None:
    operands = Operands.random(*SHAPES[name])
    decoder.allow_shared(coded.shared_bytes)
    shared = coded.shared_bytes
    copies = [coded.copy_to_device() for _ in operands.coded]
    dense = torch.empty(SHAPES[name], dtype=torch.bfloat16, device="cuda")
    assert torch.equal(decoder(copies[0], dense, shared).cpu(), weights), "DFloat11 decodes to other weights"
    bits = 8 * coded.num_bytes / weights.numel()
    guess = max(4.0, weights.numel() / 2.2e6)
    for m in ms:
        x = torch.randn(m, SHAPES[name][1], device="cuda").to(torch.bfloat16)
        ours = microseconds([partial(w12_linear, x, w) for w in operands.coded], guess)
        blas = microseconds([partial(linear, x, w) for w in operands.dense], guess)
        theirs = microseconds([partial(_decode_and_multiply, x, c, dense, decoder, shared) for c in copies], 8 * guess)
        row = f"{name:10} m = {m:2}: linear {blas:6.1f} us, W12 {ours:6.1f}, DFloat11 and linear {theirs:7.1f}"
        print(f"{row}; x linear {blas / theirs:.2f}; {bits:.2f} bits a weight", flush=True)


def _decode_and_multiply(x: Tensor, coded: Coded, dense: Tensor, decoder: Decoder, shared_bytes: int) -> Tensor:
    return linear(x, decoder(coded, dense, shared_bytes))


def main() -> None:
    """Encode, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", nargs="*", choices=list(SHAPES), default=list(_SMALL_SHAPES))
    parser.add_argument("--m", nargs="*", type=int, default=[1, 32])
    given = parser.parse_args()
    weights = [(torch.randn(*SHAPES[name]) * 0.02).to(torch.bfloat16) for name in given.shapes]
    processes = multiprocessing.get_context("spawn")  # a fork of a process whose torch has threads would hang
    with ProcessPoolExecutor(len(weights), processes) as pool:
        coded = list(pool.map(encode, weights))
    decoder = Decoder()
    for name, one, parts in zip(given.shapes, weights, coded, strict=True):
        _compare(name, one, parts, decoder, given.m)


if __name__ == "__main__":
    main()
