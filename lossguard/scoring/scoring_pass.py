"""One call of ``score``: walks the prefix trees in batches and sends their output states through the head."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lossguard.records import SamplingParams
from lossguard.scoring.backbone import Backbone, Continuation, Prefix, padded
from lossguard.scoring.grammar_masks import GrammarWalk
from lossguard.scoring.head_columns import RowsToScore, TileSizes, score_rows
from lossguard.scoring.lm_head import Fp32Head
from lossguard.scoring.prefix_tree import Node
from lossguard.scoring.replayed_parameters import ReplayedRequest, RowContext
from lossguard.scoring.sampled_columns import stack_sampling
from lossguard.scoring.score_sheet import ScoreSheet

HEAD_ROWS: Final = 2048
"""Output states that are collected before the head runs: enough that reading its weights once pays."""
_CACHE_FACTOR: Final = 4
"""Places of the key-value cache that one batch of tails may hold, in token budgets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassPlan:
    """What one call runs with."""

    backbone: Backbone
    head: Fp32Head
    sizes: TileSizes
    token_budget: int
    top_k: int
    sampling: tuple[SamplingParams, ...]  # nodes point into it
    replayed: tuple[ReplayedRequest | None, ...]  # for each of them, the request whose parameters are to be replayed
    progress: Callable[[int], None] | None


class ScoringPass:
    """Runs trees and fills a sheet."""

    def __init__(self, plan: PassPlan, sheet: ScoreSheet) -> None:
        self._plan = plan
        self._sheet = sheet
        self._queue = _HeadQueue()
        self._num_reported = 0

    def run(self, roots: Sequence[Node]) -> None:
        """Score all trees. Batches depend on lengths and tokens only, not on the order of the jobs."""
        for batch in length_batches([(root, 0, 0) for root in roots], self._plan.token_budget):
            self._visit(batch, None)
        self._flush()
        self._report(self._sheet.num_slots - self._num_reported)  # what no state exists for

    def _report(self, num_tokens: int) -> None:
        self._num_reported += num_tokens
        if self._plan.progress is not None and num_tokens:
            self._plan.progress(num_tokens)

    def _visit(self, batch: list[Item], prefix: Prefix | None) -> None:
        backbone = self._plan.backbone
        nodes = [node for node, _, _ in batch]
        tokens, lengths = padded([node.tokens for node in nodes], backbone.device)
        has_children = any(node.children for node in nodes)
        own: Prefix | None = None
        if prefix is not None:
            parents = torch.tensor([parent for _, parent, _ in batch], device=backbone.device)
            hidden, own = backbone.run_from(
                Continuation(prefix=prefix, parents=parents, keep=has_children), tokens, lengths
            )
        elif has_children:
            hidden, own = backbone.run_keeping(tokens, lengths)
        else:
            hidden = backbone.run(tokens)
        self._queue.add(hidden, nodes)
        del hidden
        if self._queue.num_rows >= HEAD_ROWS:
            self._flush()
        if own is not None and has_children:
            self._visit_children(batch, own)

    def _visit_children(self, batch: list[Item], prefix: Prefix) -> None:
        children = [
            (child, row, depth + len(node.tokens))
            for row, (node, _, depth) in enumerate(batch)
            for child in node.children
        ]
        for group in length_batches(children, self._plan.token_budget):
            self._visit(group, prefix)

    def _flush(self) -> None:
        if self._queue.num_rows == 0:
            return
        queued = self._queue.take()
        greedy = torch.tensor([item.is_greedy for item in self._plan.sampling])[queued.sampling]
        plain = torch.tensor([item is None for item in self._plan.replayed])[queued.sampling]
        for chosen in (greedy & plain, greedy & ~plain, ~greedy & plain, ~greedy & ~plain):
            rows = torch.nonzero(chosen).squeeze(1)
            if len(rows):
                self._score(queued, rows)

    def _score(self, queued: _Queued, rows: Tensor) -> None:
        """Score rows that are all greedy or all sampled, and all with parameters to replay or all without."""
        plan = self._plan
        hidden = queued.hidden[rows.to(queued.hidden.device)]
        index = queued.sampling[rows]
        is_greedy = plan.sampling[int(index[0])].is_greedy
        sampling = None if is_greedy else stack_sampling(list(plan.sampling), index, plan.head.device)
        contexts = queued.contexts(rows, plan.replayed) if plan.replayed[int(index[0])] is not None else None
        given = RowsToScore(hidden=hidden, served=queued.served[rows], sampling=sampling, contexts=contexts)
        columns = score_rows(plan.head, given, plan.top_k, plan.sizes)
        place = np.full(len(queued.served), -1, dtype=np.int64)
        place[rows.numpy()] = np.arange(len(rows))
        mine = place[queued.slot_rows] >= 0
        values = {name: column.cpu().numpy() for name, column in columns.items()}
        if contexts is None:  # what would be best without parameters is what is best
            everywhere = np.ones(len(rows), dtype=np.bool_)
            values |= {"plain_gap": values["gap"], "plain_best_id": values["best_id"], "replayed": everywhere}
        self._sheet.fill(queued.slots[mine], place[queued.slot_rows[mine]], values)
        self._report(int(mine.sum()))


