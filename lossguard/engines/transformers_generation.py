"""Serving one batch, and decoding along recorded replies, both through ``model.generate`` itself."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers import (
    AutoTokenizer,
    GenerationConfig,
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    PreTrainedModel,
    StoppingCriteriaList,
    StopStringCriteria,
)

from lossguard.engines.base import ForcedPrefix
from lossguard.engines.extensions import BatchContext
from lossguard.engines.model_facts import ModelFacts
from lossguard.engines.transformers_batches import PaddedBatch, batch_seed, pad_prompts
from lossguard.engines.transformers_edits import edited
from lossguard.engines.transformers_observers import (
    ArrivalClock,
    DraftCounter,
    ForcedTokens,
    LogprobRecorder,
    ServedTokenWatch,
)
from lossguard.engines.transformers_options import TransformersOptions
from lossguard.engines.transformers_replies import BatchRecord, to_outputs
from lossguard.records import Request, SamplingParams, ServedOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedSystem:
    """A model on its device with all that serving a batch needs. Not shared between threads."""

    model: PreTrainedModel
    assistant: PreTrainedModel | None
    options: TransformersOptions
    facts: ModelFacts
    model_path: str
    device: str


def effective_stop_ids(sampling: SamplingParams, facts: ModelFacts) -> tuple[int, ...]:
    """Ids that end a reply: the request's, without the model's own end-of-sequence ids under ``ignore_eos``."""
    if not sampling.ignore_eos:
        return sampling.stop_ids
    return tuple(token for token in sampling.stop_ids if token not in facts.eos_ids)


def serve_batch(system: LoadedSystem, requests: Sequence[Request]) -> list[ServedOutput]:
    """Serve requests of identical sampling (seeds aside) together; outputs in their order."""
    sampling = requests[0].sampling
    padded = _pad(system, [request.prompt_ids for request in requests])
    stop_ids = effective_stop_ids(sampling, system.facts)
    clock = ArrivalClock(padded.prompt_length, _stop_strings(system, sampling))
    recorder = LogprobRecorder(sampling.logprobs) if sampling.logprobs else None
    counter = DraftCounter()
    config = _generation_config(system, sampling, stop_ids)
    context = _context(system, requests, padded, stop_ids)
    criteria = [clock, *([] if recorder is None else [ServedTokenWatch(recorder)])]
    sent_ns = time.monotonic_ns()
    with _random_state(requests, system.device), _edited(system, context), _observed(system, recorder, counter):
        sequences = _generate(system, padded, config, _extension_processors(system, context), criteria)
    return to_outputs(
        BatchRecord(
            requests=tuple(requests),
            columns=sequences[:, padded.prompt_length :].tolist(),
            stop_ids=frozenset(stop_ids),
            sent_ns=sent_ns,
            clock=clock,
            recorder=recorder,
            drafted=tuple(counter.drafted) if system.options.is_assisted else None,
        )
    )


def decode_forced(system: LoadedSystem, batch: Sequence[ForcedPrefix]) -> list[tuple[int, ...]]:
    """The tokens that ``serve_batch`` would serve at each visited position, given the recorded ones before it.

    Prompts are padded as ``serve_batch`` pads them, so a batch of stock's own replies in its own order computes
    the same numbers. Rows that have no recorded token left are fed the pad id, as finished rows are.
    """
    num_steps = max((prefix.num_positions for prefix in batch), default=0)
    if num_steps == 0:
        return [() for _ in batch]
    requests = [prefix.request for prefix in batch]
    sampling = dataclasses.replace(requests[0].sampling, max_tokens=num_steps)
    padded = _pad(system, [request.prompt_ids for request in requests])
    stop_ids = effective_stop_ids(sampling, system.facts)
    context = _context(system, requests, padded, stop_ids)
    forced = ForcedTokens(_forced_columns(system, batch, num_steps), padded.prompt_length)
    processors = [*_min_tokens(system, sampling, stop_ids, padded), *_extension_processors(system, context), forced]
    with _edited(system, context):
        _generate(system, padded, _generation_config(system, sampling, ()), processors, [])
    rows = forced.would_serve()
    return [tuple(row[: prefix.num_positions]) for row, prefix in zip(rows, batch, strict=True)]


def _pad(system: LoadedSystem, prompts: Sequence[Sequence[int]]) -> PaddedBatch:
    multiple = system.options.pad_to_multiple_of
    return pad_prompts(prompts, pad_id=system.facts.pad_id, multiple=multiple, device=system.device)


def _forced_columns(system: LoadedSystem, batch: Sequence[ForcedPrefix], num_steps: int) -> torch.Tensor:
    rows = [list(prefix.served_ids[:num_steps]) for prefix in batch]
    padded = [row + [system.facts.pad_id] * (num_steps - len(row)) for row in rows]
    return torch.tensor(padded, dtype=torch.int64, device=system.device)


def _generation_config(system: LoadedSystem, sampling: SamplingParams, stop_ids: tuple[int, ...]) -> GenerationConfig:
    options = system.options
    values: dict[str, Any] = {"max_new_tokens": sampling.max_tokens, "do_sample": not sampling.is_greedy}
    if not sampling.is_greedy:
        values |= {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k}
        values["min_p"] = sampling.min_p or None
    if stop_ids:
        values |= {"eos_token_id": list(stop_ids), "pad_token_id": system.facts.pad_id}
        values["min_new_tokens"] = sampling.min_tokens or None
    if sampling.logit_bias:
        values["sequence_bias"] = [[[token], bias] for token, bias in sampling.logit_bias]
    if sampling.bad_words:
        values["bad_words_ids"] = [list(word) for word in sampling.bad_words]
    if options.prompt_lookup_num_tokens is not None:
        values["prompt_lookup_num_tokens"] = options.prompt_lookup_num_tokens
        values["max_matching_ngram_size"] = options.max_matching_ngram_size
    values["repetition_penalty"] = sampling.repetition_penalty
    make_config: Any = GenerationConfig  # untyped in transformers
    config: GenerationConfig = make_config(disable_compile=True, use_cache=True, num_beams=1, **values)
    return config


def _min_tokens(
    system: LoadedSystem, sampling: SamplingParams, stop_ids: tuple[int, ...], padded: PaddedBatch
) -> list[Any]:
    """``generate`` makes this processor itself while stop ids are set; forced decode sets none, to go past them."""
    if not sampling.min_tokens or not stop_ids:
        return []
    ids = torch.tensor(stop_ids, device=system.device)
    return [MinNewTokensLengthLogitsProcessor(padded.prompt_length, sampling.min_tokens, ids, device=system.device)]


def _stop_strings(system: LoadedSystem, sampling: SamplingParams) -> dict[str, StopStringCriteria]:
    if not sampling.stop_strings:
        return {}
    tokenizer = AutoTokenizer.from_pretrained(system.model_path, local_files_only=True)
    return {string: StopStringCriteria(tokenizer=tokenizer, stop_strings=[string]) for string in sampling.stop_strings}


def _context(
    system: LoadedSystem, requests: Sequence[Request], padded: PaddedBatch, stop_ids: tuple[int, ...]
) -> BatchContext:
    return BatchContext(
        requests=tuple(requests),
        prompt_length=padded.prompt_length,
        stop_ids=stop_ids,
        vocab_size=system.facts.vocab_size,
        model_path=system.model_path,
    )


def _extension_processors(system: LoadedSystem, context: BatchContext) -> list[Any]:
    extensions = system.options.logits_processors
    return [extension.load()(context, **extension.arguments) for extension in extensions]


@contextmanager
def _edited(system: LoadedSystem, context: BatchContext) -> Iterator[None]:
    """The configured edits around every forward pass of the target, and of the drafter."""
    with edited(system.model, system.options.state_edits, context):
        if system.assistant is None:
            yield
            return
        with edited(system.assistant, system.options.draft_edits, context):
            yield


def _generate(
    system: LoadedSystem,
    padded: PaddedBatch,
    config: GenerationConfig,
    processors: Sequence[Any],
    criteria: Sequence[Any],
) -> torch.Tensor:
    """int64 [B, prompt_length + new tokens]."""
    generate: Any = system.model.generate
    with torch.inference_mode():
        sequences = generate(
            padded.input_ids,
            attention_mask=padded.attention_mask,
            generation_config=config,
            logits_processor=LogitsProcessorList(processors),
            stopping_criteria=StoppingCriteriaList(criteria),
            assistant_model=system.assistant,
        )
    if not isinstance(sequences, torch.Tensor):
        raise AssertionError(f"generate returned a {type(sequences).__name__}")
    return sequences


@contextmanager
def _observed(system: LoadedSystem, recorder: LogprobRecorder | None, counter: DraftCounter) -> Iterator[None]:
    if system.options.is_assisted:
        with counter.watch(system.model):
            yield
    elif recorder is not None:
        handle = system.model.register_forward_hook(recorder.observe)
        try:
            yield
        finally:
            handle.remove()
    else:
        yield


@contextmanager
def _random_state(requests: Sequence[Request], device: str) -> Iterator[None]:
    """Seed torch for a sampled batch and give the caller's random state back afterwards."""
    if requests[0].sampling.is_greedy:
        yield
        return
    cuda = [torch.device(device)] if device.startswith("cuda") else []
    with torch.random.fork_rng(devices=cuda):
        torch.manual_seed(batch_seed(requests))
        yield
