"""Comparisons and recordings as people read them in a terminal."""

from __future__ import annotations

from lossguard_mechanisms.replay.comparison import ALL, Comparison, PolicyResult
from lossguard_mechanisms.replay.estimates import Estimate
from lossguard_mechanisms.replay.policies import ORACLE
from lossguard_mechanisms.replay.recording import Recording

_HASH_SHOWN = 8
_NAME_WIDTH = 20
_CELL_WIDTH = 13


def describe(name: str, recording: Recording) -> str:
    """Where a recording comes from and how much it holds, in two lines."""
    origin, lattices, replies = recording.provenance, recording.lattices, recording.replies
    extras = [
        f"edges of {lattices.num_edge_candidates}" if lattices.num_edge_candidates else "no edges",
        "confidence" if lattices.confidence is not None else "no confidence",
    ]
    return (
        f"{name}: {origin.drafter} {origin.drafter_sha256[:_HASH_SHOWN]} for {origin.target} "
        f"{origin.target_sha256[:_HASH_SHOWN]}, temperature {origin.temperature:g}, seed {origin.seed}, "
        f"prompts {origin.prompts}\n"
        f"  {replies.num_requests:,} requests, {replies.num_tokens:,} reply tokens, {lattices.num_depths} depths x "
        f"{lattices.num_candidates} candidates, {', '.join(extras)}"
    )


def render(comparison: Comparison) -> str:
    """A table of tau: a line per policy and budget, a column per prompt set, and the gain over the chain."""
    clusters = len(set(comparison.recording.replies.clusters))
    head = f"{'policy':<{_NAME_WIDTH}}{'nodes':>5}" + "".join(
        f"{_short(name):>{_CELL_WIDTH}}" for name in comparison.sets
    )
    lines = [
        describe(comparison.name, comparison.recording),
        f"  tau, tokens per step, with 95 % intervals by request (t over the clusters of a column, {clusters} in all)",
        "",
        f"  {head}{'over chain':>{_CELL_WIDTH}}",
        *(f"  {_line(result, comparison.sets)}" for result in comparison.results),
        *(f"  note: {reason}" for reason in comparison.reasons),
    ]
    return "\n".join(line.rstrip() for line in lines)


def label(result: PolicyResult) -> str:
    """A policy's name; of an oracle also how far it looks."""
    policy = result.policy
    return f"{policy.name}, {policy.num_depths} ahead" if policy.name == ORACLE else policy.name


def _line(result: PolicyResult, sets: tuple[str, ...]) -> str:
    nodes = "-" if result.policy.num_nodes is None else str(result.policy.num_nodes)
    cells = "".join(f"{_cell(result.tau[name]):>{_CELL_WIDTH}}" for name in sets)
    return f"{label(result):<{_NAME_WIDTH}}{nodes:>5}{cells}{_cell(result.gain[ALL], sign='x'):>{_CELL_WIDTH}}"


def _cell(estimate: Estimate, *, sign: str = "") -> str:
    if estimate.value is None:
        return "no steps"
    if estimate.half_width is None:
        return f"{estimate.value:.2f}{sign}"
    return f"{estimate.value:.2f}{sign} ±{estimate.half_width:.2f}"


def _short(name: str) -> str:
    return name if len(name) < _CELL_WIDTH else f"{name[: _CELL_WIDTH - 3]}.."
