"""Arms of sampled tokens: distributions as peaked as a language model's, and draws from them or from others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lossguard.checks.base import Arm, CheckInput
from lossguard.records import ForcedScores, Request, SamplingParams
from lossguard.scoring.sampled_columns import sampled_columns, stack_sampling
from tests.checks.simulated_arms import check_input, make_outputs, make_requests, thresholds

VOCAB_SIZE = 48
Law = Callable[[torch.Tensor, SamplingParams], torch.Tensor]
"""From the target's logits [T, V] to the logits of what is served at temperature 1, without any filter."""


def exact(logits: torch.Tensor, sampling: SamplingParams) -> torch.Tensor:
    """The target's own law."""
    scaled = logits / sampling.temperature
    if sampling.top_p < 1.0:
        values, order = scaled.sort(dim=-1, descending=True)
        before = values.softmax(dim=-1).cumsum(dim=-1) - values.softmax(dim=-1)
        outside = torch.zeros_like(before, dtype=torch.bool).scatter(1, order, before >= sampling.top_p)
        scaled = scaled.masked_fill(outside, -torch.inf)
    return scaled


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledArm:
    """How one arm is drawn; ``noise_nats`` is by how much served logits miss the scorer's."""

    name: str
    law: Law = exact
    noise_nats: float = 0.03


def sampled_requests(number: int, **sampling: Any) -> tuple[Request, ...]:
    """Requests at a temperature, one cluster each."""
    asked = {"temperature": 1.0, **sampling}
    return tuple(
        replace(request, sampling=replace(request.sampling, **asked))
        for request in make_requests(number, max_tokens=256)
    )


def make_logits(generator: np.random.Generator, number: int) -> torch.Tensor:
    """[T, V] float32: best-token probabilities of 0.2 to 1, entropies of 0 to 3 nats, ids in no order."""
    scale = generator.uniform(0.8, 5.0, size=(number, 1))
    logits = generator.normal(size=(number, VOCAB_SIZE)) * scale
    logits[np.arange(number), generator.integers(0, VOCAB_SIZE, number)] += generator.exponential(6.0, size=number)
    return torch.from_numpy((logits + 10.0).astype(np.float32))


def make_sampled_arm(
    generator: np.random.Generator, requests: Sequence[Request], lengths: NDArray[np.int64], spec: SampledArm
) -> Arm:
    """One arm, scored by the real scorer's columns."""
    number, sampling = int(lengths.sum()), requests[0].sampling
    logits = make_logits(generator, number)
    noise = torch.from_numpy(generator.normal(size=(number, VOCAB_SIZE)).astype(np.float32)) * spec.noise_nats
    law = spec.law(logits + noise, sampling).double().softmax(dim=-1)
    draws = torch.from_numpy(generator.random((number, 1)))
    served = torch.searchsorted(law.cumsum(dim=-1), draws).squeeze(1).clamp(max=VOCAB_SIZE - 1)
    scores = _scores(logits, served, requests, lengths)
    return Arm(name=spec.name, outputs=make_outputs(requests, scores), scores=scores)


def _scores(
    logits: torch.Tensor, served: torch.Tensor, requests: Sequence[Request], lengths: NDArray[np.int64]
) -> ForcedScores:
    values, ids = logits.topk(2, dim=-1)
    mine = logits.gather(1, served[:, None]).squeeze(1)
    index = torch.zeros(len(logits), dtype=torch.int64)
    columns = sampled_columns(
        logits.clone(), served, stack_sampling([requests[0].sampling], index, torch.device("cpu"))
    )
    return ForcedScores(
        request_ids=tuple(request.id for request in requests),
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        served_id=served.numpy().astype(np.int32),
        gap=(values[:, 0] - mine).numpy(),
        best_logit=values[:, 0].numpy(),
        rank=(logits > mine[:, None]).sum(dim=-1).numpy().astype(np.int32),
        best_id=ids[:, 0].numpy().astype(np.int32),
        logprob=(mine - logits.logsumexp(dim=-1)).numpy(),
        top_ids=ids.numpy().astype(np.int32),
        top_logits=values.numpy(),
        finite=np.ones(len(logits), dtype=np.bool_),
        **{name: column.numpy() for name, column in columns.items()},
    )


def sampled_run(
    seed: int,
    law: Law = exact,
    *,
    num_requests: int = 240,
    mean_tokens: int = 60,
    noise_nats: float = 0.03,
    **sampling: Any,
) -> CheckInput:
    """Stock and a candidate that serves ``law``; replies of unequal length."""
    generator = np.random.default_rng(seed)
    requests = sampled_requests(num_requests, **sampling)
    lengths = [generator.integers(mean_tokens // 2, 3 * mean_tokens // 2, size=num_requests) for _ in range(2)]
    stock = make_sampled_arm(generator, requests, lengths[0], SampledArm(name="stock", noise_nats=noise_nats))
    spec = SampledArm(name="candidate", law=law, noise_nats=noise_nats)
    candidate = make_sampled_arm(generator, requests, lengths[1], spec)
    return check_input(requests, candidate, stock, thresholds())
