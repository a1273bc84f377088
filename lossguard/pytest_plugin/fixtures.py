"""The fixture ``lossguard``: a test's claim, judged or recorded where the test runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from lossguard.errors import LossguardError
from lossguard.pytest_plugin import devices
from lossguard.pytest_plugin.baselines import Baselines, Choice
from lossguard.pytest_plugin.candidates import BASELINES_KEY, SETTINGS_KEY, candidate_of
from lossguard.pytest_plugin.engines import close_engines
from lossguard.pytest_plugin.marker import MARK_KEY, ClaimMark
from lossguard.pytest_plugin.progress import StdoutListener
from lossguard.pytest_plugin.transport import (
    HEADLINE_PROPERTY,
    PROPERTY,
    REPORT_PROPERTY,
    VERDICT_PROPERTY,
    ClaimMessage,
    plain,
)

if TYPE_CHECKING:
    from lossguard.gate_result import GateResult

MESSAGE_KEY = pytest.StashKey[ClaimMessage]()
JUDGED_KEY = pytest.StashKey[dict[str, ClaimMessage]]()
RAISED_KEY = pytest.StashKey[BaseException]()
RULES = ("faster_than", "not_slower")  # the verb says what is to be shown, whatever the table [timing] asks for
GREEN = ("PASS", "RECORDED", "KEPT")


class LossguardFixture:
    """What a test asks of its claim. Each verb may be called once or again; the claim is judged once."""

    def __init__(self, request: pytest.FixtureRequest, system: object) -> None:
        self._item: pytest.Item = request.node
        self._mark: ClaimMark = self._item.stash[MARK_KEY]
        self._system = system

    @property
    def claim(self) -> str:
        """The claim's id."""
        return self._mark.claim

    def assert_lossless(self) -> None:
        """Judge by token forcing and all checks, or record stock (``--lossguard-update``).

        Fails the test unless the verdict is PASS; INCONCLUSIVE is red.
        """
        self._judge_once("lossless", self._judged)

    def assert_faster(self, *, than: float = 1.0, **options: Any) -> None:
        """Time in swap pairs: PASS if the 95 % lower bound exceeds max(``than``, 1 % + 2 x noise).

        ``than`` is a factor (1.2: 20 % faster). ``options`` are those of ``lossguard.Timing``, over the table
        ``[timing]`` of the configuration. Both systems must be launchable by name. INCONCLUSIVE is red.
        """
        self._judge_once(_asked("faster", options, than=than), lambda: self._timed({**options, "faster_than": than}))

    def assert_not_slower(self, *, margin: float = 0.01, **options: Any) -> None:
        """Time in swap pairs: PASS if the 95 % lower bound of the gain exceeds minus ``margin`` (non-inferiority)."""
        self._judge_once(
            _asked("not slower", options, margin=margin), lambda: self._timed({**options, "not_slower": margin})
        )

    def _judge_once(self, verb: str, judge: Callable[[], ClaimMessage]) -> None:
        """Each verb judges once per test; the worst of all that a test asks is the claim's verdict."""
        judged = self._item.stash.setdefault(JUDGED_KEY, {})
        if verb not in judged:
            judged[verb] = self._guarded(judge)
            send(self._item, judged[verb])
        self._item.stash[MESSAGE_KEY] = judged[verb]
        if not is_expected_to_fail(self._item):
            require_green(self._item)

    def _guarded(self, judge: Callable[[], ClaimMessage]) -> ClaimMessage:
        try:
            return judge()
        except LossguardError as error:
            return self._error(error)

    def _error(self, error: LossguardError) -> ClaimMessage:
        summary = f"{error.code}: {error.found}"
        return self._message("ERROR", summary, text=str(error), exit_code=error.exit_code)

    def _message(self, status: str, summary: str, *, text: str = "", exit_code: int = 0) -> ClaimMessage:
        return ClaimMessage(claim=self.claim, status=status, summary=summary, text=text or summary, exit_code=exit_code)

    def _judged(self) -> ClaimMessage:
        settings = self._item.config.stash[SETTINGS_KEY]
        baselines = self._item.config.stash[BASELINES_KEY]
        choice = baselines.choose(self._mark)
        if choice.source == "none":
            return self._message("INCONCLUSIVE", choice.reason)
        lack = devices.lack(self._mark.gpus, settings.devices, os.environ)
        if lack:
            return self._message("INCONCLUSIVE", lack)
        close_engines(self._item.config)
        if settings.is_recording:
            return self._recorded(baselines, choice, is_kept_allowed=settings.update == "new")
        return self._compared(baselines, choice)

    def _compared(self, baselines: Baselines, choice: Choice) -> ClaimMessage:
        from lossguard import gate

        plan = baselines.plan(self._mark, choice, candidate_of(self._item, self._system))
        command = tuple(str(text) for text in self._item.config.invocation_params.args)
        result = gate.run_gate(plan, listener=StdoutListener(), command=command)
        return _message_of(self.claim, choice, result)

    def _timed(self, options: dict[str, Any]) -> ClaimMessage:
        """Speed is measured live: a record of replies has no times that this machine could be held to."""
        from lossguard import gate
        from lossguard.timing_plan import make_timing

        settings = self._item.config.stash[SETTINGS_KEY]
        baselines = self._item.config.stash[BASELINES_KEY]
        text = self._mark.baseline or settings.baseline
        if text is None:
            return self._message("INCONCLUSIVE", "no baseline is given (--lossguard-baseline=NAME)")
        name = baselines.require_known(text).name
        if settings.is_recording:
            return self._message("KEPT", "a speed claim has no record; noise is kept by lossguard noise record")
        if name not in baselines.config.systems:
            return self._message(
                "INCONCLUSIVE", f"{name} is no system of the configuration, and speed is measured live"
            )
        lack = devices.lack(self._mark.gpus, settings.devices, os.environ)
        if lack:
            return self._message("INCONCLUSIVE", lack)
        close_engines(self._item.config)
        choice = Choice(name=name, source="live", reason="speed is measured live")
        plan = baselines.plan(self._mark, choice, candidate_of(self._item, self._system))
        table = {key: value for key, value in baselines.config.timing.items() if key not in RULES}
        given = {**table, **options}
        sizes = {"requests": plan.sizes.num_requests, "tokens": plan.sizes.max_tokens} if self._mark.budget else {}
        timing = make_timing({"noise_root": str(settings.baselines_dir), **sizes, **given})
        command = tuple(str(text) for text in self._item.config.invocation_params.args)
        result = gate.run_timing(replace(plan, timing=timing), listener=StdoutListener(), command=command)
        return _message_of(self.claim, choice, result)

    def _recorded(self, baselines: Baselines, choice: Choice, *, is_kept_allowed: bool) -> ClaimMessage:
        existing = baselines.recorded(self._mark) if is_kept_allowed else None
        if existing is not None:
            return ClaimMessage(claim=self.claim, status="KEPT", summary=f"{existing} is there", baseline=choice.name)
        from lossguard import gate

        plan = baselines.plan(self._mark, choice)
        target = plan.folder / "records" / f"{self._run_id()}-{self.claim.replace('/', '_')}.safetensors"
        path = gate.record_baseline(plan, claim=self.claim, target=target, listener=StdoutListener())
        return ClaimMessage(
            claim=self.claim,
            status="RECORDED",
            summary=f"recorded {choice.name}",
            baseline=choice.name,
            record_path=str(path.absolute()),
        )

    def _run_id(self) -> str:
        worker: dict[str, str] = getattr(self._item.config, "workerinput", {})
        return f"{worker.get('testrunuid', 'run')}-{worker.get('workerid', 'main')}"


