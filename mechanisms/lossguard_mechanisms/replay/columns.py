"""From a drafter's lattice to the arrays that a recording keeps of it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from lossguard_mechanisms.drafters.base import Drafter
from lossguard_mechanisms.drafters.lattice import Lattice
from lossguard_mechanisms.replay.failures import bad_option

_LEAST_LOG_PROBABILITY = -1000.0  # float16 holds it; what is less likely is kept as this


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingOptions:
    """What is kept, and how much is in memory at once. None: all that the drafter gives."""

    num_depths: int | None = None
    num_candidates: int | None = None
    num_edge_candidates: int | None = None
    """0 keeps no edges."""
    rows_at_once: int = 8192
    chunk_length: int = 256


def checked(options: RecordingOptions, drafter: Drafter) -> RecordingOptions:
    """The same options. Raises UsageError LG1614 for what the drafter cannot serve."""
    if options.num_depths is not None and not 1 <= options.num_depths <= drafter.num_depths:
        raise bad_option(f"{options.num_depths} depths of {drafter.num_depths} that {drafter.name} has")
    if options.num_candidates is not None and options.num_candidates < 1:
        raise bad_option(f"{options.num_candidates} candidates")
    if options.num_edge_candidates is not None and options.num_edge_candidates < 0:
        raise bad_option(f"edges of {options.num_edge_candidates} candidates")
    return options


def kept_columns(lattice: Lattice, options: RecordingOptions) -> dict[str, Tensor]:
    """The fields of ``Lattices`` for the positions of one draft, rounded as they are stored."""
    candidates = min(options.num_candidates or lattice.ids.shape[2], lattice.ids.shape[2])
    columns = {
        "ids": lattice.ids[:, :, :candidates].int(),
        "log_probs": _rounded(lattice.log_probs[:, :, :candidates]),
        "chain": lattice.chain.int(),
    }
    if lattice.confidence is not None:
        columns["confidence"] = lattice.confidence.half()
    width = candidates if options.num_edge_candidates is None else min(candidates, options.num_edge_candidates)
    if lattice.edges is not None and width:
        mass = lattice.log_probs.float().logsumexp(dim=2)[:, :, None, None]  # all candidates' share of the depth
        edges = lattice.edges.float().log_softmax(dim=3) + mass
        columns["anchor_edges"] = _rounded(edges[:, 0, 0, :width])
        columns["edges"] = _rounded(edges[:, 1:, :width, :width])
    return columns


def _rounded(log_probs: Tensor) -> Tensor:
    return log_probs.float().clamp(min=_LEAST_LOG_PROBABILITY, max=0.0).half()
