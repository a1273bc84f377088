"""DSpark: a block in one pass, then a Markov head from token to token, and its confidence in each.

Logits of depth k after token x are ``base_k + W2 W1[x]``, so that the chain is serial but needs no further pass; the
confidence is ``sigmoid(w [h_k ; W1[x]])`` (https://arxiv.org/abs/2607.05147).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lossguard_mechanisms.drafters.block import BlockDrafter
from lossguard_mechanisms.drafters.candidates import best_candidates, predecessors
from lossguard_mechanisms.drafters.config import DrafterConfig
from lossguard_mechanisms.drafters.lattice import Lattice
from lossguard_mechanisms.drafters.state import DrafterState
from lossguard_mechanisms.targets.decoder import Target
from lossguard_mechanisms.targets.norms import widen
from lossguard_mechanisms.targets.rows import Rows


class MarkovHead(nn.Module):
    """What the token before adds to the logits, and the confidence that goes with it."""

    def __init__(self, vocab_size: int, hidden: int, rank: int) -> None:
        super().__init__()
        self.before = nn.Embedding(vocab_size, rank)  # W1
        self.after = nn.Linear(rank, vocab_size, bias=False)  # W2
        self.confidence_proj = nn.Linear(hidden + rank, 1)

    def logits(self, before: Tensor) -> Tensor:
        """Token ids [...] to what they add, [..., V]."""
        added: Tensor = self.after(self.before(before))
        return added

    def edges(self, before: Tensor, after: Tensor) -> Tensor:
        """Token ids [..., P] and [..., C] to what is added, [..., P, C]."""
        rows = self.after.weight[after]
        return widen(self.before(before)) @ widen(rows).transpose(-1, -2)

    def confidence_logits(self, hidden: Tensor, before: Tensor) -> Tensor:
        """``hidden`` [..., H] and the ids [...] before it to the logit of the confidence [...]."""
        both = torch.cat((hidden, self.before(before)), dim=-1)
        return widen(self.confidence_proj(both))[..., 0]


class Dspark(BlockDrafter):
    """See the module; a ``base.Drafter``."""

    def __init__(self, config: DrafterConfig, target: Target) -> None:
        super().__init__(config, target)
        self.markov = MarkovHead(target.config.vocab_size, target.config.hidden_size, config.rank)

    def draft(self, state: DrafterState, rows: Rows, anchors: Tensor, *, num_depths: int | None = None) -> Lattice:
        """See ``base.Drafter``. Candidates are those after the chain's own tokens; edges hold for any candidate."""
        hidden = self.draft_hidden(state, rows, anchors, num_depths or self.num_depths)
        base = widen(self.target.logits(hidden))
        chain, log_totals, confidence, found = anchors, [], [], []
        taken = []
        for depth in range(hidden.shape[1]):
            logits = base[:, depth] + widen(self.markov.logits(chain))
            confidence.append(self.markov.confidence_logits(hidden[:, depth], chain).sigmoid())
            log_totals.append(logits.logsumexp(-1))
            found.append(best_candidates(logits))
            chain = found[-1][0][:, 0]
            taken.append(chain)
        ids = torch.stack([pair[0] for pair in found], dim=1)
        log_total = torch.stack(log_totals, dim=1)[..., None]
        log_probs = torch.stack([pair[1] for pair in found], dim=1) - log_total
        unary = base.gather(-1, ids) - log_total
        edges = unary[:, :, None] + self.markov.edges(predecessors(anchors, ids), ids)
        return Lattice(
            ids=ids,
            log_probs=log_probs,
            chain=torch.stack(taken, dim=1),
            edges=edges,
            confidence=torch.stack(confidence, dim=1),
        )
