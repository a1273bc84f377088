"""Facts that change what the embedded engine computes."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from lossguard.models import sha256_of_file
from lossguard_mechanisms.engine.acceleration import kernels_fit
from lossguard_mechanisms.engine.loading import SystemSpec
from lossguard_mechanisms.engine.options import (
    resolve_cache_tokens,
    resolve_device,
    resolve_dtype,
    resolve_packing,
    resolve_threads,
)
from lossguard_mechanisms.engine.tree_options import policy_reason
from lossguard_mechanisms.targets.weights import read_config

PACKAGES = ("torch", "triton")


def environment_facts(spec: SystemSpec) -> dict[str, Any]:
    """JSON values; absent packages are None. Raises UsageError LG1301 for a target that is not supported."""
    options = spec.options
    device, device_reason = resolve_device(options)
    dtype, dtype_reason = resolve_dtype(options, spec.facts)
    threads, threads_reason = resolve_threads(options)
    packing, packing_reason = resolve_packing(options, dtype=dtype, device=torch.device(device).type)
    tokens, tokens_reason = resolve_cache_tokens(options, spec.facts)
    kernels, kernels_reason = kernels_fit(
        read_config(Path(spec.model_path)),
        dtype=getattr(torch, dtype),
        device=torch.device(device),
    )
    return {
        "engine": "embedded",
        "options": options.to_json(),
        "drafter": _drafter_hashes(options.drafter),
        "versions": {name: _installed(name) for name in PACKAGES},
        "dtype": dtype,
        "device": device,
        "device_name": torch.cuda.get_device_name(device) if device.startswith("cuda") else platform.machine(),
        "threads": threads,
        "packed_weights": packing,
        "kernels": kernels,
        "cache_tokens": tokens,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "matmul": {
            "float32_precision": torch.get_float32_matmul_precision(),
            "cuda_tf32": torch.backends.cuda.matmul.allow_tf32,
            "cuda_version": torch.version.cuda,
        },
        "reasons": {
            "device": device_reason,
            "dtype": dtype_reason,
            "threads": threads_reason,
            "packed_weights": packing_reason,
            "kernels": kernels_reason,
            "cache_tokens": tokens_reason,
            "policy": policy_reason(options, vocab_size=spec.facts.vocab_size),
        },
    }


def _drafter_hashes(folder: str | None) -> dict[str, str] | None:
    """A drafter of another training is another system, though it may serve the same tokens."""
    if folder is None:
        return None
    return {path.name: sha256_of_file(path) for path in sorted(Path(folder).glob("*.safetensors"))}


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
