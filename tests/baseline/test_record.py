"""One record file: what goes in comes out, and anything else is refused."""

from __future__ import annotations

import dataclasses
import json
import struct
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from lossguard.baseline.migrations import MIGRATIONS, is_readable
from lossguard.baseline.record import encode, load_record, parse_record, require_parameters, write_record
from lossguard.baseline.schema import SCHEMA_VERSION, BaselineRecord, RawRecord, from_raw, kept_part, to_raw
from lossguard.checks.base import Thresholds
from lossguard.errors import BaselineError, StorageError
from lossguard.records import ForcedScores, ReportedLogprobs, Request, SamplingParams, ServedOutput, Usage
from tests.baseline.conftest import Recorded
from tests.baseline.samples import PARAMETERS, output, record, records, scores


def assert_same(ours: BaselineRecord, theirs: BaselineRecord) -> None:
    """Equal in every field; arrays bit by bit, with their dtypes."""
    for field in dataclasses.fields(BaselineRecord):
        a, b = getattr(ours, field.name), getattr(theirs, field.name)
        if isinstance(a, ForcedScores):
            assert_same_scores(a, b)
        else:
            assert a == b, field.name


def assert_same_scores(ours: ForcedScores, theirs: ForcedScores) -> None:
    assert ours.request_ids == theirs.request_ids
    for field in dataclasses.fields(ForcedScores)[1:]:
        a, b = getattr(ours, field.name), getattr(theirs, field.name)
        assert (a is None) == (b is None), field.name
        if a is not None:
            assert a.dtype == b.dtype, field.name
            assert a.shape == b.shape, field.name
            assert a.tobytes() == b.tobytes(), field.name


@given(records())
def test_what_is_written_is_read(given: BaselineRecord) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = write_record(Path(folder) / "sub" / "record.safetensors", given)
        assert_same(load_record(path), given)


@given(records())
def test_equal_records_are_equal_files(given: BaselineRecord) -> None:
    first = encode(to_raw(given), SCHEMA_VERSION)
    assert encode(to_raw(from_raw(to_raw(given))), SCHEMA_VERSION) == first


def test_a_real_record_is_read_as_it_was_served(recorded: Recorded) -> None:
    found = load_record(recorded.path)
    lines = (recorded.run_folder / "stock" / "outputs.jsonl").read_text().splitlines()
    served = {item.request_id: item for item in (ServedOutput.from_json(json.loads(line)) for line in lines)}
    assert found.test == tuple(kept_part(served[request.id]) for request in found.test_requests)
    frozen = json.loads((recorded.run_folder / "calibration.json").read_text())
    assert found.thresholds == Thresholds.from_json(frozen)
    assert recorded.path.stat().st_size < 2_000_000


def test_arrival_times_and_reported_logprobs_are_left_out(tmp_path: Path) -> None:
    reported = ReportedLogprobs(served=(-0.1,))
    timed = output("c0", (4,), sent_ns=5, arrival_ns=(9,), logprobs=reported, text="x")
    given = record(calibration=(timed,), calibration_scores=scores((timed,)))
    (kept,) = load_record(write_record(tmp_path / "record", given)).calibration
    assert kept == output("c0", (4,), text="x")


@pytest.mark.parametrize("fraction", [0.0, 0.001, 0.1, 0.5, 0.9, 0.999])
def test_a_file_cut_short_is_refused(tmp_path: Path, fraction: float) -> None:
    path = write_record(tmp_path / "record", record())
    whole = path.read_bytes()
    path.write_bytes(whole[: int(fraction * len(whole))])
    with pytest.raises(BaselineError, match="LG0702"):
        load_record(path)


def test_a_file_with_something_after_its_end_is_refused(tmp_path: Path) -> None:
    path = write_record(tmp_path / "record", record())
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(BaselineError, match="LG0702"):
        load_record(path)


WHOLE = encode(to_raw(record()), SCHEMA_VERSION)


@given(st.integers(0, len(WHOLE) - 1), st.integers(1, 255))
def test_no_changed_byte_goes_unnoticed(place: int, change: int) -> None:
    changed = bytearray(WHOLE)
    changed[place] ^= change
    if bytes(changed[:8]) == WHOLE[:8] and header_means_the_same(bytes(changed)):
        assert_same(parse_record(bytes(changed), Path("changed")).record, record())
    else:
        with pytest.raises(BaselineError, match=r"LG070[23]"):  # the version itself may have been hit
            parse_record(bytes(changed), Path("changed"))


def header_means_the_same(data: bytes) -> bool:
    """Blanks that fill up the header mean nothing, nor does another order; all else is a change."""
    header, body = split(data)
    try:
        return bool(json.loads(header) == json.loads(split(WHOLE)[0]) and body == split(WHOLE)[1])
    except ValueError:
        return False


@pytest.mark.parametrize("column", ["calibration_scores.gap", "calibration.ids", "test_requests.prompt_ids.ends"])
def test_a_changed_value_is_refused(tmp_path: Path, column: str) -> None:
    header, body = split(WHOLE)
    start, _stop = json.loads(header)[column]["data_offsets"]
    changed = bytearray(body)
    changed[start] ^= 1
    path = tmp_path / "record"
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(changed))
    with pytest.raises(BaselineError, match="does not have the hash"):
        load_record(path)


def split(data: bytes) -> tuple[bytes, bytes]:
    """(header, arrays) of a safetensors file."""
    (length,) = struct.unpack_from("<Q", data)
    return data[8 : 8 + length], data[8 + length :]


