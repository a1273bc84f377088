"""Whether an engine takes the steps that replay says: the recorded prompts served again, with the same policy.

Steps are counted from outside: all tokens of a step arrive together, and the first token is the prefill's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lossguard.engines.base import EngineSpec
from lossguard.listener import Listener
from lossguard.records import Request, SamplingParams, ServedOutput, Verdict
from lossguard_mechanisms.drafters.lattice import TOP_K
from lossguard_mechanisms.engine.adapter import create
from lossguard_mechanisms.replay.choice import choose_policies
from lossguard_mechanisms.replay.estimates import number_clusters, ratio_of_sums
from lossguard_mechanisms.replay.failures import other_weights, partly_recorded, unknown_policy, unusable_replies
from lossguard_mechanisms.replay.policies import Policy
from lossguard_mechanisms.replay.recording import IntArray, Recording
from lossguard_mechanisms.replay.sources import weights_sha256
from lossguard_mechanisms.replay.walk import Replay, replay
from lossguard_mechanisms.trees.choice import DEFAULT_NODES
from lossguard_mechanisms.trees.names import CHAIN, POLICIES

LARGEST_DIFFERENCE = 0.005
REPEAT_MARK = "#"  # ``math-017#2`` is the second repeat of a prompt, and has random numbers of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingOrder:
    """What is served how. ``num_nodes`` are those of a tree; a chain is as long as the recording is deep."""

    target: Path
    drafter: Path
    slots: int
    device: str
    dtype: str
    policy: str = CHAIN
    num_nodes: int = DEFAULT_NODES


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCheck:
    """Replay and engine on the same prompts. Replies may part at near-ties; only equal ones can be compared exactly."""

    num_requests: int
    num_equal_replies: int
    num_equal_steps: int
    """Requests with equal replies that took as many steps as replay says."""
    replayed_tau: float | None
    engine_tau: float | None
    """Both over requests with equal replies; None where there is none with a step."""
    half_width: float | None
    """Of the 95 % interval by request of ``difference``; None for fewer than two such requests."""
    replayed_tau_of_all: float
    engine_tau_of_all: float

    @property
    def difference(self) -> float | None:
        """Of the engine's tau from the replayed one, as a share of it, over requests with equal replies."""
        if self.replayed_tau is None or self.engine_tau is None:
            return None
        return self.engine_tau / self.replayed_tau - 1.0

    @property
    def verdict(self) -> Verdict:
        """PASS within half a per cent, FAIL where the interval leaves 0 out, else INCONCLUSIVE."""
        if self.difference is None:
            return Verdict.INCONCLUSIVE
        if abs(self.difference) < LARGEST_DIFFERENCE:
            return Verdict.PASS
        is_certain = self.half_width is not None and abs(self.difference) > self.half_width
        return Verdict.FAIL if is_certain else Verdict.INCONCLUSIVE

    def to_json(self) -> dict[str, Any]:
        """As ``lossguard lattice verify --json`` writes it."""
        return {**asdict(self), "difference": self.difference, "verdict": self.verdict.value}


def check_against_engine(recording: Recording, order: ServingOrder, listener: Listener) -> EngineCheck:
    """Serve the recorded prompts with the engine ``embedded`` and compare.

    Raises UsageError LG1615 for other weights, LG1610 where no reply has a second token and so no step, LG1607, LG1608
    or LG1616 for a policy that cannot be compared, and what the engine's options may raise.
    """
    expected = replay(recording, _policy_of(recording, order))
    _require_same_weights(recording, order)
    if recording.replies.reply_lengths.max() < 2:
        raise unusable_replies("none has a token after the prefill's")
    requests = requests_of(recording)
    options = {
        "drafter": str(order.drafter),
        "slots": order.slots,
        "device": order.device,
        "dtype": order.dtype,
        **_policy_options(recording, order),
    }
    engine = create(EngineSpec(name="replay", model_path=str(order.target), options=options))
    found: dict[str, ServedOutput] = {}
    with listener.stage("embedded: serving", recording.replies.num_tokens, "tokens") as progress:
        for output in engine.serve(requests):
            found[output.request_id] = output
            progress(len(output.ids))
    engine.close()
    return compare_outputs(recording, expected, [found[request.id] for request in requests])


def _policy_of(recording: Recording, order: ServingOrder) -> Policy:
    """The policy on the recording. Raises UsageError LG1607, LG1608, LG1616."""
    if order.policy not in POLICIES:
        raise unknown_policy(order.policy, POLICIES)
    lattices, drafter = recording.lattices, recording.provenance.drafter
    (policy,) = choose_policies([order.policy], [order.num_nodes], lattices, drafter).policies
    has_all = lattices.num_candidates == min(TOP_K, recording.provenance.vocab_size)
    has_all &= lattices.edges is None or lattices.num_edge_candidates == lattices.num_candidates
    if order.policy != CHAIN and not has_all:
        raise partly_recorded(order.policy, lattices.num_candidates, lattices.num_edge_candidates)
    return policy


def _policy_options(recording: Recording, order: ServingOrder) -> dict[str, Any]:
    depths = recording.lattices.num_depths
    if order.policy == CHAIN:
        return {"num_drafts": depths}
    return {"policy": order.policy, "nodes": order.num_nodes, "depth": depths}


def requests_of(recording: Recording) -> tuple[Request, ...]:
    """The recorded requests, each to be answered with as many tokens as its recorded reply has."""
    replies, origin = recording.replies, recording.provenance
    return tuple(
        Request(
            id=name,
            prompt_ids=tuple(replies.prompt(index).tolist()),
            sampling=SamplingParams(
                max_tokens=int(replies.reply_lengths[index]), temperature=origin.temperature, seed=origin.seed
            ),
            set=replies.sets[index],
            cluster=replies.clusters[index],
            repeat_id=int(name.rpartition(REPEAT_MARK)[2]) if REPEAT_MARK in name else 0,
        )
        for index, name in enumerate(replies.request_ids)
    )


def compare_outputs(recording: Recording, expected: Replay, outputs: Sequence[ServedOutput]) -> EngineCheck:
    """``outputs`` in the order of the recorded requests, beside what replay expects of the same policy."""
    steps = np.array([len(set(output.arrival_ns)) - 1 for output in outputs])
    tokens = np.array([len(output.ids) - 1 for output in outputs])
    is_equal = np.array(
        [output.ids == tuple(recording.replies.reply(index).tolist()) for index, output in enumerate(outputs)]
    )
    clusters = number_clusters(recording.replies.clusters)
    gain = ratio_of_sums(expected.steps[is_equal], steps[is_equal], clusters[is_equal])  # of tau: tokens are the same
    return EngineCheck(
        num_requests=len(outputs),
        num_equal_replies=int(is_equal.sum()),
        num_equal_steps=int((is_equal & (steps == expected.steps)).sum()),
        replayed_tau=_ratio(expected.tokens[is_equal], expected.steps[is_equal]),
        engine_tau=_ratio(tokens[is_equal], steps[is_equal]),
        half_width=gain.half_width,
        replayed_tau_of_all=expected.tau,
        engine_tau_of_all=float(tokens.sum() / steps.sum()),
    )


def _ratio(tokens: IntArray, steps: IntArray) -> float | None:
    return float(tokens.sum() / steps.sum()) if steps.sum() else None


def _require_same_weights(recording: Recording, order: ServingOrder) -> None:
    origin = recording.provenance
    for what, folder, digest in (
        ("target", order.target, origin.target_sha256),
        ("drafter", order.drafter, origin.drafter_sha256),
    ):
        if weights_sha256(folder) != digest:
            raise other_weights(what, folder)
