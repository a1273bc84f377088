"""cuBLASLt's own best: the algorithms that its heuristics rank first, each of them timed.

torch uses one of them at most. A kernel that claims to beat the library must beat the best of these too.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from lossguard_kernels.w12_gemm.failures import blas_refused

_COMPUTE_32F, _R_32F, _R_16BF = 68, 0, 14
_TRANSA, _MAX_WORKSPACE = 3, 1
_WORKSPACE_BYTES = 64 << 20


class _Algorithm(ctypes.Structure):
    _fields_ = (("data", ctypes.c_uint64 * 8),)


class _Heuristic(ctypes.Structure):
    _fields_ = (
        ("algorithm", _Algorithm),
        ("workspace_bytes", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


class CublasLt:
    """``y = x W^T`` for bf16 x [m, columns] and W [rows, columns], accumulated in float32."""

    def __init__(self) -> None:
        """Open the library that torch uses. Raises EngineError LG1708."""
        self._library = ctypes.CDLL(_library_name())
        self._handle = ctypes.c_void_p()
        self._check("cublasLtCreate", self._library.cublasLtCreate(ctypes.byref(self._handle)))
        self._workspace = torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")

    def algorithms(
        self, m: int, rows: int, columns: int, num_wanted: int = 8
    ) -> list[Callable[[Tensor, Tensor, Tensor], None]]:
        """A call ``(x, weight, y)`` for each of the algorithms that the heuristics rank first, best guess first."""
        lib, operation = self._library, ctypes.c_void_p()
        self._check("MatmulDescCreate", lib.cublasLtMatmulDescCreate(ctypes.byref(operation), _COMPUTE_32F, _R_32F))
        transposed = ctypes.c_int32(1)
        self._check(
            "MatmulDescSetAttribute",
            lib.cublasLtMatmulDescSetAttribute(operation, _TRANSA, ctypes.byref(transposed), ctypes.c_size_t(4)),
        )
        layouts = (self._layout(columns, rows), self._layout(columns, m), self._layout(rows, m))  # column-major
        preference = ctypes.c_void_p()
        self._check("MatmulPreferenceCreate", lib.cublasLtMatmulPreferenceCreate(ctypes.byref(preference)))
        limit = ctypes.c_uint64(_WORKSPACE_BYTES)
        self._check(
            "MatmulPreferenceSetAttribute",
            lib.cublasLtMatmulPreferenceSetAttribute(
                preference, _MAX_WORKSPACE, ctypes.byref(limit), ctypes.c_size_t(8)
            ),
        )
        found, num_found = (_Heuristic * num_wanted)(), ctypes.c_int()
        weight, x, y = layouts
        status = lib.cublasLtMatmulAlgoGetHeuristic(
            self._handle, operation, weight, x, y, y, preference, num_wanted, found, ctypes.byref(num_found)
        )
        self._check("MatmulAlgoGetHeuristic", status)
        return [self._call(operation, layouts, found[i]) for i in range(num_found.value) if found[i].state == 0]

    def _layout(self, rows: int, columns: int) -> ctypes.c_void_p:
        layout = ctypes.c_void_p()
        status = self._library.cublasLtMatrixLayoutCreate(
            ctypes.byref(layout), _R_16BF, ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(rows)
        )
        self._check("MatrixLayoutCreate", status)
        return layout

    def _call(
        self, operation: ctypes.c_void_p, layouts: tuple[ctypes.c_void_p, ...], found: _Heuristic
    ) -> Callable[[Tensor, Tensor, Tensor], None]:
        one, zero = ctypes.c_float(1.0), ctypes.c_float(0.0)
        of_weight, of_x, of_y = layouts

        def run(x: Tensor, weight: Tensor, y: Tensor) -> None:
            status = self._library.cublasLtMatmul(
                self._handle,
                operation,
                ctypes.byref(one),
                ctypes.c_void_p(weight.data_ptr()),
                of_weight,
                ctypes.c_void_p(x.data_ptr()),
                of_x,
                ctypes.byref(zero),
                ctypes.c_void_p(y.data_ptr()),
                of_y,
                ctypes.c_void_p(y.data_ptr()),
                of_y,
                ctypes.byref(found.algorithm),
                ctypes.c_void_p(self._workspace.data_ptr()),
                ctypes.c_size_t(_WORKSPACE_BYTES),
                ctypes.c_void_p(torch.cuda.current_stream().cuda_stream),
            )
            self._check("Matmul", status)

        return run

    def _check(self, call: str, status: int) -> None:
        if status != 0:
            raise blas_refused(f"cublasLt {call}", status)


def _library_name() -> str:
    """The file that is loaded already: another copy would be another version."""
    torch.mm(*(torch.zeros(16, 16, dtype=torch.bfloat16, device="cuda") for _ in range(2)))
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        if "libcublasLt.so" in line:
            return line.split()[-1]
    raise blas_refused("opening libcublasLt", -1)
