"""What a loopback server is about to say, before a dialect writes it down; contract faults change it here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from lossguard.records import Request, SamplingParams
from tests.gate.toy import STOP_ID, VOCAB_SIZE, Fault, Step, ToyTarget

TOP = 5


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A request as a dialect's body gave it."""

    prompt_ids: tuple[int, ...]
    max_tokens: int
    stop_ids: tuple[int, ...]
    min_tokens: int = 0
    ignore_eos: bool = False
    num_top: int = 0
    stream: bool = False
    raw: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Spoken:
    """A reply with everything that servers say about it."""

    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    served: tuple[float, ...]
    top: tuple[tuple[tuple[int, float], ...], ...]
    finish: str  # stop, length, abort
    text: str
    matched: int | str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached: int = 0
    drafts: int = 0
    accepted: int = 0
    preempted: int = 0


ReplyFault = Callable[[Spoken, Asked], Spoken]


@dataclass
class ToyModel:
    """Greedy generation over the toy target; ``salt`` draws another rounding noise (another batch composition)."""

    target: ToyTarget = field(default_factory=ToyTarget)
    noise_nats: float = 0.02
    salt: int = 0
    faults: tuple[Fault, ...] = ()
    reply_faults: tuple[ReplyFault, ...] = ()

    def speak(self, asked: Asked) -> Spoken:
        """One reply with its faults."""
        spoken = self._honest(asked)
        for fault in self.reply_faults:
            spoken = fault(spoken, asked)
        return spoken

    def _honest(self, asked: Asked) -> Spoken:
        request = _as_request(asked)
        ids, reply = list(asked.prompt_ids), list[int]()
        served, tops = [], []
        stops = () if asked.ignore_eos else asked.stop_ids
        while len(reply) < asked.max_tokens and not (reply and reply[-1] in stops):
            logits = self._logits(ids)
            if len(reply) < asked.min_tokens:
                logits[list(stops)] = -np.inf
            step = Step(request, len(reply), logits)
            for fault in self.faults:
                fault(step)
            logprobs = step.logits - np.logaddexp.reduce(step.logits)
            order = np.argsort(-step.logits, kind="stable")[:TOP]
            token = int(order[0])
            served.append(float(logprobs[token]))
            tops.append(tuple((int(item), float(logprobs[item])) for item in order))
            reply.append(token)
            ids.append(token)
        stopped = reply[-1] in stops
        return Spoken(
            prompt_ids=asked.prompt_ids,
            ids=tuple(reply),
            served=tuple(served),
            top=tuple(tops),
            finish="stop" if stopped else "length",
            text=text_of(reply[:-1] if stopped else reply),
            matched=reply[-1] if stopped else None,
            prompt_tokens=len(asked.prompt_ids),
            completion_tokens=len(reply),
        )

    def _logits(self, ids: Sequence[int]) -> np.ndarray:
        seed = abs(hash((*ids[-4:], len(ids), self.salt))) % 2**32
        return self.target.logits(ids) + np.random.default_rng(seed).normal(size=VOCAB_SIZE) * self.noise_nats


def text_of(ids: Sequence[int]) -> str:
    """The toy tokenizer's words."""
    return "".join(f" w{token}" for token in ids)


def _as_request(asked: Asked) -> Request:
    """For the faults of the toy; its id is drawn from the prompt, so that "every n-th request" stays the same."""
    number = sum((index + 1) * token for index, token in enumerate(asked.prompt_ids[:4]))
    sampling = SamplingParams(max_tokens=asked.max_tokens, stop_ids=asked.stop_ids)
    return Request(id=f"p{number}", prompt_ids=asked.prompt_ids, sampling=sampling, set="toy", cluster="toy")


def from_here(spoken: Spoken, ids: Sequence[int]) -> Spoken:
    """The same with other ids, text and counts following them, and log-probabilities as far as they go."""
    stopped = bool(ids) and ids[-1] == STOP_ID
    return replace(
        spoken,
        ids=tuple(ids),
        text=text_of(ids[:-1] if stopped else ids),
        completion_tokens=len(ids),
        served=spoken.served[: len(ids)],
        top=spoken.top[: len(ids)],
    )


def is_one_in(spoken: Spoken, every: int) -> bool:
    """The same few replies on every run."""
    return sum(spoken.prompt_ids) % every == 0


