"""The design of a campaign: which arm runs where and when, with which requests. Pure, and fixed before anything runs.

Order ABBA: pair by pair the other arm comes first, so that a device which warms up steadily favours nobody
(loop_timing, table 6: 0.2 % a run biases ABAB by 0.1 points and ABBA by nothing). ABAB is not on offer.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from lossguard.records import Request, SamplingParams
from lossguard.timing_plan import bad_timing

Order = Literal["abba", "random"]
NUM_RUNS = 2  # of a swap pair
STOCK, CANDIDATE = 0, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """One run: on two devices both arms at once, on one device one after the other.

    ``devices[arm]`` is the index of the arm's device. ``turns`` are the arms that run at the same time.
    """

    pair: int
    run: int
    devices: tuple[int, int]
    turns: tuple[tuple[int, ...], ...]

    @property
    def name(self) -> str:
        """Names its file."""
        return f"pair-{self.pair:03d}-run-{self.run}"


def plan_runs(num_pairs: int, *, num_devices: int, order: Order, seed: int, first_pair: int = 0) -> list[RunPlan]:
    """The runs of ``num_pairs`` swap pairs, in order. ``first_pair`` continues an earlier campaign's order."""
    runs = []
    for pair in range(first_pair, first_pair + num_pairs):
        is_flipped = pair % 2 == 1
        if order == "random":
            is_flipped = random.Random(f"{seed}/{pair}").random() < 0.5
        for run in range(NUM_RUNS):
            runs.append(_run(pair, run, is_flipped=is_flipped ^ (run == 1), num_devices=num_devices))
    return runs


def _run(pair: int, run: int, *, is_flipped: bool, num_devices: int) -> RunPlan:
    first, second = (CANDIDATE, STOCK) if is_flipped else (STOCK, CANDIDATE)
    if num_devices == 1:
        return RunPlan(pair=pair, run=run, devices=(0, 0), turns=((first,), (second,)))
    devices = (1, 0) if is_flipped else (0, 1)
    return RunPlan(pair=pair, run=run, devices=devices, turns=((first, second),))


def sequence(runs: Sequence[RunPlan]) -> str:
    """Where stock is, run by run: ``ABBA`` on two devices. On one device S and C in the order of their turns."""
    if runs and len(runs[0].turns) > 1:
        return "".join("SC"[arm] for run in runs for turn in run.turns for arm in turn)
    return "".join("AB"[run.devices[STOCK]] for run in runs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Nonces:
    """Prefixes of prompts that make every request new to every cache. The same for both arms of a run."""

    seed: int
    num_tokens: int
    pool: tuple[int, ...]  # ids to draw from

    def for_run(self, requests: Sequence[Request], run: RunPlan, *, block: str) -> tuple[Request, ...]:
        """The requests of one run: each prompt behind a prefix of its own, all prefixes of the same length."""
        if self.num_tokens == 0:
            return tuple(requests)
        return tuple(
            replace(request, prompt_ids=self._prefix(f"{run.name}/{block}/{index}") + request.prompt_ids)
            for index, request in enumerate(requests)
        )

    def _prefix(self, name: str) -> tuple[int, ...]:
        draw = random.Random(f"{self.seed}/{name}")
        return tuple(draw.choice(self.pool) for _ in range(self.num_tokens))


def make_nonces(requests: Sequence[Request], *, seed: int, num_tokens: int, num_runs: int) -> Nonces:
    """Nonces of ids that the prompts themselves use: they exist in the vocabulary and end no reply.

    Raises UsageError LG1003 if so few ids could repeat a prefix within the campaign.
    """
    ends = {token for request in requests for token in request.sampling.stop_ids}
    pool = tuple(sorted({token for request in requests for token in request.prompt_ids} - ends))
    wanted = 1_000 * (len(requests) * num_runs) ** 2  # chance of any repeat about 1 in 2,000
    if num_tokens and len(pool) ** num_tokens < wanted:
        raise bad_timing(
            f"{len(pool)} different ids in the prompts give too few prefixes of {num_tokens} tokens",
            "give a longer nonce (nonce_tokens) or other prompts",
        )
    return Nonces(seed=seed, num_tokens=num_tokens, pool=pool)


def fixed_length(sampling: SamplingParams, supported: frozenset[str]) -> tuple[SamplingParams, str]:
    """Sampling under which every reply has ``max_tokens`` tokens, as far as both engines can, and how."""
    if "ignore_eos" in supported:
        return replace(sampling, ignore_eos=True), "replies have a fixed length (ignore_eos)"
    if "min_tokens" in supported:
        return replace(sampling, min_tokens=sampling.max_tokens), "replies have a fixed length (min_tokens)"
    if sampling.stop_ids and "stop_ids" in supported:
        return replace(sampling, stop_ids=()), "replies have a fixed length (no stop ids are given)"
    return sampling, "the engines cannot be asked for replies of a fixed length, so a reply may end early"


def stratum(request: Request) -> str:
    """Prompt set x prompt length x output length, on coarse steps."""
    return f"{request.set}/prompt-{_step(len(request.prompt_ids))}/output-{_step(request.sampling.max_tokens)}"


def _step(length: int) -> str:
    for limit in (64, 256, 1_024, 4_096):
        if length <= limit:
            return f"to-{limit}"
    return "over-4096"
