"""The pytest plugin's door: options, marker, fixtures and hookspecs, and nothing else.

Every pytest run in an environment with lossguard imports this module, so it imports pytest and the standard library
only. The plugin itself (``lossguard.pytest_plugin``) comes in when an option or ini setting is given, a marked test
is collected, or pytest-xdist distributes tests (a controller must count what it gets back).
"""

from __future__ import annotations

import argparse
import os
import re
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lossguard.pytest_plugin.engines import EngineOpener
    from lossguard.pytest_plugin.fixtures import LossguardFixture

BUDGET_NAMES = ("quick", "standard", "full")
BUDGET_SIZES = re.compile(r"[1-9]\d{0,6}(x[1-9]\d{0,6}){1,2}")
UPDATE_MODES = ("none", "new", "all")
MARKER = "lossguard"
MARKER_LINE = (
    "lossguard(claim, candidate=None, budget=None, baseline=None, repeats=1, gpus=None, temperature=None): one "
    "claim about a system; its verdict is red unless it is PASS (docs/pytest.md)"
)


def budget_text(text: str) -> str:
    """A budget's name, or REQUESTSxTOKENS[xCALIBRATION]."""
    if text in BUDGET_NAMES or BUDGET_SIZES.fullmatch(text):
        return text
    known = ", ".join(BUDGET_NAMES)
    raise argparse.ArgumentTypeError(
        f"{text!r} is no budget: {known}, or REQUESTSxTOKENS[xCALIBRATION] such as 240x256"
    )


def update_text(text: str) -> str:
    """none, new or all."""
    if text in UPDATE_MODES:
        return text
    raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(UPDATE_MODES)}")


def seed_text(text: str) -> str:
    """A whole number; the value stays a string, since xdist reads the command line again in every worker."""
    if re.fullmatch(r"-?\d+", text):
        return text
    raise argparse.ArgumentTypeError(f"{text!r} is no whole number")


def temperature_text(text: str) -> str:
    """A number from 0 to 10; stays a string, as a seed does."""
    if re.fullmatch(r"\d+(\.\d+)?", text) and float(text) <= 10.0:
        return text
    raise argparse.ArgumentTypeError(f"{text!r} is no temperature from 0 to 10")


def filled_text(text: str) -> str:
    """Anything but nothing: an empty value would quietly mean 'not given'."""
    if text.strip():
        return text
    raise argparse.ArgumentTypeError("the value is empty")


