"""One server's life: launched or attached to, healthy, the same throughout a run, and gone afterwards."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

from lossguard.engines.base import EngineSpec
from lossguard.engines.servers import problems
from lossguard.engines.servers.device_memory import device_environment, used_mib, wait_for_memory
from lossguard.engines.servers.dialect import DialectFacts
from lossguard.engines.servers.launch_command import HOST, choose_port, launch_words, require_program
from lossguard.engines.servers.options import ServerOptions, Timeouts
from lossguard.engines.servers.problems import MalformedReplyError
from lossguard.engines.servers.server_facts import configured_facts, told_facts
from lossguard.engines.servers.server_process import Launch, ServerProcess
from lossguard.engines.servers.transport import Address, Transport
from lossguard.errors import EngineError

FACTS_FILE = "server.json"
LOG_FILE = "server.log"
PROBE_TIMEOUTS = Timeouts(connect=2.0, read=10.0, request=15.0)
HEALTH_POLL_SECONDS = 0.2
LAST_WORDS_SECONDS = 3.0  # a connection breaks a moment before the process behind it is gone
_T = TypeVar("_T")


class Server:
    """Starts with ``start``, ends with ``close``; both may be called again."""

    def __init__(self, spec: EngineSpec, dialect: DialectFacts, options: ServerOptions) -> None:
        self._spec = spec
        self._dialect = dialect
        self._options = options
        self._process: ServerProcess | None = None
        self._url = options.url
        self._is_ready = False
        self._memory: Mapping[str, int] = {}

    def address(self, timeouts: Timeouts | None = None) -> Address:
        """Where it is. It must have been started."""
        if self._url is None:
            raise AssertionError("a launched server has no address before it is started")
        key = self._options.api_key_env
        return Address(
            system=self._spec.name,
            url=self._url,
            log=self.log,
            api_key=None if key is None else os.environ.get(key),
            timeouts=timeouts or self._options.timeouts,
        )

    def start(self) -> str:
        """Launch if needed, wait until it is healthy, and see that it is the server that began the run.

        Raises UsageError LG0228 or LG0229, EngineError LG0220 to LG0227.
        """
        if self._process is not None and self._process.exit_code is not None:
            self._process.require_running()
        if not self._is_ready:
            with ExitStack() as on_failure:
                on_failure.callback(self.close)
                if self._options.launch is not None:
                    self._launch()
                self._wait_until_healthy()
                self._check_identity()
                on_failure.pop_all()
            self._is_ready = True
        return self.address().url

    @property
    def is_launched(self) -> bool:
        """Whether a launched server has been started and not ended."""
        return self._process is not None

    @property
    def exit_code(self) -> int | None:
        """Of a launched server that has ended by itself; None while it runs, and where there is none."""
        return None if self._process is None else self._process.exit_code

    @property
    def log(self) -> Path | None:
        """The log of a launched server that has been started."""
        return None if self._process is None else self._process.log

    def explain(self, error: EngineError) -> None:
        """Raise LG0225 with the log's tail if the server is gone: that is why the request failed."""
        if self._process is None:
            return
        deadline = time.monotonic() + LAST_WORDS_SECONDS
        while time.monotonic() < deadline and error.code == "LG0220":
            if self._process.exit_code is not None:
                break
            time.sleep(0.05)
        if (code := self._process.exit_code) is not None:
            raise problems.crashed(
                self._spec.name, f"ended by itself with exit code {code} while it served", self._process.log
            ) from error

    def close(self) -> None:
        """End a launched server; raises EngineError LG0227 if its devices do not become free."""
        self._is_ready = False
        if self._process is None:
            return
        process, self._process, self._url = self._process, None, self._options.url
        process.stop()
        wait_for_memory(self._spec.name, self._memory)

    def fingerprint(self) -> dict[str, Any]:
        """What identifies it without starting it; a server behind a url is asked."""
        if self._options.url is None:
            return configured_facts(self._spec, self._dialect, self._options)
        told = self._ask(lambda transport: told_facts(transport, self._dialect))
        return {**configured_facts(self._spec, self._dialect, self._options), "server": told}

    async def model_name(self, transport: Transport) -> str | None:
        """The name to send: the configured one, else the only one that the server lists."""
        if self._options.model_name is not None or "/v1/models" not in self._dialect.fact_paths:
            return self._options.model_name
        listing = await transport.get_json("/v1/models")
        try:
            names = [item.member("id").text() for item in listing.member("data").items()]
        except MalformedReplyError as error:
            at = self.address().url + "/v1/models"
            raise problems.malformed(self._spec.name, at, str(error), json.dumps(listing.value)) from error
        if len(names) != 1:
            raise problems.which_model(self._spec.name, names)
        return names[0]

    def _launch(self) -> None:
        options, spec = self._options, self._spec
        port = choose_port(spec.name, options.port)
        values = {
            "model": spec.model_path,
            "port": str(port),
            "devices": ",".join(options.devices),
            "num_devices": str(len(options.devices)),
        }
        words = launch_words(spec.name, options.launch or (), values)
        require_program(spec.name, words)
        spec.make_room(frozenset(options.devices))
        self._memory = used_mib(options.devices)
        self._process = ServerProcess(
            Launch(
                system=spec.name,
                words=words,
                env=device_environment(options.devices, options.env),
                log=self._folder() / LOG_FILE,
                stop_seconds=options.timeouts.stop,
            )
        )
        self._url = f"http://{HOST}:{port}"

    def _folder(self) -> Path:
        """Where logs go: the system's folder in the run folder; without a run, a temporary one that stays."""
        if self._spec.folder is None:
            return Path(tempfile.mkdtemp(prefix=f"lossguard-{self._spec.name}-"))
        self._spec.folder.mkdir(parents=True, exist_ok=True)
        return self._spec.folder

    def _wait_until_healthy(self) -> None:
        path = self._options.health or self._dialect.health
        limit = self._options.timeouts.start if self._options.url is None else self._options.timeouts.connect
        deadline = time.monotonic() + limit
        while True:
            try:
                self._ask(lambda transport: transport.get(path))
            except EngineError as error:
                if self._process is not None:
                    self._process.require_running()
                if time.monotonic() >= deadline:
                    if self._process is None:
                        raise
                    at = self.address().url + path
                    raise problems.never_healthy(self._spec.name, at, limit, self._process.log) from error
                time.sleep(HEALTH_POLL_SECONDS)
            else:
                return

    def _check_identity(self) -> None:
        """What the server says about itself is written beside its replies, and may not change within a run."""
        if self._spec.folder is None:
            return
        told = self._ask(lambda transport: told_facts(transport, self._dialect))
        path = self._folder() / FACTS_FILE
        if path.is_file():
            before = json.loads(path.read_text(encoding="utf-8"))
            different = [key for key in sorted(told.keys() | before.keys()) if told.get(key) != before.get(key)]
            if different:
                shown = "; ".join(f"{key}: {before.get(key)!r}, now {told.get(key)!r}" for key in different)
                raise problems.changed(self._spec.name, shown)
            return
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(told, indent=2, allow_nan=False), encoding="utf-8")
        temporary.replace(path)

    def _ask(self, question: Callable[[Transport], Coroutine[Any, Any, _T]]) -> _T:
        """One question outside of serving."""

        async def ask() -> _T:
            transport = Transport(self.address(PROBE_TIMEOUTS), concurrency=1)
            try:
                return await question(transport)
            finally:
                await transport.close()

        return asyncio.run(ask())
