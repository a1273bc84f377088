"""One candidate from plan to verdict: the plan on screen and on disk, the campaign, the ledger, the plot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lossguard.errors import UsageError
from lossguard.ledger import GENESIS, Ledger
from lossguard.report.timing_plot import write_plot
from lossguard.run_folder import RunFolder, reading
from lossguard.stages.timing.campaign import Hooks, Measured, run_campaign
from lossguard.stages.timing.campaign_key import other_key
from lossguard.stages.timing.design import RunPlan, plan_runs, sequence
from lossguard.stages.timing.diverging import Diverging, diverging_of, unjudged_replies
from lossguard.stages.timing.judging import (
    SpeedCase,
    SpeedVerdict,
    judge_speed,
    planned_looks,
    reason_to_stop,
    sequential_verdict,
    to_plain,
)
from lossguard.stages.timing.noise_stage import Noise, describe_plan
from lossguard.stages.timing.pair_times import MeasuredPair, to_pair_times
from lossguard.stages.timing.requests import FOLDER
from lossguard.stages.timing.run_metrics import summarise_runs
from lossguard.stages.timing.session import Session
from lossguard.stages.workspace import Workspace
from lossguard.timing.base import PairTimes
from lossguard.timing.control_chart import control_chart
from lossguard.timing.noise import describe_noise, profile_problem
from lossguard.timing.planning import Plan as PowerPlan
from lossguard.timing.planning import minimum_promotable_gain
from lossguard.timing.plot_data import plot_data

LEDGER = "timing-ledger.sqlite"
CAMPAIGN = "campaign.json"
PLOT = "pairs.svg"
HEAD = "ledger-head.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedCandidate:
    """A session with its noise, on its way to a verdict."""

    workspace: Workspace
    session: Session
    noise: Noise
    judged: Diverging | None = None  # replies of a lossless claim of this run that passed

    def verdict(self) -> SpeedVerdict:
        """Measure what is missing, and judge all pairs of all submissions.

        Raises IntegrityError LG1008, LG0606, LG0617; UsageError LG1012, LG1013.
        """
        self._require_known_heads()
        campaign = self._campaign()
        looks = tuple(campaign["looks"])
        self._announce(campaign)
        if self.noise.problems:  # no verdict could rest on what would be measured now
            measured = Measured(pairs=(), problems=(), notes=("the candidate was not timed, as its noise is unknown",))
        else:
            measured = self._measure(campaign, looks)
        pairs = self._known_pairs()
        chart_problems, chart_notes = self._chart(pairs)
        case = self._case(pairs, looks)
        case = replace(
            case,
            problems=(*self.noise.problems, *measured.problems, *chart_problems),
            notes=(*self._ledger_notes(campaign), *self._notes(measured, len(pairs)), *chart_notes),
        )
        found = judge_speed(case)
        unjudged = self._reply_problems(pairs)
        if found.check.verdict.is_pass:  # no gain is promoted on such replies; a loss stays one
            case = replace(case, problems=(*case.problems, *unjudged))
        else:
            case = replace(case, notes=(*unjudged, *case.notes))
        found = judge_speed(case)
        extra = {"campaign": campaign, "runs": summarise_runs(self.session.settings.folder, self.session.timing)}
        check = replace(found.check, evidence={**found.check.evidence, **extra}, notes=found.check.notes)
        return replace(found, check=self._with_plot(case, check))

    # The plan.

    def _campaign(self) -> dict[str, Any]:
        """Fixed once per run folder: which pairs, in which order, with which looks."""
        folder = RunFolder(self.session.settings.folder)
        key = self.session.key.sha256
        if (folder.path / CAMPAIGN).is_file():
            campaign = folder.read_json(CAMPAIGN)
            with reading(folder.path / CAMPAIGN):
                _require_same_key(campaign["key"], key, folder.path)
                self._ledger.verify(str(campaign["ledger_head"]))
            return campaign
        is_new_ledger = self._ledger.head() == GENESIS
        earlier = len(self._known_pairs())
        campaign = {
            "key": key,
            "first_pair": earlier,
            "looks": list(self._looks()),
            "stock_places": sequence(self._runs(earlier)),
            "devices": [device.name for device in self.session.settings.devices],
            "reasons": list(self.session.reasons),
            "noise": self.noise.source,
            "ledger_head": self._ledger.head(),
            "is_new_ledger": is_new_ledger,
        }
        folder.write_json(CAMPAIGN, campaign)
        return campaign

    def _looks(self) -> tuple[int, ...]:
        """Those of the first submission: a later one may not choose others. Raises UsageError LG1013."""
        timing, known = self.session.timing, self._ledger.entries(self.session.key.sha256, "plan")
        if known:
            _require_same_estimand(known[0].value.get("estimand"), timing.estimand)
            return tuple(known[0].value["looks"])
        looks = planned_looks(timing)
        amount = timing.asked_gain if timing.rule == "faster" else timing.margin
        plan = {"looks": list(looks), "estimand": timing.estimand, "rule": timing.rule, "amount": amount}
        self._ledger.append(self.session.key.sha256, "plan", "first submission", plan)
        self._keep_head()
        return looks

    def _runs(self, first_pair: int) -> list[RunPlan]:
        return plan_runs(
            self.session.timing.pairs,
            num_devices=self.session.num_devices,
            order=self.session.timing.order,
            seed=self.workspace.plan.effective_seed,
            first_pair=first_pair,
        )

    def _announce(self, campaign: dict[str, Any]) -> None:
        timing, note = self.session.timing, self.workspace.note
        note(f"plan: {describe_plan(self.session, timing.pairs)}, stock's places {campaign['stock_places']}")
        if campaign["first_pair"]:
            note(f"ledger: {campaign['first_pair']} earlier pairs of this very candidate count in the same test")
        profile = self.noise.profile
        if profile is None or profile_problem(profile):
            note(f"noise: {profile_problem(profile)}; no gain can be promoted ({self.noise.source})")
            return
        described = describe_noise(profile, timing.estimand)
        note(
            f"noise: {100 * described['rms']:.3g} % a swap pair (95 % upper bound {100 * described['upper_95']:.3g} %; "
            f"{self.noise.source})"
        )
        self._announce_power()

    def _announce_power(self) -> None:
        timing, profile = self.session.timing, self.noise.profile
        assert profile is not None, "only a usable profile tells what can be promoted"
        if timing.rule != "faster":
            return
        plan = PowerPlan(
            num_pairs=timing.pairs, num_requests=timing.requests, asked=timing.asked_gain, estimand=timing.estimand
        )
        power = minimum_promotable_gain(plan, profile)
        self.workspace.note(
            f"threshold {100 * power.threshold:+.2f} %; minimum promotable gain "
            f"{100 * power.minimum_promotable_gain:+.2f} % (promoted 8 times in 10)"
        )

    # The campaign.

    def _measure(self, campaign: dict[str, Any], looks: tuple[int, ...]) -> Measured:
        runs = self._runs(int(campaign["first_pair"]))
        title = f"{self.session.settings.systems[1].name}: swap pairs"
        with self.workspace.listener.stage(title, self.session.num_replies(len(runs)), "replies") as progress:
            hooks = Hooks(note=self.workspace.note, progress=progress, stop=lambda pairs: self._kept(pairs, looks))
            return run_campaign(self.session.settings, runs, self.session.around, hooks)

    def _kept(self, pairs: Sequence[MeasuredPair], looks: tuple[int, ...]) -> str | None:
        """Enter new pairs into the ledger, then look."""
        for pair in pairs:
            self._ledger.append(self.session.key.sha256, "pair", f"{pair.origin}/pair-{pair.pair:03d}", pair.to_json())
        self._keep_head()
        reason = reason_to_stop(self._case(self._known_pairs(), looks))
        if reason:
            self.workspace.note(reason)
        return reason

    @property
    def _ledger(self) -> Ledger:
        return Ledger(self.workspace.plan.folder / LEDGER)

    def _keep_head(self) -> None:
        """Beside the runs, so that a ledger which loses rows is found out."""
        RunFolder(self.session.settings.folder).write_json(HEAD, {"head": self._ledger.head()})

    def _require_known_heads(self) -> None:
        """Every head that a run folder beside this one has seen must still be there. Raises IntegrityError LG1008."""
        for path in sorted(self.workspace.plan.folder.glob(f"*/{FOLDER}/*/{HEAD}")):
            with reading(path):
                self._ledger.verify(str(RunFolder(path.parent).read_json(HEAD)["head"]))

    def _ledger_notes(self, campaign: dict[str, Any]) -> list[str]:
        origin = "the ledger was created by this run" if campaign.get("is_new_ledger") else f"ledger: {LEDGER}"
        notes = [f"{campaign['first_pair']} earlier pairs; {origin}"]
        (first,) = self._ledger.entries(self.session.key.sha256, "plan")[:1]
        rule = self.session.timing.rule
        if first.value.get("rule", rule) != rule:
            notes.append(
                f"the first submission asked for {first.value['rule']}, this one for {rule}, on the same pairs: "
                f"each claim errs in 5 % of cases, both together in up to 10 % (Bonferroni)"
            )
        return notes

    def _reply_problems(self, pairs: Sequence[MeasuredPair]) -> list[str]:
        """That what was timed may be something else than what was judged."""
        problem = unjudged_replies(diverging_of(pairs), self.noise.diverging, self.judged) if pairs else None
        return [problem] if problem else []

    def _known_pairs(self) -> tuple[MeasuredPair, ...]:
        entries = self._ledger.entries(self.session.key.sha256, "pair")
        return tuple(MeasuredPair.from_json(entry.value) for entry in entries)

    # The verdict.

    def _case(self, pairs: Sequence[MeasuredPair], looks: tuple[int, ...]) -> SpeedCase:
        return SpeedCase(
            timing=self.session.timing,
            strata=self.session.suite.strata,
            num_devices=self.session.num_devices,
            pairs=tuple(pairs),
            noise=self.noise.profile,
            looks=looks,
        )

    def _chart(self, pairs: Sequence[MeasuredPair]) -> tuple[list[str], list[str]]:
        """(problems, notes) of stock's own times over all submissions.

        Judged as it stood at the end of each of them: what was off once is not diluted by pairs that come later.
        """
        profile = self.noise.profile
        if profile is None or not pairs:
            return [], []
        ends = [at for at in range(1, len(pairs) + 1) if at == len(pairs) or pairs[at].origin != pairs[at - 1].origin]
        charts = [control_chart(self._times(pairs[:end]), profile) for end in ends]
        off = [f"control chart: {chart.reason}" for chart in charts if chart.is_off]
        return (off[:1], []) if off else ([], [f"control chart: {charts[-1].reason}"])

    def _times(self, pairs: Sequence[MeasuredPair]) -> PairTimes:
        session = self.session
        return to_pair_times(pairs, session.suite.strata, session.num_devices, metric=session.timing.metric)

    def _notes(self, measured: Measured, num_pairs: int) -> list[str]:
        notes = [*self.session.reasons, f"noise profile: {self.noise.source}"]
        notes.append(f"relaunch: {RELAUNCH[self.session.timing.relaunch]}")
        if num_pairs > len(measured.pairs):
            notes.append(
                f"{num_pairs - len(measured.pairs)} of {num_pairs} pairs are from earlier submissions (ledger)"
            )
        if measured.stopped:
            notes.append(measured.stopped)
        return [*notes, *measured.notes]

    def _with_plot(self, case: SpeedCase, check: Any) -> Any:
        if not case.pairs:
            return check
        times, found = sequential_verdict(case)
        path = self.session.settings.folder / PLOT
        data = plot_data(times, case.noise, found.verdict)
        check = replace(check, evidence={**check.evidence, "plot_data": to_plain(asdict(data))})
        missing = write_plot(path, data, title=self._title)
        if missing:
            return replace(check, notes=(*check.notes, missing))
        return replace(check, evidence={**check.evidence, "plot": str(path)})

    @property
    def _title(self) -> str:
        stock, candidate = self.session.settings.systems
        return f"{candidate.name} against {stock.name}"


RELAUNCH = {
    "process": "a new process for every run of every arm",
    "reset": "processes stay alive; each arm was reset before every run and showed the state of its first reset. What "
    "one launch differs from another by is the same in all pairs: the A/A mean, one draw of it, widens the bounds",
}


def _require_same_key(before: Any, now: str, folder: Path) -> None:
    if before != now:
        raise other_key(folder, "another candidate, stock, suite or devices")


def _require_same_estimand(before: str | None, now: str) -> None:
    """A ledger from before estimands were noted has None: nothing to hold against."""
    if before is not None and before != now:
        raise UsageError(
            f"these pairs are judged by the estimand {before!r}, and {now!r} is asked now",
            why="whoever may try every estimand on the same pairs passes by the luckiest of them",
            fix=f"ask for {before!r}, or time another suite (prompts, requests, tokens): that is a test of its own",
            code="LG1013",
        )
