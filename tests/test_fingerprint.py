"""Fingerprints: what makes two runs comparable, and what their records refuse."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lossguard.errors import IntegrityError, UsageError
from lossguard.file_hashes import HashCache
from lossguard.fingerprint import WHY, Fingerprint, collect_fingerprint, comparable, why_it_matters

TEXTS = st.text(alphabet="ab é\n", max_size=3)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)
FACTS = st.dictionaries(st.sampled_from([f"{group}.{name}" for group in WHY for name in "abc"]), JSON_VALUES)
FINGERPRINTS = st.builds(lambda identity, measured: Fingerprint(identity=identity, measured=measured), FACTS, FACTS)


@given(FINGERPRINTS)
def test_json_round_trip(fingerprint: Fingerprint) -> None:
    assert Fingerprint.from_json(json.loads(json.dumps(fingerprint.to_json()))) == fingerprint


@given(FINGERPRINTS, FACTS)
def test_measured_facts_never_matter(fingerprint: Fingerprint, measured: dict[str, object]) -> None:
    other = Fingerprint(identity=fingerprint.identity, measured=measured)
    assert comparable(fingerprint, other) == ()
    assert other.sha256 == fingerprint.sha256


@given(FINGERPRINTS, FINGERPRINTS)
def test_hash_is_equal_exactly_if_comparable(a: Fingerprint, b: Fingerprint) -> None:
    assert (a.sha256 == b.sha256) == (comparable(a, b) == ())


@given(FINGERPRINTS, FINGERPRINTS)
def test_differences_are_mirrored(a: Fingerprint, b: Fingerprint) -> None:
    there, back = comparable(a, b), comparable(b, a)
    assert [(item.key, item.a, item.b) for item in there] == [(item.key, item.b, item.a) for item in back]


def test_a_difference_names_the_fact_and_why_it_matters() -> None:
    a = Fingerprint(identity={"versions.torch": "2.13.0", "os": "Linux", "threads.cpus_available": 2})
    b = Fingerprint(identity={"versions.torch": "2.14.1", "os": "Linux", "threads.cpus_available": 2})
    (difference,) = comparable(a, b)
    assert (difference.key, difference.a, difference.b) == ("versions.torch", "2.13.0", "2.14.1")
    assert str(difference).startswith("versions.torch: '2.13.0' against '2.14.1' (another version")


@pytest.mark.parametrize(("a", "b"), [(1, True), (0, False), (1, 1.0), ([1], [2]), ("1", 1), ("", None)])
def test_values_that_python_may_call_equal_are_told_apart(a: object, b: object) -> None:
    assert len(comparable(Fingerprint(identity={"engine.x": a}), Fingerprint(identity={"engine.x": b}))) == 1


def test_a_fact_that_is_not_there_equals_none() -> None:
    a, b = Fingerprint(identity={"versions.kernels": None}), Fingerprint(identity={})
    assert comparable(a, b) == ()
    assert a.sha256 == b.sha256


def test_an_unknown_group_still_says_why() -> None:
    assert "not known to be comparable" in why_it_matters("something.new")


@pytest.mark.parametrize("value", [math.nan, math.inf, b"bytes", {1, 2}])
def test_values_that_json_does_not_have_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"identity\.engine\.x"):
        Fingerprint(identity={"engine.x": value})


def test_a_changed_record_is_refused() -> None:
    data = Fingerprint(identity={"versions.torch": "2.13.0"}).to_json()
    data["identity"]["versions.torch"] = "2.14.1"
    with pytest.raises(IntegrityError, match="LG0107"):
        Fingerprint.from_json(data)


@pytest.mark.parametrize("change", [{"extra": 1}, {"schema_version": 2}, {"identity": []}])
def test_another_form_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(IntegrityError, match="LG0106"):
        Fingerprint.from_json({**Fingerprint(identity={}).to_json(), **change})


def test_a_missing_field_is_refused() -> None:
    data = Fingerprint(identity={}).to_json()
    del data["measured"]
    with pytest.raises(IntegrityError, match="LG0106"):
        Fingerprint.from_json(data)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "config.json").write_text("{}")
    return folder


def test_collected_facts_cover_model_engine_and_machine(tmp_path: Path, model: Path) -> None:
    engine = {"name": "callable", "arguments": {"batch_size": 64}}
    found = collect_fingerprint(target=model, engine=engine, hashes=HashCache(tmp_path))
    assert {key.partition(".")[0] for key in found.identity} == set(WHY) - {"served"}
    assert found.identity["engine.arguments.batch_size"] == 64


def test_reasons_of_an_engine_explain_and_do_not_identify(tmp_path: Path, model: Path) -> None:
    engine = {"device": "cpu", "reasons": {"device": "no accelerator"}}
    found = collect_fingerprint(target=model, engine=engine, hashes=HashCache(tmp_path))
    assert found.measured["engine.reasons.device"] == "no accelerator"
    assert [key for key in found.identity if "reasons" in key] == []


def test_replies_from_elsewhere_are_identified_by_the_machine_that_made_them(tmp_path: Path, model: Path) -> None:
    engine = {"name": "callable", "host": {"device.names": ["theirs"], "versions.torch": "1.0"}}
    found = collect_fingerprint(target=model, engine=engine, hashes=HashCache(tmp_path))
    assert {key for key in found.identity if not key.startswith("target.")} == {
        "engine.name",
        "device.names",
        "versions.torch",
    }
    assert found.measured["host_source"] == "host facts told by the engine"
    assert found.measured["num_cpus"], "this machine's facts still explain"


ENOUGH: dict[object, object] = {"device.names": [], "versions.torch": "1.0"}


@pytest.mark.parametrize(
    "host",
    [
        None,
        {},
        "gpu7",
        {"a", "b"},
        {"versions.torch": "1.0"},
        {"device.names": []},
        {**ENOUGH, "versions.torch": None},
        {**ENOUGH, "target.weights_sha256": "x"},
        {**ENOUGH, "engine.name": "x"},
        {**ENOUGH, "cpu": "x"},
        {**ENOUGH, 7: "x"},
        {**ENOUGH, "cpu.flags": {"avx"}},
        {**ENOUGH, "cpu.model": float("nan")},
    ],
)
def test_a_host_that_is_no_machine_is_refused(tmp_path: Path, model: Path, host: object) -> None:
    with pytest.raises(UsageError, match="LG0109"):
        collect_fingerprint(target=model, engine={"host": host}, hashes=HashCache(tmp_path))


def test_another_engine_argument_is_one_difference(tmp_path: Path, model: Path) -> None:
    hashes = HashCache(tmp_path)
    a = collect_fingerprint(target=model, engine={"arguments": {"batch_size": 64}}, hashes=hashes)
    b = collect_fingerprint(target=model, engine={"arguments": {"batch_size": 32}}, hashes=hashes)
    assert [item.key for item in comparable(a, b)] == ["engine.arguments.batch_size"]


def test_a_system_with_its_own_weights_is_told_apart(tmp_path: Path, model: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "model.safetensors").write_bytes(b"other weights")
    hashes = HashCache(tmp_path)
    a = collect_fingerprint(target=model, engine={}, hashes=hashes)
    b = collect_fingerprint(target=model, engine={}, served=own, served_revision="patch-41", hashes=hashes)
    differing = {item.key for item in comparable(a, b)}
    assert {"served.weights_sha256", "served.revision"} <= differing
    assert {key.partition(".")[0] for key in differing} == {"served"}


def test_collecting_imports_no_torch(tmp_path: Path, model: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from lossguard.file_hashes import HashCache\n"
        "from lossguard.fingerprint import collect_fingerprint\n"
        f"collect_fingerprint(target=Path({str(model)!r}), engine={{}}, hashes=HashCache(Path({str(tmp_path)!r})))\n"
        "print(sorted({'numpy', 'scipy', 'torch'} & set(sys.modules)))"
    )
    root = Path(__file__).resolve().parent.parent
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=root)
    assert done.stdout.strip() == "[]"
