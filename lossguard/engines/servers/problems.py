"""What can go wrong with a server, as errors that say what came back."""

from __future__ import annotations

from pathlib import Path

from lossguard.errors import EngineError, UsageError

EXCERPT_BYTES = 400
TAIL_BYTES = 8_192
TAIL_LINES = 40
LINE_CHARACTERS = 400


class MalformedReplyError(Exception):
    """A reply that cannot be read in one way only; the transport adds where it came from."""


def excerpt(body: bytes | str) -> str:
    """The beginning of what a server sent, safe to print."""
    raw = body if isinstance(body, bytes) else body.encode("utf-8", "backslashreplace")
    shown = raw[:EXCERPT_BYTES].decode("utf-8", "backslashreplace")
    more = f" ... ({len(raw):,} bytes)" if len(raw) > EXCERPT_BYTES else ""
    return ascii(shown)[1:-1] + more


def log_tail(path: Path | None) -> str:
    """The last lines of a server's log, indented; empty without a log."""
    if path is None or not path.is_file():
        return ""
    with path.open("rb") as file:
        file.seek(0, 2)
        file.seek(max(0, file.tell() - TAIL_BYTES))
        lines = file.read().decode("utf-8", "backslashreplace").splitlines()[-TAIL_LINES:]
    shown = "".join(f"\n    | {line[:LINE_CHARACTERS]}" for line in lines)
    return f"\n  the log's last lines ({path}):{shown}" if lines else f"\n  its log is empty ({path})"


def unreachable(system: str, url: str, detail: str, log: Path | None = None) -> EngineError:
    """No connection, or one that broke (LG0220)."""
    return EngineError(
        f"the server of {system!r} at {url} cannot be reached or broke off: {detail}{log_tail(log)}",
        why="a reply that did not arrive whole is no evidence, and asking again would judge another reply",
        fix="start or repair the server, then continue with --resume: finished replies are kept",
        code="LG0220",
    )


def too_slow(system: str, url: str, detail: str) -> EngineError:
    """A phase of a request ran past its limit (LG0221)."""
    return EngineError(
        f"the server of {system!r} at {url} took too long: {detail}",
        why="without a limit a stalled server would hold the run for ever",
        fix="raise connect_seconds, read_seconds or request_seconds of the system, or lower its concurrency",
        code="LG0221",
    )


def bad_status(system: str, url: str, status: int, body: bytes) -> EngineError:
    """Another HTTP status than 200 (LG0222)."""
    return EngineError(
        f"the server of {system!r} answered {url} with HTTP {status}: {excerpt(body)}",
        why="a refused request has no reply to judge, and it is not asked a second time in the same run",
        fix="correct what the server complains about (context length, model_name, key, load), then --resume",
        code="LG0222",
    )


def malformed(system: str, url: str, found: str, body: bytes | str) -> EngineError:
    """A reply that the dialect does not allow (LG0223)."""
    return EngineError(
        f"the server of {system!r} at {url} sent a reply that cannot be understood: {found}; it sent: {excerpt(body)}",
        why="a reply that can be read in two ways cannot be judged",
        fix="check that engine names the server that is really there, and its version; finished replies are kept",
        code="LG0223",
    )


def too_large(system: str, url: str, what: str, limit: int) -> EngineError:
    """More bytes or tokens than any honest reply has (LG0224)."""
    return EngineError(
        f"the server of {system!r} at {url} sent {what}, more than {limit:,}; the connection was closed",
        why="reading on would fill the memory of this machine",
        fix="repair the server; finished replies are kept for --resume",
        code="LG0224",
    )


def crashed(system: str, what: str, log: Path | None) -> EngineError:
    """A launched server that ended by itself (LG0225)."""
    return EngineError(
        f"the server of {system!r} {what}{log_tail(log)}",
        why="what it had not answered yet may be what differs",
        fix="repair the server or its launch command, then continue with --resume: finished replies are kept",
        code="LG0225",
    )


def never_healthy(system: str, url: str, seconds: float, log: Path | None) -> EngineError:
    """A server that did not become ready in time (LG0226)."""
    return EngineError(
        f"the server of {system!r} was not healthy at {url} within {seconds:g} s{log_tail(log)}",
        why="requests to a server that is still loading would measure the loading",
        fix="raise start_seconds, or correct the launch command or the health path",
        code="LG0226",
    )


def memory_held(system: str, detail: str) -> EngineError:
    """Accelerator memory that did not come back (LG0227)."""
    return EngineError(
        f"the devices for {system!r} did not give their memory back: {detail}",
        why="the next server would start with less memory than it was configured for, or not at all",
        fix="end what still runs on those devices (nvidia-smi shows it), then --resume",
        code="LG0227",
    )


def cannot_launch(system: str, detail: str) -> UsageError:
    """A launch command that does not exist or a port that is taken (LG0228)."""
    return UsageError(
        f"the server of {system!r} cannot be launched: {detail}",
        why="a verdict about another server than the one that was asked for would be worthless",
        fix=f"correct launch, env or port of [systems.{system}]",
        code="LG0228",
    )


def changed(system: str, different: str) -> UsageError:
    """A server that is not the one that began this run (LG0229)."""
    return UsageError(
        f"the server of {system!r} is another one than at the beginning of this run: {different}",
        why="half a run from one server and half from another is a comparison of nothing",
        fix="bring back the first server and --resume, or start a new run",
        code="LG0229",
    )


def no_key(system: str, variable: str) -> UsageError:
    """The variable that should hold the key is not set (LG0230)."""
    return UsageError(
        f"the system {system!r} takes its key from the variable {variable}, which is not set",
        why="every request would be refused",
        fix=f"export {variable}, or correct api_key_env; a key itself never belongs into the configuration",
        code="LG0230",
    )


def which_model(system: str, names: list[str]) -> UsageError:
    """A server that lists no model, or several (LG0231)."""
    return UsageError(
        f"the server of {system!r} lists {len(names)} models: {', '.join(map(repr, names[:8]))}",
        why="the wrong one would be judged",
        fix=f"set model_name in [systems.{system}]",
        code="LG0231",
    )


def no_forced_decode(system: str, count: int) -> EngineError:
    """A server cannot be led along recorded replies (LG0213, as for the callable engine)."""
    return EngineError(
        f"the system {system!r} is a server and cannot be decoded along {count} recorded replies",
        why="forced decode shows what stock serves token by token",
        fix="servers are audited by one token after prompt + prefix, which the gate does by itself",
        code="LG0213",
    )
