"""Arms: one system's replies to the test requests, scored beside stock's, with both arms' events audited."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from lossguard.checks.base import Arm, Thresholds
from lossguard.checks.events import fail_is_certain, unaudited_events
from lossguard.checks.problems import all_greedy
from lossguard.config import SystemConfig
from lossguard.records import AuditedEvent, FinishReason, Request, ServedOutput
from lossguard.run_folder import read_audit
from lossguard.stages.audit import AuditTask, audit, same_tokens, with_prefix_hash
from lossguard.stages.early_scoring import Early, stems_of
from lossguard.stages.forcing import ForcingTask, force
from lossguard.stages.loaded_facts import keep_loaded_facts
from lossguard.stages.serving import Asking, serve_missing
from lossguard.stages.waves import waves_as_exercised
from lossguard.stages.workspace import Workspace, with_test_logprobs


def served(
    workspace: Workspace,
    system: SystemConfig,
    requests: Sequence[Request],
    heard: Callable[[ServedOutput], None] = lambda _output: None,
) -> list[ServedOutput]:
    """The system's replies, in the order of the requests, asked as its exercise says; ``heard`` gets each."""
    path = workspace.folder.system(system.name) / "outputs.jsonl"
    total = sum(request.sampling.max_tokens for request in requests)
    how = Asking(
        ask=with_test_logprobs,
        note=workspace.note,
        waves=waves_as_exercised(system.exercise, requests),
        heard=heard,
    )
    ahead = workspace.ahead if workspace.ahead is not None and workspace.ahead.has(system) else None
    title = f"{system.name}: serving" if ahead is None else f"{system.name}: serving, begun ahead"
    with workspace.listener.stage(title, total, "tokens") as progress:
        if ahead is not None:
            ahead.follow(system, progress)
            progress = _silent  # told already
        outputs = serve_missing(lambda: workspace.engine(system), requests, path, progress, how)
    keep_loaded_facts(workspace, system)
    return outputs


def _silent(_num_tokens: int) -> None:
    """Progress that was told before."""


def scored_arms(
    workspace: Workspace,
    system: SystemConfig,
    requests: Sequence[Request],
    outputs: tuple[Sequence[ServedOutput], Sequence[ServedOutput]],
    early: Early | None = None,
) -> tuple[Arm, Arm]:
    """(stock, candidate), scored along one prefix tree; stock's replies are scored again beside each candidate."""
    early, stock = early or Early(), workspace.plan.stock
    task = ForcingTask(
        run=workspace.folder.path,
        requests=requests,
        arms=outputs,
        stems=stems_of(workspace, system),
        piece_requests=early.piece_requests,
        before_shard=early.wait,
    )
    total = sum(len(output.ids) for arm in outputs for output in arm)
    with workspace.listener.stage(f"{system.name}: scoring", total, "tokens") as progress:
        stock_scores, scores = force(workspace.scorer, task, progress)
    return (
        Arm(name=stock.name, outputs=outputs[0], scores=stock_scores, decoded=decoded(workspace, requests, outputs[0])),
        Arm(name=system.name, outputs=outputs[1], scores=scores, decoded=decoded(workspace, requests, outputs[1])),
    )


def decoded(workspace: Workspace, requests: Sequence[Request], outputs: Sequence[ServedOutput]) -> list[str | None]:
    """The text of each reply's ids by the target's own tokenizer, without the stop token; None where none is needed."""
    return [
        None if output.text is None else workspace.reply_text(request.prompt_ids, _shown_ids(request, output))
        for request, output in zip(requests, outputs, strict=True)
    ]


def _shown_ids(request: Request, output: ServedOutput) -> tuple[int, ...]:
    """Servers leave the token that stopped a reply out of its text."""
    by_token = output.finish_reason is FinishReason.STOP and not isinstance(output.stop_reason, str)
    is_stop = by_token and output.ids[-1:] and output.ids[-1] in request.sampling.stop_ids
    return output.ids[:-1] if is_stop else output.ids


def audited_arms(
    workspace: Workspace, requests: Sequence[Request], arms: tuple[Arm, Arm], thresholds: Thresholds
) -> tuple[Arm, Arm]:
    """The same arms with their events audited on stock: stock's all, the candidate's until FAIL is certain.

    Sampled tokens are no events: a gap is what the temperature asks for.
    """
    stock, candidate = arms
    if not all_greedy(requests):
        return stock, candidate
    stock = _audited(workspace, requests, stock, thresholds, lambda _unexplained: False)
    num_stock_events = len(unaudited_events(stock, thresholds))

    def is_certain(num_unexplained: int) -> bool:
        return fail_is_certain(num_unexplained, num_stock_events, len(requests))

    return stock, _audited(workspace, requests, candidate, thresholds, is_certain)


def _audited(
    workspace: Workspace,
    requests: Sequence[Request],
    arm: Arm,
    thresholds: Thresholds,
    is_certain: Callable[[int], bool],
) -> Arm:
    events = unaudited_events(arm, thresholds)
    task = AuditTask(
        requests=requests,
        outputs=arm.outputs,
        events=events,
        path=workspace.folder.system(arm.name) / "audit.jsonl",
        vocab_size=workspace.vocab_size,
        is_certain=is_certain,
    )
    if workspace.is_offline:
        return replace(arm, audit=tuple(_from_disk(task)))
    title = f"{arm.name}: audit of {len(events)} requests with events"
    with workspace.listener.stage(title, len(events), "positions") as progress:
        return replace(arm, audit=tuple(audit(lambda: workspace.engine(workspace.plan.stock), task, progress)))


def _from_disk(task: AuditTask) -> Iterator[AuditedEvent]:
    """Events as they were audited; those that nobody audited, or not for these tokens, say so."""
    saved = {(event.request_id, event.position): event for event in read_audit(task.path)}
    for index, events in task.events:
        for event in events:
            bound = with_prefix_hash(event, task.outputs[index].ids)
            found = saved.get((event.request_id, event.position))
            yield found if found and same_tokens(found, bound) else replace(bound, reason="not audited")
