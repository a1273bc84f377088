"""Server-sent events, bounded: bytes in, the data of whole events out."""

from __future__ import annotations

from collections.abc import Iterator

LINE_BYTES = 16 * 2**20


class OversizedError(Exception):
    """A line or a body beyond its limit."""

    def __init__(self, what: str, limit: int) -> None:
        self.what = what
        self.limit = limit
        super().__init__(f"{what}, more than {limit}")


class EventStream:
    """Splits a stream into events as the specification says; only the ``data`` field matters here.

    LF and CRLF end lines (a lone CR does not: no server sends it, and JSON may not hold a raw one either). Comments
    and other fields are skipped.
    """

    def __init__(self, line_bytes: int = LINE_BYTES) -> None:
        self._limit = line_bytes
        self._rest = bytearray()
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Data of every event that this chunk completes. Raises OversizedError for an overlong line or event."""
        searched = len(self._rest)
        self._rest += chunk
        start = 0
        while (end := self._rest.find(b"\n", max(start, searched))) >= 0:
            line = bytes(self._rest[start:end]).removesuffix(b"\r")
            start = end + 1
            yield from self._line(line)
        del self._rest[:start]
        if len(self._rest) > self._limit:
            raise OversizedError(f"a line of {len(self._rest):,} bytes without an end", self._limit)

    @property
    def is_between_events(self) -> bool:
        """Whether nothing is half read."""
        return not self._rest and not self._data

    def _line(self, line: bytes) -> Iterator[bytes]:
        if len(line) > self._limit:
            raise OversizedError(f"a line of {len(line):,} bytes", self._limit)
        if not line:
            if self._data:
                yield b"\n".join(self._data)
            self._data, self._size = [], 0
            return
        name, _, value = line.partition(b":")
        if name == b"data":
            self._size += len(value)
            if self._size > self._limit:
                raise OversizedError(f"an event of {self._size:,} bytes", self._limit)
            self._data.append(value.removeprefix(b" "))
