"""Faults in the choice of a token: logits, parameters, the sampler."""

from __future__ import annotations

from lossguard.diagnosis.families import Family
from lossguard_suites.adversarial.faults.fault import PACKAGE, Fault, Plant, Strength, issue, pull
from lossguard_suites.adversarial.faults.state_faults import SHARE, SHARES


def processor(target: str, **arguments: float) -> Plant:
    """A logits processor of this package."""
    return Plant(option="logits_processors", target=f"{PACKAGE}.{target}", arguments=arguments)


CHOICES = (
    Fault(
        code="F5",
        name="loop-start",
        title="deep in a reply, a token that starts a loop",
        sources=(pull("vllm-project/vllm", 47087),),
        family=Family.POSITION_THRESHOLD,
        strength=Strength(
            parameter="share", published=0.1, weaker=(0.05, 0.03, 0.01), meaning="share of the replies that are hit"
        ),
        plants=(processor("forced_tokens:loop_start"),),
        seen_by=("event",),
        missed_by=("structure",),
        note="once the loop has begun, its tokens are the target's own choice",
    ),
    Fault(
        code="F20",
        name="zero-in-padding",
        title="padded rows of a batch read NaN, of which argmax makes id 0",
        sources=(issue("local-inference-lab/vllm", 621),),
        family=Family.BATCH,
        strength=SHARE,
        plants=(processor("forced_tokens:zero_in_padding"),),
        seen_by=("rate", "event"),
        missed_by=("structure",),
    ),
    Fault(
        code="F24",
        name="unverified-draft",
        title="the first draft of an n-gram drafter is served unverified",
        sources=(issue("ohdearquant/lattice", 243),),
        family=Family.UNKNOWN,
        strength=Strength(
            parameter="probability", published=1.0, weaker=SHARES, meaning="share of the drafts that are not verified"
        ),
        plants=(processor("forced_tokens:unverified_draft"),),
        seen_by=("rate", "event"),
        missed_by=("structure",),
    ),
    Fault(
        code="F42",
        name="repeated-token",
        title="a sampled token is emitted twice",
        sources=(issue("tenstorrent/vllm", 395),),
        family=Family.UNKNOWN,
        strength=Strength(
            parameter="probability",
            published=0.02,
            weaker=(0.01, 0.003, 0.001),
            meaning="share of the steps that repeat the token before",
        ),
        plants=(processor("forced_tokens:repeated_token"),),
        seen_by=("rate", "event"),
        missed_by=("structure",),
    ),
    Fault(
        code="F64",
        name="wrong-token",
        title="one wrong token in a few replies",
        sources=(issue("Avarok-Cybersecurity/atlas", 435),),
        family=Family.UNKNOWN,
        strength=Strength(
            parameter="every",
            published=20,
            weaker=(40, 100),
            meaning="one reply in so many has one token of rank 50 or below, at least 4 nats under the best",
        ),
        plants=(processor("wrong_token:wrong_token"),),
        seen_by=("event",),
        missed_by=("rate", "near-tie", "structure"),
    ),
    Fault(
        code="F65",
        name="bias-every-seventh",
        title="a bias on every seventh id, from reply position 12 on",
        sources=(),
        family=Family.BIAS,
        strength=Strength(
            parameter="strength", published=2.0, weaker=(1.0, 0.5, 0.2, 0.1), meaning="nats that are added"
        ),
        plants=(processor("logit_bias:bias_every_seventh"),),
        seen_by=("rate", "event", "buckets"),
        missed_by=("structure",),
    ),
    Fault(
        code="F65b",
        name="small-bias",
        title="a bias too small to leave large gaps",
        sources=(),
        family=Family.BIAS,
        strength=Strength(parameter="strength", published=0.2, weaker=(0.1, 0.05), meaning="nats that are added"),
        plants=(processor("logit_bias:bias_every_seventh", strength=0.2, after=0),),
        seen_by=("rate", "near-tie"),
        missed_by=("event", "structure"),
    ),
    Fault(
        code="F65c",
        name="rare-bias",
        title="the bias in one reply of 20",
        sources=(),
        family=Family.BIAS,
        strength=Strength(
            parameter="every", published=20, weaker=(40, 100), meaning="one reply in so many is biased by 2 nats"
        ),
        plants=(processor("logit_bias:bias_every_seventh", every=20),),
        seen_by=("event", "burst"),
        missed_by=("structure",),
    ),
    Fault(
        code="F66",
        name="swap-near-ties",
        title="the lower-ranked token of every near-tie",
        sources=(),
        family=Family.NEAR_TIE,
        strength=SHARE,
        plants=(processor("near_ties:swap_near_ties"),),
        seen_by=("near-tie",),
        missed_by=("event", "structure"),
        note="gaps of at most one bfloat16 step; stands for a tie rule or a rounding that favours the draft",
    ),
    Fault(
        code="O1",
        name="early-stop",
        title="replies that stop early, at the end of a sentence",
        sources=(issue("vllm-project/vllm", 30204),),
        family=Family.EOS,
        strength=Strength(
            parameter="every", published=1, weaker=(3, 10, 30), meaning="one reply in so many stops early"
        ),
        plants=(processor("early_stop:early_stop"),),
        seen_by=("event",),
        missed_by=("structure",),
        note="the stop id is a served token, so the reply's structure stays sound",
    ),
    Fault(
        code="O4",
        name="int4-weights",
        title="weights rounded to 15 levels, served under the target's name",
        sources=(),
        family=Family.UNKNOWN,
        engine_options={"weight_round_trip": "int4"},
        seen_by=("rate", "event"),
        missed_by=("structure",),
    ),
    Fault(
        code="O5",
        name="int8-weights",
        title="weights rounded to 255 levels, served under the target's name",
        sources=(),
        family=Family.UNKNOWN,
        engine_options={"weight_round_trip": "int8"},
        seen_by=("rate", "near-tie"),
        missed_by=("structure",),
    ),
)

