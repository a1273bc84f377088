"""What an object can offer beyond being called: a system that knows more about itself than a plain function does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class DecodesAlong(Protocol):
    """A system whose own decode can be asked about recorded replies; audits of events need no other system then."""

    def forced_decode(self, prompts: list[list[int]], replies: list[list[int]]) -> list[list[int]]:
        """For each prompt the tokens that decode gives along ``replies``, all of them decoded together.

        Row i has as many tokens as ``replies[i]``: at position n the one that this system would serve after the
        prompt and ``replies[i][:n]``, with state built by decode.
        """


@runtime_checkable
class DescribesItself(Protocol):
    """A system that tells what is behind it."""

    def fingerprint(self) -> Mapping[str, Any]:
        """Facts that change its replies, as JSON values.

        The key ``host`` is special: a mapping of dotted keys (``cpu.model``, ``versions.torch``) that stand in place
        of the facts of this machine, for replies that were made elsewhere or earlier.
        """
