"""Which baseline a claim is judged against: its record, else the live system of that name, else none."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from lossguard.config import Config, SystemConfig, load_config
from lossguard.pytest_plugin.marker import ClaimMark
from lossguard.pytest_plugin.options import Settings
from lossguard.pytest_plugin.problems import unknown_baseline

if TYPE_CHECKING:
    from lossguard.baseline.store import BaselineStore
    from lossguard.plan import Plan, SystemHandle

RECORD_SUFFIX = ".safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A baseline's name and where its records are. ``file`` is the record itself where the user gave one."""

    name: str
    root: Path
    file: Path | None = None

    @property
    def record_files(self) -> list[Path]:
        """Its records on disk, unread."""
        if self.file is not None:
            return [self.file]
        return sorted((self.root / self.name).glob(f"[!.]*{RECORD_SUFFIX}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A claim's baseline. ``source`` is ``record``, ``live`` or ``none``; ``reason`` says why."""

    name: str
    source: str
    reason: str
    record: Path | None = None
    system: SystemConfig | None = None


class Baselines:
    """The configuration and the store, each read once, and plans made from both."""

    def __init__(self, settings: Settings, *, root: Path) -> None:
        self._settings = settings
        self._run_folder = root / ".lossguard"

    @cached_property
    def config(self) -> Config:
        """The configuration of this session. Raises UsageError LG0601, LG0603."""
        return load_config(self._settings.config)

    def place(self, text: str) -> Place:
        """NAME, or a path to a baseline's folder or to one record."""
        if os.sep not in text and not text.endswith(RECORD_SUFFIX):
            return Place(name=text, root=self._settings.baselines_dir)
        path = Path(text).absolute()
        if path.suffix == RECORD_SUFFIX:
            return Place(name=path.parent.name, root=path.parent.parent, file=path)
        return Place(name=path.name, root=path.parent)

    def require_known(self, text: str) -> Place:
        """Raise UsageError LG0803 if the baseline has neither a record nor a system."""
        place = self.place(text)
        recorded = any(path.is_file() for path in place.record_files)
        if place.file is not None and not recorded:
            raise unknown_baseline(f"there is no baseline record {place.file}", self.config.systems, place.name)
        if place.name in self.config.systems or (recorded and not self._settings.is_recording):
            return place
        found = f"no system and no record in {place.root} is called {place.name!r}"
        raise unknown_baseline(found, {*self.config.systems, *_folders(place.root)}, place.name)

    def choose(self, mark: ClaimMark) -> Choice:
        """The baseline of a claim. Raises UsageError LG0803, and BaselineError for a record that cannot be used."""
        text = mark.baseline or self._settings.baseline
        if text is None:
            return Choice(name="", source="none", reason="no baseline is given (--lossguard-baseline=NAME)")
        place = self.require_known(text)
        is_live_asked = self._settings.live or self._settings.is_recording
        found = None if is_live_asked else self._record(place, mark)
        if found is not None:
            return found
        others = "" if is_live_asked else self._others(place, mark)
        if place.name in self.config.systems:
            reason = "--lossguard-live" if self._settings.live else f"no record of this claim{others}"
            return Choice(name=place.name, source="live", reason=reason)
        reason = f"{place.name} has no record of this claim{others} and is no system"
        return Choice(name=place.name, source="none", reason=f"{reason}; record it with --lossguard-update=new")

    def require_usable(self, mark: ClaimMark) -> None:
        """Raise what the run of this claim would raise for its baseline: LG0803, LG0701 to LG0706.

        A record is compared with what stock would be asked, and be, here and now; nothing is served.
        """
        choice = self.choose(mark)
        if choice.record is not None:
            from lossguard import gate

            gate.check_record(self.plan(mark, choice))

    def store_to_write(self) -> BaselineStore:
        """The store that new records go to: the one that the session's baseline is in."""
        text = self._settings.baseline
        return self.store(self.place(text) if text else Place(name="", root=self._settings.baselines_dir))

    def store(self, place: Place) -> BaselineStore:
        """The store that holds a baseline."""
        from lossguard.baseline.store import BaselineStore

        return BaselineStore(place.root)

    def recorded(self, mark: ClaimMark) -> Path | None:
        """The record that ``mark`` has already, read and checked. For sessions that record."""
        place = self.require_known(mark.baseline or self._settings.baseline or "")
        found = self._record(place, mark)
        return None if found is None else found.record

    def _record(self, place: Place, mark: ClaimMark) -> Choice | None:
        if not place.record_files:
            return None
        from lossguard.baseline.parameters import claim_parameters

        for system in self._stock_systems(place, mark):
            given = Choice(name=place.name, source="record", reason="", system=system)
            parameters = claim_parameters(self.plan(mark, given))
            path = place.file or self.store(place).find(place.name, mark.claim, parameters)
            if path is not None:
                return replace(given, record=path, reason=str(path))
        return None

    def _others(self, place: Place, mark: ClaimMark) -> str:
        """Records of the claim that were made with other parameters, and those parameters, in words."""
        if not place.record_files:
            return ""
        from lossguard.baseline.parameters import claim_parameters, parameter_differences
        from lossguard.baseline.record import load_record

        texts = []
        for path in [info.path for info in self.store(place).records(place.name) if info.claim == mark.claim]:
            system = self.config.systems.get(place.name) or _recorded_system(path)
            asked = claim_parameters(self.plan(mark, Choice(name=place.name, source="", reason="", system=system)))
            differences = parameter_differences(load_record(path).parameters, asked)
            texts.append(f"{path.name} has {'; '.join(differences)}")
        return f" with these parameters ({', '.join(texts)})" if texts else ""

    def _stock_systems(self, place: Place, mark: ClaimMark) -> Iterable[SystemConfig]:
        """The configuration's system, else those that the claim's records were made with."""
        if place.name in self.config.systems:
            return [self.config.systems[place.name]]
        from lossguard.baseline.parameters import ANY_CLAIM

        infos = self.store(place).records(place.name)
        return [_recorded_system(info.path) for info in infos if info.claim in (mark.claim, ANY_CLAIM)]

    def plan(self, mark: ClaimMark, choice: Choice, candidate: str | SystemHandle | None = None) -> Plan:
        """The plan of one claim. Without a candidate it only records, or says what a record must have."""
        from lossguard.plan import Plan

        config = self.config
        if choice.system is not None:
            config = replace(config, systems={**config.systems, choice.name: choice.system})
        return Plan(
            config,
            baseline=choice.name,
            candidates=() if candidate is None else (candidate,),
            budget=mark.budget or self._settings.budget,
            repeats=mark.repeats,
            seed=self._settings.seed,
            temperature=self._settings.temperature if mark.temperature is None else mark.temperature,
            strict=self._settings.strict,
            folder=self._run_folder,
            record=choice.record,
        )


def _recorded_system(path: Path) -> SystemConfig:
    from lossguard.baseline.record import load_record

    stock = load_record(path).parameters["baseline"]
    return SystemConfig(
        name=stock["name"], engine=stock["engine"], model=stock.get("model"), options=stock.get("options", {})
    )


def _folders(root: Path) -> set[str]:
    return {entry.name for entry in root.iterdir() if entry.is_dir()} if root.is_dir() else set()
