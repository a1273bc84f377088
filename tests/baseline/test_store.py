"""The store: one file per claim, whole files or none, and nothing lost by parallel writers."""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from lossguard.baseline.parameters import ANY_CLAIM, claim_parameters, record_name
from lossguard.baseline.record import load_record, write_record
from lossguard.baseline.store import BaselineStore
from lossguard.config import PromptsConfig, config_from_mapping
from lossguard.errors import BaselineError, LossguardError, StorageError, UsageError
from lossguard.plan import Plan
from tests.baseline.samples import PARAMETERS, output, record

NUM_WRITERS = 50


@pytest.fixture
def store(tmp_path: Path) -> BaselineStore:
    return BaselineStore(tmp_path / ".lossguard-baselines")


def source(folder: Path, claim: str, name: str = "stock", text: str | None = None) -> Path:
    """A record file as a worker leaves it in its run folder."""
    replies = (output("t0", (4, 4), text=text), output("t1", ()))
    return write_record(folder / f"{record_name(claim, {})}.worker", record(claim, name, test=replies))


def test_a_record_is_found_by_name_claim_and_parameters(store: BaselineStore, tmp_path: Path) -> None:
    path = store.put("stock", source(tmp_path, "tree-verify/greedy"))
    assert path == store.path("stock", "tree-verify/greedy", PARAMETERS)
    assert path.parent == store.root / "stock"
    assert path.name.startswith("tree-verify-greedy-")
    assert store.find("stock", "tree-verify/greedy", PARAMETERS) == path
    assert store.find("stock", "tree-verify/other", PARAMETERS) is None
    assert store.find("other", "tree-verify/greedy", PARAMETERS) is None
    assert store.find("stock", "tree-verify/greedy", {**PARAMETERS, "seed": 1}) is None


def test_a_record_for_any_claim_stands_in_where_a_claim_has_none(store: BaselineStore, tmp_path: Path) -> None:
    shared = store.put("stock", source(tmp_path, ANY_CLAIM))
    assert shared.name.startswith("any-claim-")
    assert store.find("stock", "tree-verify/greedy", PARAMETERS) == shared
    own = store.put("stock", source(tmp_path, "tree-verify/greedy"))
    assert store.find("stock", "tree-verify/greedy", PARAMETERS) == own
    assert store.find("stock", "another", PARAMETERS) == shared
    assert store.find("stock", "another", {**PARAMETERS, "seed": 1}) is None
    assert [info.problem for info in store.records("stock")] == [None, None]


def test_a_claim_called_as_that_record_has_a_file_of_its_own() -> None:
    assert record_name("any-claim", PARAMETERS) != record_name(ANY_CLAIM, PARAMETERS)


def test_claims_whose_slugs_coincide_have_files_of_their_own() -> None:
    names = {record_name(claim, PARAMETERS) for claim in ("a/b", "a-b", "A b", "a//b", "ä/b", "a" * 100, "a" * 101)}
    assert len(names) == 7
    assert max(map(len, names)) < 100


def test_the_hash_does_not_depend_on_the_order_of_keys_or_on_tuples() -> None:
    assert record_name("c", {"a": (1, 2), "b": {"x": 1, "y": 2}}) == record_name(
        "c", {"b": {"y": 2, "x": 1}, "a": [1, 2]}
    )


@pytest.mark.parametrize("name", ["", "..", "a/b", "/etc", ".hidden", "a b"])
def test_a_name_that_leads_elsewhere_is_refused(store: BaselineStore, name: str) -> None:
    with pytest.raises(UsageError, match="LG0708"):
        store.path(name, "claim", PARAMETERS)


@pytest.mark.parametrize("parameters", [{"x": float("nan")}, {"x": Path("y")}, {"x": {1, 2}}])
def test_parameters_that_are_no_json_are_refused(store: BaselineStore, parameters: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="LG0708"):
        store.path("stock", "claim", parameters)


def test_a_record_of_another_claim_is_refused(store: BaselineStore, tmp_path: Path) -> None:
    path = store.put("stock", source(tmp_path, "one"))
    path.rename(store.path("stock", "two", PARAMETERS))
    with pytest.raises(BaselineError, match="LG0704") as caught:
        store.find("stock", "two", PARAMETERS)
    assert "claim: recorded 'one', asked 'two'" in caught.value.found
    (info,) = store.records("stock")
    assert info.problem is not None
    assert "never found" in info.problem