COMMAND_LINE_ONLY = ("update",)  # a setting that records would keep a whole project from ever being judged
# name, metavar (None: a switch), type, help. Every one but switches and those above is an ini setting: lossguard_NAME.
OPTIONS: tuple[tuple[str, str | None, Any, str], ...] = (
    ("baseline", "NAME|PATH", filled_text, "judge against this baseline: a record, else the system of that name"),
    ("candidate", "NAME", filled_text, "the system to judge, where a marker names none"),
    ("config", "FILE", filled_text, "a lossguard.toml or pyproject.toml (default: the nearest one)"),
    ("update", "MODE", update_text, "record baselines instead of judging: none (default), new, all"),
    ("allow-ci-update", None, None, "let --lossguard-update record although CI is set"),
    ("live", None, None, "serve the baseline now, even where there is a record"),
    ("require", "FILE", filled_text, "claims that must reach a verdict, one a line"),
    (
        "budget",
        "NAME|SIZES",
        budget_text,
        "quick, standard (default), full, or REQUESTSxTOKENS[xCALIBRATION] such as 240x256",
    ),
    ("devices", "LIST", filled_text, "devices for xdist workers: auto (default), or ids separated by commas"),
    ("advisory", None, None, "report verdicts without failing"),
    ("json", "PATH", filled_text, "write the session's report to this file"),
    ("html", "PATH", filled_text, "write the session's claims to this file, as one HTML page"),
    ("seed", "INT", seed_text, "seed of resampling and sampled replies (prompts: [prompts] seed of the configuration)"),
    ("temperature", "NUMBER", temperature_text, "judge sampled replies at this temperature"),
    ("strict", None, None, "any token that differs from the baseline's fails (deterministic stacks only)"),
    ("explain", None, None, "print every claim's checks and first divergences, not only those of red claims"),
    ("baselines-dir", "DIR", filled_text, "where records are kept (default: .lossguard-baselines)"),
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options and their ini settings. Values stay strings, defaults are None or False."""
    group = parser.getgroup("lossguard", "losslessness of LLM serving stacks")
    for name, metavar, kind, text in OPTIONS:
        dest = f"lossguard_{name.replace('-', '_')}"
        if metavar is None:
            group.addoption(f"--lossguard-{name}", dest=dest, action="store_true", default=False, help=text)
        else:
            group.addoption(f"--lossguard-{name}", dest=dest, metavar=metavar, type=kind, default=None, help=text)
            if name not in COMMAND_LINE_ONLY:
                parser.addini(dest, text, default=None)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Declare the hooks that other plugins and conftest files may implement."""
    from lossguard.pytest_plugin import hookspecs

    pluginmanager.add_hookspecs(hookspecs)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker; bring the plugin in if it is asked for or tests are distributed."""
    config.addinivalue_line("markers", MARKER_LINE)
    if is_asked(config) or config.getoption("dist", "no") != "no":
        _activate(config)


def is_asked(config: pytest.Config) -> bool:
    """Whether any option or ini setting of lossguard is given."""
    for name, metavar, _, _ in OPTIONS:
        dest = f"lossguard_{name.replace('-', '_')}"
        is_setting = metavar is not None and name not in COMMAND_LINE_ONLY
        if config.getoption(dest) or (is_setting and config.getini(dest)):
            return True
    return False


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Hand the collected tests to the plugin if it is in use or one of them carries the marker or the fixture."""
    name = "lossguard-session"
    if config.pluginmanager.has_plugin(name) or any(_concerns(item) for item in items):
        _activate(config).take_items(items)


def _concerns(item: pytest.Item) -> bool:
    if item.get_closest_marker(MARKER) is not None:
        return True
    names: Sequence[str] = getattr(item, "fixturenames", ())
    return "lossguard" in names or "lossguard_engine" in names


def _activate(config: pytest.Config) -> Any:
    from lossguard.pytest_plugin.session import activate

    return activate(config)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """``-n auto``: a worker per device, where there are devices and lossguard is in use."""
    if not is_asked(config):
        return None
    from lossguard.pytest_plugin.devices import device_pool

    return len(device_pool(config)) or None


@pytest.fixture
def lossguard(request: pytest.FixtureRequest, lossguard_system: object) -> LossguardFixture:
    """The claim of this test: ``lossguard.assert_lossless()``."""
    from lossguard.pytest_plugin.fixtures import LossguardFixture

    return LossguardFixture(request, lossguard_system)


@pytest.fixture
def lossguard_system() -> object:
    """The candidate, where it is no system of the configuration: override it in a conftest.

    Return a function ``generate(prompts, max_new_tokens) -> replies``, a ``SystemHandle``, or a system's name.
    """
    return None


@pytest.fixture
def lossguard_engine(request: pytest.FixtureRequest, lossguard_system: object) -> EngineOpener:
    """The engines of this process: ``lossguard_engine("stock")`` starts one, or gives the one that runs.

    Without a name it is the candidate. An engine is closed when the session ends, and before any claim is judged.
    """
    from lossguard.pytest_plugin.engines import EngineOpener

    return EngineOpener(request.node, lossguard_system)


@pytest.fixture(scope="session")
def lossguard_device() -> str | None:
    """The device that this process may use (``--lossguard-devices``), or None where none was assigned."""
    return os.environ.get("LOSSGUARD_DEVICE")
