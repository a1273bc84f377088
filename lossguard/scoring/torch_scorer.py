"""The torch scorer: teacher-forces served tokens through the target's own weights under an FP32 LM head."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
import transformers
from torch import Tensor, nn

from lossguard.errors import ScorerError
from lossguard.records import ForcedScores, Request, SamplingParams
from lossguard.scoring.backbone import Backbone, Continuation, padded
from lossguard.scoring.base import ScoringJob
from lossguard.scoring.grammar_masks import GrammarMasks, load_grammar_masks
from lossguard.scoring.head_columns import tile_sizes
from lossguard.scoring.lm_head import Fp32Head, build_head, verify_head
from lossguard.scoring.prefix_tree import Node, Reply, build_roots, check_job, cut_reply, nested_groups
from lossguard.scoring.replayed_parameters import CONVENTIONS, ReplayedRequest, replayed_request
from lossguard.scoring.score_sheet import ScoreSheet
from lossguard.scoring.scoring_pass import PassPlan, ScoringPass
from lossguard.scoring.spec import DEFAULT_CONVENTION, TorchScorerSpec, spec_from_options

__all__ = ["TorchScorer", "TorchScorerSpec", "create_torch_scorer", "scorer_from_model", "torch_scorer_factory"]

_CPU_BUDGET: Final = (2048, "2,048 tokens a pass: on CPUs larger batches are no faster and need more memory")
_CUDA_BUDGET: Final = (16384, "16,384 tokens a pass: enough to fill a GPU")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sharing:
    enabled: bool
    reason: str
    is_wanted: bool = True

    @property
    def joins_arms(self) -> bool:
        """Whether a pass may score several arms: along a tree, or where one arm's inputs begin as another's."""
        return self.enabled or self.is_wanted

    def groups(self, replies: Sequence[Reply]) -> list[list[Reply]]:
        """Replies to one prompt, by the tree that scores them; without a cache no tree may fork."""
        return nested_groups(replies) if self.is_wanted and not self.enabled else [list(replies)]


class TorchScorer:
    """See ``lossguard.scoring.base.Scorer``. Build it with ``create_torch_scorer`` or ``scorer_from_model``."""

    def __init__(self, model: nn.Module, spec: TorchScorerSpec) -> None:
        self._spec = spec
        self._model: nn.Module | None = model.eval()
        self._backbone: Backbone | None = Backbone(model)
        self._head: Fp32Head | None = build_head(model)
        self._dtype = next(model.parameters()).dtype
        if spec.top_k + 1 > self._head.vocab_size:
            raise _failed(f"top_k {spec.top_k} of {self._head.vocab_size} tokens", "lower top_k", "LG0507")
        budget, reason = _CUDA_BUDGET if self._head.device.type == "cuda" else _CPU_BUDGET
        given = spec.token_budget
        self._budget, self._budget_reason = (budget, reason) if given is None else (given, "given")
        self._head_difference = _check_head(model, self._backbone, self._head, self._dtype)
        self._sharing = _choose_sharing(self._backbone, spec, self._dtype)
        self._masks: tuple[GrammarMasks | None] | None = None  # not looked for yet

    @property
    def vocab_size(self) -> int:
        """Number of rows of the LM head."""
        return self._parts()[1].vocab_size

    @property
    def sharing_reason(self) -> str:
        """Whether prefixes are shared, and why."""
        return self._sharing.reason

    def fingerprint(self) -> Mapping[str, Any]:
        """Facts that change numerics, and the reason of every automatic choice."""
        backbone, head = self._parts()
        config: Any = getattr(self._model, "config", None)
        return {
            "scorer": "torch",
            "model_class": type(self._model).__name__,
            "dtype": str(self._dtype).removeprefix("torch."),
            "device": _device_name(backbone.device),
            "device_map": None if self._spec.device_map is None else str(self._spec.device_map),
            "threads": torch.get_num_threads(),
            "attention": getattr(config, "_attn_implementation", None),
            "head_product": head.product.kind,
            "head_product_reason": head.product.reason,
            "head_scale": head.transform.scale,
            "head_soft_cap": head.transform.soft_cap,
            "head_difference_nats": self._head_difference,
            "share_prefixes": self._sharing.enabled,
            "share_prefixes_reason": self._sharing.reason,
            "token_budget": self._budget,
            "token_budget_reason": self._budget_reason,
            "top_k": self._spec.top_k,
            **({} if self._spec.convention == DEFAULT_CONVENTION else {"convention": self._spec.convention}),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        }

    def score(self, jobs: Sequence[ScoringJob], *, progress: Callable[[int], None] | None = None) -> list[ForcedScores]:
        """One ForcedScores per arm, requests in the order of ``jobs``.

        Positions behind a served id that has no embedding are reported not finite: nothing can be forced through it.
        Parameters that change which token is best are replayed; ``replayed`` is False where a grammar cannot be, for
        want of llguidance or because the reply has left it. Raises ScorerError for prompts or sampling that cannot be
        scored, and when memory runs out.
        """
        backbone, head = self._parts()
        keys, sampling, replayed = self._kinds([job.request for job in jobs])
        sampled = any(not item.is_greedy for item in sampling)
        sheet = ScoreSheet(jobs, self._spec.top_k, sampled=sampled, replayed=any(replayed))
        roots = self._plan_roots(jobs, sheet, keys)
        plan = PassPlan(
            backbone=backbone,
            head=head,
            sizes=tile_sizes(head.device, head.vocab_size),
            token_budget=self._budget,
            top_k=self._spec.top_k,
            sampling=sampling,
            replayed=replayed,
            progress=progress,
        )
        try:
            with torch.inference_mode():
                ScoringPass(plan, sheet).run(roots)
        except torch.OutOfMemoryError as error:
            fix = f"lower token_budget (now {self._budget}) or score on more devices"
            raise _failed("memory ran out while scoring", fix, "LG0509") from error
        return sheet.scores()

    def close(self) -> None:
        """Give back memory; the scorer is of no use afterwards. May be called twice."""
        self._model = self._backbone = self._head = None
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _parts(self) -> tuple[Backbone, Fp32Head]:
        if self._backbone is None or self._head is None:
            raise _failed("the scorer is closed", "create a new one", "LG0507")
        return self._backbone, self._head

    def _kinds(
        self, requests: Sequence[Request]
    ) -> tuple[list[int], tuple[SamplingParams, ...], tuple[ReplayedRequest | None, ...]]:
        """(the kind of each request, sampling of each kind, what to replay in it): one kind per distinct sampling.

        Requests with parameters to replay are a kind each, since these depend on the prompt.
        """
        kinds: dict[tuple[SamplingParams, str | None], tuple[int, ReplayedRequest | None]] = {}
        keys = []
        for request in requests:
            found = self._replayed(request)
            key = (request.sampling, None if found is None else request.id)
            keys.append(kinds.setdefault(key, (len(kinds), found))[0])
        return keys, tuple(sampling for sampling, _ in kinds), tuple(found for _, found in kinds.values())

    def _replayed(self, request: Request) -> ReplayedRequest | None:
        masks = None if request.sampling.grammar is None else self._grammar_masks()
        found = replayed_request(request, CONVENTIONS[self._spec.convention], masks)
        if found is not None and not found.is_whole and not request.sampling.is_greedy:
            fix = "pip install 'lossguard[grammar]', or leave the grammar out of sampled prompts"
            raise _failed(f"request {request.id!r} is sampled with a grammar that cannot be replayed", fix, "LG0507")
        return found

    def _grammar_masks(self) -> GrammarMasks | None:
        if self._masks is None:
            self._masks = (load_grammar_masks(self._spec.model_path, self.vocab_size),)
        return self._masks[0]

    def _plan_roots(self, jobs: Sequence[ScoringJob], sheet: ScoreSheet, keys: Sequence[int]) -> list[Node]:
        num_embeddings = self._parts()[0].num_embeddings
        roots: list[Node] = []
        for index, job in enumerate(jobs):
            check_job(job, num_embeddings)
            replies = [
                cut_reply(output.ids, sheet.first_slot(index, arm), num_embeddings)
                for arm, output in enumerate(job.outputs)
            ]
            for group in self._sharing.groups(replies):
                roots += build_roots(job.request.prompt_ids, group, keys[index], share=self._sharing.joins_arms)
        return roots


def create_torch_scorer(spec: TorchScorerSpec) -> TorchScorer:
    """Load the model's own weights and make a scorer. Nothing is downloaded. Raises ScorerError."""
    if spec.threads is not None:
        torch.set_num_threads(spec.threads)
    return scorer_from_model(_load_model(spec), spec)