def test_a_schema_of_the_future_is_refused_before_its_content_is_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "record"
    path.write_bytes(encode(RawRecord(facts={"unheard": "of"}, tensors={}), SCHEMA_VERSION + 1))
    with pytest.raises(BaselineError, match="LG0703") as caught:
        load_record(path)
    assert f"schema version {SCHEMA_VERSION + 1}; this lossguard reads versions up to {SCHEMA_VERSION}" in str(
        caught.value
    )


@pytest.mark.parametrize("version", [-1, True, "1", None, 1.5])
def test_a_version_that_is_no_number_is_damage(tmp_path: Path, version: Any) -> None:
    path = tmp_path / "record"
    path.write_bytes(encode(to_raw(record()), version))
    with pytest.raises(BaselineError, match="LG0702"):
        load_record(path)


def test_foreign_files_are_refused(tmp_path: Path) -> None:
    save_file({"weight": np.zeros(4, dtype=np.float32)}, str(tmp_path / "model.safetensors"))
    (tmp_path / "text").write_text("not a record at all")
    (tmp_path / "folder").mkdir()
    for name in ("model.safetensors", "text", "folder"):
        with pytest.raises(BaselineError, match="LG0702"):
            load_record(tmp_path / name)
    with pytest.raises(BaselineError, match="LG0701"):
        load_record(tmp_path / "absent")


def test_facts_that_do_not_fit_are_damage(tmp_path: Path) -> None:
    whole = to_raw(record())
    path = tmp_path / "record"
    changes: tuple[dict[str, Any], ...] = (
        {"more": 1},
        {"claim": None},
        {"parameters": []},
        {"thresholds": {}},
        {"test": {"replies": [], "telemetry": []}},
        {"fingerprint": {}},
    )
    for change in changes:
        path.write_bytes(encode(RawRecord(facts={**whole.facts, **change}, tensors=whole.tensors), SCHEMA_VERSION))
        with pytest.raises(BaselineError, match="LG0702"):
            load_record(path)
    for name in whole.tensors:
        tensors = {key: array for key, array in whole.tensors.items() if key != name}
        path.write_bytes(encode(RawRecord(facts=whole.facts, tensors=tensors), SCHEMA_VERSION))
        with pytest.raises(BaselineError, match="LG0702"):
            load_record(path)


def test_replies_to_other_requests_are_never_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="do not answer"):
        write_record(tmp_path / "record", record(test=(output("t1"), output("t0"))))
    with pytest.raises(ValueError, match="other replies"):
        write_record(tmp_path / "record", record(calibration_scores=scores((output("c0", (9, 9, 9)),))))
    assert list(tmp_path.iterdir()) == []


def test_parameters_are_compared_key_by_key(tmp_path: Path) -> None:
    require_parameters(record(), PARAMETERS, tmp_path)
    other = {**PARAMETERS, "sizes": {**PARAMETERS["sizes"], "max_tokens": 8}, "seed": 3}
    with pytest.raises(BaselineError, match="LG0704") as caught:
        require_parameters(record(), other, tmp_path)
    assert caught.value.found.endswith("seed: recorded nothing, asked 3; sizes.max_tokens: recorded 4, asked 8")


def test_a_record_of_schema_0_is_migrated(tmp_path: Path) -> None:
    whole = to_raw(record())
    facts, tensors = json.loads(json.dumps(whole.facts)), dict(whole.tensors)
    for name, prompts in (("calibration_requests", [[1, 2, 3]]), ("test_requests", [[1, 2, 3], [7]])):
        del tensors[f"{name}.prompt_ids"], tensors[f"{name}.prompt_ids.ends"]
        facts[name] = [{**entry, "prompt_ids": ids} for entry, ids in zip(facts[name], prompts, strict=True)]
    path = tmp_path / "record"
    path.write_bytes(encode(RawRecord(facts=facts, tensors=tensors), 0))
    assert_same(load_record(path), record())


def test_every_older_schema_has_a_step() -> None:
    assert sorted(MIGRATIONS) == list(range(SCHEMA_VERSION))
    assert is_readable(0)
    assert not is_readable(SCHEMA_VERSION + 1)


def test_what_a_record_holds_has_the_fields_of_schema_1() -> None:
    """If this fails, records written before cannot be read: raise SCHEMA_VERSION and add a migration."""
    pinned = {
        Request: "chat_template_hash cluster id lora_id prompt_ids repeat_id sampling set",
        SamplingParams: "bad_words frequency_penalty grammar ignore_eos logit_bias logprobs max_tokens min_p "
        "min_tokens n presence_penalty repetition_penalty seed stop_ids stop_strings temperature top_k top_p",
        ServedOutput: "arrival_ns finish_reason ids logprobs request_id sent_ns stop_reason telemetry text usage",
        Usage: "cached_tokens completion_tokens prompt_tokens reasoning_tokens",
        Thresholds: "delta_max_nats delta_median_nats event_nats flip_cost_nats largest_gap_nats logit_dtype "
        "logprob_nats margin near_tie_budget_nats num_requests num_tokens problems q_nats reasons "
        "recomposition_shift_nats stock_rate",
    }
    found = {kind: " ".join(sorted(field.name for field in dataclasses.fields(kind))) for kind in pinned}
    assert found == pinned


def test_a_place_that_cannot_be_written_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="LG0707"):
        write_record(tmp_path / "file" / "record", record())
