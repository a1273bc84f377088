"""A FAIL carries its diagnosis into the JSON report and the text; a PASS carries none."""

from __future__ import annotations

import json

import jsonschema

from lossguard.gate import run_gate
from lossguard.records import Verdict
from lossguard.report.json_report import load_schema
from lossguard.report.terminal import render_report
from tests.gate.conftest import Stack
from tests.gate.toy import ToyEngine, bias_every_seventh, handle


def test_a_fail_says_its_likely_family_and_a_pass_says_nothing(stack: Stack) -> None:
    good = handle("good", ToyEngine(stack.target, batch_size=6))
    bad = handle("bad", ToyEngine(stack.target, faults=(bias_every_seventh(2.0),)))
    result = run_gate(stack.plan([good, bad]))
    claim = result.claim("bad/lossless")
    assert claim.verdict is Verdict.FAIL
    assert claim.evidence.diagnosis is not None
    assert claim.evidence.diagnosis.family == "bias"
    assert claim.evidence.diagnosis.also == ("position threshold",)
    assert "divisible by 7" in claim.evidence.diagnosis.sentence
    assert result.claim("good/lossless").evidence.diagnosis is None

    report = json.loads(result.to_json())
    jsonschema.Draft202012Validator(load_schema()).validate(report)
    by_id = {item["id"]: item for item in report["claims"]}
    assert by_id["bad/lossless"]["diagnosis"]["family"] == "bias"
    assert "diagnosis" not in by_id["good/lossless"]

    lines = [line.strip() for line in render_report(result.report).splitlines()]
    families = [line for line in lines if line.startswith("likely family: ")]
    assert families == [
        "likely family: bias, with position threshold (an offset on some ids: logit bias, a penalty, or a shard of the "
        "head)"
    ]
    at = lines.index(families[0])
    assert "lie after position 11" in lines[at - 1]
    assert lines[at + 1].startswith("see it again: lossguard recheck")
