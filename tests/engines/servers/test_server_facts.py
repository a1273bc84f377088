"""What identifies a server: stable from start to start, and without secrets."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from lossguard.engines.servers.counters import increase, read_counters
from lossguard.engines.servers.log_facts import facts_in_log
from tests.engines.servers.conftest import make_engine, make_requests
from tests.engines.servers.loopback import Loopback


def test_keys_are_never_written_down(toy_model: str) -> None:
    env = {"MY_API_KEY": "hush", "OMP_NUM_THREADS": 2}
    engine = make_engine("vllm", toy_model, launch="no-such-program {port}", env=env)
    facts = engine.fingerprint()
    assert facts["env"] == {"MY_API_KEY": "set", "OMP_NUM_THREADS": "2"}
    assert "hush" not in str(facts)
    assert facts["version"] is None
    assert "no Python program" in facts["reasons"][-1]


def test_the_version_comes_from_the_interpreter_that_is_launched(toy_model: str) -> None:
    engine = make_engine("vllm", toy_model, launch=f"{sys.executable} -m anything {{port}}")
    assert engine.fingerprint()["version"] is None, "vllm is not installed beside lossguard"
    assert "exit code 1" in engine.fingerprint()["reasons"][-1]
    llama = make_engine("llamacpp", toy_model, launch=f"{sys.executable} {{port}}")
    assert llama.fingerprint()["version"] == f"Python {sys.version.split()[0]}"


def test_the_dtype_of_the_launch_command_is_taken(toy_model: str) -> None:
    def dtype(kind: str, **options: Any) -> str:
        return make_engine(kind, toy_model, **options).capabilities.logit_dtype

    assert dtype("vllm", launch="serve --dtype float32 {port}") == "float32"
    assert dtype("vllm", launch=["serve", "--dtype=half"]) == "float16"
    assert dtype("vllm", launch="serve") == "bfloat16"
    assert dtype("llamacpp", launch="serve") == "float32"
    assert dtype("llamacpp", launch="serve", logit_dtype="float16") == "float16"


def test_what_a_server_says_about_itself_is_kept(toy_model: str, tmp_path: Path) -> None:
    with Loopback("vllm") as server:
        engine = make_engine("vllm", toy_model, tmp_path, url=server.url)
        list(engine.serve(make_requests(1)))
        assert engine.fingerprint()["server"] == {
            "/version version": '"1.0"',
            "/v1/models data[0].id": '"toy"',
            "/v1/models data[0].root": '"toy"',
        }
    assert '"/version version": "\\"1.0\\""' in (tmp_path / "server.json").read_text()


def test_keys_reach_the_server(toy_model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOSSGUARD_TEST_KEY", "sesame")
    with Loopback("openai") as server:
        list(make_engine("openai", toy_model, url=server.url, api_key_env="LOSSGUARD_TEST_KEY").serve(make_requests(1)))
        assert server.headers["authorization"] == "Bearer sesame"


def test_counters_are_summed_over_labels_and_survive_a_restart() -> None:
    text = '# HELP a\na_total{engine="0"} 3\na_total{engine="1",x="}"} 4.0 1700000000\nb_total NaN\nc 1\nbroken{ 3\n'
    now = read_counters(text, {"a_total": "drafts", "b_total": "accepted"})
    assert now == {"drafts": 7.0}
    assert increase({"drafts": 5.0}, now) == {"server_drafts": (2.0,)}
    assert increase({"drafts": 50.0}, now) == {"server_drafts": (7.0,)}
    assert increase({}, now) == {}


def test_what_plug_ins_say_is_read_from_a_log(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_bytes(
        b"INFO 11-30 [w12.py:9] lossguard w12: 3 layers\n\xff progress\nlossguard is here: not told\n"
        b"INFO lossguard w12: 41 layers, left in bf16: layers.1 (raw: 0.5 would escape)\n"
    )
    assert facts_in_log(log) == {"w12": "41 layers, left in bf16: layers.1 (raw: 0.5 would escape)"}
    assert facts_in_log(tmp_path / "none.log") == facts_in_log(None) == {}
