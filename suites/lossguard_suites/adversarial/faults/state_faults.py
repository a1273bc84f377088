"""Faults in the state that decoding builds: cache, positions, drafts that were rejected."""

from __future__ import annotations

from lossguard.diagnosis.families import Family
from lossguard_suites.adversarial.faults.fault import PACKAGE, Fault, Plant, Strength, issue, pull

SHARES = (0.3, 0.1, 0.03, 0.01)
SHARE = Strength(parameter="share", published=1.0, weaker=SHARES, meaning="share of the replies that are hit")
MISHANDLED = Strength(
    parameter="probability", published=1.0, weaker=SHARES, meaning="share of the blocks that are mishandled"
)
TELEMETRY = Plant(option="post_processors", target=f"{PACKAGE}.speculation:speculation_telemetry")


def edit(target: str, *, is_drawn: bool = True, **arguments: float | bool) -> Plant:
    """A state edit of this package."""
    return Plant(option="state_edits", target=f"{PACKAGE}.{target}", arguments=arguments, is_drawn=is_drawn)


AFTER_REJECTION = (
    Fault(
        code="F1",
        name="forgotten-drafts",
        title="the step after a block does not see the drafts that it accepted",
        sources=(pull("vllm-project/vllm", 52942),),
        family=Family.STATE_AFTER_REJECTION,
        strength=MISHANDLED,
        plants=(edit("hidden_keys:forgotten_drafts"), TELEMETRY),
        seen_by=("rate", "event"),
        missed_by=("structure",),
    ),
    Fault(
        code="F2",
        name="kept-drafts",
        title="the step after a block still sees the drafts that were rejected",
        sources=(issue("vllm-project/vllm", 39273),),
        family=Family.STATE_AFTER_REJECTION,
        strength=MISHANDLED,
        plants=(edit("rejected_drafts:kept_drafts"), TELEMETRY),
        seen_by=("rate", "event"),
        missed_by=("structure",),
    ),
    Fault(
        code="F3",
        name="kept-drafts-always",
        title="rejected drafts stay in the state for the whole next block",
        sources=(pull("vllm-project/tpu-inference", 3178),),
        family=Family.STATE_AFTER_REJECTION,
        strength=MISHANDLED,
        plants=(edit("rejected_drafts:kept_drafts", every_step=True), TELEMETRY),
        seen_by=("rate", "event"),
        missed_by=("structure",),
    ),
    Fault(
        code="F8",
        name="neighbours-count",
        title="a request takes its neighbour's number of accepted drafts",
        sources=(pull("SergiioB/intel-arc-pro-b70-inference-cookbook", 13),),
        family=Family.STATE_AFTER_REJECTION,
        strength=Strength(
            parameter="probability",
            published=0.1,
            weaker=(0.03, 0.01),
            meaning="share of the blocks whose count is the neighbour's",
        ),
        plants=(edit("rejected_drafts:neighbours_count"), TELEMETRY),
        seen_by=("rate", "event"),
        missed_by=("structure",),
    ),
    Fault(
        code="F23",
        name="late-positions",
        title="positions are one late after accepted drafts",
        sources=(issue("huggingface/transformers", 30042),),
        family=Family.STATE_AFTER_REJECTION,
        strength=MISHANDLED,
        plants=(edit("positions:late_positions"), TELEMETRY),
        seen_by=("rate", "event"),
        missed_by=("structure",),
    ),
    Fault(
        code="F27",
        name="overwritten-page",
        title="a fully accepted block overwrites older entries of the cache",
        sources=(issue("NVIDIA/TensorRT-LLM", 11300),),
        family=Family.STATE_AFTER_REJECTION,
        strength=MISHANDLED,
        plants=(edit("cache_values:overwritten_page"), TELEMETRY),
        seen_by=("rate", "event"),
        missed_by=("structure",),
    ),
)

