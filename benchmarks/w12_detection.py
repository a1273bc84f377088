"""How small a weight error does the gate still see? Altered copies of a model against the model itself.

    python -m benchmarks.w12_detection --faults w12,q,sign:1e-4,ulp:1e-2 [--budget 200x48] [--model FOLDER]
    python -m benchmarks.w12_detection --faults w12,q,sign:1e-4 --model smollm2 --write FOLDER

Each fault is a copy of the model's folder whose matrices are altered, served by the embedded engine as the candidate of
one run; stock is the model as it is. ``sign:F`` flips the sign of a share F of all weights, ``ulp:F`` the last bit of
their mantissas, ``noise:R`` multiplies every weight by 1 + R times a normal number and rounds, ``q`` is the 8-bit plane
served as if exact. ``w12`` is no fault: W12, decoded before products. Prints one line per candidate: how many weights
differ, the verdict, the checks that failed, and what the rate check saw. With ``--write`` the copies and a
``lossguard.toml`` are left in a folder, for ``lossguard check --config FOLDER/lossguard.toml --candidate ...``, which
can be interrupted and resumed.
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

from lossguard.config import load_config
from lossguard.gate import run_gate
from lossguard.gate_result import GateResult
from lossguard.models import resolve_model
from lossguard.plan import Plan, parse_budget
from lossguard.records import Verdict
from lossguard_mechanisms.weights.w12.codec import encode
from lossguard_mechanisms.weights.w12.q_view import q_weight

ROOT = Path(__file__).parents[1]
CONFIG_NAME = "lossguard.toml"
HEAD = """model = {model}
prompts.sets = ["demo"]
scorer = {{ engine = "torch", device = "cpu", threads = 1 }}
"""
SYSTEM = """
[systems.{name}]
engine = "embedded"
model = {model}
device = "cpu"
threads = 1
slots = 64
packed_weights = false
weights = "{weights}"
"""


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


def write_systems(model: Path, faults: list[str], folder: Path) -> dict[str, int]:
    """Altered copies and ``lossguard.toml`` in ``folder``; returns how many weights differ, by candidate."""
    changed = {fault.replace(":", "-").replace(".", "_"): 0 for fault in faults}
    text = HEAD.format(model=json.dumps(str(model)))
    text += SYSTEM.format(name="stock", model=json.dumps(str(model)), weights="plain")
    for name, fault in zip(changed, faults, strict=True):
        path = model if fault == "w12" else folder / "models" / name
        if fault != "w12":
            changed[name] = altered_copy(model, fault, path)
        weights = "w12" if fault == "w12" else "plain"
        text += SYSTEM.format(name=name, model=json.dumps(str(path)), weights=weights)
        text += "expect = { w12_layers = true }\n" if fault == "w12" else ""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG_NAME).write_text(text, encoding="utf-8")
    return changed


def judge(model: Path, faults: list[str], budget: str, folder: Path) -> tuple[GateResult, dict[str, int]]:
    """One run of the gate with a candidate per fault; and how many weights of each differ."""
    changed = write_systems(model, faults, folder)
    config = load_config(folder / CONFIG_NAME)
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
    parser.add_argument("--model", default=str(ROOT / "fixtures/hybrid-target"), help="a folder, or smollm2")
    parser.add_argument("--write", type=Path, help="only write the systems into this folder")
    parsed = parser.parse_args()
    torch.set_num_threads(1)
    model, faults = resolve_model(parsed.model, Path.cwd()), parsed.faults.split(",")
    if parsed.write is not None:
        print(json.dumps(write_systems(model, faults, parsed.write.resolve())), flush=True)
        return
    with tempfile.TemporaryDirectory() as folder:
        result, changed = judge(model, faults, parsed.budget, Path(folder))
        for name, num_changed in changed.items():
            print(json.dumps(line(result, name, num_changed)), flush=True)


if __name__ == "__main__":
    main()
