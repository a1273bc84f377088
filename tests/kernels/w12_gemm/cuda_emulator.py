"""gemm.cu on a CPU: its instructions become C++ of the same meaning (emulator.hpp), the rest is compiled as it is."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path

from lossguard_kernels.w12_gemm.launching import Problem
from lossguard_kernels.w12_gemm.program import gemm_source
from lossguard_kernels.w12_gemm.variants import Launch

HERE = Path(__file__).parent
REPLACED = (
    "shared_address", "barrier_init", "barrier_arrive", "barrier_wait", "consumers_sync", "count_arrival",
    "wait_for_predecessor", "let_successor_start", "elected", "streaming_policy", "expect_bytes", "copy_weights",
    "copy_x", "copy_16", "arrive_when_copied", "mma", "times", "load_16", "load_8", "transposed_pair",
)  # fmt: skip
RUNNER = """
extern "C" void run(const Problem* p, int blocks) {
    for (int number = 0; number < blocks; ++number) {
        Block state;
        state.memory.assign(kBarrierOffset + 24 * STAGES + 16, 0xFF);
        for (int w = 0; w < kThreads / 32; ++w) state.warps.push_back(std::make_unique<Warp>());
        state.everyone = std::make_unique<std::barrier<>>(kThreads);
        state.consumers = std::make_unique<std::barrier<>>(32 * kConsumers);
        block = &state;
        std::vector<std::thread> threads;
        for (int t = 0; t < kThreads; ++t) {
            threads.emplace_back([=] {
                threadIdx.x = t;
                blockIdx.x = number;
                w12_gemm(*p);
            });
        }
        for (auto& thread : threads) thread.join();
    }
}
"""


class EmulatedKernel:
    """A launch, compiled for this machine as for ``architecture`` (80 or 90)."""

    def __init__(self, launch: Launch, architecture: int, folder: Path) -> None:
        source, library = folder / "gemm.cpp", folder / "gemm.so"
        source.write_text('#include "emulator.hpp"\n' + _translated(gemm_source()) + RUNNER)
        defines = [*launch.variant.defines(), f"-DEMULATED_ARCHITECTURE={architecture * 10}"]
        options = ["-std=c++20", "-O0", "-w", "-shared", "-fPIC", "-pthread", f"-I{HERE}", *defines]
        subprocess.run(["g++", *options, str(source), "-o", str(library)], check=True)
        self._run = ctypes.CDLL(str(library)).run
        self._num_blocks = launch.parts * launch.slices

    def __call__(self, problem: Problem) -> None:
        """Run all blocks, one after another."""
        self._run(ctypes.byref(problem), self._num_blocks)


def _translated(source: str) -> str:
    for name in REPLACED:
        source = _without_function(source, name)
    source = re.sub(r'^ *asm volatile\("fence[^\n]*\n', "", source, flags=re.MULTILINE)
    source = re.sub(r"extern __shared__[^\n]*", "byte* memory = block->memory.data();", source)
    assert "asm" not in source, "an instruction of gemm.cu has no counterpart"
    return source


def _without_function(source: str, name: str) -> str:
    """Remove every definition of a function, braces and all."""
    num_found = 0
    while (match := re.search(rf"^INLINE \w+ {name}\(", source, re.MULTILINE)) is not None:
        depth, at = 1, source.index("{", match.end()) + 1
        while depth:
            depth += {"{": 1, "}": -1}.get(source[at], 0)
            at += 1
        source = source[: match.start()] + source[at:]
        num_found += 1
    assert num_found, f"{name} is no longer a function of gemm.cu"
    return source
