"""Messages between the client and an arm: a JSON head and token ids as bytes, over a socket pair.

Ids travel as 32-bit integers, not as JSON, so that a reply of thousands of tokens costs the clock some microseconds.
Imported by the arm before it is pinned: standard library only.
"""

from __future__ import annotations

import json
import select
import socket
import struct
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

HEAD = struct.Struct("!II")
LARGEST_MESSAGE_BYTES = 1 << 30
READ_BYTES = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """``kind`` says what it is about; ``ids`` are prompt or reply tokens."""

    kind: str
    body: Mapping[str, Any] = field(default_factory=dict)
    ids: tuple[int, ...] = ()


class ChannelClosed(Exception):
    """The other side is gone."""


class Channel:
    """One end of the socket pair. Blocking to send, and to receive with a time limit."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._buffer = bytearray()

    def fileno(self) -> int:
        """For ``select``."""
        return self._socket.fileno()

    def send(self, message: Message) -> None:
        """Send one message. Raises ChannelClosed."""
        self.send_packed(packed(message))

    def send_packed(self, data: bytes) -> None:
        """Send what ``packed`` made, before the clock was read. Raises ChannelClosed."""
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise ChannelClosed(str(error)) from error

    def receive(self, timeout_seconds: float | None = None) -> Message:
        """The next message. Raises ChannelClosed, and TimeoutError."""
        while (message := self.buffered()) is None:
            if timeout_seconds is not None and not select.select([self._socket], [], [], timeout_seconds)[0]:
                raise TimeoutError(f"no message within {timeout_seconds:g} s")
            self.read_available()
        return message

    def read_available(self) -> None:
        """Read what has come, blocking for the first byte. Raises ChannelClosed."""
        try:
            data = self._socket.recv(READ_BYTES)
        except OSError as error:
            raise ChannelClosed(str(error)) from error
        if not data:
            raise ChannelClosed("end of file")
        self._buffer += data

    def buffered(self) -> Message | None:
        """A whole message that has been read already. Raises ChannelClosed for bytes that are none."""
        if len(self._buffer) < HEAD.size:
            return None
        head_bytes, ids_bytes = HEAD.unpack_from(self._buffer)
        if head_bytes + ids_bytes > LARGEST_MESSAGE_BYTES:
            raise ChannelClosed("a message of impossible length")
        end = HEAD.size + head_bytes + ids_bytes
        if len(self._buffer) < end:
            return None
        message = _unpacked(bytes(self._buffer[HEAD.size : end]), head_bytes)
        del self._buffer[:end]
        return message

    def close(self) -> None:
        """Close this end."""
        self._socket.close()


def ids_to_bytes(ids: Sequence[int]) -> bytes:
    """32-bit integers. Raises OverflowError for an id that is none."""
    return array("i", ids).tobytes()


def packed(message: Message) -> bytes:
    """The message as it travels."""
    head = json.dumps({"kind": message.kind, **message.body}, allow_nan=False).encode()
    ids = ids_to_bytes(message.ids)
    return HEAD.pack(len(head), len(ids)) + head + ids


def _unpacked(data: bytes, head_bytes: int) -> Message:
    ids = array("i")
    try:
        body = json.loads(data[:head_bytes])
        ids.frombytes(data[head_bytes:])
        kind = str(body.pop("kind"))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ChannelClosed(f"bytes that are no message: {error}") from error
    return Message(kind=kind, body=body, ids=tuple(ids))