def _asked(verb: str, options: Mapping[str, Any], **rule: float) -> str:
    """What a verb was asked: another metric or another number of requests is another measurement."""
    given = sorted({**options, **rule}.items())
    return f"{verb} {', '.join(f'{name}={value!r}' for name, value in given)}"


def _message_of(claim: str, choice: Choice, result: GateResult) -> ClaimMessage:
    from lossguard.report.json_report import claim_to_json
    from lossguard.report.terminal import render_claim
    from lossguard.report.verdict_text import claim_reason

    judged = result.claims[0]
    run = {"folder": str(result.run_folder), **result.report.get("run", {})}
    evidence = plain(claim_to_json(judged))
    return ClaimMessage(
        claim=claim,
        status=judged.verdict.value,
        summary=claim_reason(evidence),
        text=render_claim(evidence, run).strip("\n"),
        candidate=judged.candidate,
        baseline=judged.baseline,
        source=choice.source,
        source_reason=choice.reason,
        report_path=str(run.get("report_path", "")),
        evidence=evidence,
    )


def send(item: pytest.Item, message: ClaimMessage) -> None:
    """Put the message where every report of the test carries it. The worst message of a claim counts."""
    item.stash[MESSAGE_KEY] = message
    item.user_properties.append((PROPERTY, message.to_text()))
    item.user_properties.append((VERDICT_PROPERTY, message.status))
    if message.evidence.get("headline"):
        item.user_properties.append((HEADLINE_PROPERTY, str(message.evidence["headline"])))
    if message.report_path:
        item.user_properties.append((REPORT_PROPERTY, message.report_path))


def is_expected_to_fail(item: pytest.Item) -> bool:
    """Whether the test is marked xfail. Then its verbs raise at its end, so that a FAIL of one hides no other."""
    return item.get_closest_marker("xfail") is not None


def require_all_green(item: pytest.Item) -> None:
    """At the end of a test: fail it for the first verb that is not fine."""
    for message in item.stash.get(JUDGED_KEY, {}).values():
        item.stash[MESSAGE_KEY] = message
        require_green(item)


def require_green(item: pytest.Item) -> None:
    """Fail the test, without a traceback, unless its claim is fine."""
    message = item.stash[MESSAGE_KEY]
    if message.status in GREEN:
        return
    if message.status == "ERROR":
        pytest.fail(f"claim {message.claim}: {message.text}", pytrace=False)
    failure = pytest.fail.Exception(explained(message), pytrace=False)
    item.stash[RAISED_KEY] = failure
    raise failure


WHY_SPEED = "the candidate is not as fast as claimed, as far as one-sided 95 % bounds can tell"
WHY = {
    "FAIL": "the candidate's replies differ from stock's by more than stock differs from itself",
    "INCONCLUSIVE": "nothing was shown, and what was not shown is not passed",
}


def explained(message: ClaimMessage) -> str:
    """A red verdict in four parts, then the checks and the places."""
    fix = {
        "FAIL": "look at the first position below, correct the candidate, run again",
        "INCONCLUSIVE": "remove the reason and run again (more tokens: --lossguard-budget=full)",
    }[message.status]
    is_speed = message.evidence.get("kind") == "speed"
    why = WHY_SPEED if is_speed and message.status == "FAIL" else WHY[message.status]
    if is_speed:
        fix = "look at the reasons and the plot; correct the candidate or what disturbed the run, and run again"
    head = (
        f"claim {message.claim}: {message.status}  {message.summary}\n"
        f"  why it matters: {why}\n"
        f"  what to do: {fix}\n"
        f"  reference: docs/pytest.md#verdicts"
    )
    return head if message.text == message.summary else f"{head}\n\n{message.text}"
