"""Facts about the machine: parsed from files and programs that the tests plant."""

from __future__ import annotations

import importlib.metadata
import json
import os
from pathlib import Path

import pytest

from lossguard.host_facts import cpu_facts, device_facts, host_facts, num_cpus_available, package_versions
from lossguard.records import require_finite

X86 = "processor\t: 0\nmodel name\t: AMD EPYC 9B14\nflags\t\t: fpu avx2 fma avx512_bf16 amx_bf16\n\nprocessor\t: 1\n"
ARM = "processor\t: 0\nFeatures\t: fp asimd bf16 i8mm\nCPU part\t: 0xd4f\n\n"


@pytest.fixture
def only_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of nvidia-smi in the only folder of PATH; nothing is there yet."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path / "nvidia-smi"


def plant(program: Path, body: str) -> None:
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)


@pytest.mark.parametrize(
    ("text", "model", "flags"),
    [
        (X86, "AMD EPYC 9B14", ["amx_bf16", "avx2", "avx512_bf16", "fma"]),
        (ARM, "0xd4f", ["asimd", "bf16", "i8mm"]),
    ],
)
def test_cpu_facts_keep_the_flags_that_choose_kernels(tmp_path: Path, text: str, model: str, flags: list[str]) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text(text)
    assert cpu_facts(file) == ({"model": model, "flags": flags}, str(file))


def test_cpu_facts_without_the_file_say_so(tmp_path: Path) -> None:
    facts, source = cpu_facts(tmp_path / "absent")
    assert facts["flags"] is None
    assert source == "platform module"


@pytest.mark.usefixtures("only_program")
def test_no_nvidia_smi_means_no_device() -> None:
    assert device_facts() == ({"names": [], "driver": None}, "no nvidia-smi on the path")


def test_devices_are_what_nvidia_smi_lists(only_program: Path) -> None:
    plant(only_program, "echo 'NVIDIA H200, 580.95.05'\necho 'NVIDIA H200, 580.95.05'")
    assert device_facts() == ({"names": ["NVIDIA H200"] * 2, "driver": "580.95.05"}, "nvidia-smi")


def test_a_failing_query_is_unknown_and_not_empty(only_program: Path) -> None:
    plant(only_program, "exit 9")
    facts, source = device_facts()
    assert facts["names"] is None
    assert source == "nvidia-smi failed: CalledProcessError"


def test_versions_come_from_metadata() -> None:
    versions = package_versions()
    assert versions["numpy"] == importlib.metadata.version("numpy")
    assert versions["bitsandbytes"] is None


def test_host_facts_are_json_and_repeatable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    identity, measured = host_facts()
    require_finite(identity)
    require_finite(measured)
    assert identity == json.loads(json.dumps(host_facts()[0]))
    assert identity["environment.OMP_NUM_THREADS"] == "3"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no CPU affinity on this system")
def test_cpus_are_those_that_the_process_may_use() -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert num_cpus_available() == 1
    finally:
        os.sched_setaffinity(0, before)
