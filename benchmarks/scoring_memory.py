"""Peak memory above what is resident after loading (weights, FP32 head), in a process of its own on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn

from benchmarks.scoring_systems import Run, hflm_run, scorer_run
from benchmarks.scoring_work import Work

CPU_SYSTEMS = ("scorer, sharing", "scorer, single pass", "HFLM")


def cpu_peaks(model_path: str, work: Work, threads: int) -> dict[str, int]:
    """Bytes per system for one batch that holds the whole work."""
    peaks = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "work.json"
        work.save(path)
        for system in CPU_SYSTEMS:
            command = [sys.executable, "-m", "benchmarks.scoring_memory", system, model_path, str(path), str(threads)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603 - our own module
            peaks[system] = int(json.loads(done.stdout.splitlines()[-1]))
    return peaks


def cuda_peak(run: Run, work: Work) -> int:
    """Bytes allocated above what is there now."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run(work)
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated() - before)


def _child(system: str, model_path: str, work_path: str, threads: str) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(int(threads))
    model: nn.Module = AutoModelForCausalLM.from_pretrained(model_path, dtype="auto", local_files_only=True)
    work = Work.load(Path(work_path))
    if system == "HFLM":
        sequences = work.sequences()
        longest = max(len(prompt) + len(reply) for prompt, reply in sequences)
        tokenizer = AutoTokenizer.from_pretrained(model_path, local_files_only=True)
        run = hflm_run(model, tokenizer, len(sequences), longest)
    else:
        run, _ = scorer_run(model, work.num_tokens(), share=system == "scorer, sharing")
    short = work.part(1)
    run(Work(prompts=[short.prompts[0][:4]], replies=[[arm[0][:4]] for arm in short.replies]))  # touch all weights
    before = _reset_peak()
    run(work)
    print(json.dumps(_status("VmHWM") - before))


def _reset_peak() -> int:
    """Start a new peak; returns the resident bytes now (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _status(name: str) -> int:
    for line in Path(f"/proc/{os.getpid()}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"no {name} in /proc: peak memory is measured on Linux only")


if __name__ == "__main__":
    _child(*sys.argv[1:])
