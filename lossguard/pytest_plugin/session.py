"""The plugin itself: one object per pytest process, as an xdist worker or as the process that decides."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from lossguard.errors import LossguardError
from lossguard.pytest_plugin.baselines import Baselines
from lossguard.pytest_plugin.candidates import BASELINES_KEY, SETTINGS_KEY
from lossguard.pytest_plugin.devices import is_cuda_in_use
from lossguard.pytest_plugin.fixtures import MESSAGE_KEY, RAISED_KEY, require_all_green, require_green, send
from lossguard.pytest_plugin.marker import MARK_KEY, read_marks
from lossguard.pytest_plugin.options import Settings
from lossguard.pytest_plugin.problems import forked_with_cuda
from lossguard.pytest_plugin.transport import CLAIM_PROPERTY, ClaimMessage

if TYPE_CHECKING:
    from lossguard.pytest_plugin.controller import Controller
    from lossguard.pytest_plugin.worker import Worker

NAME = "lossguard-session"
PLAIN = (str, int, float, bool, type(None))


def activate(config: pytest.Config) -> Controller | Worker:
    """The plugin of this process, made and registered if it is not there yet. Raises pytest.UsageError."""
    existing: Controller | Worker | None = config.pluginmanager.get_plugin(NAME)
    if existing is not None:
        return existing
    try:
        settings = Settings.of(config)
        config.stash[SETTINGS_KEY] = settings
        config.stash[BASELINES_KEY] = Baselines(settings, root=config.rootpath)
        plugin = _plugin(config, settings)
    except LossguardError as error:
        raise pytest.UsageError(str(error)) from error
    config.pluginmanager.register(plugin, NAME)
    return plugin


def _plugin(config: pytest.Config, settings: Settings) -> Controller | Worker:
    if hasattr(config, "workerinput"):
        from lossguard.pytest_plugin.worker import Worker

        return Worker(config, settings)
    from lossguard.pytest_plugin.controller import Controller

    return Controller(config, settings)


class ItemRunner:
    """What every process that runs tests does, with workers or without."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self.config = config
        self.settings = settings
        self.claims: dict[str, str] = {}
        self.num_verdicts = 0
        self.num_collected_claims = 0
        self.num_deselected = 0
        self.skipped_modules: list[str] = []

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A module that is skipped while it is collected (importorskip) takes its claims with it, uncounted."""
        path = self.config.rootpath / report.nodeid
        if report.skipped and path.is_file() and b"lossguard" in path.read_bytes():
            self.skipped_modules.append(report.nodeid)

    def take_items(self, items: list[pytest.Item]) -> None:
        """Parse markers and announce claims, which then travel with every report. Called while collecting."""
        try:
            if read_marks(items) and self.config.getoption("forked", default=False) and is_cuda_in_use():
                raise forked_with_cuda()
        except LossguardError as error:
            self.refuse(error, items)
        for item in items:
            if MARK_KEY in item.stash:
                self.num_collected_claims += 1
                item.user_properties.append((CLAIM_PROPERTY, item.stash[MARK_KEY].claim))

    def refuse(self, error: LossguardError, items: list[pytest.Item]) -> None:
        """The session cannot judge what it was asked to judge."""
        raise pytest.UsageError(str(error)) from error

    def check_records(self, items: list[pytest.Item]) -> None:
        """Look at the baseline of every selected claim before anything is served."""
        baselines = self.config.stash[BASELINES_KEY]
        marked = [item for item in items if MARK_KEY in item.stash]
        self.claims = {item.nodeid: item.stash[MARK_KEY].claim for item in marked}
        self.num_deselected = self.num_collected_claims - len(marked)
        if self.config.option.collectonly:
            return
        try:
            for item in marked:
                baselines.require_usable(item.stash[MARK_KEY])
        except LossguardError as error:
            self.refuse(error, items)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """A marked test that ends without a verdict has shown nothing, and fails."""
        result = yield
        if MARK_KEY in item.stash and MESSAGE_KEY not in item.stash:
            reason = "the test ended without a verdict; call lossguard.assert_lossless(), or a verb about speed"
            message = ClaimMessage(claim=item.stash[MARK_KEY].claim, status="INCONCLUSIVE", summary=reason, text=reason)
            send(item, message)
            require_green(item)
        if MARK_KEY in item.stash:
            require_all_green(item)
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Reports of claims: properties that can cross to the controller, and no red verdict under advisory."""
        report = yield
        if MARK_KEY not in item.stash:
            return report
        report.user_properties = [(str(name), _carried(value)) for name, value in report.user_properties]
        if call.when == "call" and MESSAGE_KEY in item.stash:
            self.num_verdicts += 1
        is_verdict = call.excinfo is not None and call.excinfo.value is item.stash.get(RAISED_KEY, None)
        if is_verdict and report.failed and self.settings.advisory:
            report.sections.append(("lossguard advisory", str(report.longrepr)))
            _pass(report)
        elif self.settings.is_recording and call.when == "call" and call.excinfo is None:
            _pass(report)  # xfail expects a FAIL, and recording gives no verdict at all
        return report


def _pass(report: pytest.TestReport) -> None:
    report.outcome, report.longrepr = "passed", None
    vars(report).pop("wasxfail", None)


def _carried(value: object) -> object:
    """A value that a report can carry to another process. Others would take the report with them, and the test."""
    return value if type(value) in PLAIN else str(value)


def node_ids(items: Sequence[pytest.Item]) -> list[str]:
    """Their ids, as reports will name them."""
    return [item.nodeid for item in items]


def worker_name(source: Any) -> str:
    """The id of the xdist worker behind a report or a node; empty without xdist."""
    node = getattr(source, "node", source)
    gateway = getattr(node, "gateway", None)
    return "" if gateway is None else str(gateway.id)