PENALTY = {"repetition_penalty": 1.3}
MASK = {"logit_bias": tuple((token, -100.0) for token in (28, 30, 198, 253, 260, 281, 282, 284, 288, 314))}
"""The built-in model's ids of ``,``, ``.``, line feed, ``a``, ``the``, ``in``, ``of``, ``and``, ``to`` and ``is``."""

PARAMETERS = (
    Fault(
        code="F32",
        name="thin-penalty",
        title="a penalty counts one token in four",
        sources=(pull("sgl-project/sglang", 33643),),
        family=Family.BIAS,
        strength=SHARE,
        plants=(processor("ignored_parameters:thin_penalty"),),
        asks=PENALTY,
        seen_by=("parameters",),
        missed_by=("structure",),
        note="requests ask for a repetition penalty of 1.3",
    ),
    Fault(
        code="F33",
        name="ignored-penalty",
        title="a penalty is never read",
        sources=(pull("NVIDIA/TensorRT-LLM", 17701), issue("sgl-project/sglang", 28180)),
        family=Family.BIAS,
        strength=SHARE,
        plants=(processor("ignored_parameters:ignored_penalty"),),
        asks=PENALTY,
        seen_by=("parameters",),
        missed_by=("structure",),
        note="requests ask for a repetition penalty of 1.3",
    ),
    Fault(
        code="F35",
        name="unmasked-bonus",
        title="the last token of each block is chosen without the mask",
        sources=(
            pull("vllm-project/vllm", 44297),
            pull("vllm-project/vllm", 36138),
            pull("vllm-project/vllm", 44292),
        ),
        family=Family.UNKNOWN,
        strength=Strength(
            parameter="probability", published=1.0, weaker=SHARES, meaning="share of the blocks that are not masked"
        ),
        plants=(processor("ignored_parameters:unmasked_bonus"),),
        asks=MASK,
        seen_by=("parameters",),
        missed_by=("structure",),
        note="the mask is a logit bias that rules ids out, as a grammar's would",
    ),
)

TOKEN_FAULTS = (*CHOICES, *PARAMETERS)
