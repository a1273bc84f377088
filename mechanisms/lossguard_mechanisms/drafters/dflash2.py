"""DFlash2: a block in one pass, with a dynamic convolution inside the block and a selector of neighbouring candidates.

The selector scores candidate c at depth d after candidate p at depth d - 1 by
``log q_d(c) + <A[p] * (W h_d), B[c]>``: a bigram of low rank that the block's hidden state bends
(https://inco.ai/blog/dflash2/, https://docs.vllm.ai/projects/speculators/en/latest/user_guide/algorithms/dflash2/).
"""

from __future__ import annotations

from torch import Tensor, nn

from lossguard_mechanisms.drafters.block import BlockDrafter
from lossguard_mechanisms.drafters.candidates import best_candidates, log_probabilities, predecessors, walk
from lossguard_mechanisms.drafters.config import DrafterConfig
from lossguard_mechanisms.drafters.lattice import Lattice
from lossguard_mechanisms.drafters.state import DrafterState
from lossguard_mechanisms.targets.decoder import Target
from lossguard_mechanisms.targets.norms import widen
from lossguard_mechanisms.targets.rows import Rows


class Selector(nn.Module):
    """A bigram of low rank over pairs of candidates."""

    def __init__(self, vocab_size: int, hidden: int, rank: int) -> None:
        super().__init__()
        self.before = nn.Embedding(vocab_size, rank)  # A
        self.after = nn.Embedding(vocab_size, rank)  # B
        self.hidden_proj = nn.Linear(hidden, rank, bias=False)  # W

    def forward(self, hidden: Tensor, before: Tensor, after: Tensor) -> Tensor:
        """``hidden`` [..., H] with token ids ``before`` [..., P] and ``after`` [..., C] to scores [..., P, C]."""
        bent = self.before(before) * self.hidden_proj(hidden)[..., None, :]
        scores: Tensor = widen(bent) @ widen(self.after(after)).transpose(-1, -2)
        return scores


class Dflash2(BlockDrafter):
    """See the module; a ``base.Drafter``."""

    def __init__(self, config: DrafterConfig, target: Target) -> None:
        super().__init__(config, target)
        self.selector = Selector(target.config.vocab_size, target.config.hidden_size, config.rank)

    def draft(self, state: DrafterState, rows: Rows, anchors: Tensor, *, num_depths: int | None = None) -> Lattice:
        """See ``base.Drafter``. Fewer depths run a shorter block, whose candidates are a little different."""
        hidden = self.draft_hidden(state, rows, anchors, num_depths or self.num_depths)
        ids, log_probs = best_candidates(log_probabilities(self.target.logits(hidden)))
        edges = log_probs[:, :, None] + self.selector(hidden, predecessors(anchors, ids), ids)
        return Lattice(ids=ids, log_probs=log_probs, chain=walk(ids, edges), edges=edges, confidence=None)
