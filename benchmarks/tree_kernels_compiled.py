"""What the kernels over trees need of a device, compiled without one: ``python -m benchmarks.tree_kernels_compiled``.

Every launch of ``wy_verify``, ``tree_attention`` and ``best_first`` for the shapes of Qwen3.5-27B is compiled for sm_90
(or ``--architecture``) and assembled by the ptxas that comes with Triton: registers, spills, shared memory.
Exit code 1 if anything spills, needs more shared memory than ``--shared-kib``, or has a product that is laid over more
rows than there are.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lossguard_kernels.best_first import operation as best_first
from lossguard_kernels.forests.forest import Forest, forest_of_batch
from lossguard_kernels.tree_attention import operation as attention
from lossguard_kernels.tree_attention.pages import PageTable
from lossguard_kernels.tree_attention.tiles import tiles_for
from lossguard_kernels.wy_verify import convolution, operation
from lossguard_kernels.wy_verify.rows import DeltaRows, StashShape, empty_pending, empty_stash

_KEY_HEADS, _HEADS, _DIM, _CHANNELS = 16, 48, 128, 10240
_ATTENTION = {"heads": 24, "key_heads": 4}
_PAGE, _PAGES = 32, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """One compiled launch."""

    case: str
    kernel: str
    warps: int
    registers: int
    spilled_bytes: int
    shared_bytes: int
    has_copies: bool  # loads that run ahead (cp.async)
    has_warpgroups: bool  # products of four warps at once (wgmma)
    overhang: str = ""  # a product that is laid over more rows than there are

    def line(self) -> str:
        """A row of the table."""
        sizes = f"{self.registers:4} x {32 * self.warps:3} {self.spilled_bytes:6} {self.shared_bytes / 1024:7.1f}"
        marks = f"{'ahead' if self.has_copies else '':6} {'wgmma' if self.has_warpgroups else ''}"
        return f"{self.case:34} {self.kernel:26} {sizes}  {marks} {self.overhang}".rstrip()


HEADER = f"{'case':34} {'kernel':26} registers  spill  shared KiB"


def forest_for(requests: int, nodes: int) -> Forest:
    """Chains: shapes are all that is read."""
    words = (torch.ones(nodes, dtype=torch.int64) << torch.arange(nodes)).cumsum(0)
    return forest_of_batch(words.expand(requests, nodes).contiguous())


def delta_launches(requests: int, nodes: int, capacity: int) -> None:
    """A verification, with ``capacity`` deferred rows if not 0, and its commit or its deferral."""
    forest, num = forest_for(requests, nodes), requests * nodes
    key, value = (torch.empty(num, heads, _DIM, dtype=torch.bfloat16) for heads in (_KEY_HEADS, _HEADS))
    decay = torch.empty(num, _HEADS)
    rows = DeltaRows(query=key, key=key, value=value, log_decay=decay, beta=decay.bfloat16())
    shape = StashShape(
        layers=1, rows=num, key_heads=_KEY_HEADS, heads=_HEADS, key_dim=_DIM, value_dim=_DIM, dtype=torch.bfloat16
    )
    stash, states = empty_stash(shape, "cpu"), torch.empty(1, requests, _HEADS, _DIM, _DIM)
    slots = torch.arange(requests)
    if not capacity:
        operation.verify(rows, forest, states[0], slots, stash=stash.layer(0))
        operation.commit(stash, forest, slots, states, slots)
        return
    pending = empty_pending(shape, requests, capacity, "cpu")
    one = operation.layer_of(pending, 0)
    operation.verify(rows, forest, states[0], slots, stash=stash.layer(0), pending=one)
    operation.defer(stash, forest, torch.zeros_like(slots), pending, slots, most_rows=nodes)


def convolution_launches(requests: int, nodes: int) -> None:
    """The convolution and its commit."""
    forest, num = forest_for(requests, nodes), requests * nodes
    channels = torch.empty(1, num, _CHANNELS, dtype=torch.bfloat16)
    weight, past = torch.empty(_CHANNELS, 4, dtype=torch.bfloat16), torch.empty(1, requests, _CHANNELS, 3)
    sources, slots = torch.zeros(num, 4, dtype=torch.int64), torch.arange(requests)
    convolution.convolve(channels[0], weight, past[0], sources, forest, slots)
    convolution.commit_convolution(channels, past, sources, forest, slots, slots)


def attention_launches(requests: int, nodes: int, dim: int, splits: int, shared_bytes: int) -> None:
    """Writes, attention and compaction."""
    forest, num = forest_for(requests, nodes), requests * nodes
    query = torch.empty(num, _ATTENTION["heads"], dim, dtype=torch.bfloat16)
    pools = torch.empty(2, 1, requests * _PAGES, _ATTENTION["key_heads"], _PAGE, dim, dtype=torch.bfloat16)
    slots = torch.arange(requests)
    pages = PageTable(table=torch.zeros(requests, _PAGES, dtype=torch.int64), past_lengths=slots)
    key = query[:, : _ATTENTION["key_heads"]].contiguous()
    attention.write(key, key, pools[0, 0], pools[1, 0], pages, forest)
    tiles = tiles_for(dim, nodes * _ATTENTION["heads"] // _ATTENTION["key_heads"], 2, shared_bytes)
    attention.attend(query, pools[0, 0], pools[1, 0], pages, forest, tiles=tiles, num_splits=splits)
    attention.compact(pools[0], pools[1], pages, forest, slots)


def growth_launches(requests: int, drafts: int) -> None:
    """A best-first tree of 7 depths of 16 candidates for each request."""
    first, steps = torch.empty(requests, 16), torch.empty(requests, 6, 16, 16)
    ids, anchors = torch.empty(requests, 7, 16, dtype=torch.int64), torch.empty(requests, dtype=torch.int64)
    best_first.grow(first, steps, ids, anchors, drafts)


def cases(shared_bytes: int) -> Iterator[tuple[str, Callable[[], None]]]:
    """Every launch that is looked at, by name; attention's with the tiles for ``shared_bytes``."""
    for requests, nodes in ((32, 16), (32, 32), (32, 64), (1, 16), (1, 32), (1, 64)):
        name = f"delta, {requests} x {nodes} nodes"
        yield name, lambda requests=requests, nodes=nodes: delta_launches(requests, nodes, 0)  # type: ignore[misc]
    yield "delta, 32 x 16, deferred 64", lambda: delta_launches(32, 16, 64)
    yield "delta, 32 x 32, deferred 64", lambda: delta_launches(32, 32, 64)
    yield "convolution, 32 x 16", lambda: convolution_launches(32, 16)
    for drafts in (15, 31, 63):
        yield f"growth, {drafts} drafts", lambda drafts=drafts: growth_launches(1, drafts)  # type: ignore[misc]
    for dim in (64, 128, 256):
        for nodes, splits in ((1, 1), (10, 1), (16, 1), (16, 8), (64, 1)):
            name = f"attention {dim}, {nodes} nodes, {splits} splits"
            sizes = (1, nodes, dim, splits, shared_bytes)
            yield name, lambda sizes=sizes: attention_launches(*sizes)  # type: ignore[misc]


