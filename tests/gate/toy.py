"""A whole serving stack in numpy: a target whose logits are known, an engine with rounding noise, an exact scorer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from lossguard.config import SystemConfig
from lossguard.engines.base import Capabilities, EngineSpec, ForcedPrefix
from lossguard.errors import EngineError
from lossguard.plan import SystemHandle
from lossguard.records import FinishReason, ForcedScores, ReportedLogprobs, Request, ServedOutput
from lossguard.scoring.base import ScoringJob

VOCAB_SIZE = 96
STOP_ID = 0
CONTEXT = 3
Logits = NDArray[np.float64]
Fault = Callable[["Step"], None]


@dataclass
class Step:
    """One decoding step of one row, before the token is chosen; a fault may change ``logits``."""

    request: Request
    position: int
    logits: Logits


class ToyTarget:
    """Logits are a fixed random function of the last three tokens and the length; magnitudes are an LLM's."""

    def __init__(self, seed: int = 5) -> None:
        rng = np.random.default_rng(seed)
        self._tables = rng.normal(size=(CONTEXT, VOCAB_SIZE, VOCAB_SIZE)) * 3.0

    def logits(self, ids: Sequence[int]) -> Logits:
        """Exact logits after ``ids``; the stop token is unlikely but possible."""
        tail = list(ids[-CONTEXT:])
        total = sum(self._tables[back, token] for back, token in enumerate(reversed(tail)))
        shifted = np.roll(np.asarray(total), len(ids) % 7) + 10.0
        shifted[STOP_ID] -= 4.0
        return np.asarray(shifted)


@dataclass
class ToyEngine:
    """Greedy serving with rounding noise that depends on the batch; faults act inside generation."""

    target: ToyTarget
    noise_nats: float = 0.02
    faults: tuple[Fault, ...] = ()
    finish: Callable[[ServedOutput], ServedOutput] = lambda output: output
    batch_size: int = 8
    dies_after: int | None = None
    forced: bool = True
    telemetry: Mapping[str, tuple[float, ...]] | None = None
    num_served: int = 0
    is_closed: bool = False

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            max_logprobs=5, forced_decode=self.forced, logit_dtype="bfloat16", concurrency=self.batch_size
        )

    def fingerprint(self) -> Mapping[str, Any]:
        return {"kind": "toy", "noise_nats": self.noise_nats}

    def serve(self, requests: Sequence[Request]) -> Iterator[ServedOutput]:
        for first in range(0, len(requests), self.batch_size):
            batch = requests[first : first + self.batch_size]
            for row, request in enumerate(batch):
                if self.dies_after is not None and self.num_served >= self.dies_after:
                    raise EngineError("the toy died", why="it was told to", fix="resume", code="LG0608")
                self.num_served += 1
                yield self.finish(self._reply(request, row, len(batch)))

    def forced_decode(self, batch: Sequence[ForcedPrefix]) -> list[tuple[int, ...]]:
        rows = []
        for row, prefix in enumerate(batch):
            ids = [*prefix.request.prompt_ids]
            tokens = []
            for position in range(prefix.num_positions):
                tokens.append(int(np.argmax(self._served_logits(ids, prefix.request, row, len(batch)))))
                ids.append(prefix.served_ids[position])
            rows.append(tuple(tokens))
        return rows

    def close(self) -> None:
        self.is_closed = True

    def _served_logits(self, ids: Sequence[int], request: Request, row: int, num_rows: int) -> Logits:
        seed = abs(hash((tuple(ids[-4:]), len(ids), row, num_rows))) % 2**32
        noise = np.random.default_rng(seed).normal(size=VOCAB_SIZE) * self.noise_nats
        return self.target.logits(ids) + noise

    def _reply(self, request: Request, row: int, num_rows: int) -> ServedOutput:
        ids, tops, logprobs = [*request.prompt_ids], [], []
        reply: list[int] = []
        while len(reply) < request.sampling.max_tokens and (not reply or reply[-1] != STOP_ID):
            step = Step(request, len(reply), self._served_logits(ids, request, row, num_rows))
            for fault in self.faults:
                fault(step)
            token = int(np.argmax(step.logits))
            top = np.argsort(-step.logits, kind="stable")[:5]
            tops.append(tuple(int(item) for item in top))
            logprobs.append(tuple(float(step.logits[item]) for item in top))
            reply.append(token)
            ids.append(token)
        stopped = reply[-1] == STOP_ID
        reported = ReportedLogprobs(
            served=tuple(row[0] for row in logprobs), top_ids=tuple(tops), top_logprobs=tuple(logprobs)
        )
        return ServedOutput(
            request_id=request.id,
            ids=tuple(reply),
            finish_reason=FinishReason.STOP if stopped else FinishReason.LENGTH,
            stop_reason=STOP_ID if stopped else None,
            logprobs=reported if request.sampling.logprobs else None,
            telemetry=dict(self.telemetry or {}),
        )


