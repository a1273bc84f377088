"""Options of the transformers engine, checked before anything is loaded."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from lossguard.engines.base import EngineSpec
from lossguard.engines.extensions import Extension, parse_extensions
from lossguard.engines.options import OptionReader, bad_option, refuse_unknown

DTYPES = ("auto", "bfloat16", "float16", "float32")
ORDERS = ("request", "length")
QUANTIZATIONS = ("int8-dynamic",)
ROUND_TRIPS = ("int4", "int8")
DEFAULT_BATCH_SIZE = 64
EXTENSION_KEYS = ("logits_processors", "state_edits", "draft_edits", "post_processors")


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformersOptions:
    """The options of one system; field names are the keys of its table in the configuration."""

    dtype: str = "auto"
    device: str = "auto"
    attention: str = "sdpa"
    threads: int | None = None
    batch_size: int = DEFAULT_BATCH_SIZE
    logprobs: int = 0
    order: str = "request"
    pad_to_multiple_of: int = 1
    processes: int = 1
    prompt_lookup_num_tokens: int | None = None
    max_matching_ngram_size: int = 2
    assistant_model: str | None = None
    num_assistant_tokens: int = 5
    quantization: str | None = None
    weight_round_trip: str | None = None
    packed_weights: bool = False
    logits_processors: tuple[Extension, ...] = ()
    state_edits: tuple[Extension, ...] = ()
    draft_edits: tuple[Extension, ...] = ()
    post_processors: tuple[Extension, ...] = ()

    @property
    def extensions(self) -> tuple[Extension, ...]:
        """All functions that this system names."""
        return tuple(extension for key in EXTENSION_KEYS for extension in getattr(self, key))

    @property
    def is_assisted(self) -> bool:
        """Drafts are proposed and verified: transformers does that for one request at a time."""
        return self.prompt_lookup_num_tokens is not None or self.assistant_model is not None

    def to_json(self) -> dict[str, Any]:
        """For fingerprints: every option, given or not."""
        values = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        for key in EXTENSION_KEYS:
            values[key] = [extension.to_json() for extension in values[key]]
        if not self.logprobs:
            del values["logprobs"]  # as in fingerprints from before there was this option
        return values


def parse_options(spec: EngineSpec) -> TransformersOptions:
    """Read a system's options. Raises UsageError LG0204 for unknown keys, wrong values and contradictions."""
    refuse_unknown(spec, (item.name for item in dataclasses.fields(TransformersOptions)))
    read = OptionReader(spec.name, spec.options)
    assisted = "prompt_lookup_num_tokens" in spec.options or "assistant_model" in spec.options
    options = TransformersOptions(
        dtype=read.choice("dtype", "auto", DTYPES),
        device=read.text("device", "auto"),
        attention=read.text("attention", "sdpa"),
        threads=read.optional_positive("threads"),
        batch_size=read.positive("batch_size", 1 if assisted else DEFAULT_BATCH_SIZE),
        logprobs=read.optional_positive("logprobs") or 0,
        order=read.choice("order", "request", ORDERS),
        pad_to_multiple_of=read.positive("pad_to_multiple_of", 1),
        processes=read.positive("processes", 1),
        prompt_lookup_num_tokens=read.optional_positive("prompt_lookup_num_tokens"),
        max_matching_ngram_size=read.positive("max_matching_ngram_size", 2),
        assistant_model=read.optional_text("assistant_model"),
        num_assistant_tokens=read.positive("num_assistant_tokens", 5),
        quantization=read.optional_choice("quantization", QUANTIZATIONS),
        weight_round_trip=read.optional_choice("weight_round_trip", ROUND_TRIPS),
        packed_weights=read.flag("packed_weights", default=False),
        logits_processors=_extensions(spec, "logits_processors"),
        state_edits=_extensions(spec, "state_edits"),
        draft_edits=_extensions(spec, "draft_edits"),
        post_processors=_extensions(spec, "post_processors"),
    )
    _refuse_contradictions(spec, options)
    return options


def _extensions(spec: EngineSpec, key: str) -> tuple[Extension, ...]:
    return parse_extensions(spec.name, key, spec.options.get(key, ()))


def _refuse_contradictions(spec: EngineSpec, options: TransformersOptions) -> None:
    name, given = spec.name, spec.options
    if options.prompt_lookup_num_tokens is not None and options.assistant_model is not None:
        raise bad_option(name, "has both prompt_lookup_num_tokens and assistant_model; drafts come from one of them")
    if options.is_assisted and options.batch_size != 1:
        raise bad_option(name, f"has batch_size = {options.batch_size}; transformers verifies drafts at batch size 1")
    if options.is_assisted and options.pad_to_multiple_of != 1:
        raise bad_option(name, "has pad_to_multiple_of, which transformers' draft verification does not support")
    if options.is_assisted and options.logprobs:
        raise bad_option(name, "has logprobs, which transformers does not report of verified drafts")
    if "num_assistant_tokens" in given and options.assistant_model is None:
        raise bad_option(name, "has num_assistant_tokens but no assistant_model")
    if "max_matching_ngram_size" in given and options.prompt_lookup_num_tokens is None:
        raise bad_option(name, "has max_matching_ngram_size but no prompt_lookup_num_tokens")
    _refuse_lossy_contradictions(spec, options)


def _refuse_lossy_contradictions(spec: EngineSpec, options: TransformersOptions) -> None:
    name = spec.name
    if options.draft_edits and options.assistant_model in (None, "self"):
        raise bad_option(name, "has draft_edits but no assistant_model of its own whose forward passes they could edit")
    if options.quantization is not None and options.packed_weights:
        raise bad_option(name, "has packed_weights, which int8-dynamic does not have")
    if options.quantization is not None and options.weight_round_trip is not None:
        raise bad_option(name, "has both quantization and weight_round_trip; one kind of loss at a time")
    if options.quantization is not None and options.dtype not in ("auto", "float32"):
        raise bad_option(name, f"has dtype = {options.dtype!r}; int8-dynamic computes in float32")
    if options.quantization is not None and options.device not in ("auto", "cpu"):
        raise bad_option(name, f"has device = {options.device!r}; int8-dynamic runs on the CPU only")
