"""The report as JUnit XML, for CI systems that show it: a test case per claim. The JSON is the contract."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree

from lossguard.report.terminal import render_claim
from lossguard.report.verdict_text import claim_headline, claim_reason, outcome_line

Json = Mapping[str, Any]
_NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render_junit(report: Json) -> str:
    """One test suite. FAIL is a failure, INCONCLUSIVE an error: both are red everywhere."""
    claims = report["claims"]
    suite = ElementTree.Element(
        "testsuite",
        name="lossguard",
        tests=str(len(claims)),
        failures=str(sum(claim["verdict"] == "FAIL" for claim in claims)),
        errors=str(sum(claim["verdict"] == "INCONCLUSIVE" for claim in claims)),
        timestamp=report["run"]["started"],
    )
    _properties(suite, {"lossguard.outcome": outcome_line(report["outcome"]), "lossguard.run": report["run"]["id"]})
    for claim in claims:
        _case(suite, claim, report["run"])
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _case(suite: ElementTree.Element, claim: Json, run: Json) -> None:
    case = ElementTree.SubElement(suite, "testcase", classname="lossguard", name=_xml(claim["id"]))
    _properties(
        case,
        {
            "lossguard.claim": claim["id"],
            "lossguard.verdict": claim["verdict"],
            "lossguard.headline": claim_headline(claim),
            "lossguard.report": str(run.get("report_path", "")),
        },
    )
    kinds = {"FAIL": "failure", "INCONCLUSIVE": "error"}
    if claim["verdict"] in kinds:
        message = _xml(f"{claim_headline(claim)}: {claim_reason(claim)}")
        red = ElementTree.SubElement(case, kinds[claim["verdict"]], message=message)
        red.text = _xml(render_claim(claim, run).strip())


def _properties(parent: ElementTree.Element, values: Mapping[str, str]) -> None:
    properties = ElementTree.SubElement(parent, "properties")
    for name, value in values.items():
        ElementTree.SubElement(properties, "property", name=name, value=_xml(value))


def _xml(text: str) -> str:
    """Characters that XML cannot hold at all become U+FFFD."""
    return _NOT_XML.sub("\ufffd", text)
