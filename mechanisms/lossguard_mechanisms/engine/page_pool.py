"""Which pages and slots are free. Whole numbers only; the tensors are ``pages`` and ``targets.stateful``."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from lossguard.errors import IntegrityError


class NumberPool:
    """Numbers 0 .. size - 1, the lowest free ones first, so that what is in use stays together."""

    def __init__(self, size: int, *, name: str) -> None:
        assert size > 0, "a pool has something to lend"
        self.size = size
        self._name = name
        self._free = list(range(size))
        self._lent: set[int] = set()

    @property
    def num_free(self) -> int:
        """Numbers that can be taken."""
        return len(self._free)

    def take(self, count: int) -> tuple[int, ...]:
        """Lend ``count`` numbers; the caller has seen that there are as many."""
        assert 0 < count <= len(self._free), "more was taken than is free"
        taken = tuple(heapq.heappop(self._free) for _ in range(count))
        self._lent.update(taken)
        return taken

    def give_back(self, numbers: Iterable[int]) -> None:
        """Take back what was lent."""
        for number in numbers:
            assert number in self._lent, f"{self._name} {number} is given back but was not lent"
            self._lent.remove(number)
            heapq.heappush(self._free, number)

    def check(self, owned: Iterable[int]) -> None:
        """Compare with what the live requests own: each number owned or free, once. Raises IntegrityError LG1505."""
        listed = sorted(owned)
        if len(set(listed)) != len(listed):
            raise _broken(f"a {self._name} has two owners")
        if set(listed) != self._lent:
            raise _broken(f"{len(self._lent)} {self._name}s are lent, live requests own {len(listed)}")
        if sorted([*self._free, *listed]) != list(range(self.size)):
            raise _broken(f"free and owned {self._name}s are not all {self.size} of them")


def _broken(found: str) -> IntegrityError:
    return IntegrityError(
        f"the embedded engine's memory is inconsistent: {found}",
        why="two requests in one place would read each other's states",
        fix="report this with the requests that led to it; the engine serves nothing more",
        code="LG1505",
    )