def test_a_record_of_other_parameters_is_refused(store: BaselineStore, tmp_path: Path) -> None:
    path = store.put("stock", source(tmp_path, "one"))
    asked = {**PARAMETERS, "seed": 1}
    path.rename(store.path("stock", "one", asked))
    with pytest.raises(BaselineError, match="seed: recorded nothing, asked 1"):
        store.find("stock", "one", asked)


def test_a_record_of_another_baseline_is_refused(store: BaselineStore, tmp_path: Path) -> None:
    with pytest.raises(BaselineError, match="baseline: recorded 'stock', asked 'mine'"):
        store.put("mine", source(tmp_path, "one"))
    assert not store.root.exists()


def test_only_a_valid_record_gets_in(store: BaselineStore, tmp_path: Path) -> None:
    good = source(tmp_path, "one")
    path = store.put("stock", good)
    before = path.read_bytes()
    good.write_bytes(before[: len(before) // 2])
    with pytest.raises(BaselineError, match="LG0702"):
        store.put("stock", good)
    with pytest.raises(BaselineError, match="LG0701"):
        store.put("stock", tmp_path / "absent")
    assert path.read_bytes() == before


def test_put_replaces_the_record_of_the_same_claim(store: BaselineStore, tmp_path: Path) -> None:
    store.put("stock", source(tmp_path, "one", text="old"))
    path = store.put("stock", source(tmp_path, "one", text="new"))
    assert load_record(path).test[0].text == "new"
    assert len(store.records()) == 1


def test_records_lists_all_and_says_which_are_damaged(store: BaselineStore, tmp_path: Path) -> None:
    store.put("stock", source(tmp_path, "one"))
    store.put("mine", source(tmp_path, "two", name="mine"))
    broken = store.put("stock", source(tmp_path, "three"))
    broken.write_bytes(broken.read_bytes()[:-5])
    (store.root / "stock" / ".leftover.safetensors").write_text("a writer was killed here")
    infos = {info.path.name.rpartition("-")[0]: info for info in store.records()}
    assert sorted(infos) == ["one", "three", "two"]
    assert (infos["one"].name, infos["one"].claim, infos["one"].problem) == ("stock", "one", None)
    assert infos["one"].created == "2026-01-02T03:04:05+00:00"
    assert infos["one"].sizes == PARAMETERS["sizes"]
    assert infos["three"].claim == ""
    assert infos["three"].problem is not None
    assert infos["three"].problem.startswith("LG0702")
    assert [info.name for info in store.records("mine")] == ["mine"]


def test_an_absent_store_is_empty(store: BaselineStore) -> None:
    assert store.records() == ()
    assert store.records("stock") == ()
    assert store.names() == ()
    assert store.prune("stock", {"one"}) == ()


def test_prune_deletes_only_claims_that_are_not_kept(store: BaselineStore, tmp_path: Path) -> None:
    kept, gone = (store.put("stock", source(tmp_path, claim)) for claim in ("kept", "gone"))
    other = store.put("mine", source(tmp_path, "gone", name="mine"))
    broken = store.put("stock", source(tmp_path, "broken"))
    broken.write_bytes(b"")
    assert store.unwanted("stock", {"kept"}) == (gone,)
    assert store.prune("stock", {"kept"}) == (gone,)
    assert not gone.exists()
    assert all(path.exists() for path in (kept, other, broken)), "nobody knows whose a damaged record is"


def put_one(arguments: tuple[Path, Path]) -> Path:
    """What one of many writers does."""
    root, path = arguments
    return BaselineStore(root).put("stock", path)


def assert_all_there(store: BaselineStore, claims: list[str]) -> None:
    assert {info.claim: info.problem for info in store.records("stock")} == dict.fromkeys(claims)
    for claim in claims:
        path = store.find("stock", claim, PARAMETERS)
        assert path is not None
        assert load_record(path).test[0].text == claim
    assert [entry.name for entry in (store.root / "stock").iterdir() if entry.name.startswith(".")] == []


def test_fifty_threads_lose_nothing(store: BaselineStore, tmp_path: Path) -> None:
    claims = [f"claim/{number}" for number in range(NUM_WRITERS)]
    tasks = [(store.root, source(tmp_path, claim, text=claim)) for claim in claims]
    with ThreadPoolExecutor(NUM_WRITERS) as pool:
        list(pool.map(put_one, tasks))
    assert_all_there(store, claims)


def test_fifty_claims_from_several_processes_lose_nothing(store: BaselineStore, tmp_path: Path) -> None:
    claims = [f"claim/{number}" for number in range(NUM_WRITERS)]
    tasks = [(store.root, source(tmp_path, claim, text=claim)) for claim in claims]
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        pool.map(put_one, tasks, chunksize=1)
    assert_all_there(store, claims)


def test_writers_of_one_claim_leave_one_whole_record(store: BaselineStore, tmp_path: Path) -> None:
    """Whichever comes last wins; a reader in between sees one of them, never a mixture."""
    texts = [f"writer {number}" * 50 for number in range(20)]
    files = []
    for number, text in enumerate(texts):
        replies = (output("t0", (4, 4), text=text), output("t1", ()))
        files.append(write_record(tmp_path / str(number), record("one", test=replies)))
    path = store.put("stock", files[0])
    with ThreadPoolExecutor(8) as pool:
        writers = [pool.submit(store.put, "stock", file) for file in files]
        seen = [load_record(path).test[0].text for _ in range(40)]
        assert {writer.result() for writer in writers} == {path}
    assert set(seen) <= set(texts)
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("function", ["os.fsync", "pathlib.Path.replace"])
def test_a_write_that_fails_leaves_the_old_record(
    store: BaselineStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    path = store.put("stock", source(tmp_path, "one"))
    before, changed = path.read_bytes(), source(tmp_path, "one", text="new")

    def full(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(function, full)
        with pytest.raises(StorageError, match="LG0707"):
            store.put("stock", changed)
    assert path.read_bytes() == before
    assert [entry.name for entry in path.parent.iterdir()] == [path.name], "no temporary file is left"


def test_a_read_only_store_is_a_clear_error(
    store: BaselineStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Permissions do not bind the administrator, so that a read-only file system is simulated for them."""
    made = source(tmp_path, "one")
    store.root.mkdir()
    store.root.chmod(0o500)
    if os.geteuid() == 0:
        monkeypatch.setattr("pathlib.Path.mkdir", _read_only)
    with pytest.raises(StorageError, match="LG0707") as caught:
        store.put("stock", made)
    assert any(reason in caught.value.found for reason in ("Read-only file system", "Permission denied"))
    assert caught.value.exit_code == 3
    monkeypatch.undo()
    store.root.chmod(0o700)
    assert list(store.root.iterdir()) == []


def _read_only(*_arguments: object, **_options: object) -> None:
    raise OSError(30, "Read-only file system")


def plan(**changes: object) -> Plan:
    data = {"model": "m", "systems": {"stock": {"engine": "x", "batch": 4}, "mine": {"engine": "x"}}}
    return replace(Plan(config_from_mapping(data), candidates=["mine"]), **changes)  # type: ignore[arg-type]


def test_parameters_hold_all_that_decides_stocks_replies() -> None:
    assert claim_parameters(plan()) == {
        "model": "m",
        "baseline": {"name": "stock", "engine": "x", "model": None, "options": {"batch": 4}},
        "scorer": {"engine": "torch", "options": {}},
        "sizes": {"num_requests": 240, "max_tokens": 256, "num_calibration": 80},
        "seed": 17,
        "temperature": 0.0,
        "repeats": 1,
        "prompts": {"sets": ["default"], "seed": 17},
    }


@pytest.mark.parametrize(
    "change",
    [
        {"baseline": "mine", "candidates": ["stock"]},
        {"budget": "quick"},
        {"budget": "240x256"},  # 60 calibration prompts, not 80
        {"seed": 3},
        {"temperature": 0.5},
        {"repeats": 2},
        {"prompt_sets": ("chat",)},
        {"config": replace(plan().config, model="n")},
        {"config": replace(plan().config, prompts=PromptsConfig(seed=2))},
        {"config": replace(plan().config, scorer=replace(plan().config.scorer, options={"dtype": "float32"}))},
    ],
)
def test_each_of_them_changes_the_key(change: dict[str, object]) -> None:
    assert record_name("c", claim_parameters(plan(**change))) != record_name("c", claim_parameters(plan()))


@pytest.mark.parametrize("change", [{"candidates": []}, {"temperature": 0}, {"seed": 17}, {"folder": Path("x")}])
def test_what_does_not_concern_stock_does_not_change_the_key(change: dict[str, object]) -> None:
    assert record_name("c", claim_parameters(plan(**change))) == record_name("c", claim_parameters(plan()))


def test_an_option_that_json_does_not_have_is_refused() -> None:
    odd = config_from_mapping({"model": "m", "systems": {"stock": {"engine": "x", "weight": float("inf")}}})
    with pytest.raises(LossguardError, match="LG0708"):
        claim_parameters(Plan(odd))