@dataclass
class ToyScorer:
    """Exact scores of the toy target."""

    target: ToyTarget
    num_scored: int = 0
    nan_at: tuple[str, int] | None = None

    vocab_size = VOCAB_SIZE

    def fingerprint(self) -> Mapping[str, Any]:
        return {"kind": "toy"}

    def close(self) -> None:
        """Nothing to give back."""

    def score(self, jobs: Sequence[ScoringJob], *, progress: Callable[[int], None] | None = None) -> list[ForcedScores]:
        self.num_scored += len(jobs)
        return [self._arm([(job.request, job.outputs[arm]) for job in jobs]) for arm in range(len(jobs[0].outputs))]

    def _arm(self, pairs: Sequence[tuple[Request, ServedOutput]]) -> ForcedScores:
        rows: list[tuple[int, float, float, int, int, float, list[int], list[float], bool]] = []
        offsets = [0]
        for request, output in pairs:
            ids = list(request.prompt_ids)
            for position, token in enumerate(output.ids):
                rows.append(self._token(ids, token, finite=self.nan_at != (request.id, position)))
                ids.append(token % VOCAB_SIZE)
            offsets.append(len(rows))
        if not rows:
            return no_scores(tuple(output.request_id for _, output in pairs))
        columns = list(zip(*rows, strict=True))
        return ForcedScores(
            request_ids=tuple(output.request_id for _, output in pairs),
            offsets=np.array(offsets, dtype=np.int64),
            served_id=np.array(columns[0], dtype=np.int32),
            gap=np.array(columns[1], dtype=np.float32),
            best_logit=np.array(columns[2], dtype=np.float32),
            rank=np.array(columns[3], dtype=np.int32),
            best_id=np.array(columns[4], dtype=np.int32),
            logprob=np.array(columns[5], dtype=np.float32),
            top_ids=np.array(columns[6], dtype=np.int32),
            top_logits=np.array(columns[7], dtype=np.float32),
            finite=np.array(columns[8], dtype=np.bool_),
        )

    def _token(
        self, ids: Sequence[int], token: int, *, finite: bool
    ) -> tuple[int, float, float, int, int, float, list[int], list[float], bool]:
        logits = self.target.logits(ids)
        order = np.argsort(-logits, kind="stable")
        best = int(order[0])
        top = [int(item) for item in order[:5]]
        known = token < VOCAB_SIZE
        gap = float(logits[best] - logits[token]) if known else float("inf")
        rank = int(np.flatnonzero(order == token)[0]) if known else VOCAB_SIZE
        logprob = float(logits[token] - np.logaddexp.reduce(logits)) if known else 0.0
        return token, gap, float(logits[best]), rank, best, logprob, top, [float(logits[item]) for item in top], finite


def no_scores(request_ids: tuple[str, ...]) -> ForcedScores:
    """Scores of empty replies."""
    empty, pairs = np.empty(0), np.empty((0, 5))
    return ForcedScores(
        request_ids=request_ids,
        offsets=np.zeros(len(request_ids) + 1, dtype=np.int64),
        served_id=empty.astype(np.int32),
        gap=empty.astype(np.float32),
        best_logit=empty.astype(np.float32),
        rank=empty.astype(np.int32),
        best_id=empty.astype(np.int32),
        logprob=empty.astype(np.float32),
        top_ids=pairs.astype(np.int32),
        top_logits=pairs.astype(np.float32),
        finite=empty.astype(np.bool_),
    )


def write_model(folder: Path) -> Path:
    """A model folder with config, tokenizer and a few bytes of weights."""
    folder.mkdir(parents=True, exist_ok=True)
    vocab = {f"w{index}": index for index in range(VOCAB_SIZE)}
    tokenizer = Tokenizer(WordLevel(vocab, unk_token="w1"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "w1", "eos_token": "w0"})
    )
    config = {"model_type": "llama", "vocab_size": VOCAB_SIZE, "eos_token_id": STOP_ID, "dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(config))
    save_file({"weight": np.zeros(4, dtype=np.float32)}, str(folder / "model.safetensors"))
    return folder


def write_prompts(path: Path, count: int, seed: int = 3) -> Path:
    """Prompts of random ids, no two of which share 13 tokens."""
    rng = np.random.default_rng(seed)
    lines = [
        json.dumps({"id": f"p{index:04d}", "prompt_ids": rng.integers(1, VOCAB_SIZE, rng.integers(4, 12)).tolist()})
        for index in range(count)
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def handle(name: str, engine: ToyEngine, expect: Mapping[str, Any] | None = None) -> SystemHandle:
    """An in-process system for a plan."""

    def create(_spec: EngineSpec) -> ToyEngine:
        return engine

    return SystemHandle(config=SystemConfig(name=name, engine="toy", expect=expect or {}), create=create)


def bias_every_seventh(strength: float) -> Fault:
    """As the published fault: from position 12 on, ids divisible by 7 gain."""

    def fault(step: Step) -> None:
        if step.position >= 12:
            step.logits[7::7] += strength

    return fault


def wrong_token(every: int, position: int = 9) -> Fault:
    """One token of rank 40 in every so many requests."""

    def fault(step: Step) -> None:
        if int(step.request.id[1:].split("#")[0]) % every == 0 and step.position == position:
            step.logits[int(np.argsort(-step.logits)[40])] += 100.0

    return fault


def cut(tokens: int) -> Callable[[ServedOutput], ServedOutput]:
    """Replies cut short but reported as having reached the limit."""

    def finish(output: ServedOutput) -> ServedOutput:
        return replace(output, ids=output.ids[:tokens], finish_reason=FinishReason.LENGTH, stop_reason=None)

    return finish
