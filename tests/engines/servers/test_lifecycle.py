"""Launching, watching and ending servers: whatever dies, nothing is left behind and nothing is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lossguard.engines.servers import device_memory
from lossguard.engines.servers.device_memory import used_mib, wait_for_memory
from lossguard.engines.servers.server_process import Launch, ServerProcess
from lossguard.errors import EngineError, UsageError
from tests.engines.servers.conftest import make_engine, make_requests

ROOT = Path(__file__).parents[3]
SERVER = [sys.executable, "-m", "tests.engines.servers.loopback", "vllm", "{port}"]
ENV = {"PYTHONPATH": f"{ROOT}:{ROOT / 'suites'}"}
FAMILY = """
import os, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import os, time; os.setsid(); time.sleep(600)"])
subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"])
print("family", flush=True)
time.sleep(600)
"""


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def eventually(condition: Callable[[], bool], seconds: float = 60) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return condition()


def children_of(pid: int) -> list[int]:
    """All living descendants."""
    from lossguard.engines.servers.guardian import descendants

    return descendants(pid)


def launch(tmp_path: Path, *words: str, stop_seconds: float = 5.0) -> ServerProcess:
    return ServerProcess(
        Launch(system="candidate", words=words, env=ENV, log=tmp_path / "server.log", stop_seconds=stop_seconds)
    )


def test_the_whole_family_ends(tmp_path: Path) -> None:
    process = launch(tmp_path, sys.executable, "-c", FAMILY, stop_seconds=0.5)
    assert eventually(lambda: len(children_of(process.pid)) == 2)
    family = [process.pid, *children_of(process.pid)]
    assert eventually(lambda: "family" in process.log.read_text())
    process.stop()
    process.stop()
    assert not any(is_alive(pid) for pid in family)
    assert process.exit_code == -signal.SIGTERM


def test_an_exit_is_noticed_with_its_code(tmp_path: Path) -> None:
    process = launch(tmp_path, sys.executable, "-c", "print('no such model', flush=True); raise SystemExit(7)")
    assert eventually(lambda: process.exit_code is not None)
    with pytest.raises(EngineError, match=r"exit code 7(.|\n)*\| no such model"):
        process.require_running()
    process.stop()


def test_a_program_that_cannot_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be launched"):
        launch(tmp_path, str(tmp_path))


OWNER = """
import signal, sys, time
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where a shell runs the tests in the background
from lossguard.engines.servers.server_process import Launch, ServerProcess
process = ServerProcess(Launch(system="s", words=[sys.executable, "-c", sys.argv[1]], env={}, log=Path(sys.argv[2]),
                               stop_seconds=0.5))
print(process.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_server_does_not_outlive_lossguard(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-c", OWNER, FAMILY, str(tmp_path / "log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **ENV}) as owner:
        assert owner.stdout is not None
        server = int(owner.stdout.readline())
        assert eventually(lambda: len(children_of(server)) == 2)
        family = [server, *children_of(server)]
        assert all(is_alive(pid) for pid in family)
        owner.send_signal(number)
        owner.wait(30)
        assert eventually(lambda: not any(is_alive(pid) for pid in family))


