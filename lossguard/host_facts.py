"""Facts about this machine and its installed packages that change numerics. Nothing here imports torch."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lossguard

NUMERIC_PACKAGES = (
    "accelerate", "bitsandbytes", "causal-conv1d", "fla-core", "flash-attn", "flash-linear-attention", "gguf",
    "kernels", "numpy", "pytorch-triton", "tokenizers", "torch", "transformers", "triton", "xformers",
)  # fmt: skip
"""With ``kernels``, ``fla`` or an attention package installed, transformers may swap layers for theirs."""

CPU_FLAGS = (
    "avx", "avx2", "fma", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16", "avx512_fp16", "avx_vnni",
    "amx_tile", "amx_bf16", "amx_int8", "amx_fp16", "asimd", "asimddp", "asimdhp", "bf16", "i8mm", "sve", "sve2",
    "svebf16",
)  # fmt: skip
"""Instruction sets between which the matrix libraries choose their kernels (``/proc/cpuinfo`` names)."""

NUMERIC_VARIABLES = (
    "ATEN_CPU_CAPABILITY", "CUBLAS_WORKSPACE_CONFIG", "DNNL_MAX_CPU_ISA", "MKL_CBWR", "MKL_NUM_THREADS",
    "NVIDIA_TF32_OVERRIDE", "OMP_NUM_THREADS", "ONEDNN_MAX_CPU_ISA", "OPENBLAS_CORETYPE", "OPENBLAS_NUM_THREADS",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "USE_HUB_KERNELS",
)  # fmt: skip
"""Environment variables that choose kernels, splits or precision."""

CPU_INFO = Path("/proc/cpuinfo")
DEVICE_QUERY = ("--query-gpu=name,driver_version", "--format=csv,noheader")


def host_facts() -> tuple[dict[str, Any], dict[str, Any]]:
    """Identity facts (equal for comparable runs) and measured facts of this machine: dotted keys, JSON values."""
    device, device_source = device_facts()
    cpu, cpu_source = cpu_facts()
    identity = {
        **{f"versions.{name}": version for name, version in package_versions().items()},
        "versions.cuda": torch_cuda_version(),
        **{f"device.{name}": value for name, value in device.items()},
        **{f"cpu.{name}": value for name, value in cpu.items()},
        "threads.cpus_available": num_cpus_available(),
        **{f"environment.{name}": os.environ.get(name) for name in NUMERIC_VARIABLES},
        "os": " ".join((platform.system(), platform.machine(), *platform.libc_ver())).strip(),
        "python": ".".join(platform.python_version_tuple()[:2]),
    }
    return identity, {"device_source": device_source, "cpu_source": cpu_source, **_measured_facts()}


def _measured_facts() -> dict[str, Any]:
    return {
        "cuda_visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "load_average_1_minute": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "lossguard": lossguard.__version__,
        "num_cpus": os.cpu_count(),
        "os_release": platform.release(),
        "python": platform.python_version(),
    }


def package_versions() -> dict[str, str | None]:
    """Installed versions from package metadata; None for a package that is not installed."""
    return {name: _version(name) for name in NUMERIC_PACKAGES}


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def torch_cuda_version() -> str | None:
    """The CUDA version that torch was built for, read from its files; None for a CPU build or without torch."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    version_file = Path(spec.origin).with_name("version.py")
    found = re.search(r"^cuda\b[^=]*=\s*'([^']+)'", version_file.read_text(encoding="utf-8"), re.MULTILINE)
    return found[1] if found else None


def num_cpus_available() -> int:
    """How many CPUs this process may use: numeric libraries take as many threads unless told otherwise."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_facts(cpu_info: Path = CPU_INFO) -> tuple[dict[str, Any], str]:
    """Model name and the flags among ``CPU_FLAGS``, and where they come from."""
    if not cpu_info.exists():
        return {"model": platform.processor() or platform.machine(), "flags": None}, "platform module"
    fields = _first_processor(cpu_info.read_text(encoding="utf-8", errors="replace"))
    flags = set((fields.get("flags") or fields.get("Features") or "").split())
    model = fields.get("model name") or fields.get("CPU part") or platform.machine()
    return {"model": model, "flags": sorted(flags & set(CPU_FLAGS))}, str(cpu_info)


def _first_processor(text: str) -> Mapping[str, str]:
    lines = (line.partition(":") for line in text.split("\n\n", 1)[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}


def device_facts() -> tuple[dict[str, Any], str]:
    """Names and driver of the accelerators that ``nvidia-smi`` lists, and where that comes from or why it is empty.

    Names are None where the query failed: unknown is not the same as no device.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        return {"names": [], "driver": None}, "no nvidia-smi on the path"
    try:
        done = subprocess.run(  # noqa: S603 - a fixed query to the program found on the path
            [program, *DEVICE_QUERY], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        return {"names": None, "driver": None}, f"nvidia-smi failed: {type(error).__name__}"
    rows = [line.rsplit(",", 1) for line in done.stdout.splitlines() if line.strip()]
    drivers = sorted({row[-1].strip() for row in rows})
    return {"names": [row[0].strip() for row in rows], "driver": ", ".join(drivers)}, "nvidia-smi"
