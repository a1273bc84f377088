"""What a loopback server is about to say, before a dialect writes it down; contract faults change it here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from lossguard.records import Request, SamplingParams
from tests.engines.servers.parameters import honour
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
    stop_strings: tuple[str, ...] = ()
    stop_lag: int = 0  # tokens of a block that come after the one that completes a stop string
    parameters: Mapping[str, Any] = field(default_factory=dict)  # of parameters.honour
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
    reasoning: int = 0
    drafts: int = 0
    accepted: int = 0
    preempted: int = 0


ReplyFault = Callable[[Spoken, Asked], Spoken]
AskedFault = Callable[[Asked], Asked]


@dataclass
class ToyModel:
    """Greedy generation over the toy target; ``salt`` draws another rounding noise (another batch composition)."""

    target: ToyTarget = field(default_factory=ToyTarget)
    noise_nats: float = 0.02
    salt: int = 0
    faults: tuple[Fault, ...] = ()
    reply_faults: tuple[ReplyFault, ...] = ()
    asked_faults: tuple[AskedFault, ...] = ()

    def speak(self, asked: Asked) -> Spoken:
        """One reply with its faults."""
        understood = asked
        for misread in self.asked_faults:
            understood = misread(understood)
        spoken = self._honest(understood)
        for fault in self.reply_faults:
            spoken = fault(spoken, asked)
        return spoken

    def _honest(self, asked: Asked) -> Spoken:
        request = _as_request(asked)
        ids, reply = list(asked.prompt_ids), list[int]()
        served, tops = [], []
        stops = () if asked.ignore_eos else asked.stop_ids
        string, left = None, asked.stop_lag
        while len(reply) < asked.max_tokens and not (reply and reply[-1] in stops):
            string = string or stop_string(reply, asked)
            if string is not None:
                if not left:
                    break
                left -= 1
            logits = self._logits(ids)
            step = Step(request, len(reply), logits)
            for fault in self.faults:
                fault(step)
            logprobs = step.logits - np.logaddexp.reduce(step.logits)
            chosen = honour(step.logits, asked.parameters, asked.prompt_ids, reply)
            if len(reply) < asked.min_tokens:
                chosen[list(stops)] = -np.inf
            order = np.argsort(-step.logits, kind="stable")[:TOP]
            token = int(np.argmax(chosen))
            served.append(float(logprobs[token]))
            tops.append(tuple((int(item), float(logprobs[item])) for item in order))
            reply.append(token)
            ids.append(token)
        string = string or stop_string(reply, asked)
        stopped = reply[-1] in stops
        text = text_of(reply[:-1] if stopped else reply)
        return Spoken(
            prompt_ids=asked.prompt_ids,
            ids=tuple(reply),
            served=tuple(served),
            top=tuple(tops),
            finish="stop" if stopped or string else "length",
            text=text if string is None else text.partition(string)[0],
            matched=string or (reply[-1] if stopped else None),
            prompt_tokens=len(asked.prompt_ids),
            completion_tokens=len(reply),
        )

    def _logits(self, ids: Sequence[int]) -> np.ndarray:
        seed = abs(hash((*ids[-4:], len(ids), self.salt))) % 2**32
        return self.target.logits(ids) + np.random.default_rng(seed).normal(size=VOCAB_SIZE) * self.noise_nats


def stop_string(reply: Sequence[int], asked: Asked) -> str | None:
    """The stop string that a reply contains."""
    text = text_of(reply)
    return next((string for string in asked.stop_strings if string in text), None)


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


def unflushed_stream(spoken: Spoken, asked: Asked) -> Spoken:
    """Streamed text lacks the tail that a whole reply has."""
    return replace(spoken, text=spoken.text[:-2]) if asked.stream else spoken


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


def positive_logprobs(spoken: Spoken, _asked: Asked) -> Spoken:
    """A probability over 1."""
    return replace(spoken, served=(0.5, *spoken.served[1:]))


def shifted_logprobs(spoken: Spoken, _asked: Asked) -> Spoken:
    """Those of the token before (a buffer read one place late)."""
    return replace(spoken, served=(*spoken.served[:1], *spoken.served[:-1]), top=(*spoken.top[:1], *spoken.top[:-1]))


def flat_top(spoken: Spoken, _asked: Asked) -> Spoken:
    """All best tokens have one value, which contradicts that of the served one."""
    return replace(spoken, top=tuple(tuple((token, -0.5) for token, _ in row) for row in spoken.top))


def fewer_top_rows(spoken: Spoken, _asked: Asked) -> Spoken:
    """Best tokens of all positions but the last."""
    return replace(spoken, top=spoken.top[:-1])


def too_much_reasoning(spoken: Spoken, _asked: Asked) -> Spoken:
    """The counter of reasoning tokens runs before the stop is trimmed."""
    return replace(spoken, reasoning=len(spoken.ids) + 1)


def too_much_cached(spoken: Spoken, _asked: Asked) -> Spoken:
    """More of the prompt is called cached than there is."""
    return replace(spoken, cached=len(spoken.prompt_ids) + 1)


def wrong_prompt_count(spoken: Spoken, _asked: Asked) -> Spoken:
    """The prompt is counted with a token that was not sent."""
    return replace(spoken, prompt_tokens=spoken.prompt_tokens + 1)


def doubled_chunk(spoken: Spoken, _asked: Asked) -> Spoken:
    """One part of the stream comes twice; the counters are those of the reply as it was made."""
    twice = [*range(min(6, len(spoken.ids))), *range(3, len(spoken.ids))]
    ids = tuple(spoken.ids[at] for at in twice)
    counted = from_here(spoken, ids)
    served = tuple(spoken.served[at] for at in twice)
    top = tuple(spoken.top[at] for at in twice)
    return replace(counted, served=served, top=top, completion_tokens=spoken.completion_tokens)


def doubled_text(spoken: Spoken, _asked: Asked) -> Spoken:
    """A part of the text comes twice, the ids once."""
    return replace(spoken, text=spoken.text[:12] + spoken.text[6:])


def other_text(spoken: Spoken, _asked: Asked) -> Spoken:
    """The text belongs to other tokens in a few replies."""
    return replace(spoken, text=text_of((9, *spoken.ids[1:]))) if is_one_in(spoken, 9) else spoken


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
        unflushed_stream,
        zero_logprobs,
        nan_logprobs,
        missing_logprobs,
        scaled_logprobs,
        positive_logprobs,
        shifted_logprobs,
        flat_top,
        fewer_top_rows,
        too_much_reasoning,
        too_much_cached,
        wrong_prompt_count,
        doubled_chunk,
        doubled_text,
        other_text,
        aborted,
    )
}


# ---- faults in what is asked: a parameter is not read, or only in part


def forgets_min_tokens(asked: Asked) -> Asked:
    """The minimum is never read."""
    return replace(asked, min_tokens=0)


def counts_steps_for_min_tokens(asked: Asked) -> Asked:
    """The minimum counts steps of several tokens, and lasts as many times as long."""
    return replace(asked, min_tokens=4 * asked.min_tokens)


def forgets_ignore_eos(asked: Asked) -> Asked:
    """The reply ends at the stop id all the same."""
    return replace(asked, ignore_eos=False, stop_ids=(STOP_ID,))


def forgets_stop_strings(asked: Asked) -> Asked:
    """Stop strings are never read."""
    return replace(asked, stop_strings=())


def stops_after_the_block(asked: Asked) -> Asked:
    """A stop string inside a block is noticed, and the rest of the block is served."""
    return replace(asked, stop_lag=2)


def forgets_penalties(asked: Asked) -> Asked:
    """No penalty is ever read."""
    return replace(asked, parameters={"logit_bias": asked.parameters.get("logit_bias", {})})


def counts_one_in_four(asked: Asked) -> Asked:
    """Of each accepted block, the last token alone is counted."""
    return replace(asked, parameters={**asked.parameters, "count_every": 4})


def skips_the_mask_of_the_bonus(asked: Asked) -> Asked:
    """The last token of each block is chosen without the mask."""
    return replace(asked, parameters={**asked.parameters, "mask_skips": 4})


ASKED_FAULTS: Mapping[str, AskedFault] = {
    fault.__name__: fault
    for fault in (
        forgets_min_tokens,
        counts_steps_for_min_tokens,
        forgets_ignore_eos,
        forgets_stop_strings,
        stops_after_the_block,
        forgets_penalties,
        counts_one_in_four,
        skips_the_mask_of_the_bonus,
    )
}
