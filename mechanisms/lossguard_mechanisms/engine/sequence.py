"""One request on its way through the engine."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from lossguard.records import FinishReason, ReportedLogprobs, Request, ServedOutput
from lossguard_mechanisms.engine.processors import Processing


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A request as the engine takes it: what is asked, and what its adapter has worked out."""

    request: Request
    key: int
    """Of the counter-based random numbers."""
    stop_ids: frozenset[int]
    """Ids that end the reply; empty in forced decode."""
    banned_ids: tuple[int, ...] = ()
    """Ids that are not served before ``min_tokens``."""
    forced_ids: tuple[int, ...] | None = None
    """Forced decode: the recorded reply, of which every token is fed whatever the engine would have served."""
    processing: Processing | None = None
    """What changes the scores of every token before one is chosen."""
    sent_ns: int = 0

    @property
    def num_wanted(self) -> int:
        """Tokens after which the reply ends at the latest."""
        return self.request.sampling.max_tokens if self.forced_ids is None else len(self.forced_ids)

    @property
    def num_positions(self) -> int:
        """Positions that prompt and reply may take."""
        return len(self.request.prompt_ids) + self.num_wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafted:
    """What a step verified: ``num_nodes`` drafted tokens, and whether the accepted ones ended above refused ones."""

    num_nodes: int
    is_refused: bool


NOTHING_DRAFTED = Drafted(num_nodes=0, is_refused=False)


@dataclass(slots=True)
class StepCounts:
    """What happened to one sequence, for telemetry."""

    num_drafted: int = 0
    num_accepted: int = 0
    num_steps: int = 0  # with drafts: the first token, which a prompt's last row gives, is no step
    block_positions: list[int] = field(default_factory=list)  # per token: its place in the tokens of its step
    after_rejection: list[bool] = field(default_factory=list)  # per token
    batch_sizes: list[int] = field(default_factory=list)  # per token: sequences that decoded in its step
    was_rejected: bool = False


@dataclass(slots=True)
class Sequence:
    """A live request: its tokens, where its state lies, and how far the state reaches.

    The last of ``tokens`` is the anchor: chosen, but not yet in the state.
    """

    job: Job
    slot: int
    pages: tuple[int, ...]
    tokens: list[int]
    num_computed: int = 0  # tokens in the state
    served: list[int] = field(default_factory=list)  # what came out: differs from the tokens fed in forced decode
    arrival_ns: list[int] = field(default_factory=list)
    logprobs: list[tuple[float, list[int], list[float]]] = field(default_factory=list)
    counts: StepCounts = field(default_factory=StepCounts)
    finish: FinishReason | None = None

    @property
    def num_prompt(self) -> int:
        """Tokens of the prompt."""
        return len(self.job.request.prompt_ids)

    @property
    def num_unread(self) -> int:
        """Prompt tokens that are not in the state."""
        return max(0, self.num_prompt - self.num_computed)

    def advance(self, tokens: list[int], *, drafted: Drafted, batch_size: int) -> None:
        """Take the tokens of one step, up to the end of the reply; all but the last of them were drafted."""
        now = time.monotonic_ns()
        counts, num_served = self.counts, 0
        for token in tokens:
            self._append(token, now)
            num_served += 1
            if self.finish is not None:
                break
        counts.block_positions += range(num_served)
        counts.after_rejection += [counts.was_rejected] * num_served
        counts.batch_sizes += [batch_size] * num_served
        counts.num_drafted += drafted.num_nodes
        counts.num_accepted += num_served - 1
        counts.num_steps += bool(drafted.num_nodes)
        counts.was_rejected = drafted.is_refused

    def _append(self, token: int, now: int) -> None:
        forced = self.job.forced_ids
        self.tokens.append(token if forced is None else forced[len(self.served)])
        self.served.append(token)
        self.arrival_ns.append(now)
        if token in self.job.stop_ids:
            self.finish = FinishReason.STOP
        elif len(self.served) == self.job.num_wanted:
            self.finish = FinishReason.LENGTH

    def output(self) -> ServedOutput:
        """The finished reply. Telemetry decides nothing: time and tokens are the client's to count."""
        assert self.finish is not None, "a reply is an output once it has ended"
        counts = self.counts
        telemetry = {"batch": tuple(float(size) for size in counts.batch_sizes)}
        if counts.num_drafted:
            telemetry |= {
                "drafts": (float(counts.num_drafted),),
                "accepted": (float(counts.num_accepted),),
                "steps": (float(counts.num_steps),),
                "block_position": tuple(float(place) for place in counts.block_positions),
                "after_rejection": tuple(float(flag) for flag in counts.after_rejection),
            }
        return ServedOutput(
            request_id=self.job.request.id,
            ids=tuple(self.served),
            finish_reason=self.finish,
            stop_reason=self.served[-1] if self.finish is FinishReason.STOP else None,
            sent_ns=self.job.sent_ns,
            arrival_ns=tuple(self.arrival_ns),
            logprobs=self._reported(),
            telemetry=telemetry,
        )

    def _reported(self) -> ReportedLogprobs | None:
        if not self.job.request.sampling.logprobs:
            return None
        kept = self.logprobs[: len(self.served)]
        return ReportedLogprobs(
            served=tuple(served for served, _, _ in kept),
            top_ids=tuple(tuple(ids) for _, ids, _ in kept),
            top_logprobs=tuple(tuple(values) for _, _, values in kept),
        )
