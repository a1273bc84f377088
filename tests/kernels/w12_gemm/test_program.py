"""Machine code is compiled once and kept; what cannot be compiled or launched is an error that says what to do."""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from lossguard.errors import EngineError, UsageError
from lossguard_kernels.w12_gemm import bench_dfloat11, cublaslt, launching, program
from lossguard_kernels.w12_gemm.variants import Variant

VARIANT = Variant(x_rows=1, bands=2, warps_n=1, warps_k=8, k_tiles=8, stages=4)


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The options of every compilation, in a cache of its own; the code is a stand-in."""
    monkeypatch.setenv(program.CACHE_VARIABLE, str(tmp_path / "kernels"))
    calls: list[tuple[str, ...]] = []

    def stand_in(text: bytes, name: str, options: Sequence[str]) -> bytes:
        calls.append((name, *options))
        return b"code of " + str(len(calls)).encode() + text[:1]

    monkeypatch.setattr(program, "compile_source", stand_in)
    return calls


def test_code_is_compiled_once_and_kept(compiled: list[tuple[str, ...]]) -> None:
    first = program.gemm_code(VARIANT, 90)
    assert program.gemm_code(VARIANT, 90) == first
    assert len(compiled) == 1
    assert {"gemm.cu", "--gpu-architecture=sm_90", "-DX_ROWS=1", "-DWARPS_K=8", "-DHI_ONLY=0"} <= set(compiled[0])
    kept = list(program.cache_folder().iterdir())
    assert [path.suffix for path in kept] == [".cubin"]
    assert kept[0].read_bytes() == first


def test_another_architecture_form_or_source_is_compiled_anew(compiled: list[tuple[str, ...]]) -> None:
    codes = {
        program.gemm_code(VARIANT, 90),
        program.gemm_code(VARIANT, 80),
        program.gemm_code(Variant(x_rows=1, bands=2, warps_n=1, warps_k=8, k_tiles=8, stages=5), 90),
        program.decode_code(90),
    }
    assert len(codes) == len(compiled) == 4


def test_every_parameter_of_the_source_is_set() -> None:
    source = program.gemm_source()
    given = {re.fullmatch(r"-D(\w+)=\d+", option)[1] for option in VARIANT.defines()}  # type: ignore[index]
    assert all(re.search(rf"\b{name}\b", source) for name in given)


def test_a_missing_compiler_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    program._nvrtc.cache_clear()
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(UsageError) as caught:
        program.compile_source(b"", "x.cu", ())
    assert caught.value.code == "LG1701"
    assert "w12-cuda" in caught.value.fix


def test_a_source_that_does_not_compile_shows_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    def write_log(_: object, log: bytes) -> None:
        ctypes.memmove(ctypes.c_char_p(log), b"error: bad", 10)

    nvrtc = SimpleNamespace(
        nvrtcResult=SimpleNamespace(NVRTC_SUCCESS=0),
        nvrtcCreateProgram=lambda *_: (0, "program"),
        nvrtcCompileProgram=lambda *_: (6,),
        nvrtcGetProgramLogSize=lambda _: (0, 11),
        nvrtcGetProgramLog=write_log,
        nvrtcDestroyProgram=lambda _: None,
    )
    monkeypatch.setattr(program, "_nvrtc", lambda: nvrtc)
    with pytest.raises(EngineError, match="error: bad") as caught:
        program.compile_source(b"", "x.cu", ())
    assert caught.value.code == "LG1702"


def test_a_refused_call_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = SimpleNamespace(CUresult=SimpleNamespace(CUDA_SUCCESS=0))
    monkeypatch.setattr(launching, "driver_bindings", lambda: driver)
    assert launching.call_driver("cuThing", (0, "value")) == "value"
    assert launching.call_driver("cuThing", (0,)) is None
    with pytest.raises(EngineError, match="cuThing failed: 700") as caught:
        launching.call_driver("cuThing", (700,))
    assert caught.value.code == "LG1703"


def test_an_old_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    old = SimpleNamespace(name="Old card", major=7, minor=5)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: old)
    with pytest.raises(UsageError, match=r"Old card \(compute capability 7.5\)") as caught:
        launching.device_of(77)
    assert caught.value.code == "LG1705"


def test_arguments_have_the_layout_of_the_source() -> None:
    source = program.gemm_source()
    body = source[source.index("struct Problem {") : source.index("};", source.index("struct Problem {"))]
    declared = re.findall(r"(\w+)(?=[,;])", re.sub(r"//[^\n]*", "", body))
    assert declared == [field[0] for field in launching.Problem._fields_]
    assert ctypes.sizeof(launching.Problem) == 11 * 8 + 7 * 4 + 4
    assert ctypes.sizeof(cublaslt._Heuristic) == 96


def test_a_rival_that_is_not_installed_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(UsageError) as caught:
        bench_dfloat11.encode(torch.zeros(16, 16, dtype=torch.bfloat16))
    assert caught.value.code == "LG1709"


def test_the_source_is_one_text_with_the_lines_of_its_files() -> None:
    source = program.gemm_source()
    assert [source.count(f'#line 1 "{name}"\n') for name in program.GEMM_PARTS] == [1, 1]
    assert source.index("struct Problem") < source.index("w12_gemm(const Problem p)")
