"""The templates: every text passes ``visible``, and what is left is escaped."""

from __future__ import annotations

from importlib import resources
from typing import Any

from lossguard.report.verdict_text import visible

TEXT_CHARACTERS = 2000
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def render_template(name: str, page: object) -> str:
    """One of this package's templates as text; ``page`` has ``title`` and what the template prints."""
    return str(_environment().get_template(name).render(page=page, policy=POLICY, style=_resource("page.css")))


def _environment() -> Any:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        loader=FunctionLoader(_resource),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["trusted"] = _trusted
    return environment


def _shown(value: Any) -> Any:
    """Plain text made visible; numbers and what is markup already stay."""
    return visible(value, TEXT_CHARACTERS) if type(value) is str else value


def _trusted(text: str) -> Any:
    """Our own style sheet, and pictures: they are drawn from numbers and fixed words."""
    from markupsafe import Markup

    return Markup(text)  # noqa: S704


def _resource(name: str) -> str:
    return resources.files("lossguard.report.html").joinpath(name).read_text(encoding="utf-8")
