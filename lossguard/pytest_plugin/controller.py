"""The process that decides: pytest itself without xdist, else xdist's controller.

The exit code is set in ``pytest_sessionfinish``, before the terminal prints and whether or not there is one.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any

import pytest

import lossguard
import lossguard_pytest
from lossguard.errors import LossguardError
from lossguard.pytest_plugin import devices, updates
from lossguard.pytest_plugin.audit import Audit
from lossguard.pytest_plugin.baseline_words import record_words
from lossguard.pytest_plugin.candidates import BASELINES_KEY
from lossguard.pytest_plugin.decision import EXIT_OK, EXIT_RED, Circumstances, Decision, Row, decide, make_rows
from lossguard.pytest_plugin.documents import Documents
from lossguard.pytest_plugin.manifest import read_manifest
from lossguard.pytest_plugin.options import Settings
from lossguard.pytest_plugin.session import ItemRunner, node_ids, worker_name
from lossguard.pytest_plugin.summary import SummaryFacts, write_summary, write_without_terminal
from lossguard.pytest_plugin.transport import WORKER_DEVICE, WORKER_OUTPUT, decode

EXIT_INTERRUPTED = 2
MAXFAIL = "stopping after "


class Controller(ItemRunner):
    """Hooks of the deciding process."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        super().__init__(config, settings)
        self._audit = Audit(is_each=config.getoption("dist", "no") == "each")
        self._ledger = devices.Ledger()
        self._environment: dict[str, str | None] = {}
        self._pool: tuple[str, ...] = ()
        self._is_asked = lossguard_pytest.is_asked(config)
        self._is_header_written = False
        self._is_line_written = False
        self._interrupted_by = ""
        self._decision: Decision | None = None
        self._required = read_manifest(settings.require) if settings.require else None
        self._documents = Documents(config, settings, self._required)
        self._find_devices()

    def _find_devices(self) -> None:
        if not self._is_asked:
            return
        self._pool = devices.parse_devices(self.settings.devices, os.environ)
        is_distributed = self.config.getoption("dist", "no") != "no"
        if self._pool and not is_distributed and self.settings.devices != "auto":
            self._environment = devices.restrict_this_process(self._pool)

    @property
    def is_used(self) -> bool:
        """Whether this session has anything to do with lossguard."""
        return self._is_asked or bool(self._audit.claims)

    @property
    def _counts(self) -> bool:
        return self.is_used and not self.config.option.collectonly

    # Beginning: everything that can be refused is refused before a worker or an engine starts.

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        """Refuse what cannot be done; remove the reports of an earlier session."""
        try:
            updates.require_update_allowed(self.settings)
            if self.settings.baseline is not None:
                self.config.stash[BASELINES_KEY].require_known(self.settings.baseline)
            self._hold_store()
        except LossguardError as error:
            raise pytest.UsageError(str(error)) from error
        if not self.config.option.collectonly:
            self._documents.remove_old()

    def _hold_store(self) -> None:
        if not self.settings.is_recording or self.config.option.collectonly:
            return
        updates.require_only_writer(self.config)
        root = self.config.stash[BASELINES_KEY].store_to_write().root
        self.config.add_cleanup(updates.hold_store(root))

    def pytest_report_header(self) -> str | None:
        """One line, where lossguard is used."""
        if not self.is_used:
            return None
        self._is_header_written = True
        return self._header()

    def pytest_report_collectionfinish(self) -> str | None:
        """The same line, where only a marker brought lossguard in."""
        return None if self._is_header_written or not self.is_used else self._header()

    def _header(self) -> str:
        settings = self.settings
        parts = [f"lossguard {lossguard.__version__}: baseline={self._baseline_words()}"]
        parts += [f"devices={','.join(self._pool)}"] if self._pool else []
        parts += [f"budget={settings.budget}"]
        parts += [f"seed={settings.seed}"] if settings.seed is not None else []
        parts += [f"temperature={settings.temperature:g}"] if settings.temperature is not None else []
        parts += [f"update={settings.update}: records, judges nothing"] if settings.is_recording else []
        parts += [f"{len(self._required)} claims required"] if self._required is not None else []
        parts += ["ADVISORY: verdicts do not fail this run"] if settings.advisory else []
        return "  ".join(parts)

    def _baseline_words(self) -> str:
        if self.settings.baseline is None:
            return "none (claims that need one are INCONCLUSIVE)"
        place = self.config.stash[BASELINES_KEY].place(self.settings.baseline)
        if self.settings.live or self.settings.is_recording:
            return f"{place.name} (live)"
        if not place.record_files:
            return f"{place.name} (live: no record in {place.root / place.name})"
        return record_words(place)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Without xdist: what will run here."""
        self.check_records(session.items)
        self._audit.collected("", node_ids(session.items), self.claims)

    # Workers.

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_setupnodes(self, specs: Sequence[Any]) -> None:
        """A device for every worker, before it exists."""
        try:
            devices.assign(specs, self._pool)
        except LossguardError as error:
            raise pytest.UsageError(str(error)) from error

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Lend the device, and tell the worker which, so that it can compare."""
        try:
            device = self._ledger.lend(worker_name(node), node.gateway.spec)
        except LossguardError as error:
            raise pytest.UsageError(str(error)) from error
        if device is not None:
            node.workerinput[WORKER_DEVICE] = device

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: Sequence[str]) -> None:
        """What a worker will run a part of."""
        self._audit.collected(worker_name(node), ids)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object | None) -> None:
        """A worker ended: take its device back, compare its count, end the session if it had to refuse."""
        self._ledger.take_back(worker_name(node))
        sent = getattr(node, "workeroutput", {}).get(WORKER_OUTPUT)
        if sent is None:
            return
        output = decode(sent)
        if output["usage_error"]:
            raise pytest.UsageError(output["usage_error"])
        self._audit.worker_finished(worker_name(node), output)
        # every worker collects the same tests
        self.num_deselected = max(self.num_deselected, int(output["num_deselected"]))
        self.skipped_modules = sorted({*self.skipped_modules, *output["skipped_modules"]})

    # Reports and the end.

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Every report, from here or from a worker."""
        self._audit.reported(report, worker_name(report))

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Why the session was interrupted: xdist interrupts itself for --maxfail."""
        self._interrupted_by = str(excinfo.value)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> Generator[None, object, object]:
        """Decide first, let everybody else finish, and keep the decision."""
        if self._counts:
            self._decide(session, int(exitstatus))
        try:
            return (yield)
        finally:
            self._keep_decision(session)

    def _decide(self, session: pytest.Session, status: int) -> None:
        stopped = _stop_reason(session, self._interrupted_by, status)
        if status == EXIT_INTERRUPTED and self._interrupted_by.startswith(MAXFAIL):
            status = EXIT_RED  # as without xdist
        facts = Circumstances(
            exit_status=status,
            required=self._required,
            stopped_early=stopped,
            advisory=self.settings.advisory,
            recording=self.settings.is_recording,
            asked_to_judge=self.settings.asked_to_judge,
            has_baseline=self.settings.baseline is not None,
            num_deselected=self.num_deselected,
            skipped_modules=tuple(self.skipped_modules),
        )
        rows = self._stored(make_rows(self._audit, facts))
        decision = decide(self._audit, facts, rows)
        for row in decision.rows:
            self.config.hook.pytest_lossguard_verdict(config=self.config, claim=row.claim, verdict=row.status)
        self._decision = self._told(facts, rows, decision)
        session.exitstatus = self._decision.exit_code

    def _told(self, facts: Circumstances, rows: Sequence[Row], decision: Decision) -> Decision:
        """Write what was asked for. What cannot be written is red, and files that were written before say so too."""
        told = self._documents
        problems: list[str] = []
        for tell in (told.write_page, told.write_report, told.tell_github):  # what GitHub has cannot be taken back
            problem = tell(decision)
            if problem:
                problems.append(problem)
                decision = decide(self._audit, replace(facts, problems=tuple(problems)), rows)
        if problems:
            told.write_page(decision)
            told.write_report(decision)
        return decision

    def _stored(self, rows: list[Row]) -> list[Row]:
        if not any(row.status == "RECORDED" for row in rows):
            return rows
        baselines = self.config.stash[BASELINES_KEY]
        return updates.store_records(rows, baselines.store_to_write())

    def _keep_decision(self, session: pytest.Session) -> None:
        if self._decision is None:
            return
        if int(session.exitstatus) == EXIT_OK:
            session.exitstatus = self._decision.exit_code
        if not self._is_line_written:
            for line in (*self._documents.annotations, self._decision.line):
                write_without_terminal(self.config, line)
        devices.restore(self._environment)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """The table and the closing line."""
        if self._decision is None:
            return
        self._is_line_written = True
        paths = tuple(path for path in (self.settings.html, self.settings.json) if path is not None)
        facts = SummaryFacts(explain=self.settings.explain, paths=paths, unused=self._unused())
        write_summary(terminalreporter, self._decision, facts)
        for line in self._documents.annotations:
            terminalreporter.write_line(line)

    def _unused(self) -> tuple[str, ...]:
        """After recording: files of claims that no test of this session makes. They are never deleted here."""
        if not self.settings.is_recording or self.settings.baseline is None:
            return ()
        from lossguard.baseline.parameters import ANY_CLAIM, record_name

        claims = (ANY_CLAIM, *self._audit.claims.values())
        slugs = {record_name(claim, {}).rpartition("-")[0] for claim in claims}
        files = self.config.stash[BASELINES_KEY].place(self.settings.baseline).record_files
        return tuple(path.name for path in files if path.name.rpartition("-")[0] not in slugs)


def _stop_reason(session: pytest.Session, interrupted_by: str, status: int) -> str:
    """Why tests may not have run although nothing was lost; empty if every test should have."""
    for reason in (session.shouldfail, session.shouldstop, interrupted_by):
        if reason:
            return f"stopped early ({reason})"
    return "interrupted" if status == EXIT_INTERRUPTED else ""
