"""Negative controls: changes that look like faults, or are faults that cost speed only. None may fail."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lossguard.diagnosis.families import Family
from lossguard_suites.adversarial.faults.fault import PACKAGE, Fault, Plant, Strength, issue, pull
from lossguard_suites.adversarial.faults.sampling_faults import NUCLEUS
from lossguard_suites.adversarial.faults.state_faults import edit
from lossguard_suites.adversarial.faults.token_faults import MASK, PENALTY, processor

DRAFTING = {"assistant_model": "{model}", "num_assistant_tokens": 4, "processes": 4, "threads": 1}
LOOKUP = {"processes": 4, "threads": 1}
DRAFTS = {"drafts": True}


def drafter_edit(target: str, *, is_drawn: bool = True, **arguments: float) -> Plant:
    """A state edit of the drafter, not of the target."""
    return Plant(option="draft_edits", target=f"{PACKAGE}.{target}", arguments=arguments, is_drawn=is_drawn)


def chunks(size: int) -> Plant:
    """The prompt in chunks of ``size``."""
    return edit("chunked_prompt:chunked_prompt", is_drawn=False, chunk=size)


def recomputed(tokens: int, every: int) -> Plant:
    """The last ``tokens`` entries again at every ``every``-th step."""
    return edit("recomputed:recomputed_entries", is_drawn=False, tokens=tokens, every=every)


def last_bit(share: float) -> Plant:
    """A ``share`` of the entries off by one in the last bit."""
    return edit("cache_values:last_bit_cache", share=share)


def noise(steps: float) -> Plant:
    """Logits off by up to so many bfloat16 steps."""
    return processor("logit_noise:width_noise", steps=steps)


MET = (
    Fault(
        code="F12",
        name="first-request-ties",
        title="near-ties fall either way in a few replies, as after a cache miss",
        sources=(issue("vllm-project/vllm", 40896),),
        family=Family.NEAR_TIE,
        strength=Strength(parameter="share", published=0.02, meaning="share of the replies that are hit"),
        plants=(processor("near_ties:swap_near_ties", share=0.02, flipped=0.5),),
        is_control=True,
    ),
    Fault(
        code="F25",
        name="noisy-drafter",
        title="the drafter's cache is corrupt; the target verifies",
        sources=(pull("vllm-project/vllm", 9730),),
        family=Family.UNKNOWN,
        strength=Strength(parameter="noise", published=1.0, meaning="noise over the entries' own spread"),
        plants=(drafter_edit("cache_values:noisy_cache", longer_than=0),),
        engine_options=DRAFTING,
        expect=DRAFTS,
        is_control=True,
    ),
    Fault(
        code="F26",
        name="late-drafter",
        title="the drafter's positions are one late; the target verifies",
        sources=(pull("sgl-project/sglang", 25015),),
        family=Family.UNKNOWN,
        strength=Strength(parameter="shift", published=1, meaning="positions"),
        plants=(drafter_edit("positions:shifted_reply", is_drawn=False),),
        engine_options=DRAFTING,
        expect=DRAFTS,
        is_control=True,
    ),
    Fault(
        code="F45",
        name="recomputed-entries",
        title="cache entries are thrown away and computed again, as after a preemption",
        sources=(pull("vllm-project/vllm-gaudi", 1794),),
        family=Family.UNKNOWN,
        strength=Strength(parameter="every", published=16, meaning="steps between two recomputations"),
        plants=(
            edit("recomputed:recomputed_entries", is_drawn=False),
            Plant(option="post_processors", target=f"{PACKAGE}.recomputed:preemption_telemetry", is_drawn=False),
        ),
        expect={"preempted": True},
        is_control=True,
    ),
    Fault(
        code="F59",
        name="width-noise",
        title="every logit is off by up to half a rounding step",
        sources=(issue("ggml-org/llama.cpp", 25618),),
        family=Family.NEAR_TIE,
        strength=Strength(parameter="steps", published=0.5, meaning="bfloat16 steps of the best logit"),
        plants=(processor("logit_noise:width_noise"),),
        is_control=True,
    ),
    Fault(
        code="F60",
        name="chunked-prompt",
        title="the prompt is read in chunks of 16: other widths, other roundings",
        sources=(issue("vllm-project/vllm", 48271),),
        family=Family.UNKNOWN,
        plants=(edit("chunked_prompt:chunked_prompt", is_drawn=False),),
        is_control=True,
    ),
    Fault(
        code="F62",
        name="last-bit-cache",
        title="three in ten cache entries are off by one in the last bit",
        sources=(issue("vllm-project/vllm", 42259),),
        family=Family.UNKNOWN,
        strength=Strength(parameter="share", published=0.3, meaning="share of the entries"),
        plants=(edit("cache_values:last_bit_cache"),),
        is_control=True,
    ),
)


def _control(  # noqa: PLR0913 - the fields of a row
    code: str,
    name: str,
    title: str,
    options: Mapping[str, Any],
    *plants: Plant,
    expect: Mapping[str, Any] | None = None,
    asks: Mapping[str, Any] | None = None,
    temperature: float = 0.0,
) -> Fault:
    return Fault(
        code=code,
        name=name,
        title=title,
        sources=(),
        family=Family.UNKNOWN,
        engine_options=options,
        plants=plants,
        expect=expect or {},
        asks=asks or {},
        temperature=temperature,
        is_control=True,
    )


OWN = (
    _control("N1", "by-length", "batches of 48, sorted by length", {"order": "length", "batch_size": 48}),
    _control("N2", "half-batches", "batches of 32", {"batch_size": 32}),
    _control("N3", "small-batches", "batches of 8, sorted by length", {"order": "length", "batch_size": 8}),
    _control("N4", "other-padding", "prompts padded to multiples of 64", {"pad_to_multiple_of": 64}),
    _control("N5", "eager", "attention written out instead of the fused kernel", {"attention": "eager"}),
    _control("N6", "float32", "the same weights computed in float32", {"dtype": "float32"}),
    _control("N7", "float16", "the same weights computed in float16", {"dtype": "float16"}),
    _control("N8", "lookup-3", "prompt lookup, 3 drafts", {**LOOKUP, "prompt_lookup_num_tokens": 3}, expect=DRAFTS),
    _control(
        "N9",
        "lookup-8",
        "prompt lookup, 8 drafts that match 3 tokens",
        {**LOOKUP, "prompt_lookup_num_tokens": 8, "max_matching_ngram_size": 3},
        expect=DRAFTS,
    ),
    _control("N10", "self-drafting", "the target drafts for itself", DRAFTING, expect=DRAFTS),
    _control("N11", "chunks-of-5", "the prompt in chunks of 5", {}, chunks(5)),
    _control("N12", "recomputed-often", "24 entries computed again every 7th step", {}, recomputed(24, 7)),
    _control("N13", "last-bit-everywhere", "every cache entry is off by one in the last bit", {}, last_bit(1.0)),
    _control("N14", "quarter-noise", "logits off by up to a quarter of a rounding step", {}, noise(0.25)),
    _control(
        "N15",
        "chunks-and-batches",
        "chunks of 16, batches of 24 sorted by length, padded to multiples of 8",
        {"batch_size": 24, "order": "length", "pad_to_multiple_of": 8},
        chunks(16),
    ),
    _control("N16", "eager-float32", "float32 with attention written out", {"dtype": "float32", "attention": "eager"}),
    _control(
        "N17",
        "padding-by-length",
        "sorted by length, padded to multiples of 32",
        {"order": "length", "pad_to_multiple_of": 32},
    ),
    _control("N18", "chunks-of-3", "the prompt in chunks of 3", {}, chunks(3)),
    _control("N19", "recomputed-whole", "40 entries computed again every 20th step", {}, recomputed(40, 20)),
    _control("N20", "eager-by-length", "written out, sorted by length", {"attention": "eager", "order": "length"}),
    _control("N21", "batches-of-16", "batches of 16", {"batch_size": 16}),
    _control("N22", "large-batches", "batches of 96, sorted by length", {"batch_size": 96, "order": "length"}),
    _control("N23", "padding-of-16", "prompts padded to multiples of 16", {"pad_to_multiple_of": 16}),
    _control("N24", "padding-of-128", "prompts padded to multiples of 128", {"pad_to_multiple_of": 128}),
    _control("N25", "chunks-of-24", "the prompt in chunks of 24, sorted by length", {"order": "length"}, chunks(24)),
    _control("N26", "recomputed-always", "one entry computed again at every step", {}, recomputed(1, 1)),
    _control("N27", "last-bit-rarely", "one in ten cache entries is off by one in the last bit", {}, last_bit(0.1)),
    _control("N28", "eager-padding", "written out, padded to 48", {"attention": "eager", "pad_to_multiple_of": 48}),
    _control("N29", "float32-by-length", "float32, sorted by length", {"dtype": "float32", "order": "length"}),
    _control("N30", "float16-eager", "float16 with attention written out", {"dtype": "float16", "attention": "eager"}),
    _control("N31", "bits-and-chunks", "last bits off by one, chunks of 8", {}, chunks(8), last_bit(0.3)),
    _control("N32", "tenth-noise", "logits off by up to a tenth of a rounding step", {}, noise(0.1)),
    _control("N33", "bits-and-entries", "last bits off, entries computed again", {}, recomputed(8, 16), last_bit(0.3)),
    _control("N34", "penalised", "a repetition penalty, batches of 32", {"batch_size": 32}, asks=PENALTY),
    _control("N35", "masked", "ten frequent ids ruled out, batches of 32", {"batch_size": 32}, asks=MASK),
    _control("N36", "sampled", "temperature 1, batches of 32", {"batch_size": 32}, temperature=1.0),
    _control(
        "N37", "nucleus", "temperature 1.3 and top-p, batches of 32", {"batch_size": 32}, asks=NUCLEUS, temperature=1.3
    ),
)

CONTROLS = (*MET, *OWN)
