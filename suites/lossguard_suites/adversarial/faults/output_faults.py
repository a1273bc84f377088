"""Faults between the model and the client: what is lost, invented or reported wrongly about a finished reply."""

from __future__ import annotations

from typing import Any

from lossguard.diagnosis.families import Family
from lossguard_suites.adversarial.faults.fault import PACKAGE, Fault, Plant, Strength, issue, pull
from lossguard_suites.adversarial.faults.state_faults import SHARE


def after(target: str, **arguments: Any) -> Plant:
    """A post processor of this package."""
    return Plant(option="post_processors", target=f"{PACKAGE}.{target}", arguments=arguments)


REPORTING = {"logprobs": 5}
"""Log-probabilities of test replies, which the engine reports only on request."""

STREAM = (
    Fault(
        code="F36",
        name="past-the-stop",
        title="tokens after a stop id that fell inside a block",
        sources=(issue("huggingface/transformers", 47912), issue("LostRuins/koboldcpp", 1276)),
        family=Family.EOS,
        strength=Strength(parameter="tokens", published=3, weaker=(1,), meaning="tokens served after the stop id"),
        plants=(after("stream_losses:past_the_stop"),),
        seen_by=("structure",),
        is_inside=False,
    ),
    Fault(
        code="F40",
        name="lost-at-blocks",
        title="two tokens lost at every 16th",
        sources=(pull("tenstorrent/tt-metal", 56048),),
        family=Family.UNKNOWN,
        strength=Strength(parameter="tokens", published=2, weaker=(1,), meaning="tokens lost at each multiple"),
        plants=(after("stream_losses:lost_at_blocks", block=16),),
        seen_by=("rate", "event", "structure"),
        is_inside=False,
        note="met at every 64th; the suite's replies are shorter",
    ),
    Fault(
        code="F41",
        name="cut-replies",
        title="replies that lack their tail but are reported as full length",
        sources=(pull("osaurus-ai/vmlx-swift", 148), issue("vllm-project/vllm", 30204)),
        family=Family.EOS,
        strength=Strength(parameter="tokens", published=4, weaker=(2, 1), meaning="tokens missing at the end"),
        plants=(after("cut_replies:cut_replies"),),
        seen_by=("structure",),
        missed_by=("rate", "event", "near-tie"),
        is_inside=False,
    ),
    Fault(
        code="F44",
        name="lost-at-resume",
        title="one token lost where a reply was preempted and resumed",
        sources=(
            pull("vllm-project/vllm", 28787),
            pull("vllm-project/vllm", 38624),
            pull("vllm-project/vllm", 42117),
        ),
        family=Family.UNKNOWN,
        strength=Strength(
            parameter="share", published=1.0, weaker=(0.3, 0.1, 0.05), meaning="share of the replies that are preempted"
        ),
        plants=(after("stream_losses:lost_at_resume"),),
        seen_by=("event", "structure"),
        is_inside=False,
    ),
    Fault(
        code="F44b",
        name="doubled-at-resume",
        title="one token doubled where a reply was preempted and resumed",
        sources=(pull("vllm-project/vllm", 28787),),
        family=Family.UNKNOWN,
        strength=Strength(
            parameter="share", published=0.1, weaker=(0.05, 0.03), meaning="share of the replies that are preempted"
        ),
        plants=(after("stream_losses:doubled_at_resume", share=0.1),),
        seen_by=("event",),
        missed_by=("structure",),
        is_inside=False,
    ),
    Fault(
        code="F54",
        name="impossible-id",
        title="an id that no vocabulary has",
        sources=(
            issue("flashinfer-ai/flashinfer", 384),
            issue("sgl-project/sglang", 771),
            issue("NVIDIA/TensorRT-LLM", 1590),
        ),
        family=Family.UNKNOWN,
        strength=Strength(
            parameter="probability", published=0.001, weaker=(0.0003, 0.0001), meaning="share of the tokens"
        ),
        plants=(after("stream_losses:impossible_id"),),
        seen_by=("structure",),
        missed_by=("rate",),
        is_inside=False,
    ),
    Fault(
        code="O2",
        name="mislabelled-end",
        title="a reply that stopped is reported as full length",
        sources=(),
        family=Family.EOS,
        strength=SHARE,
        plants=(after("stream_losses:mislabelled_end"),),
        seen_by=("structure",),
        missed_by=("rate", "event", "near-tie"),
        is_inside=False,
    ),
)

REPORTS = (
    Fault(
        code="F39",
        name="wrong-usage",
        title="more reasoning tokens than tokens",
        sources=(issue("sgl-project/sglang", 39826),),
        family=Family.UNKNOWN,
        strength=Strength(parameter="excess", published=1, meaning="tokens counted too many"),
        plants=(after("wrong_reports:wrong_usage"),),
        seen_by=("usage",),
        missed_by=("rate", "event", "near-tie", "structure"),
        is_inside=False,
    ),
    Fault(
        code="F41b",
        name="cut-text",
        title="the text lacks its tail, the ids are all there",
        sources=(pull("osaurus-ai/vmlx-swift", 148),),
        family=Family.UNKNOWN,
        strength=Strength(parameter="characters", published=24, weaker=(8, 1), meaning="characters missing at the end"),
        plants=(after("wrong_reports:cut_text", tokenizer="{model}"),),
        seen_by=("text",),
        missed_by=("rate", "event", "near-tie", "structure"),
        is_inside=False,
    ),
    Fault(
        code="F46",
        name="processed-logprobs",
        title="log-probabilities after the sampler's processing are reported as raw",
        sources=(pull("vllm-project/vllm", 30846),),
        family=Family.UNKNOWN,
        strength=Strength(
            parameter="sharpening", published=0.5, weaker=(0.1, 0.03), meaning="inverse temperature, minus 1"
        ),
        plants=(after("wrong_reports:processed_logprobs"),),
        engine_options=REPORTING,
        seen_by=("logprob",),
        missed_by=("rate", "event", "near-tie", "structure"),
        is_inside=False,
    ),
    Fault(
        code="F47",
        name="zero-logprobs",
        title="a log-probability of 0.0 for every token",
        sources=(issue("ggml-org/llama.cpp", 27972),),
        family=Family.UNKNOWN,
        strength=SHARE,
        plants=(after("wrong_reports:zero_logprobs"),),
        engine_options=REPORTING,
        seen_by=("logprob",),
        missed_by=("rate", "event", "near-tie", "structure"),
        is_inside=False,
    ),
)

OUTPUT_FAULTS = (*STREAM, *REPORTS)
