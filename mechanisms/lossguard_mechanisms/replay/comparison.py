"""Policies side by side on one recording: tau of every prompt set and of all, and the gain over the chain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from lossguard_mechanisms.replay.choice import choose_policies
from lossguard_mechanisms.replay.estimates import CONFIDENCE, Estimate, number_clusters, ratio_of_sums
from lossguard_mechanisms.replay.policies import Chain, Policy
from lossguard_mechanisms.replay.recording import Recording
from lossguard_mechanisms.replay.walk import Replay, replay

SCHEMA_ID = "https://lossguard/schema/lattice-replay-2.json"
SCHEMA_VERSION = "2.0"
ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyResult:
    """One policy on one recording. Estimates are by prompt set, and for ``ALL`` of them together."""

    policy: Policy
    replay: Replay
    tau: Mapping[str, Estimate]
    gain: Mapping[str, Estimate]
    """Steps of the drafter's chain per step of this policy, on the same tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All policies on one recording, and what was decided by itself on the way."""

    name: str
    recording: Recording
    results: tuple[PolicyResult, ...]
    reasons: tuple[str, ...]

    @property
    def sets(self) -> tuple[str, ...]:
        """``ALL``, then the prompt sets in the order of their first request."""
        return tuple(_rows_by_set(self.recording))


def compare(name: str, recording: Recording, policies: Sequence[str], node_budgets: Sequence[int]) -> Comparison:
    """Replay ``policies`` (none: all) with every budget. Raises UsageError LG1607 and LG1608."""
    chosen = choose_policies(policies, node_budgets, recording.lattices, recording.provenance.drafter)
    chain = replay(recording, Chain(num_depths=recording.lattices.num_depths))
    results = tuple(_result(recording, policy, chain) for policy in chosen.policies)
    return Comparison(name=name, recording=recording, results=results, reasons=chosen.reasons)


def _result(recording: Recording, policy: Policy, chain: Replay) -> PolicyResult:
    found = replay(recording, policy)
    clusters = number_clusters(recording.replies.clusters)
    rows = _rows_by_set(recording)
    return PolicyResult(
        policy=policy,
        replay=found,
        tau={name: ratio_of_sums(found.tokens[row], found.steps[row], clusters[row]) for name, row in rows.items()},
        gain={name: ratio_of_sums(chain.steps[row], found.steps[row], clusters[row]) for name, row in rows.items()},
    )


def _rows_by_set(recording: Recording) -> dict[str, np.ndarray]:
    sets = np.array(recording.replies.sets)
    names = tuple(dict.fromkeys(recording.replies.sets))
    everything = {ALL: np.ones(len(sets), dtype=bool)}
    return everything if len(names) == 1 and names[0] == ALL else everything | {name: sets == name for name in names}


def to_json(comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """What ``lossguard lattice replay --json`` writes; steps by request too, to lay an engine's counts beside them."""
    return {
        "schema": SCHEMA_ID,
        "schema_version": SCHEMA_VERSION,
        "confidence": CONFIDENCE,
        "interval": "ratio of sums over clusters, t with clusters - 1 degrees of freedom",
        "recordings": [_comparison_to_json(comparison) for comparison in comparisons],
    }


def _comparison_to_json(comparison: Comparison) -> dict[str, Any]:
    replies = comparison.recording.replies
    return {
        "name": comparison.name,
        **summary_of(comparison.recording),
        "requests": [
            {"id": name, "set": group, "cluster": cluster, "num_tokens": int(length)}
            for name, group, cluster, length in zip(
                replies.request_ids, replies.sets, replies.clusters, replies.reply_lengths, strict=True
            )
        ],
        "policies": [_result_to_json(result) for result in comparison.results],
        "reasons": list(comparison.reasons),
    }


def summary_of(recording: Recording) -> dict[str, Any]:
    """Where a recording comes from and how much it holds, as JSON."""
    provenance = asdict(recording.provenance)
    lattices = recording.lattices
    return {
        "provenance": provenance | {"notes": list(recording.provenance.notes)},
        "num_requests": recording.replies.num_requests,
        "num_prompt_tokens": len(recording.replies.prompt_ids),
        "num_reply_tokens": recording.replies.num_tokens,
        "num_depths": lattices.num_depths,
        "num_candidates": lattices.num_candidates,
        "num_edge_candidates": lattices.num_edge_candidates,
        "has_confidence": lattices.confidence is not None,
    }


def _result_to_json(result: PolicyResult) -> dict[str, Any]:
    return {
        "policy": result.policy.name,
        "num_nodes": result.policy.num_nodes,
        "num_depths": result.policy.num_depths,
        "tau": {name: _estimate_to_json(estimate) for name, estimate in result.tau.items()},
        "gain_over_chain": {name: _estimate_to_json(estimate) for name, estimate in result.gain.items()},
        "steps_by_emitted": result.replay.steps_by_emitted.tolist(),
        "tokens_by_request": result.replay.tokens.tolist(),
        "steps_by_request": result.replay.steps.tolist(),
    }


def _estimate_to_json(estimate: Estimate) -> dict[str, Any]:
    return {**asdict(estimate), "low": estimate.low, "high": estimate.high}
