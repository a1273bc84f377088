"""One candidate from plan to verdict: the plan on screen and on disk, the campaign, the ledger, the plot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lossguard.errors import UsageError
from lossguard.ledger import Ledger
from lossguard.report.timing_plot import write_plot
from lossguard.run_folder import RunFolder, reading
from lossguard.stages.timing.campaign import Hooks, Measured, run_campaign
from lossguard.stages.timing.design import RunPlan, plan_runs, sequence
from lossguard.stages.timing.judging import (
    SpeedCase,
    SpeedVerdict,
    judge_speed,
    planned_looks,
    reason_to_stop,
    sequential_verdict,
)
from lossguard.stages.timing.noise_stage import Noise, describe_plan
from lossguard.stages.timing.pair_times import MeasuredPair, to_pair_times
from lossguard.stages.timing.run_metrics import summarise_runs
from lossguard.stages.timing.session import Session
from lossguard.stages.workspace import Workspace
from lossguard.timing.control_chart import control_chart
from lossguard.timing.noise import describe_noise, profile_problem
from lossguard.timing.planning import Plan as PowerPlan
from lossguard.timing.planning import minimum_promotable_gain
from lossguard.timing.plot_data import plot_data

LEDGER = "timing-ledger.sqlite"
CAMPAIGN = "campaign.json"
PLOT = "pairs.svg"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedCandidate:
    """A session with its noise, on its way to a verdict."""

    workspace: Workspace
    session: Session
    noise: Noise

    def verdict(self) -> SpeedVerdict:
        """Measure what is missing, and judge all pairs of all submissions. Raises IntegrityError LG1008, LG0606."""
        campaign = self._campaign()
        looks = tuple(campaign["looks"])
        self._announce(campaign)
        if self.noise.problems:  # no verdict could rest on what would be measured now
            measured = Measured(pairs=(), problems=(), notes=("the candidate was not timed, as its noise is unknown",))
        else:
            measured = self._measure(campaign, looks)
        pairs = self._known_pairs()
        chart_problems, chart_notes = self._chart(measured.pairs)
        case = self._case(pairs, looks)
        case = replace(
            case,
            problems=(*self.noise.problems, *measured.problems, *chart_problems),
            notes=(*self._notes(measured, len(pairs)), *chart_notes),
        )
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
            return campaign
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
        }
        folder.write_json(CAMPAIGN, campaign)
        return campaign

    def _looks(self) -> tuple[int, ...]:
        """Those of the first submission: a later one may not choose others."""
        known = self._ledger.entries(self.session.key.sha256, "plan")
        if known:
            return tuple(known[0].value["looks"])
        looks = planned_looks(self.session.timing)
        self._ledger.append(self.session.key.sha256, "plan", "first submission", {"looks": list(looks)})
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
        reason = reason_to_stop(self._case(self._known_pairs(), looks))
        if reason:
            self.workspace.note(reason)
        return reason

    @property
    def _ledger(self) -> Ledger:
        return Ledger(self.workspace.plan.folder / LEDGER)

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
        """(problems, notes) of stock's own times in this submission."""
        profile = self.noise.profile
        if profile is None or not pairs:
            return [], []
        times = to_pair_times(pairs, self.session.suite.strata, self.session.num_devices)
        chart = control_chart(times, profile)
        return ([f"control chart: {chart.reason}"], []) if chart.is_off else ([], [f"control chart: {chart.reason}"])

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
        missing = write_plot(path, plot_data(times, case.noise, found.verdict), title=self._title)
        if missing:
            return replace(check, notes=(*check.notes, missing))
        return replace(check, evidence={**check.evidence, "plot": str(path)})

    @property
    def _title(self) -> str:
        stock, candidate = self.session.settings.systems
        return f"{candidate.name} against {stock.name}"


RELAUNCH = {
    "process": "a new process for every run of every arm",
    "reset": "processes stay alive; each arm was reset before every run and showed the state of its first reset",
}


def _require_same_key(before: Any, now: str, folder: Path) -> None:
    if before != now:
        raise UsageError(
            f"the campaign in {folder} was of another candidate, stock, suite or devices",
            why="runs of two different systems would be judged as one",
            fix="start a new run; the ledger knows which pairs belong to which candidate",
            code="LG1012",
        )