class Recorder:
    """Takes the place of a device: launches are compiled and kept, and nothing runs."""

    def __init__(self, architecture: int) -> None:
        from triton.backends.compiler import GPUTarget

        self.target = GPUTarget("cuda", architecture, 32)
        self.compiled: list[tuple[str, Any]] = []

    def install(self) -> None:
        """From here on no kernel of this process is launched."""
        import triton
        from triton.runtime.jit import JITFunction

        run = JITFunction.run
        triton.runtime.driver.set_active(self)

        def compiled_only(function: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> Any:
            del warmup
            kernel = run(function, *arguments, grid=grid, warmup=True, **options)
            self.compiled.append((function.fn.__name__, kernel))
            return kernel

        JITFunction.run = compiled_only

    def get_current_target(self) -> Any:
        """What Triton compiles for."""
        return self.target

    def get_current_device(self) -> int:
        """The only one."""
        return 0

    def get_current_stream(self, device: int) -> int:
        """None."""
        return device

    def get_active_torch_device(self) -> torch.device:
        """Where tensors are."""
        return torch.device("cpu")


def build_of(case: str, name: str, kernel: Any, architecture: int) -> Build:
    """Assemble one kernel's PTX and read what ptxas says of it."""
    from triton import knobs

    ptx = kernel.asm["ptx"]
    suffix = "a" if architecture >= 90 else ""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(ptx, encoding="utf-8")
        assembler = knobs.nvidia.ptxas if architecture < 100 else knobs.nvidia.ptxas_blackwell
        command = [assembler.path, "-v", f"--gpu-name=sm_{architecture}{suffix}", str(source), "-o", f"{folder}/out"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr  # noqa: S603
    spilled = sum(int(found) for found in re.findall(r"(\d+) bytes spill", said))
    return Build(
        case=case,
        kernel=name,
        warps=kernel.metadata.num_warps,
        registers=int(re.findall(r"Used (\d+) registers", said)[0]),
        spilled_bytes=spilled,
        shared_bytes=kernel.metadata.shared,
        has_copies="cp.async" in ptx,
        has_warpgroups="wgmma.mma_async" in ptx,
        overhang=overhang(kernel.asm["ttgir"]),
    )


def overhang(ttgir: str) -> str:
    """The first product of warpgroups whose layout has more rows than its tile, in words; empty if there is none.

    Warps side by side along the rows take 16 each. Where these are more than the tile has (Triton 3.6 and 3.7 do so
    with 8 warps, 64 rows and products in a chain), the rest reads past the operand in shared memory.
    """
    layouts = dict(
        re.findall(r"^(#\w+) = #ttg.nvidia_mma<{versionMajor = 3.*?warpsPerCTA = \[(\d+)", ttgir, re.MULTILINE)
    )
    for rows, layout in re.findall(r"warp_group_dot .*-> tensor<(\d+)x\d+xf32, (#\w+)>", ttgir):
        if int(rows) < 16 * int(layouts[layout]):
            return f"a product of {rows} rows laid over {16 * int(layouts[layout])}"
    return ""


def main() -> None:
    """Compile, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--architecture", type=int, default=90)
    parser.add_argument("--shared-kib", type=float, default=99.0)
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    given = parser.parse_args()
    recorder = Recorder(given.architecture)
    recorder.install()
    print(HEADER)
    failed = False
    for case, launch in cases(int(1024 * given.shared_kib)):
        if given.only not in case:
            continue
        recorder.compiled.clear()
        launch()
        for name, kernel in recorder.compiled:
            build = build_of(case, name, kernel, given.architecture)
            failed |= build.spilled_bytes > 0 or build.shared_bytes > 1024 * given.shared_kib or bool(build.overhang)
            print(build.line(), flush=True)
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
