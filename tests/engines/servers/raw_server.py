"""A TCP server that sends given bytes, however wrong, with pauses and resets where told."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass


@dataclass(frozen=True)
class Pause:
    """Wait so many seconds, or until the other side is gone."""

    seconds: float


class Reset:
    """Reset the connection."""


class Flood:
    """Send so many bytes of one value without end of line."""

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes


Action = bytes | Pause | Reset | Flood
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
JSON_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n"


@contextmanager
def raw_server(*actions: Action) -> Iterator[str]:
    """Do the actions on every POST; answer every GET with an empty model list. Yields the URL."""
    listener = socket.create_server(("127.0.0.1", 0))
    is_over = threading.Event()

    def accept() -> None:
        while not is_over.is_set():
            with suppress(OSError):
                connection, _ = listener.accept()
                threading.Thread(target=_answer, args=(connection, actions, is_over), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        is_over.set()
        listener.close()


def _answer(connection: socket.socket, actions: tuple[Action, ...], is_over: threading.Event) -> None:
    with suppress(OSError), connection:
        head = _read_request(connection)
        if head.startswith(b"GET"):
            body = b'{"data": [{"id": "toy"}]}'
            connection.sendall(
                b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
            )
            return
        for action in actions:
            if isinstance(action, Pause):
                is_over.wait(action.seconds)
            elif isinstance(action, Reset):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return
            elif isinstance(action, Flood):
                for _ in range(action.num_bytes // 65_536):
                    connection.sendall(b"x" * 65_536)
            else:
                connection.sendall(action)


def _read_request(connection: socket.socket) -> bytes:
    """Head and body, so that closing does not reset what the client still sends."""
    data = b""
    while b"\r\n\r\n" not in data:
        chunk = connection.recv(65_536)
        if not chunk:
            return data
        data += chunk
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(
        (int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0
    )
    while len(body) < length:
        body += connection.recv(65_536)
    return head
