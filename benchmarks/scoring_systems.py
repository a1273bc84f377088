"""What the scorer is compared with: lm-eval's HFLM, the same operations without lm-eval, and the headless forward."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.scoring_work import Work
from lossguard.scoring.backbone import Backbone, padded
from lossguard.scoring.prefix_tree import Node, build_roots, cut_reply
from lossguard.scoring.scoring_pass import length_batches
from lossguard.scoring.torch_scorer import TorchScorer, TorchScorerSpec, scorer_from_model

Run = Callable[[Work], None]


def scorer_run(model: nn.Module, token_budget: int | None, *, share: bool) -> tuple[Run, TorchScorer]:
    """The scorer under test."""
    spec = TorchScorerSpec(model_path="", token_budget=token_budget, share_prefixes=share)
    scorer = scorer_from_model(model, spec)
    return (lambda work: _drop(scorer.score(work.jobs()))), scorer


def headless_run(model: nn.Module, token_budget: int) -> Run:
    """The base model alone over the batches that the scorer forms without sharing."""
    backbone = Backbone(model)

    @torch.inference_mode()
    def run(work: Work) -> None:
        for nodes in _node_batches(work, token_budget):
            tokens, _ = padded([node.tokens for node in nodes], backbone.device)
            backbone.run(tokens)

    return run


def logits_run(model: nn.Module, token_budget: int) -> Run:
    """What HFLM's log-likelihood computes, without lm-eval: all logits, log-softmax, argmax, gather."""
    backbone = Backbone(model)

    @torch.inference_mode()
    def run(work: Work) -> None:
        for nodes in _node_batches(work, token_budget):
            tokens, _ = padded([node.tokens for node in nodes], backbone.device)
            logprobs = torch.log_softmax(model(input_ids=tokens).logits, dim=-1)
            for row, node in zip(logprobs, nodes, strict=True):
                reply = row[torch.from_numpy(node.output_index).to(row.device)]
                served = torch.from_numpy(node.served).to(row.device)
                float(reply.gather(1, served[:, None]).sum())
                bool((reply.argmax(dim=-1) == served).all())

    return run


def hflm_run(model: nn.Module, tokenizer: Any, batch_size: int, max_length: int) -> Run:
    """lm-eval's HFLM at one batch size, on token ids."""
    from lm_eval.models.huggingface import HFLM

    logging.getLogger("lm_eval").setLevel(logging.ERROR)  # it warns about being given a model that is loaded
    hflm = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=batch_size, max_length=max_length)

    def run(work: Work) -> None:
        requests = [(("", ""), prompt, reply) for prompt, reply in work.sequences()]
        hflm._loglikelihood_tokens(requests, disable_tqdm=True)

    return run


def _node_batches(work: Work, token_budget: int) -> list[list[Node]]:
    roots: list[Node] = []
    for prompt, reply in work.sequences():
        roots += build_roots(prompt, [cut_reply(reply, 0, 1 << 31)], 0, share=False)
    items = [(root, 0, 0) for root in roots]
    return [[node for node, _, _ in batch] for batch in length_batches(items, token_budget)]


def _drop(_: object) -> None:
    return None
