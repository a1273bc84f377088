"""Task accuracy beside token forcing: ``python -m benchmarks.accuracy_table --device cuda --json table.json``.

Two lossless and two faulty systems answer the same items of a task that the model solves now and then. A pilot on
stock alone picks the task whose accuracy is nearest one half. Accuracy has its own 95 % interval and that of the paired
difference from stock; beside it stand mismatch rate, audited events and the verdict of one ordinary run.
Items need the package reasoning-gym: ``--write-items FILE`` makes them where it is, ``--items FILE`` reads them.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.accuracy_tasks import Item, read_items, write_items
from lossguard.config import Config, PromptsConfig, ScorerConfig, SystemConfig
from lossguard.engines.base import EngineSpec
from lossguard.engines.transformers_engine import create
from lossguard.gate import run_gate
from lossguard.gate_result import GateResult
from lossguard.models import default_model_path
from lossguard.plan import Budget, Plan
from lossguard.prompts.render import load_tokenizer
from lossguard.records import Request, SamplingParams, Verdict
from lossguard.report.terminal import render_table
from lossguard.run_folder import read_outputs

FAULTS = "lossguard_suites.adversarial.faults"
CANDIDATES = {
    "other-batches": "lossless",
    "prompt-lookup": "lossless",
    "wrong-token": "faulty",
    "swapped-ties": "faulty",
}
NUM_PILOT, NUM_CALIBRATION = 64, 240
LOWEST, HIGHEST = 0.2, 0.8
Z_95 = 1.959964


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One system: shares, their 95 % intervals, and what token forcing says."""

    system: str
    kind: str
    num_items: int
    accuracy: float
    accuracy_low: float
    accuracy_high: float
    difference_points: float | None
    difference_low_points: float | None
    difference_high_points: float | None
    mismatch_fraction: float | None
    unexplained_events: int | None
    audited_positions: int | None
    verdict: str
    failed: tuple[str, ...]
    inconclusive: tuple[str, ...] = ()


def wilson(right: int, number: int) -> tuple[float, float]:
    """95 % interval of a share. Source: Wilson 1927, JASA 22, 209-212."""
    share, z2 = right / number, Z_95**2
    middle = (share + z2 / (2 * number)) / (1 + z2 / number)
    half = Z_95 / (1 + z2 / number) * math.sqrt(share * (1 - share) / number + z2 / (4 * number**2))
    return middle - half, middle + half


def paired_interval(ours: Sequence[bool], theirs: Sequence[bool]) -> tuple[float, float, float]:
    """Difference of two shares on the same items with its 95 % interval (Wald, paired)."""
    differences = [int(mine) - int(other) for mine, other in zip(ours, theirs, strict=True)]
    mean = sum(differences) / len(differences)
    variance = sum((value - mean) ** 2 for value in differences) / max(len(differences) - 1, 1)
    half = Z_95 * math.sqrt(variance / len(differences))
    return mean, mean - half, mean + half


def systems_for(device: str, processes: int) -> dict[str, SystemConfig]:
    """Stock and the four candidates."""
    wrong = {"factory": f"{FAULTS}.wrong_token:wrong_token", "every": 20, "seed": 17, "window": [0, 40]}
    options: dict[str, dict[str, Any]] = {
        "stock": {},
        "other-batches": {"order": "length", "batch_size": 48},
        "prompt-lookup": {"prompt_lookup_num_tokens": 3, "processes": processes, "threads": 1},
        "wrong-token": {"logits_processors": [wrong]},
        "swapped-ties": {"logits_processors": [{"factory": f"{FAULTS}.near_ties:swap_near_ties"}]},
    }
    expect = {"other-batches": {"diverging": True}, "prompt-lookup": {"drafts": True}}
    return {
        name: SystemConfig(
            name=name, engine="transformers", expect=expect.get(name, {}), options={"device": device, **own}
        )
        for name, own in options.items()
    }


def pilot(items: Mapping[str, Sequence[Item]], model: Path, device: str) -> tuple[str, str]:
    """The task whose accuracy on stock is nearest one half, and the reason with all figures."""
    shares = {task: _pilot_share(found[:NUM_PILOT], model, device) for task, found in items.items()}
    chosen = min(shares, key=lambda task: abs(shares[task] - 0.5))
    figures = ", ".join(f"{task} {share:.0%}" for task, share in shares.items())
    if not LOWEST <= shares[chosen] <= HIGHEST:
        raise SystemExit(f"no task is solved between {LOWEST:.0%} and {HIGHEST:.0%} of the time: {figures}")
    return chosen, f"{chosen}: nearest one half of {figures} on {NUM_PILOT} pilot items"


def _pilot_share(items: Sequence[Item], model: Path, device: str) -> float:
    tokenizer = load_tokenizer(model)
    sampling = SamplingParams(max_tokens=8)
    requests = [
        Request(
            id=f"pilot-{index}",
            prompt_ids=tuple(tokenizer.encode(item.prompt, add_special_tokens=False)),
            sampling=sampling,
            set=item.task,
            cluster=f"pilot-{index}",
        )
        for index, item in enumerate(items)
    ]
    engine = create(EngineSpec(name="pilot", model_path=str(model), options={"device": device}))
    try:
        replies = {output.request_id: tokenizer.decode(list(output.ids)) for output in engine.serve(requests)}
    finally:
        engine.close()
    return sum(item.is_right(str(replies[f"pilot-{index}"])) for index, item in enumerate(items)) / len(items)


