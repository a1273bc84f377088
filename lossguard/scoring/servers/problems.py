"""What can go wrong where a server scores, as errors that say what came back."""

from __future__ import annotations

from lossguard.engines.servers.problems import excerpt
from lossguard.errors import ScorerError, UsageError


def bad_option(found: str) -> UsageError:
    """An entry of the scorer's table that does not fit (LG0513)."""
    return UsageError(
        f"the scorer {found}",
        why="an option that is quietly ignored would score with something else than what was asked",
        fix="correct the table [scorer]; docs/engines.md lists the options of a scorer on a server",
        code="LG0513",
    )


def cannot_score(found: str, body: str = "") -> ScorerError:
    """A reply that leaves a served token without its score (LG0514)."""
    shown = f"; it sent: {excerpt(body)}" if body else ""
    return ScorerError(
        f"the scoring server's reply cannot be used: {found}{shown}",
        why="a score that is missing, or that may belong to another token, is never guessed",
        fix="check that engine names the server that is really there, its version and top_k; finished scores are kept",
        code="LG0514",
    )


def rounded_head(found: str, fix: str) -> ScorerError:
    """A scoring server without a float32 head (LG0515)."""
    return ScorerError(
        f"the scoring server has no float32 LM head: {found}",
        why="rounded logits move gaps by up to one unit in their last place, about as much as a near-tie is wide",
        fix=f"{fix}; or set rounded_head = true in [scorer] and see the noise with lossguard doctor --scorer",
        code="LG0515",
    )
