"""One arm: a process of its own, pinned to its device, that launches an engine and serves what the client sends.

    python -m lossguard.stages.timing.arm_process FD < task

It gets one request (or one group that shares a batch) at a time, and learns of the next when the client has the reply
to the last. What it says about time is telemetry: the client's clock decides. It ends when the client does.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from lossguard.stages.timing.channel import Channel, ChannelClosed, Message

if TYPE_CHECKING:
    from lossguard.engines.base import Engine
    from lossguard.records import ServedOutput

PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    """Serve until the client closes the channel. Returns the exit code."""
    task: dict[str, Any] = json.load(sys.stdin)
    channel = Channel(socket.socket(fileno=int(arguments[0])))
    _die_with_parent()
    pinned = _pin(task["cores"])
    sys.path[:] = [*sys.path, *(place for place in task["sys_path"] if place not in sys.path)]
    from lossguard.errors import LossguardError

    try:
        _work(channel, task, pinned)
    except LossguardError as error:
        with contextlib.suppress(ChannelClosed):
            channel.send(Message(kind="error", body={"code": error.code, "found": error.found}))
        return 3
    except ChannelClosed:
        return 0
    return 0


def _work(channel: Channel, task: Mapping[str, Any], pinned: list[int]) -> None:
    from lossguard.engines.base import EngineSpec
    from lossguard.engines.registry import engine_factory
    from lossguard.stages.timing.source_hash import factory_facts

    spec = EngineSpec(name=task["name"], model_path=task["model_path"], options=task["options"])
    engine = engine_factory(task["engine"])(spec)
    try:
        channel.send(Message(kind="hello", body=_hello(engine, pinned, factory_facts(task["engine"]))))
        while _handle(channel, engine, channel.receive()):
            pass
    finally:
        engine.close()


def _hello(engine: Engine, pinned: list[int], factory: Mapping[str, Any]) -> dict[str, Any]:
    facts = {key: value for key, value in engine.fingerprint().items() if key != "reasons"}
    return {
        "pid": os.getpid(),
        "cores": pinned,
        "sampling": sorted(engine.capabilities.sampling),
        "concurrency": engine.capabilities.concurrency,
        "fingerprint": {"engine": json.loads(json.dumps(facts)), "factory": factory},
        "can_reset": callable(getattr(engine, "reset", None)),
    }


def _handle(channel: Channel, engine: Engine, message: Message) -> bool:
    """Answer one message. Returns whether to go on."""
    if message.kind == "serve":
        _serve(channel, engine, message)
    elif message.kind == "reset":
        facts = dict(engine.reset())  # type: ignore[attr-defined]  # offered by engines that said so
        channel.send(Message(kind="reset", body={"facts": json.loads(json.dumps(facts))}))
    return message.kind != "close"


def _serve(channel: Channel, engine: Engine, message: Message) -> None:
    from lossguard.records import Request
    from lossguard.stages.validation import validated

    requests, at = [], 0
    for entry in message.body["requests"]:
        length = entry.pop("num_prompt_ids")
        requests.append(Request.from_json({**entry, "prompt_ids": message.ids[at : at + length]}))
        at += length
    begun_ns = time.monotonic_ns()
    for output in _held_back(map(validated, engine.serve(requests)), len(requests)):
        told = {
            "request_id": output.request_id,
            "finish_reason": output.finish_reason.value,
            "first_ns": output.arrival_ns[0] if output.arrival_ns else None,
            "last_ns": output.arrival_ns[-1] if output.arrival_ns else None,
            "begun_ns": begun_ns,
            "ended_ns": time.monotonic_ns(),
        }
        channel.send(Message(kind="output", body=told, ids=output.ids))


def _held_back(outputs: Iterator[ServedOutput], count: int) -> Iterator[ServedOutput]:
    """The same outputs, the last only when the engine is done: work behind it would run while the client waits."""
    for _ in range(count - 1):
        if (output := next(outputs, None)) is None:
            return
        yield output
    yield from list(outputs)


def _die_with_parent() -> None:
    """A client that is killed takes its arms along (Linux)."""
    if sys.platform == "linux":
        parent = os.getppid()
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died in between
            os._exit(0)


def _pin(cores: list[int]) -> list[int]:
    """Pin this process, before any numeric library counts its threads. Returns the cores that it has."""
    if not hasattr(os, "sched_setaffinity"):
        return []
    if cores:
        os.sched_setaffinity(0, cores)
    return sorted(os.sched_getaffinity(0))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