def scorer_from_model(model: nn.Module, spec: TorchScorerSpec) -> TorchScorer:
    """A scorer of a causal LM that is in memory already; ``spec`` says how to score, not what to load."""
    return TorchScorer(model, spec)


def torch_scorer_factory(model_path: str, options: Mapping[str, Any]) -> TorchScorer:
    """The entry point ``torch`` of the group ``lossguard.scorers``. Raises UsageError for unknown options."""
    return create_torch_scorer(spec_from_options(model_path, options))


def _load_model(spec: TorchScorerSpec) -> nn.Module:
    if not Path(spec.model_path).is_dir():
        raise _failed(f"no model folder {spec.model_path!r}", "give the folder with config.json and weights", "LG0503")
    placement: dict[str, Any] = {} if spec.device_map is None else {"device_map": spec.device_map}
    dtype = "auto" if spec.dtype == "auto" else getattr(torch, spec.dtype)
    try:
        model: nn.Module = transformers.AutoModelForCausalLM.from_pretrained(
            spec.model_path, dtype=dtype, local_files_only=True, **placement
        )
    except (OSError, ValueError, ImportError) as error:
        fix = "see the cause above; the folder must hold a causal LM that transformers loads"
        raise _failed(f"cannot load {spec.model_path}: {error}", fix, "LG0503") from error
    return model if spec.device_map is not None else model.to(_device(spec.device))


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise _failed("no CUDA device is here", 'use device = "cpu", or run where the GPU is', "LG0503")
    return torch.device(name)


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


