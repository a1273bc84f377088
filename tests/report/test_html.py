"""The HTML report: one file, verdict first, harmless whatever was served, the same bytes for the same report."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lossguard.errors import IntegrityError
from lossguard.report.html.page import render_html, write_html
from lossguard.report.verdict_text import visible
from tests.report.sample import judged, renamed, report_of, timed

pytest.importorskip("matplotlib")
SOURCE = Path("report.json")
VOID = {"meta", "link", "br", "hr", "img"}
TAGS = frozenset(
    re.findall(
        r"\w+",
        """html head meta title link style body header main section article h1 h2 h3 p a dl dt dd div table thead tbody
        tr th td ul ol li details summary figure figcaption code strong small span q bdi br svg g path defs use
        clippath rect text""",
    )
)
HOSTILE = (
    "</bdi></td><script>alert(1)</script><img src=x onerror=alert(2)> {{ 7*7 }} & "
    "\x1b[31m \u202e\u2066drow \x00 $\\frac$"
)


@dataclass
class Parsed(HTMLParser):
    """Tags, attributes and text; every end tag must close what is open."""

    tags: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    open: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open[-1:]:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return "".join(self.texts)


def parse(page: str) -> Parsed:
    parsed = Parsed()
    parsed.feed(page)
    parsed.close()
    assert parsed.open == []
    return parsed


def assert_harmless(parsed: Parsed) -> None:
    """Only our tags, no handlers, no inline styles, and nothing that a browser would fetch."""
    for tag, attributes in parsed.tags:
        assert tag in TAGS, tag
        assert not [name for name in attributes if name.startswith("on") or name == "style"]
        for name in ("src", "href", "xlink:href", "action", "data", "poster", "srcset"):
            assert (attributes.get(name) or "#").startswith(("#", "data:,")), attributes


@pytest.fixture(scope="module")
def page() -> str:
    words = [" the", " of", "\n", "</p>"]
    decode = lambda *ids: "".join(words[token % 4] for token in ids)  # noqa: E731
    claims = [
        timed("fine"),
        renamed(judged(), "fine"),
        judged("faulty", [(at, 10 + at % 30) for at in range(40)], decode),
    ]
    return render_html(report_of(claims), SOURCE)


def test_the_verdict_comes_first_and_the_worst_claim_before_the_others(page: str) -> None:
    text = parse(page).text
    order = [
        "lossguard: FAIL (1 fail, 0 inconclusive, 2 pass) -> exit 1",
        "NOT LOSSLESS  faulty against stock",
        "FASTER  fine against stock",
        "First divergences",
        "How to reproduce",
    ]
    places = [text.index(words) for words in order]
    assert places == sorted(places)


def test_the_head_says_which_check_which_token_and_how_sure(page: str) -> None:
    text = parse(page).text
    head = text[: text.index("Checks")]
    assert "event: 40 requests with an unexplained event (stock 0)" in head
    assert "request r-0000, position 10: served" in head
    assert "stock against itself gets FAIL 0.25 times in 100 (400 resampled comparisons)" in head
    assert "a true excess of 0.8 points gets FAIL 90 times in 100" in head, "of the claim that passes"
    assert "replies over 63" in head, "what is not covered"


def test_a_divergence_shows_tokens_alternatives_and_how_to_see_it_again(page: str) -> None:
    text = parse(page).text
    assert "nats under the best" in text
    assert "alone: 10" in text
    assert "lossguard recheck .lossguard/run-0008 --candidate faulty --request r-0000 --position 10" in text
    assert "engine.version: 1 in stock, 2 here" in text
    assert "lossguard check --candidate fine" in text


def test_every_picture_is_there_with_its_numbers(page: str) -> None:
    parsed = parse(page)
    pictures = [attributes for tag, attributes in parsed.tags if tag == "svg"]
    assert [attributes["aria-label"] for attributes in pictures] == [
        "How far served tokens lie under the best one",
        "Mismatch rate by position in the reply",
        "Events, and what the audit says of them",
        "What this run could have seen",
        "Gain of every swap pair",
        "How far served tokens lie under the best one",
        "Mismatch rate by position in the reply",
        "What this run could have seen",
    ]
    for words in ("event threshold", "delta, median", "promotion line", "FAIL 90 times in 100", "not served by stock"):
        assert words in parsed.text
    assert "mathdefault" not in page


def test_the_page_is_whole_without_scripts_styles_and_network(page: str) -> None:
    parsed = parse(page)
    assert_harmless(parsed)
    assert page.count("<style") == 1
    policy = [attributes["content"] or "" for tag, attributes in parsed.tags if "http-equiv" in attributes]
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'; img-src data:"]
    ids = [attributes["id"] for _, attributes in parsed.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    used = {found for found in re.findall(r'(?:url\(|href=")#([^")]+)', page)}
    assert used <= set(ids)


def test_the_same_report_gives_the_same_bytes(page: str) -> None:
    report = report_of([judged("faulty", [(3, 10)])])
    assert render_html(report, SOURCE) == render_html(json.loads(json.dumps(report)), SOURCE)


def hostile_page(text: str) -> str:
    claim = renamed(judged("x", [(3, 10), (4, 11)], lambda *_ids: text), text[:40])
    return render_html(report_of([claim], command=["lossguard", text], folder=text[:30]), SOURCE)


def test_hostile_text_is_shown_and_does_nothing() -> None:
    rendered = hostile_page(HOSTILE)
    parsed = parse(rendered)
    assert_harmless(parsed)
    assert "<script>alert(1)</script>" in parsed.text
    assert "{{ 7*7 }}" in parsed.text
    for character in ("\x1b", "\x00", "\u202e", "\u2066"):
        assert character not in rendered
    assert "\\u202e" in parsed.text


def test_a_token_of_ten_thousand_characters_is_cut() -> None:
    rendered = hostile_page("A" * 10_000)
    assert "A" * 201 not in rendered.replace("A" * 600, "")
    assert "(10,000 characters)" in rendered
    assert len(rendered) < 300_000


@settings(max_examples=60)
@given(st.text(max_size=300))
def test_visible_text_has_no_character_that_steers(text: str) -> None:
    shown = visible(text, 100)
    assert shown.isprintable()
    assert len(shown) < 10 * 100 + 40


def test_without_matplotlib_the_numbers_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("lossguard.report.html.page", "lossguard.report.html.figures"):
        monkeypatch.setattr(f"{module}.is_available", lambda: False)
    parsed = parse(render_html(report_of([judged("faulty", [(3, 10)])]), SOURCE))
    assert "svg" not in {tag for tag, _ in parsed.tags}
    assert "lossguard[plots]" in parsed.text
    assert "Mismatch rate by position" in parsed.text


@pytest.mark.parametrize(
    "path", [("run",), ("claims", 0, "checks"), ("claims", 0, "does_not_cover"), ("outcome", "verdict")]
)
def test_a_damaged_report_is_named(path: Sequence[str | int]) -> None:
    report = json.loads(json.dumps(report_of([judged()])))
    place = report
    for key in path[:-1]:
        place = place[key]
    del place[path[-1]]
    with pytest.raises(IntegrityError, match="LG0606"):
        render_html(report, SOURCE)


def test_a_run_of_speed_alone_has_a_page() -> None:
    report = {
        **report_of([timed("fine")]),
        "thresholds": {},
        "fingerprint": {"stock": {}, "candidates": {}, "scorer": {}},
    }
    parsed = parse(render_html(report, SOURCE))
    assert "gain +12.00 %, one-sided 95 % bounds +10.00 % .. unbounded" in parsed.text
    assert [tag for tag, _ in parsed.tags].count("svg") == 1


def test_reports_of_schema_1_0_are_rendered(tmp_path: Path) -> None:
    report = json.loads(json.dumps(report_of([judged("faulty", [(3, 10)])])))
    del report["outcome"]["line"]
    for key in ("headline", "figures"):
        del report["claims"][0][key]
    for example in report["claims"][0]["examples"]:
        for key in ("alternatives", "context_text", "stock_id", "stock_text"):
            example.pop(key, None)
    text = parse(write_html(tmp_path / "report.html", report, SOURCE).read_text(encoding="utf-8")).text
    assert "INCONCLUSIVE  faulty against stock" in text or "NOT LOSSLESS  faulty against stock" in text


def test_a_reply_that_ends_wrongly_is_the_place_where_no_token_is() -> None:
    report = json.loads(json.dumps(report_of([judged("faulty", [(3, 10)])])))
    (claim,) = report["claims"]
    claim["examples"] = []
    claim["verdict"] = "FAIL"
    for check in claim["checks"]:
        check["verdict"], check["notes"] = "PASS", []
    (structure,) = (check for check in claim["checks"] if check["check"] == "structure")
    structure.update(verdict="FAIL", notes=["request r-0003: finish 'length' after 7 tokens"])
    text = parse(render_html(report, SOURCE)).text
    assert "which token" in text
    assert text.index("finish 'length' after 7 tokens") < text.index("how sure")


def test_more_than_two_claims_have_an_index(page: str) -> None:
    links = [attributes["href"] for tag, attributes in parse(page).tags if tag == "a"]
    assert links[:3] == ["#card-1", "#card-2", "#card-3"]
    assert "index" not in render_html(report_of([judged()]), SOURCE).partition("</style>")[2]