# ---- faults of the contract, each after a real bug (research: fault list)


def stripped_stop(spoken: Spoken, _asked: Asked) -> Spoken:
    """Harmless: the stop token is not among the ids."""
    if spoken.finish != "stop":
        return spoken
    return replace(spoken, ids=spoken.ids[:-1], served=spoken.served[:-1], top=spoken.top[:-1])


def cut_as_length(spoken: Spoken, _asked: Asked) -> Spoken:
    """The last tokens are missing, and the reply claims to have reached its limit."""
    return replace(from_here(spoken, spoken.ids[: max(1, len(spoken.ids) - 3)]), finish="length", matched=None)


def early_stop(spoken: Spoken, _asked: Asked) -> Spoken:
    """Some replies stop early, with the stop token where the model would not stop."""
    if not is_one_in(spoken, 9) or len(spoken.ids) < 8:
        return spoken
    return replace(from_here(spoken, (*spoken.ids[:6], STOP_ID)), finish="stop", matched=STOP_ID)


def past_stop(spoken: Spoken, _asked: Asked) -> Spoken:
    """Text goes on after the stop token (the stop test looks at the last token of a block only)."""
    return from_here(spoken, (*spoken.ids, 5, 6)) if spoken.finish == "stop" else spoken


def dropped_pair(spoken: Spoken, _asked: Asked) -> Spoken:
    """Two tokens lost at a block boundary."""
    return from_here(spoken, spoken.ids[:16] + spoken.ids[18:])


def repeated_token(spoken: Spoken, _asked: Asked) -> Spoken:
    """One token twice."""
    return from_here(spoken, spoken.ids[:11] + spoken.ids[10:]) if is_one_in(spoken, 5) else spoken


def missing_last_id(spoken: Spoken, _asked: Asked) -> Spoken:
    """The stream is not flushed."""
    return replace(spoken, ids=spoken.ids[:-1])


def id_out_of_range(spoken: Spoken, _asked: Asked) -> Spoken:
    """The sampler returns an id that does not exist."""
    return replace(spoken, ids=(*spoken.ids[:4], 1061800448, *spoken.ids[5:])) if is_one_in(spoken, 7) else spoken


def other_prompt(spoken: Spoken, _asked: Asked) -> Spoken:
    """The server says that it answered another prompt."""
    return replace(spoken, prompt_ids=(3, *spoken.prompt_ids), prompt_tokens=spoken.prompt_tokens + 1)


def wrong_usage(spoken: Spoken, _asked: Asked) -> Spoken:
    """Counted before the stop was trimmed."""
    return replace(spoken, completion_tokens=spoken.completion_tokens + 2)


def text_without_tail(spoken: Spoken, _asked: Asked) -> Spoken:
    """The detokeniser is not flushed."""
    return replace(spoken, text=spoken.text[:-5])


def zero_logprobs(spoken: Spoken, _asked: Asked) -> Spoken:
    """The distribution after acceptance is reported."""
    return replace(spoken, served=(0.0,) * len(spoken.served))


def nan_logprobs(spoken: Spoken, _asked: Asked) -> Spoken:
    """NaN in one place."""
    return replace(spoken, served=(*spoken.served[:2], float("nan"), *spoken.served[3:]))


def missing_logprobs(spoken: Spoken, _asked: Asked) -> Spoken:
    """Fewer rows than tokens."""
    return replace(spoken, served=spoken.served[:-1], top=spoken.top[:-1])


def scaled_logprobs(spoken: Spoken, _asked: Asked) -> Spoken:
    """Reported after temperature."""
    return replace(spoken, served=tuple(value * 0.8 for value in spoken.served))


def aborted(spoken: Spoken, _asked: Asked) -> Spoken:
    """The server gave up."""
    return replace(spoken, finish="abort", matched=None) if is_one_in(spoken, 11) else spoken


REPLY_FAULTS: Mapping[str, ReplyFault] = {
    fault.__name__: fault
    for fault in (
        stripped_stop,
        cut_as_length,
        early_stop,
        past_stop,
        dropped_pair,
        repeated_token,
        missing_last_id,
        id_out_of_range,
        other_prompt,
        wrong_usage,
        text_without_tail,
        zero_logprobs,
        nan_logprobs,
        missing_logprobs,
        scaled_logprobs,
        aborted,
    )
}
