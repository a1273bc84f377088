"""The HTML report in a real browser: wide and narrow, no console message, no request, nothing sticks out."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from lossguard.report.html.page import render_html
from lossguard.report.html.session import render_session
from tests.report.sample import judged, renamed, report_of, timed
from tests.report.test_html import HOSTILE
from tests.report.test_session_page import entry, session_of

pytestmark = pytest.mark.browser
NAMES = ("chromium-headless-shell", "chromium", "google-chrome")
PROBE = "<script>document.title = `width ${document.documentElement.scrollWidth} of ${innerWidth}`</script></body>"


def browse(page: Path, *arguments: str, width: int = 1280) -> subprocess.CompletedProcess[str]:
    """Open a page without a window. Fails, never skips, where no browser is installed (make test-browser)."""
    browser = next(filter(None, map(shutil.which, NAMES)), None)
    assert browser, f"none of {', '.join(NAMES)} is installed"
    return subprocess.run(
        [
            browser,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--enable-logging=stderr",
            f"--user-data-dir={page.parent / 'profile'}",
            f"--window-size={width},2000",
            *arguments,
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )


def requests_in(log: Path) -> set[str]:
    """What the browser asked the network for; files are none of it."""
    return set(re.findall(r'"url":"([^"]*)"', log.read_text(encoding="utf-8")))


def test_a_request_and_a_message_would_be_seen(tmp_path: Path) -> None:
    loud = tmp_path / "loud.html"
    loud.write_text('<body><img src="http://127.0.0.1:9/pixel.png"><script>console.error("x")</script></body>')
    done = browse(loud, f"--screenshot={tmp_path / 'loud.png'}", f"--log-net-log={tmp_path / 'net.json'}")
    assert "CONSOLE" in done.stderr
    assert requests_in(tmp_path / "net.json") == {"http://127.0.0.1:9/pixel.png"}


FAULTY = judged("faulty", [(at, 10 + at % 30) for at in range(40)], lambda *_ids: HOSTILE)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    claims = [FAULTY, renamed(judged(), "fine"), timed("fine"), renamed(FAULTY, "A" * 10_000)]
    path = tmp_path_factory.mktemp("browser") / "report.html"
    path.write_text(render_html(report_of(claims, command=["lossguard", HOSTILE]), path), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def session_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    claims = [
        entry("tree-verify/greedy", "FAIL", FAULTY, reason=HOSTILE),
        entry("A" * 10_000, "LOST", reason="A" * 10_000),
        entry("fine/greedy", "PASS", renamed(judged(), "fine")),
    ]
    path = tmp_path_factory.mktemp("session") / "session.html"
    path.write_text(render_session(session_of(*claims, lost_tests=["a" * 3000]), {}), encoding="utf-8")
    return path


@pytest.mark.parametrize("width", [1280, 390])
def test_a_session_is_drawn_so_too_and_nothing_sticks_out(session_page: Path, width: int) -> None:
    log = session_page.parent / f"net-{width}.json"
    done = browse(session_page, f"--screenshot={session_page.parent / 's.png'}", f"--log-net-log={log}", width=width)
    assert "CONSOLE" not in done.stderr
    assert requests_in(log) == set()
    assert_fits(session_page, width)


@pytest.mark.parametrize("width", [1280, 390])
def test_it_is_drawn_without_a_word_and_without_a_request(page: Path, width: int) -> None:
    picture, log = page.parent / f"{width}.png", page.parent / f"net-{width}.json"
    done = browse(page, f"--screenshot={picture}", f"--log-net-log={log}", width=width)
    assert picture.stat().st_size > 20_000
    assert "CONSOLE" not in done.stderr
    assert requests_in(log) == set()


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_sticks_out_at_the_side(page: Path, width: int) -> None:
    assert_fits(page, width)


def assert_fits(page: Path, width: int) -> None:
    """A script of the test's own measures the page, without the policy that would forbid it."""
    probed = page.parent / "probed.html"
    text = page.read_text(encoding="utf-8")
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text).replace("</body>", PROBE)
    probed.write_text(text, encoding="utf-8")
    found = re.search(r"<title>width (\d+) of (\d+)</title>", browse(probed, "--dump-dom", width=width).stdout)
    assert found is not None, "the probe ran"
    assert int(found[2]) == width
    assert int(found[1]) <= width


def test_served_text_runs_nothing_even_without_the_policy(page: Path) -> None:
    """Escaping alone must do; the page's policy is a second wall."""
    bare = page.parent / "bare.html"
    text = page.read_text(encoding="utf-8")
    hook = "<script>window.alert = what => { document.title = 'ran ' + what }</script></head>"
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text).replace("</head>", hook)
    bare.write_text(text, encoding="utf-8")
    dom = browse(bare, "--dump-dom").stdout
    assert "<title>lossguard run-0008: FAIL</title>" in dom
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in dom
