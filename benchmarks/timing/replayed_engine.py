"""A replayed target behind the timing gate: ``engine = "benchmarks.timing.replayed_engine:create"``.

Random weights of a released model's shape give every step its time, a recording gives it its tokens and the drafter's
candidates (``lossguard_mechanisms.engine.replayed``). Replies are the recorded ones whatever was asked, so that all
sides serve the same: this engine is for ``lossguard time`` only, and says nothing about what is lossless.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from benchmarks.replayed_setting import PLAIN, SIDES, TREE, Choice, make_setting
from benchmarks.replayed_tables import recorded_table
from lossguard.engines.base import Capabilities, EngineSpec, ForcedPrefix
from lossguard.engines.options import OptionReader, bad_option, refuse_unknown
from lossguard.errors import EngineError
from lossguard.records import Request, ServedOutput
from lossguard_mechanisms.engine.core import EngineCore
from lossguard_mechanisms.engine.replayed import LABEL
from lossguard_mechanisms.engine.sequence import Job
from lossguard_mechanisms.engine.shapes import TARGETS
from lossguard_mechanisms.trees.names import BEST_FIRST, CHAIN, POLICIES

OPTIONS = ("shape", "mode", "policy", "nodes", "drafts", "compiled", "recording", "rows", "device")
SAMPLING = frozenset({"ignore_eos", "stop_ids"})
LONGEST_REPLY = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """What is served: ``mode`` plain decoding, the drafter's chain, or a tree."""

    choice: Choice
    mode: str
    recording: str
    num_rows: int  # recorded sequences, among which requests are shared out by their ids
    device: str


class ReplayedEngine:
    """Serves one request at a time; see ``lossguard.engines.base.Engine`` for the contract of each method."""

    def __init__(self, options: ReplayOptions) -> None:
        self._options = options
        self._core: EngineCore | None = None

    @property
    def capabilities(self) -> Capabilities:
        """Greedy decoding."""
        return Capabilities(sampling=SAMPLING, logit_dtype="bfloat16", concurrency=1)

    def fingerprint(self) -> Mapping[str, Any]:
        """What is served, from which recording, and the device's name."""
        options, choice = self._options, self._options.choice
        return {
            "engine": "replayed",
            "label": LABEL,
            "mode": options.mode,
            **asdict(choice),
            "rows": options.num_rows,
            "recording": sha256(Path(options.recording).read_bytes()).hexdigest(),
            "torch": torch.__version__,
            "device_name": torch.cuda.get_device_name() if options.device == "cuda" else "cpu",
        }

    def serve(self, requests: Sequence[Request]) -> Iterator[ServedOutput]:
        """Yield each reply as it ends. Raises EngineError LG0217, or UsageError LG1504 for too long a prompt."""
        for request in requests:
            _require_fit(request)
        core = self._loaded()
        for request in requests:
            yield from self._served(core, request)

    def forced_decode(self, batch: Sequence[ForcedPrefix]) -> list[tuple[int, ...]]:
        """Not offered: this engine is for time."""
        raise _refused(f"{len(batch)} forced prefixes", "recorded replies, of which nothing is decided")

    def reset(self) -> Mapping[str, Any]:
        """Facts after a check that every slot and page is free: the same after every reset."""
        core = self._loaded()
        core.check_integrity()
        return {"running": len(core.running), "has_work": core.has_work}

    def close(self) -> None:
        """Drop weights, memory and graphs."""
        self._core = None
        gc.collect()
        if self._options.device == "cuda":
            torch.cuda.empty_cache()

    def _loaded(self) -> EngineCore:
        if self._core is None:
            torch.manual_seed(0)
            options, device = self._options, torch.device(self._options.device)
            setting = make_setting(options.choice, device)
            table = recorded_table(
                Path(options.recording),
                batch=options.num_rows,
                length=LONGEST_REPLY,
                num_drafts=options.choice.num_drafts,
                device=device,
                has_lattices=options.mode == TREE,
            )
            self._core = setting.core(table, 1, setting.sides[options.mode])
        return self._core

    def _served(self, core: EngineCore, request: Request) -> Iterator[ServedOutput]:
        row = int.from_bytes(sha256(request.id.encode()).digest()[:4], "big") % self._options.num_rows
        named = replace(request, id=f"r{row}")
        sampling = request.sampling
        stop_ids = frozenset(() if sampling.ignore_eos else sampling.stop_ids)
        core.add(Job(request=named, key=0, stop_ids=stop_ids, sent_ns=time.monotonic_ns()))
        while core.has_work:
            for ended in core.step():
                yield replace(ended.output(), request_id=request.id)


def create(spec: EngineSpec) -> ReplayedEngine:
    """Options: ``shape``, ``mode`` (plain, chain, tree), ``policy``, ``nodes``, ``drafts``, ``compiled``, ``recording``
    (a file of ``lossguard lattice record``, with all pairs of candidates for trees), ``rows``, ``device``.

    Raises UsageError LG0204.
    """
    refuse_unknown(spec, OPTIONS)
    read = OptionReader(spec.name, spec.options)
    mode = read.choice("mode", PLAIN, SIDES)
    recording = read.text("recording", "fixtures/lattices/dflash2.lattice.safetensors")
    if not Path(recording).is_file():
        raise bad_option(spec.name, f"has recording = {recording!r}, which is no file")
    trees = tuple(name for name in POLICIES if name != CHAIN)
    choice = Choice(
        shape=read.choice("shape", "qwen3-8b", tuple(TARGETS)),
        num_drafts=read.positive("drafts", 7),
        policy=read.choice("policy", BEST_FIRST, trees) if mode == TREE else CHAIN,
        num_nodes=read.positive("nodes", 16),
        is_compiled=read.flag("compiled", default=True),
    )
    return ReplayedEngine(
        ReplayOptions(
            choice=choice,
            mode=mode,
            recording=recording,
            num_rows=read.positive("rows", 24),
            device=read.choice("device", "cuda", ("cuda", "cpu")),
        )
    )


def _require_fit(request: Request) -> None:
    sampling = request.sampling
    if sampling.max_tokens > LONGEST_REPLY or not sampling.is_greedy:
        raise _refused(
            f"{sampling.max_tokens} tokens at temperature {sampling.temperature}",
            f"greedy replies of at most {LONGEST_REPLY} tokens",
        )


def _refused(found: str, offered: str) -> EngineError:
    return EngineError(
        f"the replayed engine was asked for {found}",
        why=f"it offers {offered}",
        fix="time it with lossguard time: greedy requests, no longer than that",
        code="LG0217",
    )
