"""How small a weight error does the gate still see? Altered copies of a model against the model itself.

    python -m benchmarks.w12_detection --faults w12,q,sign:1e-4,ulp:1e-2 [--budget 200x48] [--model FOLDER]

Each fault is a copy of the model's folder whose matrices are altered, served by the embedded engine as the candidate of
one run; stock is the model as it is. ``sign:F`` flips the sign of a share F of all weights, ``ulp:F`` the last bit of
their mantissas, ``noise:R`` multiplies every weight by 1 + R times a normal number and rounds, ``q`` is the 8-bit plane
served as if exact. ``w12`` is no fault: W12, decoded before products. Prints one line per candidate: how many weights
differ, the verdict, the checks that failed, and what the rate check saw.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from lossguard.config import Config, PromptsConfig, ScorerConfig, SystemConfig
from lossguard.gate import run_gate
from lossguard.gate_result import GateResult
from lossguard.plan import Plan, parse_budget
from lossguard.records import Verdict
from lossguard_mechanisms.weights.w12.codec import encode
from lossguard_mechanisms.weights.w12.q_view import q_weight

ROOT = Path(__file__).parents[1]
SERVED = {"device": "cpu", "threads": 1, "slots": 64, "packed_weights": False}


def altered(weight: Tensor, fault: str, generator: torch.Generator) -> Tensor:
    """A bf16 matrix with a fault, ``kind`` or ``kind:strength``."""
    kind, _, text = fault.partition(":")
    if kind == "q":
        return q_weight(encode(weight)).to(weight.dtype)
    strength = float(text)
    if kind == "noise":
        factor = 1 + strength * torch.randn(weight.shape, generator=generator)
        return (weight.float() * factor).to(weight.dtype)
    mask = {"sign": -0x8000, "ulp": 1}[kind]
    hit = torch.rand(weight.shape, generator=generator) < strength
    return (weight.view(torch.int16) ^ (hit * mask).to(torch.int16)).view(weight.dtype)


def altered_copy(model: Path, fault: str, target: Path) -> int:
    """Write the copy; returns how many weights differ."""
    generator = torch.Generator().manual_seed(17)
    shutil.copytree(model, target, ignore=shutil.ignore_patterns("MANIFEST.toml"))  # its hashes are the original's
    num_different = 0
    for path in sorted(model.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (it is no mapping)
        for name, weight in tensors.items():
            if weight.dim() == 2 and weight.dtype == torch.bfloat16:
                tensors[name] = altered(weight, fault, generator)
                num_different += int((tensors[name] != weight).sum())
        save_file(tensors, target / path.name, metadata={"format": "pt"})
    return num_different


def judge(model: Path, faults: list[str], budget: str, folder: Path) -> tuple[GateResult, dict[str, int]]:
    """One run of the gate with a candidate per fault; and how many weights of each differ."""
    systems = {"stock": SystemConfig(name="stock", engine="embedded", options=SERVED)}
    changed: dict[str, int] = {}
    for fault in faults:
        name = fault.replace(":", "-").replace(".", "_")
        options, path = SERVED, model
        if fault == "w12":
            options = {**SERVED, "weights": "w12"}
            changed[name] = 0
        else:
            path = folder / "models" / name
            changed[name] = altered_copy(model, fault, path)
        systems[name] = SystemConfig(name=name, engine="embedded", model=str(path), options=options)
    config = Config(
        model=str(model),
        systems=systems,
        scorer=ScorerConfig(options={"device": "cpu"}),
        prompts=PromptsConfig(sets=("demo",)),
    )
    plan = Plan(config, candidates=list(changed), budget=parse_budget(budget), folder=folder / "runs")
    return run_gate(plan), changed


def line(result: GateResult, name: str, num_changed: int) -> dict[str, Any]:
    """What a table says of one candidate."""
    claim = result.claim(f"{name}/lossless")
    checks = claim.evidence.checks
    failed = [check.check for check in checks if check.verdict is Verdict.FAIL]
    unsure = [f"{check.check}: {check.summary}" for check in checks if check.verdict is Verdict.INCONCLUSIVE]
    rate = claim.evidence.check("rate")
    seen = {"candidate": rate.candidate, "stock": rate.stock, "bound": rate.bound, "limit": rate.limit}
    facts = {"candidate": name, "changed": num_changed, "verdict": claim.verdict.value}
    return {**facts, "failed": failed, "inconclusive": unsure, "rate": seen}


def main() -> None:
    """Make the copies, run the gate, print."""
    parser = argparse.ArgumentParser(description="how small a weight error does the gate still see?")
    parser.add_argument("--faults", required=True)
    parser.add_argument("--budget", default="200x48")
    parser.add_argument("--model", type=Path, default=ROOT / "fixtures/hybrid-target")
    parsed = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        result, changed = judge(parsed.model, parsed.faults.split(","), parsed.budget, Path(folder))
        for name, num_changed in changed.items():
            print(json.dumps(line(result, name, num_changed)), flush=True)


if __name__ == "__main__":
    main()