def judge(items: Sequence[Item], model: Path, arguments: argparse.Namespace, folder: Path) -> GateResult:
    """One ordinary run over the items."""
    tokenizer = load_tokenizer(model)
    lines = [
        json.dumps({"id": f"item-{index}", "prompt_ids": tokenizer.encode(item.prompt, add_special_tokens=False)})
        for index, item in enumerate(items)
    ]
    (folder / "items.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    config = Config(
        model=str(model),
        systems=systems_for(arguments.device, arguments.processes),
        scorer=ScorerConfig(options={"device": arguments.device}),
        prompts=PromptsConfig(sets=("items.jsonl",), seed=arguments.seed),
        seed=arguments.seed,
        folder=folder,
    )
    sizes = Budget(
        name="accuracy", num_requests=arguments.number, max_tokens=arguments.tokens, num_calibration=NUM_CALIBRATION
    )
    return run_gate(Plan(config, candidates=list(CANDIDATES), budget=sizes, folder=folder / "runs"))


def rows_of(result: GateResult, items: Sequence[Item], model: Path) -> list[Row]:
    """Stock first, then the candidates."""
    tokenizer = load_tokenizer(model)
    right: dict[str, list[bool]] = {}
    for system in ("stock", *CANDIDATES):
        outputs, _ = read_outputs(result.run_folder / system / "outputs.jsonl", repair=False)
        right[system] = [
            items[int(name.removeprefix("item-"))].is_right(str(tokenizer.decode(list(output.ids))))
            for name, output in sorted(outputs.items())
        ]
    return [_row(system, right, result) for system in right]


def _row(system: str, right: Mapping[str, Sequence[bool]], result: GateResult) -> Row:
    ours, number = right[system], len(right[system])
    low, high = wilson(sum(ours), number)
    claim = None if system == "stock" else result.claim(f"{system}/lossless")
    checks = {} if claim is None else {check.check: check for check in claim.evidence.checks}
    difference = (None, None, None) if claim is None else paired_interval(ours, right["stock"])
    points = [None if value is None else 100 * value for value in difference]
    rates = result.claims[0].evidence.check("rate").evidence
    return Row(
        system=system,
        kind=CANDIDATES.get(system, "stock"),
        num_items=number,
        accuracy=sum(ours) / number,
        accuracy_low=low,
        accuracy_high=high,
        difference_points=points[0],
        difference_low_points=points[1],
        difference_high_points=points[2],
        mismatch_fraction=checks["rate"].evidence.get("candidate_rate") if checks else rates.get("stock_rate"),
        unexplained_events=checks["event"].evidence.get("candidate_unexplained_requests") if checks else None,
        audited_positions=checks["event"].evidence.get("num_audited_positions") if checks else None,
        verdict="" if claim is None else claim.verdict.value,
        failed=tuple(name for name, check in checks.items() if check.verdict is Verdict.FAIL),
        inconclusive=tuple(name for name, check in checks.items() if check.verdict is Verdict.INCONCLUSIVE),
    )


def render(rows: Sequence[Row]) -> str:
    """The table as text."""
    header = ["system", "", "accuracy (95 %)", "from stock (95 %)", "mismatches", "events", "verdict"]
    return render_table([header, *(_cells(row) for row in rows)])


def _cells(row: Row) -> list[str]:
    by = row.failed or row.inconclusive
    difference, low, high = row.difference_points, row.difference_low_points, row.difference_high_points
    return [
        row.system,
        row.kind,
        f"{row.accuracy:.1%} ({row.accuracy_low:.1%} to {row.accuracy_high:.1%})",
        "" if difference is None else f"{difference:+.1f} pt ({low:+.1f} to {high:+.1f})",
        "" if row.mismatch_fraction is None else f"{row.mismatch_fraction:.2%}",
        "" if row.unexplained_events is None else f"{row.unexplained_events} ({row.audited_positions} audited)",
        row.verdict + (f" by {', '.join(by)}" if by else ""),
    ]


def main() -> None:
    """Make items, or run the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write-items", type=Path, help="only write the items to this file")
    parser.add_argument("--items", type=Path, help="items written before (default: made now)")
    parser.add_argument("--number", type=int, default=800, help="items of the table")
    parser.add_argument("--tokens", type=int, default=24, help="tokens per reply")
    parser.add_argument("--processes", type=int, default=6, help="processes of prompt-lookup")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seed", type=int, default=17)
    parser.add_argument("--json", type=Path, help="where the table is written as JSON")
    arguments = parser.parse_args()
    total = arguments.number + NUM_PILOT + 2 * NUM_CALIBRATION  # as many are sealed as calibrate
    if arguments.write_items:
        write_items(arguments.write_items, total, arguments.seed)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = arguments.items or folder / "made.jsonl"
        if not arguments.items:
            write_items(source, total, arguments.seed)
        model = default_model_path()
        items = read_items(source)
        task, reason = pilot(items, model, arguments.device)
        print(reason)
        chosen = items[task][NUM_PILOT:]
        result = judge(chosen, model, arguments, folder)
        rows = rows_of(result, chosen, model)
    print(render(rows))
    if arguments.json:
        arguments.json.write_text(json.dumps({"reason": reason, "rows": [asdict(row) for row in rows]}, indent=2))


if __name__ == "__main__":
    main()
