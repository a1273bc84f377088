"""The pictures again, to zoom and to point at: a file of its own, which needs scripts and holds no served text.

Vega-Lite specifications from the report's numbers; vl-convert bundles the scripts, so that the file asks the network
for nothing. The report itself is the page without scripts.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from lossguard.errors import UsageError
from lossguard.report.plots.pictures import STATUS, position_words
from lossguard.report.verdict_text import by_severity, claim_headline

Json = Mapping[str, Any]
SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
OWN_SCALES = {"scale": {"color": "independent", "shape": "independent"}}
WIDTH, HEIGHT = 640, 260
ARMS = ("candidate", "stock")
_UNSAFE = re.compile(r"[^\w .:/()+-]")


def render_interactive(report: Json) -> str:
    """The file as text. Raises UsageError LG1806 without vl-convert, or if no claim has pictures."""
    if importlib.util.find_spec("vl_convert") is None:
        raise _without("vl-convert is not installed", "pip install 'lossguard[interactive]', or use --html")
    claims = by_severity(report["claims"])
    views = [view for number, claim in enumerate(claims, 1) for view in _views(claim, number)]
    if not views:
        raise _without("no claim of this report carries the numbers of pictures", "use --html: the page needs none")
    import vl_convert

    return str(vl_convert.vegalite_to_html({"$schema": SCHEMA, "vconcat": views, "resolve": OWN_SCALES}, bundle=True))


def _without(found: str, fix: str) -> UsageError:
    return UsageError(
        f"no interactive file: {found}",
        why="an empty page would look as if there were nothing to see",
        fix=fix,
        code="LG1806",
    )


def _views(claim: Json, number: int) -> Iterator[dict[str, Any]]:
    figures, title = claim.get("figures", {}), _UNSAFE.sub("?", claim_headline(claim))[:120]
    if "gaps" in figures:
        yield _view(f"{title}: gaps", _gaps(figures["gaps"]))
        yield _view(f"{title}: mismatch rate by position", _positions(figures["positions"]))
        zoom = {"name": f"zoom_{number}", "select": "interval", "bind": "scales"}  # wheel and drag move the axes
        if any(figures["events"][arm]["num_events"] for arm in ARMS):
            yield _view(f"{title}: events", {**_events(figures["events"]), "params": [zoom]})
    if "power" in figures:
        yield _view(f"{title}: what the run could have seen", _power(figures["power"]))
    if claim.get("kind") == "speed" and (data := claim["checks"][0]["evidence"].get("plot_data")):
        yield _view(f"{title}: swap pairs", _pairs(data))


def _view(title: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"title": title, "width": WIDTH, "height": HEIGHT, **spec}


def _axis(field: str, title: str, kind: str = "quantitative", **more: Any) -> dict[str, Any]:
    return {"field": field, "type": kind, "title": title, **more}


COLOUR = _axis("arm", "system", "nominal", scale={"domain": list(ARMS), "range": ["#1f77b4", "#7f7f7f"]})


def _gaps(gaps: Json) -> dict[str, Any]:
    rows = [
        {"arm": arm, "low": low, "high": high, "tokens": count}
        for arm in ARMS
        for (low, high), count in zip(pairwise(gaps["edges_nats"]), gaps[arm]["counts"], strict=True)
        if count
    ]
    marks = {
        "mark": {"type": "rect", "opacity": 0.5, "tooltip": {"content": "data"}},
        "encoding": {
            "x": _axis("low", "gap, nats", scale={"type": "log", "domain": [1e-3, 1e2]}),
            "x2": {"field": "high"},
            "y": _axis("tokens", "tokens", scale={"type": "symlog"}),
            "y2": {"datum": 0},
            "color": COLOUR,
        },
    }
    event = {"data": {"values": [{"at": gaps["event_nats"]}]}, "mark": {"type": "rule", "color": "#d62728"}}
    return {"data": {"values": rows}, "layer": [marks, {**event, "encoding": {"x": _axis("at", "gap, nats")}}]}


def _positions(rows: Any) -> dict[str, Any]:
    values = [
        {"arm": arm, "positions": position_words(row), **row[arm]}
        for row in rows
        for arm in ARMS
        if row[arm]["rate"] is not None
    ]
    order = [position_words(row) for row in rows]
    place = {"x": _axis("positions", "position in the reply", "nominal", sort=order), "xOffset": {"field": "arm"}}
    bounds = {"y": _axis("lower_95", "mismatches", axis={"format": ".2%"}), "y2": {"field": "upper_95"}}
    return {
        "data": {"values": values},
        "layer": [
            {"mark": {"type": "rule"}, "encoding": {**place, **bounds, "color": COLOUR}},
            {
                "mark": {"type": "point", "filled": True, "tooltip": {"content": "data"}},
                "encoding": {**place, "y": _axis("rate", "mismatches"), "color": COLOUR},
            },
        ],
    }


def _events(events: Json) -> dict[str, Any]:
    values = [
        {"arm": arm, "request": request, "position": position, "gap": gap, "audit": STATUS[letter][0]}
        for arm in ARMS
        for request, position, gap, letter in zip(
            *(events[arm][key] for key in ("request_index", "position", "gap_nats", "status")), strict=True
        )
    ]
    return {
        "data": {"values": values},
        "mark": {"type": "point", "tooltip": {"content": "data"}},
        "encoding": {
            "x": _axis("position", "position in the reply"),
            "y": _axis("gap", "gap, nats", scale={"type": "log"}),
            "color": _axis("audit", "audit", "nominal"),
            "shape": _axis("arm", "system", "nominal"),
        },
    }


def _power(power: Json) -> dict[str, Any]:
    """Verdicts of the rate check by the candidate's true excess, with the margin."""
    columns = (("FAIL", power["fail_fraction"]), ("PASS", power["pass_fraction"]))
    values = [
        {"verdict": name, "excess": excess, "fraction": fraction}
        for name, fractions in columns
        for excess, fraction in zip(power["excess_points"], fractions, strict=True)
    ]
    place = _axis("excess", "true excess of the candidate's mismatch rate, points")
    margin = {"data": {"values": [{"excess": power["margin_points"]}]}, "mark": {"type": "rule", "strokeDash": [4, 4]}}
    return {
        "data": {"values": values},
        "layer": [
            {
                "mark": {"type": "line", "point": True, "tooltip": {"content": "data"}},
                "encoding": {
                    "x": place,
                    "y": _axis("fraction", "rate check", axis={"format": ".0%"}),
                    "color": _axis("verdict", "verdict", "nominal", scale={"range": ["#d62728", "#2ca02c"]}),
                },
            },
            {**margin, "encoding": {"x": place}},
        ],
    }


def _pairs(data: Json) -> dict[str, Any]:
    columns = zip(data["pair_gains"], data["pair_lowers"], data["pair_uppers"], strict=True)
    values = [{"pair": at, "gain": gain, "low": low, "high": high} for at, (gain, low, high) in enumerate(columns, 1)]
    place = {"x": _axis("pair", "swap pair", "ordinal")}
    line = {"data": {"values": [{"at": data["threshold"]}]}, "mark": {"type": "rule", "color": "#d62728"}}
    percent = {"format": ".1%"}
    return {
        "data": {"values": values},
        "layer": [
            {"mark": "rule", "encoding": {**place, "y": _axis("low", "gain", axis=percent), "y2": {"field": "high"}}},
            {
                "mark": {"type": "point", "filled": True, "tooltip": {"content": "data"}},
                "encoding": {**place, "y": _axis("gain", "gain")},
            },
            {**line, "encoding": {"y": _axis("at", "gain")}},
        ],
    }
