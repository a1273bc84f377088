"""The work of the scorer benchmark: two arms whose greedy replies share their first half."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lossguard.records import FinishReason, Request, SamplingParams, ServedOutput
from lossguard.scoring.base import ScoringJob


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkSize:
    """How many requests of what lengths."""

    num_requests: int
    prompt_tokens: int = 64
    reply_tokens: int = 96


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Token ids of prompts and of both arms' replies, request by request."""

    prompts: list[list[int]]
    replies: list[list[list[int]]]  # [arm][request]

    def sequences(self) -> list[tuple[list[int], list[int]]]:
        """Every (prompt, reply) of every arm."""
        return [pair for arm in self.replies for pair in zip(self.prompts, arm, strict=True)]

    def jobs(self) -> list[ScoringJob]:
        """The work as the scorer takes it."""
        return [self._job(index) for index in range(len(self.prompts))]

    def part(self, num_requests: int) -> Work:
        """The first requests only."""
        return Work(prompts=self.prompts[:num_requests], replies=[arm[:num_requests] for arm in self.replies])

    def num_tokens(self) -> int:
        """Input tokens of all arms: what a scorer without sharing runs."""
        return sum(len(prompt) + len(reply) - 1 for prompt, reply in self.sequences())

    def num_unique_tokens(self) -> int:
        """Input tokens of the prefix trees: what has to be run."""
        prefixes: set[int] = set()
        for prompt, reply in self.sequences():
            inputs = tuple(prompt + reply[:-1])
            prefixes.update(hash(inputs[: end + 1]) for end in range(len(inputs)))
        return len(prefixes)

    def save(self, path: Path) -> None:
        """Write as JSON."""
        path.write_text(json.dumps(dataclasses.asdict(self)))

    @classmethod
    def load(cls, path: Path) -> Work:
        """Inverse of ``save``."""
        return cls(**json.loads(path.read_text()))

    def _job(self, index: int) -> ScoringJob:
        name = f"request-{index}"
        sampling = SamplingParams(max_tokens=len(self.replies[0][index]))
        request = Request(
            id=name, prompt_ids=tuple(self.prompts[index]), sampling=sampling, set="benchmark", cluster=name
        )
        outputs = tuple(
            ServedOutput(request_id=name, ids=tuple(arm[index]), finish_reason=FinishReason.LENGTH)
            for arm in self.replies
        )
        return ScoringJob(request=request, outputs=outputs)


def greedy_work(model: nn.Module, vocab_size: int, size: WorkSize) -> Work:
    """Random prompts, stock's greedy replies, and a second arm that serves another token half-way."""
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(0, vocab_size, (size.num_requests, size.prompt_tokens), generator=generator)
    half = size.reply_tokens // 2
    stock = _greedy(model, prompts, size.reply_tokens)
    fork = (stock[:, half : half + 1] + 1) % vocab_size
    start = torch.cat([prompts, stock[:, :half], fork], dim=1)
    rest = _greedy(model, start, size.reply_tokens - half - 1)
    other = torch.cat([stock[:, :half], fork, rest], dim=1)
    return Work(prompts=prompts.tolist(), replies=[stock.tolist(), other.tolist()])


@torch.inference_mode()
def _greedy(model: Any, prompts: Tensor, num_tokens: int) -> Tensor:
    tokens = prompts.to(model.device)
    output: Tensor = model.generate(
        tokens,
        attention_mask=torch.ones_like(tokens),
        do_sample=False,
        max_new_tokens=num_tokens,
        min_new_tokens=num_tokens,
        pad_token_id=0,
    )
    return output[:, prompts.shape[1] :].cpu()
