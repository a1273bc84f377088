"""Faults of the sampler: greedy replies are served right, so that they show at temperature above 0 only."""

from __future__ import annotations

from lossguard.diagnosis.families import Family
from lossguard_suites.adversarial.faults.fault import Fault, Strength, issue, pull
from lossguard_suites.adversarial.faults.state_faults import SHARE
from lossguard_suites.adversarial.faults.token_faults import processor

NUCLEUS = {"top_p": 0.9}

MET = (
    Fault(
        code="F49",
        name="greedy-draft",
        title="drafts are argmax, yet accepted as if they had been drawn",
        sources=(issue("SafeAILab/EAGLE", 50), issue("jaymody/speculative-sampling", 3)),
        family=Family.UNKNOWN,
        strength=SHARE,
        plants=(processor("sampled_faults:greedy_draft"),),
        seen_by=("sampling",),
        temperature=1.0,
    ),
    Fault(
        code="F51",
        name="early-nucleus",
        title="top-p is cut before temperature",
        sources=(pull("vllm-project/vllm", 10198), issue("lablup/mlxcel", 1379)),
        family=Family.UNKNOWN,
        strength=SHARE,
        plants=(processor("sampled_faults:early_nucleus"),),
        asks=NUCLEUS,
        seen_by=("sampling",),
        missed_by=("support",),
        note="at temperature 1.3 the nucleus is too small: what is served lies inside the right one",
        temperature=1.3,
    ),
    Fault(
        code="F52",
        name="rounded-draft",
        title="drawn from rounded draft logits, accepted with exact ones",
        sources=(issue("deepseek-ai/DeepSpec", 31),),
        family=Family.UNKNOWN,
        strength=SHARE,
        plants=(processor("sampled_faults:rounded_draft"),),
        pending_check="token-frequencies",
        note="rounding moves probability between tokens of every rank alike: neither surprise nor transform shows it",
        temperature=1.0,
    ),
    Fault(
        code="F53",
        name="served-greedily",
        title="the best token is served at any temperature",
        sources=(pull("vllm-project/vllm", 26859),),
        family=Family.UNKNOWN,
        strength=SHARE,
        plants=(processor("sampled_faults:served_greedily"),),
        seen_by=("sampling",),
        temperature=1.0,
    ),
    Fault(
        code="F67",
        name="half-greedy",
        title="half of the replies are served greedily: too few mismatches",
        sources=(),
        family=Family.UNKNOWN,
        strength=Strength(
            parameter="share", published=0.5, weaker=(0.2, 0.1), meaning="share of the replies that are hit"
        ),
        plants=(processor("sampled_faults:served_greedily", share=0.5),),
        seen_by=("sampling",),
        temperature=1.0,
    ),
)


def _own(code: str, name: str, title: str, target: str, strength: Strength) -> Fault:
    return Fault(
        code=code,
        name=name,
        title=title,
        sources=(),
        family=Family.UNKNOWN,
        strength=strength,
        plants=(processor(f"sampled_faults:{target}"),),
        seen_by=("sampling",),
        temperature=1.0,
    )


OWN = (
    _own(
        "O6",
        "lax-threshold",
        "drafts are accepted by a threshold under 1 on their cumulative probability",
        "lax_threshold",
        Strength(parameter="looseness", published=1.0, weaker=(0.5, 0.25), meaning="inverse of the threshold, minus 1"),
    ),
    _own(
        "O7",
        "ratio-of-best",
        "a tree's best children are accepted in turn with p / q, as if drawn from q",
        "ratio_of_best_children",
        SHARE,
    ),
    _own(
        "O8",
        "cooled",
        "temperature 0.9 is served where 1 was asked for",
        "cooled",
        Strength(parameter="excess", published=1 / 9, weaker=(0.05,), meaning="inverse temperature, minus 1"),
    ),
    _own(
        "O9",
        "undeclared-nucleus",
        "top-p 0.95 that nobody asked for",
        "undeclared_nucleus",
        Strength(parameter="cut", published=0.05, weaker=(0.02,), meaning="probability that is cut off"),
    ),
    Fault(
        code="O10",
        name="improbable-draws",
        title="one token of a few replies comes from the far tail",
        sources=(),
        family=Family.UNKNOWN,
        strength=Strength(
            parameter="every",
            published=20,
            weaker=(40,),
            meaning="one reply in so many has one token that, with all less likely ones, has a probability of 1e-6",
        ),
        plants=(processor("improbable_draw:improbable_draw"),),
        seen_by=("sampling",),
        missed_by=("structure",),
        note="moves no mean: neither surprise nor transform shows it, counting requests with such a token does",
        temperature=1.0,
    ),
)

SAMPLING_FAULTS = (*MET, *OWN)
