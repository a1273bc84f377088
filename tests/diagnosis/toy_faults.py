"""Faults of every family over the toy stack, with strengths, positions and forms drawn at random."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from lossguard.diagnosis.families import Family
from lossguard.records import FinishReason, ServedOutput
from tests.gate.toy import STOP_ID, VOCAB_SIZE, Fault, Step

MAX_TOKENS = 40
Finish = Callable[[ServedOutput], ServedOutput]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A fault with the family it belongs to; ``text`` says what was drawn."""

    truth: Family
    text: str
    faults: tuple[Fault, ...] = ()
    finish: Finish = field(default=lambda output: output)


def chance(*parts: object) -> float:
    """A number in [0, 1) that depends on nothing but ``parts``."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


@dataclass(frozen=True, slots=True)
class Corruption:
    """What broken state does to one step: noise on all logits, or one wrong token."""

    seed: int
    share: float  # of the steps that it may hit
    noise_nats: float  # 0: a wrong token instead
    rank: int

    @classmethod
    def drawn(cls, rng: np.random.Generator, shares: tuple[float, float]) -> Corruption:
        """Strengths at random, shares evenly on a logarithmic scale."""
        noise = float(rng.uniform(0.5, 8)) if rng.random() < 0.5 else 0.0
        share = float(np.exp(rng.uniform(*np.log(shares))))
        return cls(int(rng.integers(2**31)), share, noise, int(rng.integers(2, 60)))

    def __call__(self, step: Step) -> None:
        if chance("hit", self.seed, step.request.id, step.position) >= self.share:
            return
        if self.noise_nats:
            rng = np.random.default_rng(int(2**53 * chance("noise", self.seed, step.request.id, step.position)))
            step.logits += rng.normal(size=VOCAB_SIZE) * self.noise_nats
        else:
            step.logits[int(np.argsort(-step.logits)[self.rank])] += 100.0


def only_where(fault: Fault, condition: Callable[[Step], bool]) -> Fault:
    """The fault, acting only where the condition holds."""

    def limited(step: Step) -> None:
        if condition(step):
            fault(step)

    return limited


def position_threshold(rng: np.random.Generator) -> Scenario:
    """Broken state from an output position or a context length on."""
    corruption, first = Corruption.drawn(rng, (0.005, 0.5)), int(rng.integers(5, 33))
    if rng.random() < 0.5:
        fault = only_where(corruption, lambda step: step.position >= first)
        return Scenario(truth=Family.POSITION_THRESHOLD, text=f"position {first} {corruption}", faults=(fault,))
    first += 8
    fault = only_where(corruption, lambda step: step.position + len(step.request.prompt_ids) >= first)
    return Scenario(truth=Family.POSITION_THRESHOLD, text=f"context {first} {corruption}", faults=(fault,))


def bias(rng: np.random.Generator) -> Scenario:
    """An offset on a residue class, on one shard of the vocabulary, or on one id; from some position on."""
    first = int(rng.integers(0, 20)) if rng.random() < 0.5 else 0
    form = rng.choice(["residue", "shard", "id"])
    ids, strength = np.arange(VOCAB_SIZE), float(rng.uniform(0.15, 5))
    if form == "residue":
        modulus = int(rng.integers(2, 14))
        chosen = ids % modulus == int(rng.integers(modulus))
    elif form == "shard":
        number = int(rng.choice([2, 4, 8]))
        chosen = ids * number // VOCAB_SIZE == int(rng.integers(number))
    else:
        chosen, strength = ids == int(rng.integers(1, VOCAB_SIZE)), float(rng.uniform(1.5, 10))

    def fault(step: Step) -> None:
        step.logits[chosen & (ids != STOP_ID)] += strength

    limited = only_where(fault, lambda step: step.position >= first)
    return Scenario(truth=Family.BIAS, text=f"{form} +{strength:.2f} from {first}", faults=(limited,))


def end_of_reply(rng: np.random.Generator) -> Scenario:
    """Early stops, suppressed stops, lost tails, or text after the stop id."""
    end = WrongEnd(int(rng.integers(2**31)), float(rng.uniform(0.05, 1.0)), int(rng.integers(1, 8)))
    form = str(rng.choice(["early", "suppressed", "cut", "after"]))
    text = f"{form} {end}"
    if form in ("early", "suppressed"):
        return Scenario(truth=Family.EOS, text=text, faults=(end.early if form == "early" else end.suppressed,))
    return Scenario(truth=Family.EOS, text=text, finish=end.cut if form == "cut" else end.after)


@dataclass(frozen=True, slots=True)
class WrongEnd:
    """What may go wrong at the end of a share of the replies."""

    seed: int
    share: float
    tokens: int

    def _hits(self, request_id: str) -> bool:
        return chance("end", self.seed, request_id) < self.share

    def early(self, step: Step) -> None:
        """The stop id where none is due."""
        place = chance("at", self.seed, step.request.id, step.position)
        if self._hits(step.request.id) and place < self.tokens / MAX_TOKENS:
            step.logits[STOP_ID] += 100.0

    def suppressed(self, step: Step) -> None:
        """No stop id where one is due."""
        if self._hits(step.request.id):
            step.logits[STOP_ID] -= 100.0

    def cut(self, output: ServedOutput) -> ServedOutput:
        """The tail lost, reported as full length."""
        if not self._hits(output.request_id) or len(output.ids) <= self.tokens:
            return output
        ids, reason = output.ids[: -self.tokens], FinishReason.LENGTH
        return replace(output, ids=ids, logprobs=None, finish_reason=reason, stop_reason=None)

    def after(self, output: ServedOutput) -> ServedOutput:
        """Tokens after the stop id."""
        if output.ids[-1] != STOP_ID or not self._hits(output.request_id):
            return output
        number = min(self.tokens, MAX_TOKENS - len(output.ids))
        more = tuple(1 + (self.seed + index) % (VOCAB_SIZE - 1) for index in range(number))
        return replace(output, ids=(*output.ids, *more), logprobs=None)


def near_tie(rng: np.random.Generator) -> Scenario:
    """The lower-ranked of the best two wherever they are close, in some or all requests."""
    width, share, seed = float(rng.uniform(0.04, 0.3)), float(rng.uniform(0.2, 1.0)), int(rng.integers(2**31))

    def fault(step: Step) -> None:
        second, first = np.argsort(step.logits)[-2:]
        if step.logits[first] - step.logits[second] <= width and chance("tie", seed, step.request.id) < share:
            step.logits[second] = step.logits[first] + 1e-6

    return Scenario(truth=Family.NEAR_TIE, text=f"width {width:.3f} share {share:.2f}", faults=(fault,))


def batch(rng: np.random.Generator) -> Scenario:
    """Broken rows above (or, more rarely, below) a batch size; the size is that of a request or of a step."""
    corruption, seed, by_step = Corruption.drawn(rng, (0.005, 0.5)), int(rng.integers(2**31)), bool(rng.random() < 0.5)
    limit, above = int(rng.choice([2, 4, 8, 16])), bool(rng.random() < 0.7)

    def size(request_id: str, position: int) -> float:
        return batch_size(seed, request_id, position if by_step else 0)

    def condition(step: Step) -> bool:
        now = size(step.request.id, step.position)
        return now >= limit if above else now < limit

    text = f"{'>=' if above else '<'} {limit} by {'step' if by_step else 'request'} {corruption}"
    finish = batch_telemetry(seed, by_step=by_step)
    return Scenario(truth=Family.BATCH, text=text, faults=(only_where(corruption, condition),), finish=finish)


def batch_size(seed: int, request_id: str, position: int) -> float:
    """1, 2, 4, ... 32."""
    return float(2 ** int(6 * chance("batch", seed, request_id, position)))


def batch_telemetry(seed: int, *, by_step: bool) -> Finish:
    """Adds the column ``batch``."""

    def finish(output: ServedOutput) -> ServedOutput:
        positions = range(len(output.ids)) if by_step else range(1)
        column = tuple(batch_size(seed, output.request_id, position) for position in positions)
        return replace(output, telemetry={**output.telemetry, "batch": column})

    return finish


@dataclass
class Drafting:
    """Draft steps as speculative decoding has them: hard tokens are rejected more often. ``steps`` [request][token]."""

    seed: int
    length: int
    flags: bool  # telemetry as after_rejection and block_position, else as drafts and accepted
    steps: dict[str, list[tuple[int, bool]]] = field(default_factory=dict)  # (block position, after a rejection)

    def __call__(self, step: Step) -> None:
        """Note the block of this token; called before any fault, in order of position."""
        rows = self.steps.setdefault(step.request.id, [])
        del rows[step.position :]
        if not rows:
            rows.append((0, False))
            return
        at, after = rows[-1]
        second, first = np.sort(step.logits)[-2:]
        accepted = chance("draft", self.seed, step.request.id, step.position) < 1 - np.exp(-0.3 - (first - second))
        if at < self.length and accepted:
            rows.append((at + 1, after))
        else:
            rows.append((0, at < self.length))

    def since(self, step: Step) -> float:
        """Tokens since the last rejected draft."""
        rows = self.steps[step.request.id]
        return next((float(back) for back, (at, after) in enumerate(reversed(rows)) if at == 0 and after), np.inf)

    def finish(self, output: ServedOutput) -> ServedOutput:
        """Adds telemetry in the drawn form."""
        rows = self.steps[output.request_id][: len(output.ids)]
        rows += [(0, False)] * (len(output.ids) - len(rows))
        if self.flags:
            columns = {
                "block_position": tuple(float(at) for at, _ in rows),
                "after_rejection": tuple(float(after) for _, after in rows),
            }
        else:
            columns = self._counts(rows)
        return replace(output, telemetry={**output.telemetry, **columns})

    def _counts(self, rows: Sequence[tuple[int, bool]]) -> dict[str, tuple[float, ...]]:
        starts = [index for index, (at, _) in enumerate(rows) if at == 0]
        accepted = [end - start - 1 for start, end in zip(starts, [*starts[1:], len(rows)], strict=True)]
        by_token = tuple(float(number) for number in accepted for _ in range(number + 1))
        return {"drafts": (float(self.length),) * len(rows), "accepted": by_token}


def state_after_rejection(rng: np.random.Generator) -> Scenario:
    """Broken state for some tokens after each rejected draft."""
    corruption, tokens = Corruption.drawn(rng, (0.01, 1.0)), int(rng.integers(1, 4))
    drafting = Drafting(int(rng.integers(2**31)), int(rng.integers(3, 8)), bool(rng.random() < 0.5))
    fault = only_where(corruption, lambda step: drafting.since(step) < tokens)
    return Scenario(
        truth=Family.STATE_AFTER_REJECTION,
        text=f"{tokens} tokens after, blocks of {drafting.length} {corruption}",
        faults=(drafting, fault),
        finish=drafting.finish,
    )


def no_family(rng: np.random.Generator) -> Scenario:
    """Faults whose mark no family has, though some share a place or repeat a token."""
    form, seed = str(rng.choice(["window", "everywhere", "burst", "again", "set", "loop"])), int(rng.integers(2**31))
    corruption, share = Corruption.drawn(rng, (0.003, 0.3)), float(rng.uniform(0.03, 0.4))
    low, width = int(rng.integers(2, 30)), int(rng.integers(1, 10))
    always = replace(corruption, share=1.0)

    def chosen(step: Step) -> bool:
        return chance("chosen", seed, step.request.id) < share

    def window(step: Step) -> bool:
        return chosen(step) and step.position == low + int(width * chance("place", seed, step.request.id))

    def burst(step: Step) -> bool:
        start = int(MAX_TOKENS * chance("start", seed, step.request.id))
        return chosen(step) and start <= step.position < start + width

    def again(step: Step) -> None:
        if chance("again", seed, step.request.id, step.position) < share / 10:
            step.logits[step.request.prompt_ids[-1]] += 100.0

    def loop(step: Step) -> None:
        """From a random start, the reply repeats one token of its own."""
        if chosen(step) and step.position >= int(MAX_TOKENS * chance("start", seed, step.request.id)):
            step.logits[1 + int(90 * chance("token", seed, step.request.id))] += 100.0

    faults: dict[str, Fault] = {
        "window": only_where(always, window),
        "everywhere": corruption,
        "burst": only_where(always, burst),
        "again": again,
        "set": only_where(corruption, lambda step: step.request.set == "math"),
        "loop": loop,
    }
    text = f"{form} share {share:.2f} window {low}+{width} {corruption}"
    return Scenario(truth=Family.UNKNOWN, text=text, faults=(faults[form],))


FAMILIES: tuple[Callable[[np.random.Generator], Scenario], ...] = (
    position_threshold,
    bias,
    end_of_reply,
    near_tie,
    batch,
    state_after_rejection,
    no_family,
)


def with_distraction(scenario: Scenario, rng: np.random.Generator) -> Scenario:
    """The scenario with telemetry that has nothing to do with its fault, half of the time of each sort."""
    faults, finishes = scenario.faults, [scenario.finish]
    seed, by_step = int(rng.integers(2**31)), bool(rng.random() < 0.5)
    if scenario.truth is not Family.BATCH and rng.random() < 0.5:
        finishes.append(batch_telemetry(seed, by_step=by_step))
    if scenario.truth is not Family.STATE_AFTER_REJECTION and rng.random() < 0.5:
        drafting = Drafting(seed, 4, by_step)
        faults, finishes = (drafting, *faults), [*finishes, drafting.finish]

    def finish(output: ServedOutput) -> ServedOutput:
        for each in finishes:
            output = each(output)
        return output

    return replace(scenario, faults=faults, finish=finish)
