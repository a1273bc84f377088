"""The scorer behind a stock server: prompt + reply in, log-probabilities of the reply out.

Every different reply to a request is sent once, whole, and no reply reads what another one left in the server's
cache: arms are scored alike. The noise that is left comes from batches, which the server composes by itself.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lossguard.engines.base import EngineSpec
from lossguard.engines.servers import problems as server_problems
from lossguard.engines.servers.problems import MalformedReplyError
from lossguard.engines.servers.server import Server
from lossguard.engines.servers.server_facts import told_facts
from lossguard.engines.servers.transport import Transport
from lossguard.errors import EngineError, ScorerError
from lossguard.records import ForcedScores
from lossguard.scoring.base import ScorerCapabilities, ScoringJob
from lossguard.scoring.prefix_tree import check_job, cut_reply
from lossguard.scoring.registry import sampled_not_scored
from lossguard.scoring.score_sheet import ScoreSheet
from lossguard.scoring.servers import problems
from lossguard.scoring.servers.dialects import ForcedReply, Form, ScoringDialect
from lossguard.scoring.servers.options import SYSTEM, ServerScorerOptions
from lossguard.scoring.servers.rows import RowRules, columns_of

STAND_IN = 0
"""Sent in place of an id that does not exist: the position's best tokens do not depend on it."""
Columns = dict[str, NDArray[Any]]


