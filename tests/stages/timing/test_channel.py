"""Messages between client and arm."""

from __future__ import annotations

import socket
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lossguard.stages.timing.channel import HEAD, Channel, ChannelClosed, Message


def ends() -> tuple[Channel, Channel, socket.socket]:
    one, other = socket.socketpair()
    return Channel(one), Channel(other), one


@given(ids=st.lists(st.integers(-(2**31), 2**31 - 1)), text=st.text(max_size=50))
def test_what_is_sent_arrives(ids: list[int], text: str) -> None:
    here, there, _ = ends()
    sent = Message(kind="serve", body={"text": text}, ids=tuple(ids))
    here.send(sent)
    here.send(sent)
    assert there.receive(5) == sent
    assert there.receive(5) == sent
    here.close()
    there.close()


def test_a_long_message_crosses_in_pieces() -> None:
    here, there, _ = ends()
    sent = Message(kind="serve", ids=tuple(range(400_000)))
    thread = threading.Thread(target=here.send, args=(sent,))
    thread.start()
    assert there.receive(20) == sent
    thread.join()


def test_silence_ends_in_a_timeout_and_a_closed_end_in_an_error() -> None:
    here, there, _ = ends()
    with pytest.raises(TimeoutError):
        there.receive(0.01)
    here.close()
    with pytest.raises(ChannelClosed):
        there.receive(5)
    with pytest.raises(ChannelClosed):
        there.send(Message(kind="x", ids=tuple(range(100_000))))


@pytest.mark.parametrize("raw", [HEAD.pack(2, 0) + b"[]", HEAD.pack(3, 0) + b"{,}", HEAD.pack(2**31, 4)])
def test_bytes_that_are_no_message_close_the_channel(raw: bytes) -> None:
    _, there, socket_here = ends()
    socket_here.sendall(raw)
    with pytest.raises(ChannelClosed):
        there.receive(5)
