"""Pack what a finished run's systems served into one file, for ``tests/claims/replay.py``.

    python -m tools.pack_outputs .lossguard/run-0001 fixtures/demo-outputs 32 other-batches wrong-token

Arguments: the run, the target folder, tokens per reply, and the candidates to keep. Replies are greedy, so the first 32
tokens of a reply of 64 are the reply to a request of 32; what a post-processor makes of a reply is made again from the
shorter one. Kept beside replies: what stock's own decode gives along the replies of candidates with large gaps, at the
batches of an audit (asked of stock here, on the machine that served them or one like it). Left out: times, text,
telemetry, scores.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import itertools
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

import lossguard
from lossguard.config import SystemConfig
from lossguard.engines.base import ForcedPrefix
from lossguard.engines.extensions import parse_extensions
from lossguard.gate import load_plan
from lossguard.listener import SilentListener
from lossguard.records import FinishReason, Request, ServedOutput
from lossguard.run_folder import RunFolder, read_outputs, write_atomically
from lossguard.scoring.columns import concat_scores, load_scores
from lossguard.stages.workspace import Workspace

Rows = Sequence[Sequence[int]]
AUDIT_BATCHES = (64, 32)  # the concurrency of the recorded stock, and half of it
NOTABLE_GAP_NATS = 0.5  # half of the smallest event: replies below it hold none, on any machine
MAX_NOTABLE = 24  # an audit ends when FAIL is certain, at the seventh unexplained request if stock has none


def packed(name: str, rows: Rows) -> dict[str, NDArray[np.uint16]]:
    """Rows of token ids as two tensors; ids beyond 65,535 raise OverflowError."""
    return {
        f"{name}.ids": np.array([token for row in rows for token in row], dtype=np.uint16),
        f"{name}.lengths": np.array([len(row) for row in rows], dtype=np.uint16),
    }


@dataclass(frozen=True, slots=True)
class Packer:
    """One run folder, read, with replies cut to ``num_tokens``."""

    workspace: Workspace
    test: tuple[Request, ...]
    calibration: tuple[Request, ...]
    num_tokens: int

    @property
    def stock(self) -> SystemConfig:
        """The run's baseline."""
        return self.workspace.plan.stock

    def replies(self, system: str, requests: Sequence[Request], file: str = "outputs.jsonl") -> Rows:
        """A system's replies in the order of the requests."""
        outputs, _notes = read_outputs(self.workspace.folder.path / system / file)
        return [outputs[request.id].ids[: self.num_tokens] for request in requests]

    def candidate_replies(self, name: str) -> Rows:
        """As ``replies``; those of a post-processor are made from stock's, which is what it stood behind."""
        system = self.workspace.plan.config.systems[name]
        posts = parse_extensions(name, "post_processors", system.options.get("post_processors", []))
        if not posts:
            return self.replies(name, self.test)
        if set(system.options) != {"post_processors"}:
            raise ValueError(f"{name} differs from stock by more than post-processors: {sorted(system.options)}")
        outputs = [
            _output(request, ids) for request, ids in zip(self.test, self.replies("stock", self.test), strict=True)
        ]
        for post in posts:
            apply = post.load()
            outputs = [
                apply(output, request, **post.arguments) for output, request in zip(outputs, self.test, strict=True)
            ]
        return [output.ids for output in outputs]

    def notable(self, name: str, rows: Rows) -> list[int]:
        """Indices of the first requests in whose replies an event may lie."""
        files = sorted((self.workspace.folder.path / name).glob("scores-*.safetensors"))
        scores = concat_scores([load_scores(file) for file in files])
        found = (
            index
            for index, row in enumerate(rows)
            if max(scores.gap[scores.offsets[index] :][: len(row)], default=0.0) > NOTABLE_GAP_NATS
        )
        return list(itertools.islice(found, MAX_NOTABLE))

    def tensors(self, names: Sequence[str]) -> dict[str, NDArray[np.uint16]]:
        """Everything, by name."""
        stock = self.stock.name
        made = packed("calibration.prompts", [request.prompt_ids for request in self.calibration])
        made |= packed("test.prompts", [request.prompt_ids for request in self.test])
        for part in ("calibration", "recomposed"):
            made |= packed(f"{part}.{stock}", self.replies(stock, self.calibration, f"{part}-outputs.jsonl"))
        made |= packed(f"test.{stock}", self.replies(stock, self.test))
        for name in names:
            rows = self.candidate_replies(name)
            made |= packed(f"test.{name}", rows)
            if notable := self.notable(name, rows):
                made |= self.decoded(name, rows, notable)
        return made

    def decoded(self, name: str, rows: Rows, notable: Sequence[int]) -> dict[str, NDArray[np.uint16]]:
        """Stock's decode along a candidate's replies: all batches of an audit's windows, and alone for the notable."""
        engine = self.workspace.engine(self.stock)
        prefixes = [
            ForcedPrefix(request=request, served_ids=tuple(row), num_positions=len(row))
            for request, row in zip(self.test, rows, strict=True)
        ]
        made: dict[str, NDArray[np.uint16]] = {}
        windows = {index // AUDIT_BATCHES[0] for index in notable}
        for size in (*AUDIT_BATCHES, 1):
            asked: list[tuple[int, ...]] = []
            for first in range(0, len(prefixes), size):
                batch = prefixes[first : first + size]
                is_audited = first in notable if size == 1 else first // AUDIT_BATCHES[0] in windows
                asked += engine.forced_decode(batch) if is_audited else [()] * len(batch)
            made |= packed(f"decode.{name}.batch-{size}", asked)
        print(f"{name}: stock decoded along the replies around {len(notable)} requests")
        return made


def _output(request: Request, ids: Sequence[int]) -> ServedOutput:
    stopped = ids[-1] in request.sampling.stop_ids
    return ServedOutput(
        request_id=request.id,
        ids=tuple(ids),
        finish_reason=FinishReason.STOP if stopped else FinishReason.LENGTH,
        stop_reason=ids[-1] if stopped else None,
    )


def manifest(packer: Packer, data: bytes, names: Sequence[str]) -> str:
    """Where the file comes from, as TOML."""
    folder = packer.workspace.folder
    report, stock = folder.read_json("report.json"), folder.read_json("fingerprints.json")["stock"]["identity"]
    facts = {
        "schema_version": 1,
        "file": "replies.safetensors",
        "sha256": hashlib.sha256(data).hexdigest(),
        "command": " ".join(report["run"]["command"]),
        "pack_command": f"python -m tools.pack_outputs RUN fixtures/demo-outputs {packer.num_tokens} {' '.join(names)}",
        "started": report["run"]["started"],
        "model": packer.workspace.plan.config.model,
        "prompt_sets": list(packer.workspace.plan.config.prompts.sets),
        "prompts_sha256": folder.read_json("prompts.json")["sha256"],
        "seed": packer.workspace.plan.effective_seed,
        "num_requests": len(packer.test),
        "num_calibration": len(packer.calibration),
        "num_tokens_served": packer.workspace.plan.sizes.max_tokens,
        "num_tokens_kept": packer.num_tokens,
        "packed_with": f"lossguard {lossguard.__version__}, safetensors {importlib.metadata.version('safetensors')}",
    }
    verdicts = {claim["candidate"]: claim["verdict"] for claim in report["claims"] if claim["candidate"] in names}
    systems = {"stock": _options(packer.stock)} | {
        name: _options(packer.workspace.plan.config.systems[name]) for name in names
    }
    host = {
        key: value
        for key, value in stock.items()
        if value is not None and key.partition(".")[0] not in ("target", "served", "engine")
    }
    tables = {"verdicts": verdicts, "systems": systems, "host": host}
    parts = [_toml(facts), *(f"[{name}]\n{_toml(table)}" for name, table in tables.items())]
    return "\n\n".join(parts) + "\n"


def _options(system: SystemConfig) -> str:
    return json.dumps({"engine": system.engine, **system.options}, sort_keys=True)


def _toml(values: dict[str, Any]) -> str:
    return "\n".join(f"{json.dumps(name)} = {json.dumps(value)}" for name, value in values.items())


def main(run: str, target: str, num_tokens: str, *names: str) -> None:
    """Read, ask, write."""
    plan, run_folder, folder = load_plan(Path(run)), RunFolder.open(Path(run)), Path(target)
    workspace = Workspace(plan=replace(plan, candidates=()), folder=run_folder, listener=SilentListener())
    packer = Packer(
        workspace,
        run_folder.read_requests("requests.jsonl"),
        run_folder.read_requests("calibration-requests.jsonl"),
        int(num_tokens),
    )
    try:
        data = save(packer.tensors(names))
    finally:
        workspace.close()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "replies.safetensors").write_bytes(data)
    write_atomically(folder / "MANIFEST.toml", manifest(packer, data, names))
    print(f"{folder}: {len(data):,} bytes, {len(names) + 1} systems")


if __name__ == "__main__":
    main(*sys.argv[1:])
