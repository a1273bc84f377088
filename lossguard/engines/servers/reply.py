"""One reply as it grows: tokens with their arrival times, and how it becomes a ServedOutput."""

from __future__ import annotations

from dataclasses import dataclass, field

from lossguard.engines.servers.problems import MalformedReplyError
from lossguard.records import FinishReason, ReportedLogprobs, Request, ServedOutput, Usage

STOP_APPENDED = "stop_appended"
"""Telemetry column: 1 where the server stripped the stop token and it was put back (served counts are one less)."""
PROMPT_DIFFERS = "prompt_differs"
"""Telemetry column: 1 where the server says that it answered another prompt than the one that was sent."""


@dataclass
class Reply:
    """What has arrived of one reply. Tokens beyond any that were asked for end it (MalformedReplyError)."""

    request: Request
    ids: list[int] = field(default_factory=list)
    arrival_ns: list[int] = field(default_factory=list)
    text: str | None = None
    served_logprobs: list[float] = field(default_factory=list)
    top_ids: list[tuple[int, ...]] = field(default_factory=list)
    top_logprobs: list[tuple[float, ...]] = field(default_factory=list)
    finish: FinishReason | None = None
    stop_reason: int | str | None = None
    usage: Usage | None = None
    telemetry: dict[str, tuple[float, ...]] = field(default_factory=dict)

    def add_tokens(self, ids: list[int], arrived_ns: int) -> None:
        """Append tokens that arrived together."""
        if ids and self.finish is not None:
            raise MalformedReplyError(f"{len(ids)} tokens came after the finish reason {self.finish.value!r}")
        self.ids += ids
        self.arrival_ns += [arrived_ns] * len(ids)
        most = 4 * self.request.sampling.max_tokens + 1_024
        if len(self.ids) > most:
            raise MalformedReplyError(f"{len(self.ids)} tokens for max_tokens = {self.request.sampling.max_tokens}")

    def add_text(self, text: str) -> None:
        """Append text."""
        self.text = (self.text or "") + text

    def add_top(self, row: dict[int, float]) -> None:
        """Append one position's top log-probabilities, by token id; stored best first."""
        ordered = sorted(row.items(), key=lambda item: (-item[1], item[0]))
        self.top_ids.append(tuple(token for token, _ in ordered))
        self.top_logprobs.append(tuple(value for _, value in ordered))

    def end(self, finish: FinishReason, stop_reason: int | str | None) -> None:
        """The server said why the reply ended. It may say so once."""
        if self.finish is not None and (self.finish, self.stop_reason) != (finish, stop_reason):
            raise MalformedReplyError(f"a second finish reason {finish.value!r} after {self.finish.value!r}")
        self.finish, self.stop_reason = finish, stop_reason

    def output(self, sent_ns: int) -> ServedOutput:
        """The finished reply. Raises MalformedReplyError if the server never said why it ended."""
        if self.finish is None:
            raise MalformedReplyError(f"it ended after {len(self.ids)} tokens without a finish reason")
        self._put_stop_back()
        asked = self.request.sampling.logprobs > 0 or bool(self.served_logprobs)
        return ServedOutput(
            request_id=self.request.id,
            ids=tuple(self.ids),
            finish_reason=self.finish,
            stop_reason=self.stop_reason,
            sent_ns=sent_ns,
            arrival_ns=tuple(self.arrival_ns),
            logprobs=self._logprobs() if asked else None,
            usage=self.usage,
            text=self.text,
            telemetry=self.telemetry,
        )

    def _logprobs(self) -> ReportedLogprobs:
        return ReportedLogprobs(
            served=tuple(self.served_logprobs), top_ids=tuple(self.top_ids), top_logprobs=tuple(self.top_logprobs)
        )

    def _put_stop_back(self) -> None:
        """The stop token is a served token: a server that strips it served it all the same.

        An early end or a dropped tail then shows as a stop token with a large gap.
        """
        asked = self.request.sampling
        if (
            self.finish is not FinishReason.STOP
            or isinstance(self.stop_reason, str)
            or asked.ignore_eos
            or not asked.stop_ids
        ):
            return
        named = asked.stop_ids[0] if self.stop_reason is None else int(self.stop_reason)
        if self.ids and self.ids[-1] in (named, *asked.stop_ids):
            return
        self.ids.append(named)
        self.arrival_ns.append(self.arrival_ns[-1] if self.arrival_ns else 0)
        self.telemetry[STOP_APPENDED] = (1.0,)