def test_a_server_does_not_outlive_its_guardian(tmp_path: Path) -> None:
    process = launch(tmp_path, sys.executable, "-c", "import time; time.sleep(600)")
    guardian = int(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(guardian, signal.SIGKILL)
    assert eventually(lambda: not is_alive(process.pid))
    process.stop()


def test_launch_serve_stop_and_again(toy_model: str, tmp_path: Path) -> None:
    engine = make_engine("vllm", toy_model, tmp_path, launch=SERVER, env=ENV, start_seconds=120)
    first = {output.request_id: output.ids for output in engine.serve(make_requests())}
    assert "serving vllm on" in (tmp_path / "server.log").read_text()
    pid = pid_of(engine)
    engine.close()
    assert not is_alive(pid)
    again = {output.request_id: output.ids for output in engine.serve(make_requests())}
    engine.close()
    engine.close()
    assert first == again


def pid_of(engine: Any) -> int:
    pid = engine._server._process.pid
    assert isinstance(pid, int)
    return pid


def test_a_server_killed_in_the_middle_is_reported_with_its_log(toy_model: str, tmp_path: Path) -> None:
    launched = [*SERVER, "delay=0.2"]
    engine = make_engine("vllm", toy_model, tmp_path, launch=launched, env=ENV, concurrency=2, start_seconds=120)
    replies = engine.serve(make_requests(20))
    served = [next(replies) for _ in range(4)]
    os.kill(pid_of(engine), signal.SIGKILL)
    with pytest.raises(EngineError, match=r"exit code -9 while it served(.|\n)*serving vllm") as caught:
        served.extend(replies)
    assert caught.value.code == "LG0225"
    engine.close()
    rest = [request for request in make_requests(20) if request.id not in {output.request_id for output in served}]
    assert len(list(engine.serve(rest))) == len(rest), "the next call starts it again"
    engine.close()


def test_a_server_that_never_gets_healthy(toy_model: str, tmp_path: Path) -> None:
    script = "import time; print('loading', flush=True); time.sleep(600)"
    engine = make_engine("vllm", toy_model, tmp_path, launch=[sys.executable, "-c", script], start_seconds=1.5)
    with pytest.raises(EngineError, match=r"was not healthy(.|\n)*loading") as caught:
        list(engine.serve(make_requests()))
    assert caught.value.code == "LG0226"


def test_a_server_that_crashes_on_start(toy_model: str, tmp_path: Path) -> None:
    script = "import sys; sys.exit('out of memory')"
    engine = make_engine("vllm", toy_model, tmp_path, launch=[sys.executable, "-c", script], start_seconds=60)
    with pytest.raises(EngineError, match=r"exit code 1(.|\n)*out of memory") as caught:
        list(engine.serve(make_requests()))
    assert caught.value.code == "LG0225"


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({}, "exactly one of url"),
        ({"url": "http://a", "launch": "b"}, "exactly one of url"),
        ({"url": "127.0.0.1:3000"}, "should be like"),
        ({"url": "http://me:secret@host"}, "password in its url"),
        ({"url": "http://a", "port": 3}, "belongs to launch"),
        ({"launch": 3}, "as a string or a list"),
        ({"launch": "serve {modle}"}, "Did you mean 'model'"),
        ({"launch": "serve 'half"}, "no shell would split"),
        ({"launch": "no-such-program-anywhere {model}"}, "there is no program 'no-such-program-anywhere'"),
        ({"url": "http://a", "concurency": 3}, "Did you mean 'concurrency'"),
        ({"url": "http://a", "read_seconds": 0}, "over 0"),
        ({"url": "http://a", "health": "health"}, "should be a path"),
        ({"launch": "x", "devices": -1}, "number of devices"),
        ({"launch": "x", "env": {"A": 1.5}}, "should be a table"),
        ({"url": "http://a", "api_key_env": "LOSSGUARD_NO_SUCH_KEY"}, "is not set"),
    ],
)
def test_options_that_do_not_fit(toy_model: str, options: dict[str, Any], shown: str) -> None:
    with pytest.raises(UsageError, match=shown.replace("(", r"\(")):
        list(make_engine("vllm", toy_model, **options).serve(make_requests()))


def test_a_port_that_is_taken_is_refused(toy_model: str, tmp_path: Path) -> None:
    from tests.engines.servers.loopback import Loopback

    with Loopback("vllm") as stranger:
        port = int(stranger.url.rpartition(":")[2])
        engine = make_engine("vllm", toy_model, tmp_path, launch=SERVER, env=ENV, port=port)
        with pytest.raises(UsageError, match=f"port {port} cannot be had"):
            list(engine.serve(make_requests()))


def nvidia_smi(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in whose readings come from a file."""
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ncat {folder / 'used'}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder / "used"


def test_memory_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used = nvidia_smi(tmp_path, monkeypatch)
    monkeypatch.setattr(device_memory, "POLL_SECONDS", 0.01)
    used.write_text("0, 900\n1, 20\n")
    before = used_mib(("0", "1"))
    assert before == {"0": 900, "1": 20}
    used.write_text("0, 900\n1, 70000\n")
    with pytest.raises(EngineError, match="device 1: 70000 MiB, 20 before"):
        wait_for_memory("candidate", before, seconds=0.1)
    used.write_text("0, 100\n1, 400\n")
    wait_for_memory("candidate", before, seconds=0.1)
    assert used_mib(()) == {}


def test_another_server_behind_the_url_ends_the_run(toy_model: str, tmp_path: Path) -> None:
    from tests.engines.servers.loopback import Loopback

    with Loopback("vllm") as server:
        list(make_engine("vllm", toy_model, tmp_path, url=server.url).serve(make_requests()))
        list(make_engine("vllm", toy_model, tmp_path, url=server.url).serve(make_requests()))
        server.version = "2.0"
        with pytest.raises(UsageError, match=r"/version version: '\"1.0\"', now '\"2.0\"'"):
            list(make_engine("vllm", toy_model, tmp_path, url=server.url).serve(make_requests()))
