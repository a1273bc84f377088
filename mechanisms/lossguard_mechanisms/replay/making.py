"""A recording from folders: load the models, get the replies, run the drafter along them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from lossguard.listener import Listener
from lossguard_mechanisms.drafters.base import Drafter
from lossguard_mechanisms.drafters.loading import load_drafter
from lossguard_mechanisms.replay.columns import RecordingOptions
from lossguard_mechanisms.replay.failures import bad_option
from lossguard_mechanisms.replay.generation import generate
from lossguard_mechanisms.replay.record import record
from lossguard_mechanisms.replay.recording import Provenance, Recording
from lossguard_mechanisms.replay.replies import SampledReplies, replies_of, replies_of_run
from lossguard_mechanisms.replay.sources import Wanted, requests_for, weights_sha256
from lossguard_mechanisms.targets.decoder import Target
from lossguard_mechanisms.targets.weights import load_target

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is to be recorded, from what. With ``run`` the replies of its ``system`` are taken."""

    target: Path
    drafter: Path
    wanted: Wanted
    options: RecordingOptions
    device: str
    dtype: str
    run: Path | None = None
    system: str = "stock"


def make_recording(order: Order, listener: Listener) -> Recording:
    """Make the recording. Raises the errors of its parts, and UsageError LG1614 for a device that is not there."""
    target, drafter, notes = _models(order)
    found = _replies(order, target, listener)
    provenance = Provenance(
        target=order.target.name,
        target_sha256=weights_sha256(order.target),
        drafter=drafter.name,
        drafter_sha256=weights_sha256(order.drafter),
        vocab_size=target.config.vocab_size,
        compute_dtype=order.dtype,
        temperature=found.temperature,
        seed=found.seed,
        prompts="a run's" if order.run is not None else "+".join(Path(name).name for name in order.wanted.sets),
        notes=(*notes, *found.notes),
    )
    with listener.stage(f"{drafter.name}: recording", found.replies.num_tokens, "positions") as progress:
        return record(target, drafter, found.replies, provenance, order.options, progress)


def _models(order: Order) -> tuple[Target, Drafter, tuple[str, ...]]:
    if order.dtype not in _DTYPES:
        raise bad_option(f"dtype {order.dtype!r} is none of {', '.join(_DTYPES)}")
    try:
        device = torch.empty(0, device=order.device).device
    except (RuntimeError, AssertionError) as error:  # torch says so where a build has no such device
        raise bad_option(f"device {order.device!r}: {error}") from error
    loaded = load_target(order.target, dtype=_DTYPES[order.dtype], device=device)
    return loaded.target, load_drafter(order.drafter, loaded.target), loaded.notes


def _replies(order: Order, target: Target, listener: Listener) -> SampledReplies:
    if order.run is not None:
        return replies_of_run(order.run, order.system, max_requests=order.wanted.num_requests)
    requests, notes = requests_for(order.target, order.wanted, longest=target.config.max_position_embeddings)
    total = sum(request.sampling.max_tokens for request in requests)
    with listener.stage(f"{order.target.name}: replying", total, "tokens") as progress:
        tokens = generate(target, requests, rows_at_once=order.options.rows_at_once, progress=progress)
    found = SampledReplies(
        replies=replies_of(requests, tokens), temperature=order.wanted.temperature, seed=order.wanted.seed
    )
    return replace(found, notes=notes)