def _probe_tokens(backbone: Backbone, num_tokens: int) -> Tensor:
    """Tokens spread over the vocabulary, the same every time, [1, n]."""
    step = 7919 % backbone.num_embeddings or 1
    return (torch.arange(1, num_tokens + 1, device=backbone.device) * step % backbone.num_embeddings)[None, :]


@torch.inference_mode()
def _check_head(model: nn.Module, backbone: Backbone, head: Fp32Head, dtype: torch.dtype) -> float:
    tokens = _probe_tokens(backbone, 8)
    hidden = backbone.run(tokens)[0]
    own = head.logits(head.prepare(hidden), 0, head.vocab_size)
    theirs: Tensor = model(input_ids=tokens, use_cache=False).logits[0]
    return verify_head(own, theirs.to(own.device), dtype, head.transform.num_roundings)


def _choose_sharing(backbone: Backbone, spec: TorchScorerSpec, dtype: torch.dtype) -> _Sharing:
    if not spec.share_prefixes:
        return _Sharing(enabled=False, reason="off: share_prefixes = false", is_wanted=False)
    problem = backbone.why_no_cache()
    if problem is None:
        problem = _check_sharing(backbone, dtype)
    if problem is not None:
        return _Sharing(
            enabled=False,
            reason=f"off: {problem}; an arm is scored in a pass of its own, or in that of one that begins alike",
        )
    return _Sharing(enabled=True, reason="on: tails from a shared cache agree with single passes on a probe")


@torch.inference_mode()
def _check_sharing(backbone: Backbone, dtype: torch.dtype) -> str | None:
    """Run two short sequences whole and as prefix and tail; the problem if the tails' states do not agree."""
    tokens = _probe_tokens(backbone, 24)[0]
    whole = torch.stack([tokens[:16], tokens[8:]])
    heads, lengths = padded([tokens[:9].cpu().numpy(), tokens[8:14].cpu().numpy()], backbone.device)
    rest, rest_lengths = padded([whole[0, 9:].cpu().numpy(), whole[1, 6:].cpu().numpy()], backbone.device)
    try:
        expected = backbone.run(whole)
        _, prefix = backbone.run_keeping(heads, lengths)
        parents = torch.arange(2, device=backbone.device)
        got, _ = backbone.run_from(Continuation(prefix=prefix, parents=parents, keep=False), rest, rest_lengths)
    except (TypeError, ValueError, RuntimeError, AttributeError, LookupError) as error:
        return f"the model does not run from a given cache ({str(error).partition(chr(10))[0]})"
    pairs = ((got[0, :7], expected[0, 9:]), (got[1, :10], expected[1, 6:]))
    worst = max(float((mine - theirs).float().abs().max()) for mine, theirs in pairs)
    allowed = max(16 * torch.finfo(dtype).eps, 1e-3) * float(expected.float().abs().max())
    return None if worst <= allowed else f"states of a tail from a cache differ by {worst:.3g} (allowed {allowed:.3g})"


def _failed(found: str, fix: str, code: str) -> ScorerError:
    return ScorerError(found, why="without forced scores there is no verdict", fix=fix, code=code)
