"""Options of the embedded engine, checked before anything is loaded."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch

from lossguard.engines.base import EngineSpec
from lossguard.engines.extensions import Extension, parse_extensions
from lossguard.engines.model_facts import ModelFacts
from lossguard.engines.options import OptionReader, bad_option, refuse_unknown
from lossguard_mechanisms.trees.names import CHAIN, POLICIES

DTYPES = ("auto", "bfloat16", "float16", "float32")
ORDERS = ("request", "length")
WEIGHTS = ("plain", "w12")
DEFAULT_SLOTS = 64
DEFAULT_PAGE_SIZE = 32
DEFAULT_PREFILL_CHUNK = 512
DEFAULT_TOKENS_PER_SLOT = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedOptions:
    """The options of one system; field names are the keys of its table in the configuration."""

    dtype: str = "auto"
    device: str = "auto"
    threads: int | None = None
    slots: int = DEFAULT_SLOTS
    page_size: int = DEFAULT_PAGE_SIZE
    cache_tokens: int | None = None
    """Positions that all pages together hold; None: 1,024 for each slot, and enough for one full context."""
    prefill_chunk: int = DEFAULT_PREFILL_CHUNK
    order: str = "request"
    drafter: str | None = None
    num_drafts: int | None = None
    """Drafted tokens of a chain; None: all that the drafter gives."""
    policy: str = CHAIN
    """Which of the drafter's candidates a step verifies."""
    nodes: int | None = None
    """Drafted tokens of a tree; None: ``trees.choice.DEFAULT_NODES``."""
    depth: int | None = None
    """How far ahead a tree reaches; None: as far as the drafter looks."""
    cuda_graphs: bool = True
    compiled: bool = False
    packed_weights: bool = True
    weights: str = "plain"
    """``w12``: linear layers and head in 12 bits, with the kernels of ``w12_gemm`` on CUDA, else decoded first."""
    logprobs: int = 0
    logits_processors: tuple[Extension, ...] = ()
    post_processors: tuple[Extension, ...] = ()

    @property
    def extensions(self) -> tuple[Extension, ...]:
        """All functions that this system names."""
        return (*self.logits_processors, *self.post_processors)

    def to_json(self) -> dict[str, Any]:
        """For fingerprints: every option, given or not."""
        return dataclasses.asdict(self)


def parse_options(spec: EngineSpec) -> EmbeddedOptions:
    """Read a system's options. Raises UsageError LG0204 for unknown keys, wrong values and contradictions."""
    refuse_unknown(spec, (item.name for item in dataclasses.fields(EmbeddedOptions)))
    read = OptionReader(spec.name, spec.options)
    options = EmbeddedOptions(
        dtype=read.choice("dtype", "auto", DTYPES),
        device=read.text("device", "auto"),
        threads=read.optional_positive("threads"),
        slots=read.positive("slots", DEFAULT_SLOTS),
        page_size=read.positive("page_size", DEFAULT_PAGE_SIZE),
        cache_tokens=read.optional_positive("cache_tokens"),
        prefill_chunk=read.positive("prefill_chunk", DEFAULT_PREFILL_CHUNK),
        order=read.choice("order", "request", ORDERS),
        drafter=read.optional_text("drafter"),
        num_drafts=read.optional_positive("num_drafts"),
        policy=read.choice("policy", CHAIN, POLICIES),
        nodes=read.optional_positive("nodes"),
        depth=read.optional_positive("depth"),
        cuda_graphs=read.flag("cuda_graphs", default=not spec.options.get("logits_processors")),
        compiled=read.flag("compiled", default=False),
        packed_weights=read.flag("packed_weights", default=True),
        weights=read.choice("weights", "plain", WEIGHTS),
        logprobs=read.optional_positive("logprobs") or 0,
        logits_processors=parse_extensions(spec.name, "logits_processors", spec.options.get("logits_processors", ())),
        post_processors=parse_extensions(spec.name, "post_processors", spec.options.get("post_processors", ())),
    )
    _refuse_contradictions(spec.name, options)
    return options


def _refuse_contradictions(name: str, options: EmbeddedOptions) -> None:
    if options.compiled and resolve_device(options)[0] == "cpu":
        raise bad_option(name, "has compiled = true, which is for CUDA devices")
    _refuse_contradicting_drafts(name, options)
    if options.logits_processors and options.drafter is not None:
        raise bad_option(name, "has logits_processors and a drafter; they act on plain decoding, one token a pass")
    if options.logits_processors and options.cuda_graphs:
        raise bad_option(name, "has logits_processors and cuda_graphs = true; a graph runs no function of Python")


def _refuse_contradicting_drafts(name: str, options: EmbeddedOptions) -> None:
    if options.drafter is None:
        for key in ("num_drafts", "nodes", "depth"):
            if getattr(options, key) is not None:
                raise bad_option(name, f"has {key} but no drafter")
        if options.policy != CHAIN:
            raise bad_option(name, f"has policy = {options.policy!r} but no drafter")
    if options.policy == CHAIN and (options.nodes or options.depth):
        raise bad_option(name, "has nodes or depth, which are a tree's; the length of a chain is num_drafts")
    if options.policy != CHAIN and options.num_drafts is not None:
        raise bad_option(name, f"has num_drafts, which is a chain's; policy = {options.policy!r} takes nodes and depth")


def resolve_dtype(options: EmbeddedOptions, facts: ModelFacts) -> tuple[str, str]:
    """(dtype of weights and served logits, reason)."""
    if options.dtype != "auto":
        return options.dtype, "given"
    return facts.dtype, "the dtype in the model's config.json"


def resolve_device(options: EmbeddedOptions) -> tuple[str, str]:
    """(torch device, reason)."""
    if options.device != "auto":
        return options.device, "given"
    if torch.cuda.is_available():
        return "cuda:0", "the first CUDA device, since one is present"
    return "cpu", "no CUDA device is present"


def resolve_threads(options: EmbeddedOptions) -> tuple[int, str]:
    """(torch threads, reason)."""
    if options.threads is not None:
        return options.threads, "given"
    return torch.get_num_threads(), "torch's own choice"


def resolve_packing(options: EmbeddedOptions, *, dtype: str, device: str) -> tuple[bool, str]:
    """(whether weights are laid out for the CPU's matrix products, reason)."""
    onednn: Any = torch.backends.mkldnn
    if options.weights != "plain":
        return False, f"the weights are {options.weights}"
    if not options.packed_weights:
        return False, "given"
    if device != "cpu" or dtype != "bfloat16":
        return False, f"it is for bfloat16 on a CPU, this is {dtype} on {device}"
    if not onednn.is_available():
        return False, "this torch has no oneDNN"
    return True, "bfloat16 on a CPU with oneDNN"


def resolve_cache_tokens(options: EmbeddedOptions, facts: ModelFacts) -> tuple[int, str]:
    """(positions that all pages hold, reason)."""
    if options.cache_tokens is not None:
        return options.cache_tokens, "given"
    one_context = facts.max_positions or DEFAULT_TOKENS_PER_SLOT
    tokens = max(options.slots * DEFAULT_TOKENS_PER_SLOT, one_context)
    return tokens, f"{DEFAULT_TOKENS_PER_SLOT} for each slot, and one context of {one_context}"
