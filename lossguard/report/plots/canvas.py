"""One picture as SVG inside a page: reproducible, without style sheets, with names that no other picture has."""

from __future__ import annotations

import importlib.util
import io
import re
from collections.abc import Callable
from typing import Any
from xml.sax.saxutils import escape

from lossguard.report.timing_plot import SALT, STYLE

WITHOUT = "no pictures: matplotlib is not installed (pip install 'lossguard[plots]')"
STOCK, CANDIDATE, LIMIT = "tab:gray", "tab:blue", "tab:red"
_HEAD = re.compile(r"^.*?(?=<svg)", re.DOTALL)
_METADATA = re.compile(r"\s*<metadata>.*?</metadata>|\s*<defs>\s*<style[^>]*>.*?</style>\s*</defs>", re.DOTALL)
_STYLE = re.compile(r' style="([^"]*)"')
_FONT = re.compile(r"(?:(?P<weight>bold|\d{3}) )?(?P<size>[\d.]+px) (?P<family>.+)")
_REFERENCE = re.compile(r'(?:url\(|xlink:href="|href=")#([^")]+)')
_ID = re.compile(r' id="([^"]*)"')

Draw = Callable[[Any], None]
"""Draws on what it gets: a figure, or its axes."""


def is_available() -> bool:
    """Whether pictures can be drawn here."""
    return importlib.util.find_spec("matplotlib") is not None


def draw_svg(name: str, alternative: str, draw: Draw) -> str:
    """The picture as one ``<svg>`` element; ``name`` is unique in the page, ``alternative`` says what it shows."""
    text = _render(lambda figure: draw(figure.add_subplot()), salt=f"{SALT}-{name}", size=(7.0, 3.4))
    return inline(text, name, alternative)


def stand_alone_svg(draw: Draw) -> str:
    """A picture as a file of its own; ``draw`` gets the figure."""
    return _render(draw, salt=SALT, size=(8.0, 5.0))


def _render(draw: Draw, *, salt: str, size: tuple[float, float]) -> str:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context():
        mpl.rcdefaults()  # the user's own style would change the bytes
        mpl.rcParams.update({**STYLE, "svg.hashsalt": salt, "text.parse_math": False})
        figure = Figure(figsize=size)
        draw(figure)
        figure.tight_layout()
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def inline(svg: str, name: str, alternative: str) -> str:
    """A file's SVG as an element of a page: no prologue, metadata or style sheet, and ids of its own."""
    text = _METADATA.sub("", _HEAD.sub("", svg))
    text = _STYLE.sub(lambda found: _as_attributes(found[1]), text)
    used = set(_REFERENCE.findall(text))
    text = _ID.sub(lambda found: f' id="{name}-{found[1]}"' if found[1] in used else "", text)
    text = re.sub(r'(url\(|xlink:href="|href=")#', rf"\1#{name}-", text)
    opening, _, rest = text.partition(">")
    opening = re.sub(r' (?:width|height|version)="[^"]*"', "", opening)
    label = f'role="img" width="100%" stroke-linejoin="round" stroke-linecap="butt" aria-label="{escape(alternative)}"'
    return f"{opening} {label}>{rest}".strip()


def _as_attributes(style: str) -> str:
    """``fill: none; font: 9px X`` as attributes: a page that forbids inline styles shows the same picture."""
    attributes = []
    for declaration in filter(None, (part.strip() for part in style.split(";"))):
        key, _, value = declaration.partition(":")
        attributes += _font(value.strip()) if key == "font" else [(key, value.strip())]
    return "".join(f' {key}="{escape(value, {chr(34): "&quot;"})}"' for key, value in attributes)


def _font(value: str) -> list[tuple[str, str]]:
    found = _FONT.fullmatch(value)
    if found is None:
        raise AssertionError(f"matplotlib writes another font shorthand now: {value!r}")
    weight = [("font-weight", found["weight"])] if found["weight"] else []
    return [*weight, ("font-size", found["size"]), ("font-family", found["family"])]