CONTEXT = (
    Fault(
        code="F6",
        name="lost-block",
        title="on a cache hit the last block of the prompt is missing",
        sources=(
            issue("vllm-project/vllm", 43559),
            pull("vllm-project/vllm", 43650),
            pull("vllm-project/vllm", 47861),
            issue("vllm-project/vllm", 53912),
        ),
        family=Family.UNKNOWN,
        strength=SHARE,
        plants=(edit("hidden_keys:lost_block"),),
        seen_by=("rate", "event"),
        missed_by=("structure",),
    ),
    Fault(
        code="F9",
        name="noisy-cache",
        title="keys and values of long prompts are corrupt",
        sources=(issue("LMCache/LMCache", 4345),),
        family=Family.POSITION_THRESHOLD,
        strength=Strength(
            parameter="noise",
            published=1.0,
            weaker=(0.3, 0.1, 0.03),
            meaning="noise over the entries' own spread, in prompts over 40 tokens",
        ),
        plants=(edit("cache_values:noisy_cache"),),
        seen_by=("rate", "event"),
        missed_by=("structure",),
    ),
    Fault(
        code="F10",
        name="restarted-positions",
        title="after a cache hit the rest of the prompt starts at position 0",
        sources=(issue("tenstorrent/vllm", 415),),
        family=Family.UNKNOWN,
        strength=SHARE,
        plants=(edit("positions:restarted_positions"),),
        seen_by=("rate", "event"),
        missed_by=("structure",),
    ),
    Fault(
        code="F13",
        name="blind-chunks",
        title="each chunk of the prompt misses the chunk before it",
        sources=(issue("vllm-project/vllm", 26042),),
        family=Family.UNKNOWN,
        strength=SHARE,
        plants=(edit("chunked_prompt:blind_chunks"),),
        seen_by=("rate", "event"),
        missed_by=("structure",),
    ),
    Fault(
        code="F15",
        name="wrong-chunk",
        title="prompts over 32 tokens: the second chunk is fed the first one's tokens",
        sources=(pull("tinygrad/tinygrad", 15182),),
        family=Family.POSITION_THRESHOLD,
        strength=Strength(
            parameter="tokens", published=32, weaker=(8, 2, 1), meaning="most tokens of the chunk that are wrong"
        ),
        plants=(edit("chunked_prompt:wrong_chunk"),),
        seen_by=("rate", "event"),
        missed_by=("structure",),
    ),
    Fault(
        code="F17",
        name="lost-splits",
        title="decoding reads every second run of 32 keys only",
        sources=(issue("flashinfer-ai/flashinfer", 1968),),
        family=Family.UNKNOWN,
        strength=SHARE,
        plants=(edit("hidden_keys:lost_splits"),),
        seen_by=("rate", "event"),
        missed_by=("structure",),
        note="nearly every prompt here is past the first 32, so no threshold shows",
    ),
    Fault(
        code="F18",
        name="stale-length",
        title="decoding attends to the first 48 tokens of the context only",
        sources=(pull("huggingface/transformers", 45323),),
        family=Family.POSITION_THRESHOLD,
        strength=SHARE,
        plants=(edit("hidden_keys:stale_length"),),
        seen_by=("rate", "event"),
        missed_by=("structure",),
    ),
    Fault(
        code="F21",
        name="frozen-positions",
        title="rotary angles stop at position 64",
        sources=(pull("vllm-project/vllm-ascend", 1331),),
        family=Family.POSITION_THRESHOLD,
        strength=SHARE,
        plants=(edit("positions:frozen_positions"),),
        seen_by=("rate", "event"),
        missed_by=("structure",),
    ),
    Fault(
        code="F22",
        name="short-window",
        title="from 48 tokens of context on, the oldest token is out of the window",
        sources=(
            pull("huggingface/transformers", 48280),
            issue("huggingface/transformers", 37574),
            pull("huggingface/transformers", 38046),
        ),
        family=Family.POSITION_THRESHOLD,
        strength=Strength(parameter="shift", published=1, meaning="tokens by which the window is short"),
        plants=(edit("hidden_keys:short_window"),),
        seen_by=("rate", "event"),
        missed_by=("structure",),
        note="full attention has no window: the whole context stands for it, whose first token is an attention sink",
    ),
    Fault(
        code="F29",
        name="fp8-cache",
        title="keys and values are rounded to FP8 without a scale",
        sources=(issue("NVIDIA/TensorRT-LLM", 14825),),
        family=Family.UNKNOWN,
        strength=SHARE,
        plants=(edit("cache_values:fp8_cache"),),
        seen_by=("rate", "event"),
        missed_by=("structure",),
    ),
    Fault(
        code="F30",
        name="wrong-expert",
        title="some tokens go to the last expert",
        sources=(issue("sgl-project/sglang", 40156),),
        family=Family.UNKNOWN,
        strength=Strength(
            parameter="probability", published=0.1, weaker=(0.03, 0.01), meaning="share of the steps that are misrouted"
        ),
        plants=(edit("wrong_expert:wrong_expert"),),
        seen_by=("rate", "event"),
        missed_by=("structure",),
        note="a dense model has no experts: the first layer borrows the last layer's feed-forward part",
    ),
    Fault(
        code="F37",
        name="kept-tail",
        title="the state still holds the tail of another turn",
        sources=(issue("ggml-org/llama.cpp", 28049),),
        family=Family.UNKNOWN,
        strength=Strength(parameter="tokens", published=8, weaker=(4, 1), meaning="tokens of the other turn"),
        plants=(edit("stale_prefix:kept_tail"),),
        seen_by=("rate", "event"),
        missed_by=("structure",),
    ),
    Fault(
        code="F56",
        name="wrong-scale",
        title="keys and values come back half as large again",
        sources=(issue("vllm-project/vllm", 13133),),
        family=Family.UNKNOWN,
        strength=Strength(
            parameter="excess", published=0.5, weaker=(0.2, 0.1, 0.05, 0.02), meaning="scale of the entries, minus 1"
        ),
        plants=(edit("cache_values:wrong_scale"),),
        seen_by=("rate", "event"),
        missed_by=("structure",),
    ),
    Fault(
        code="F58",
        name="lost-scale",
        title="the same, only in replies after an event in the middle of the run",
        sources=(issue("vllm-project/vllm", 25800),),
        family=Family.UNKNOWN,
        strength=Strength(
            parameter="excess", published=0.5, weaker=(0.2, 0.1, 0.05), meaning="scale of the entries, minus 1"
        ),
        plants=(edit("cache_values:wrong_scale", after=60),),
        seen_by=("rate", "event"),
        missed_by=("structure",),
    ),
    Fault(
        code="F68",
        name="other-prompt",
        title="the server puts words of its own before the prompt",
        sources=(),
        family=Family.UNKNOWN,
        strength=Strength(parameter="tokens", published=16, weaker=(8, 4, 1), meaning="tokens before the prompt"),
        plants=(edit("stale_prefix:other_prompt"),),
        seen_by=("rate", "event"),
        missed_by=("structure",),
    ),
)

STATE_FAULTS = (*AFTER_REJECTION, *CONTEXT)
