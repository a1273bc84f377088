"""Facts that change what the transformers engine computes."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from lossguard.engines.transformers_loading import resolve_device, resolve_dtype
from lossguard.engines.transformers_session import SessionSpec, resolve_threads

PACKAGES = (
    "accelerate",
    "causal_conv1d",
    "flash-attn",
    "flash-linear-attention",
    "kernels",
    "tokenizers",
    "torch",
    "transformers",
    "triton",
)


def environment_facts(spec: SessionSpec) -> dict[str, Any]:
    """JSON values; absent packages are None, since installing one can change which kernels run."""
    device, device_reason = resolve_device(spec.options)
    dtype, dtype_reason = resolve_dtype(spec.options, spec.facts)
    threads, threads_reason = resolve_threads(spec.options)
    return {
        "engine": "transformers",
        "options": spec.options.to_json(),
        "versions": {name: _installed(name) for name in PACKAGES},
        "dtype": dtype,
        "device": device,
        "device_name": _device_name(device),
        "driver": _driver(device),
        "threads": threads,
        "attention": spec.options.attention,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "matmul": _matmul_settings(),
        "reasons": {"device": device_reason, "dtype": dtype_reason, "threads": threads_reason},
    }


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _device_name(device: str) -> str:
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    info = Path("/proc/cpuinfo")
    if device == "cpu" and info.exists():
        lines = info.read_text(encoding="utf-8").splitlines()
        names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
        return next(names, platform.machine())
    return platform.processor() or platform.machine()


def _driver(device: str) -> str | None:
    info = Path("/proc/driver/nvidia/version")
    if not device.startswith("cuda") or not info.exists():
        return None
    return info.read_text(encoding="utf-8").splitlines()[0].strip()


def _matmul_settings() -> dict[str, Any]:
    """Switches that let float32 matrix products run in less."""
    return {
        "float32_precision": torch.get_float32_matmul_precision(),
        "cuda_tf32": torch.backends.cuda.matmul.allow_tf32,
        "cuda_version": torch.version.cuda,
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
    }