def capabilities(dialect: ScoringDialect, *, top_k: int | None) -> ScorerCapabilities:
    """Of a scorer that lists ``top_k`` tokens a position (None: not known yet, at least 2)."""
    return ScorerCapabilities(logits=False, num_ranked=None if dialect.has_ranks else (top_k or 2), sampled=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    """One reply to be scored, and where its scores go: several places where arms served the same."""

    name: str
    reply: ForcedReply
    first_slots: tuple[int, ...]
    ends_unknown: bool  # the last id stands in for one that does not exist
    is_plain: bool  # no parameter of the request changes which token is best; those that do are not replayed here


class ServerScorer:
    """See ``lossguard.scoring.base.Scorer``. Beside ScorerError LG0514 to LG0516, what the server's life brings.

    Not told by a server, and so never here: the magnitude of logits, moments of the whole distribution, and with
    SGLang the rank of tokens outside the best ``top_k`` (``capabilities``).
    """

    def __init__(self, dialect: ScoringDialect, options: ServerScorerOptions, folder: Path | None) -> None:
        self._dialect = dialect
        self._options = options
        key = options.server.api_key_env
        if key is not None and not os.environ.get(key):
            raise server_problems.no_key(SYSTEM, key)
        spec = EngineSpec(name=SYSTEM, model_path=options.model_path, folder=folder)
        self._server = Server(spec, dialect.facts, options.server)
        with ExitStack() as on_failure:
            on_failure.callback(self._server.close)
            self._server.start()
            self._told, self._form = asyncio.run(self._introduced())
            self._head = dialect.head(options.server, self._told)
            if not self._head.is_float32 and not options.rounded_head:
                raise problems.rounded_head(self._head.reason, self._head.fix)
            on_failure.pop_all()

    @property
    def capabilities(self) -> ScorerCapabilities:
        """What it can tell."""
        return capabilities(self._dialect, top_k=self._options.top_k)

    @property
    def vocab_size(self) -> int:
        """That of the model's config."""
        return self._options.model.vocab_size

    def fingerprint(self) -> Mapping[str, Any]:
        """The server's configuration, what it says about itself, and what follows for its scores."""
        start = "at the reply's beginning" if self._form.from_prompt_end else "at the prompt's beginning"
        return {
            "scorer": self._dialect.facts.name,
            **self._server.fingerprint(),
            "server": dict(self._told),
            "fp32_head": self._head.is_float32,
            "fp32_head_reason": self._head.reason,
            "top_k": self._options.top_k,
            "starts": start,
            "starts_reason": "so that no reply reads what another left in the prefix cache",
            "capabilities": asdict(self.capabilities),
        }

    def score(self, jobs: Sequence[ScoringJob], *, progress: Callable[[int], None] | None = None) -> list[ForcedScores]:
        """One ForcedScores per arm, requests in the order of ``jobs``; positions behind an id that does not exist are
        not finite.

        Raises UsageError LG0516 for sampled requests, ScorerError LG0502 or LG0514, EngineError LG0220 to LG0227.
        """
        if not all(job.request.sampling.is_greedy for job in jobs):
            raise sampled_not_scored(self._dialect.facts.name)
        changed = any(job.request.sampling.replayed_parameters() for job in jobs)
        sheet = ScoreSheet(jobs, self._options.top_k, sampled=False, replayed=changed)
        pieces = self._pieces(jobs, sheet)
        if pieces:
            self._server.start()
            try:
                asyncio.run(self._score_all(pieces, sheet, progress or (lambda _num_tokens: None)))
            except EngineError as error:
                self._server.explain(error)
                raise
        return sheet.scores()

    def close(self) -> None:
        """End a launched server and wait for its devices; leave one behind a url alone. May be called twice."""
        self._server.close()

    async def _introduced(self) -> tuple[dict[str, str], Form]:
        transport = self._transport()
        try:
            told = await told_facts(transport, self._dialect.facts)
            name = await self._server.model_name(transport)
        finally:
            await transport.close()
        late = self._dialect.may_start_late(told)
        return told, Form(top_k=self._options.top_k, model_name=name, from_prompt_end=late)

    def _transport(self) -> Transport:
        return Transport(self._server.address(), concurrency=self._options.server.concurrency)

    def _pieces(self, jobs: Sequence[ScoringJob], sheet: ScoreSheet) -> list[_Piece]:
        pieces = []
        for index, job in enumerate(jobs):
            check_job(job, self.vocab_size)
            places: dict[tuple[int, ...], list[int]] = {}
            for arm, output in enumerate(job.outputs):
                cut = cut_reply(output.ids, sheet.first_slot(index, arm), self.vocab_size)
                if len(cut.ids):
                    places.setdefault(tuple(cut.ids.tolist()), []).append(cut.first_slot)
            pieces += [self._piece(job, ids, tuple(slots)) for ids, slots in places.items()]
        return pieces

    def _piece(self, job: ScoringJob, ids: tuple[int, ...], first_slots: tuple[int, ...]) -> _Piece:
        unknown = not 0 <= ids[-1] < self.vocab_size
        known = (*ids[:-1], STAND_IN) if unknown else ids
        reply = ForcedReply(prompt_ids=tuple(job.request.prompt_ids), ids=known)
        return _Piece(
            name=job.request.id,
            reply=reply,
            first_slots=first_slots,
            ends_unknown=unknown,
            is_plain=not job.request.sampling.replayed_parameters(),
        )

    async def _score_all(self, pieces: Sequence[_Piece], sheet: ScoreSheet, progress: Callable[[int], None]) -> None:
        """``concurrency`` at a time; the first error ends it, and nothing is asked twice."""
        transport, waiting = self._transport(), iter(pieces)

        async def work() -> None:
            for piece in waiting:
                columns = await self._score_one(transport, piece)
                rows = np.arange(len(piece.reply.ids))
                for first in piece.first_slots:
                    sheet.fill(first + rows, rows, columns)
                progress(len(rows) * len(piece.first_slots))

        try:
            workers = [asyncio.ensure_future(work()) for _ in range(self._options.server.concurrency)]
            try:
                await asyncio.gather(*workers)
            finally:
                for worker in workers:
                    worker.cancel()
                await asyncio.gather(*workers, return_exceptions=True)
        finally:
            await transport.close()

    async def _score_one(self, transport: Transport, piece: _Piece) -> Columns:
        message = await transport.post_json(self._dialect.question(piece.reply, self._form))
        rules = RowRules(top_k=self._options.top_k, vocab_size=self.vocab_size)
        try:
            columns = columns_of(self._dialect.read(message, piece.reply, self._form), rules)
        except MalformedReplyError as error:
            raise _unusable(piece, error, message.value) from error
        if piece.ends_unknown and columns["finite"][-1]:
            columns["gap"][-1], columns["logprob"][-1] = np.inf, -np.inf
            columns["rank"][-1] = self.vocab_size
        replayed = np.full(len(piece.reply.ids), piece.is_plain)
        return columns | {"plain_gap": columns["gap"], "plain_best_id": columns["best_id"], "replayed": replayed}


def _unusable(piece: _Piece, error: MalformedReplyError, value: Any) -> ScorerError:
    return problems.cannot_score(f"request {piece.name!r}: {error}", json.dumps(value))
