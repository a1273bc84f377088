"""Errors of this package, each in one place (docs/errors/w12_gemm.md)."""

from __future__ import annotations

from lossguard.errors import EngineError, UsageError


def missing_compiler() -> UsageError:
    """No bindings to CUDA."""
    return UsageError(
        "the package cuda-bindings is not installed",
        why="the fast W12 kernel is compiled on first use, with the compiler that comes with CUDA builds of torch",
        fix="pip install 'lossguard[w12-cuda]', or ask for backend='triton' or 'decode'",
        code="LG1701",
    )


def cannot_compile(name: str, log: str) -> EngineError:
    """NVRTC refuses the source."""
    return EngineError(
        f"{name} does not compile: {log}",
        why="without it there is no fast product with W12 weights on this device",
        fix="update the CUDA build of torch and cuda-bindings; backend='triton' or 'decode' work without it",
        code="LG1702",
    )


def driver_refused(call: str, status: str) -> EngineError:
    """A call to the CUDA driver failed."""
    return EngineError(
        f"{call} failed: {status}",
        why="the product was not computed",
        fix="free memory if it is short; else run with CUDA_LAUNCH_BLOCKING=1 and report the first failing call",
        code="LG1703",
    )


def wrong_input(problem: str) -> UsageError:
    """An x that these weights cannot be multiplied with."""
    return UsageError(
        f"x does not fit the weights: {problem}",
        why="the kernels compute bf16 x W^T and cast or move nothing unasked",
        fix="give x in bfloat16, of shape [..., columns of the weights], on the device of the weights",
        code="LG1704",
    )


def unsupported_device(found: str) -> UsageError:
    """No kernel for this device."""
    return UsageError(
        f"the fused W12 kernel does not run on {found}",
        why="it needs tensor cores for bf16 and asynchronous copies: compute capability 8.0 or newer",
        fix="use backend='decode', which runs wherever torch does",
        code="LG1705",
    )


def no_launch(shape: str) -> UsageError:
    """No variant fits the device's shared memory."""
    return UsageError(
        f"no form of the kernel fits this device for {shape}",
        why="every form keeps its stages in shared memory",
        fix="use backend='decode'",
        code="LG1706",
    )


def damaged_table(path: str, problem: str) -> EngineError:
    """A table of tuned launches that cannot be read."""
    return EngineError(
        f"{path} cannot be read: {problem}",
        why="guessing at a launch would make speeds depend on luck",
        fix="delete the file: launches are tuned again, or chosen by the model of bytes",
        code="LG1707",
    )


def blas_refused(call: str, status: int) -> EngineError:
    """cuBLASLt failed."""
    return EngineError(
        f"{call} failed with status {status}",
        why="the comparison would lack its strongest rival",
        fix="run with a CUDA build of torch; a status is explained in the documentation of cuBLAS",
        code="LG1708",
    )


def missing_rival(package: str) -> UsageError:
    """A package to compare with is not there."""
    return UsageError(
        f"the package {package} is not installed",
        why="the comparison with DFloat11 runs its own encoder and its own kernel",
        fix="pip install --no-deps dfloat11 dahuffman==0.4.2 tqdm",
        code="LG1709",
    )