Item = tuple[Node, int, int]  # the node, its parent's row, tokens before it


@dataclass(frozen=True, slots=True, kw_only=True)
class _Queued:
    hidden: Tensor  # [N, D]
    served: Tensor  # [N] int64, on the CPU
    sampling: Tensor  # [N] int64, on the CPU
    slots: NDArray[np.int64]  # [S]
    slot_rows: NDArray[np.int64]  # [S]
    nodes: Sequence[Node]
    node: NDArray[np.int64]  # [N] which node a row is from
    position: NDArray[np.int64]  # [N] its place in the reply

    def contexts(self, rows: Tensor, replayed: Sequence[ReplayedRequest | None]) -> list[RowContext]:
        """What stands before each of these rows, whose requests all have parameters to replay."""
        walks: dict[int, GrammarWalk | None] = {}
        found = []
        for row in rows.tolist():
            number = int(self.node[row])
            request = replayed[self.nodes[number].sampling]
            if request is None:
                raise AssertionError(f"row {row} has no parameters to replay")
            if number not in walks:
                walks[number] = request.walk()
            prefix = self.nodes[number].reply[: self.position[row]]
            found.append(RowContext(request=request, prefix=prefix, walk=walks[number]))
        return found


class _HeadQueue:
    """Output states that wait for the head."""

    def __init__(self) -> None:
        self.num_rows = 0
        self._hidden: list[Tensor] = []
        self._nodes: list[Node] = []

    def add(self, hidden: Tensor, nodes: Sequence[Node]) -> None:
        """Take the output states of a batch [R, L, D]."""
        row = np.concatenate([np.full(len(node.served), index) for index, node in enumerate(nodes)])
        position = np.concatenate([node.output_index for node in nodes])
        place = torch.from_numpy(row * hidden.shape[1] + position).to(hidden.device)
        self._hidden.append(hidden.reshape(-1, hidden.shape[-1]).index_select(0, place))
        self._nodes.extend(nodes)
        self.num_rows += len(row)

    def take(self) -> _Queued:
        """Everything queued, which is then empty."""
        nodes = self._nodes
        counts = [len(node.served) for node in nodes]
        starts = np.cumsum([0, *counts])
        queued = _Queued(
            hidden=torch.cat(self._hidden),
            served=torch.from_numpy(np.concatenate([node.served for node in nodes])),
            sampling=torch.from_numpy(np.repeat([node.sampling for node in nodes], counts)),
            slots=np.concatenate([node.slots for node in nodes]),
            slot_rows=np.concatenate([node.slot_rows + start for node, start in zip(nodes, starts[:-1], strict=True)]),
            nodes=nodes,
            node=np.repeat(np.arange(len(nodes)), counts),
            position=np.concatenate([node.position for node in nodes]),
        )
        self.num_rows, self._hidden, self._nodes = 0, [], []
        return queued


def length_batches(items: list[Item], token_budget: int) -> Iterator[list[Item]]:
    """Items of similar length whose padded batch keeps to the budget (an item over it runs alone)."""
    batch: list[Item] = []
    longest = deepest = 0
    for item in sorted(items, key=lambda item: (len(item[0].tokens), item[2], item[0].tokens.tobytes())):
        node, _, depth = item
        longest_now, deepest_now = max(longest, len(node.tokens)), max(deepest, depth)
        num_rows = len(batch) + 1
        too_long = num_rows * longest_now > token_budget
        too_deep = num_rows * (longest_now + deepest_now) > _CACHE_FACTOR * token_budget
        if batch and (too_long or too_deep):
            yield batch
            batch, longest_now, deepest_now = [], len(node.tokens), depth
        batch.append(item)
        longest, deepest = longest_now, deepest_now
    if batch:
        yield batch
