"""The drafters of this repository recorded: as each would say it alone, and from folders to a file by command."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from lossguard.cli.main import run
from lossguard.records import FinishReason, Request, SamplingParams, ServedOutput, Verdict
from lossguard_mechanisms.drafters.config import NAMES
from lossguard_mechanisms.drafters.fresh import random_drafter
from lossguard_mechanisms.drafters.loading import save_drafter
from lossguard_mechanisms.replay.columns import RecordingOptions
from lossguard_mechanisms.replay.engine_check import EngineCheck, compare_outputs
from lossguard_mechanisms.replay.generation import generate
from lossguard_mechanisms.replay.policies import BestFirst, Chain, Oracle
from lossguard_mechanisms.replay.record import record
from lossguard_mechanisms.replay.recording import Recording, Replies
from lossguard_mechanisms.replay.replies import replies_of
from lossguard_mechanisms.replay.soundness import problems_of
from lossguard_mechanisms.replay.store import SUFFIX, load_recording
from lossguard_mechanisms.replay.walk import replay
from lossguard_mechanisms.targets.config import config_from_hf
from lossguard_mechanisms.targets.decoder import Target
from lossguard_mechanisms.targets.fresh import FreshMixing
from lossguard_mechanisms.targets.initial_weights import random_target
from lossguard_mechanisms.targets.rows import rows_of
from lossguard_mechanisms.targets.weights import save_target
from tests.mechanisms.replay.toy_recordings import provenance, recording
from tests.mechanisms.targets.tiny import COMMON, HYBRID, pair, random_ids


@pytest.fixture(scope="module")
def target() -> Target:
    return pair("qwen3_5_text").ours


def said_by(target: Target) -> Replies:
    """Greedy replies of eight tokens to three prompts."""
    requests = [
        Request(
            id=f"r{index}",
            prompt_ids=tuple(random_ids(length, seed=index).tolist()),
            sampling=SamplingParams(max_tokens=8),
            set="toy",
            cluster=f"r{index}",
        )
        for index, length in enumerate((2, 7, 5))
    ]
    return replies_of(requests, generate(target, requests, rows_at_once=1000))


@pytest.mark.parametrize("name", NAMES)
def test_a_recording_has_what_the_drafter_says_at_every_position(target: Target, name: str) -> None:
    said = said_by(target)
    drafter = random_drafter(name, target, seed=1)
    found = record(target, drafter, said, provenance(vocab_size=53), RecordingOptions(rows_at_once=20, chunk_length=3))
    assert problems_of(found) == []
    assert (found.lattices.edges is None) is (name == "eagle3")
    for request, place in ((0, 0), (0, 7), (1, 4), (2, 5)):
        tokens = torch.tensor([*said.prompt(request), *said.reply(request)[:place]])
        past = tokens[:-1]
        with torch.inference_mode():
            features = target(past, torch.arange(len(past)), FreshMixing(1), capture=drafter.feature_layers).features
            state = drafter.new_state(1, 32, dtype=torch.float32, device="cpu")
            drafter.extend(state, rows_of([0], [0], [len(past)]), past, torch.cat(features, dim=1))
            alone = drafter.draft(state, rows_of([0], [len(past)], [1]), tokens[-1:])
        rows = found.of_request(request)
        assert rows.ids[place].tolist() == alone.ids[0].tolist()
        assert rows.chain[place].tolist() == alone.chain[0].tolist()
        assert np.allclose(rows.log_probs[place], alone.log_probs[0], rtol=2e-3, atol=1e-3)
    taus = [
        replay(found, policy).tau
        for policy in (
            BestFirst(num_nodes=8, num_depths=7, on_edges=False),
            BestFirst(num_nodes=64, num_depths=7, on_edges=False),
            Oracle(num_depths=7),
        )
    ]
    assert 1 <= taus[0] <= taus[1] <= taus[2]
    assert replay(found, Chain(num_depths=7)).tau <= taus[2]


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_an_accelerator_records_what_the_cpu_records(target: Target, name: str) -> None:
    said = said_by(target)
    origin = provenance(vocab_size=53)
    here = record(target, random_drafter(name, target, seed=1), said, origin).lattices
    moved = copy.deepcopy(target).to("cuda")
    there = record(moved, random_drafter(name, moved, seed=1), said, origin).lattices
    assert (here.ids == there.ids).mean() > 0.99
    assert np.allclose(here.log_probs, there.log_probs, rtol=5e-3, atol=5e-3)


def write_models(folder: Path) -> None:
    """A target that reads bytes, and a drafter of each kind."""
    alphabet = ["<|end|>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>").save_pretrained(folder / "target")
    sizes = {**COMMON, **HYBRID, "model_type": "qwen3_5_text", "vocab_size": len(alphabet), "eos_token_id": 0}
    config = replace(config_from_hf(sizes | {"tie_word_embeddings": True}), max_position_embeddings=4096)
    target = random_target(config, seed=1)
    save_target(target, folder / "target", dtype=torch.float32)
    for name in NAMES:
        save_drafter(random_drafter(name, target, seed=2), folder / name, dtype=torch.float32)


def write_prompts(folder: Path) -> Path:
    """Four prompts of random bytes."""
    lines = [{"prompt_ids": random_ids(4 + index, seed=index).tolist(), "set": "bytes"} for index in range(4)]
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.usefixtures("lattice_command")
@pytest.mark.parametrize("temperature", ["0", "0.7"])
def test_from_folders_to_tau(tmp_path: Path, capsys: pytest.CaptureFixture[str], temperature: str) -> None:
    write_models(tmp_path)
    prompts = write_prompts(tmp_path)
    for name in ("dspark", "eagle3"):
        out = tmp_path / "lattices" / f"{name}{SUFFIX}"
        arguments = ["lattice", "record", str(tmp_path / "target"), str(tmp_path / name), str(out)]
        options = ["--requests", "3", "--tokens", "5", "--prompts", str(prompts), "--dtype", "float32", "--edges", "4"]
        assert run([*arguments, *options, "--temperature", temperature]) == 0, capsys.readouterr().err
        found = load_recording(out)
        assert (found.provenance.drafter, found.provenance.temperature) == (name, float(temperature))
        assert set(found.replies.sets) == {"bytes"}
        assert found.replies.num_requests == 3
        assert found.lattices.num_edge_candidates == (0 if name == "eagle3" else 4)
    capsys.readouterr()
    assert run(["lattice", "replay", str(tmp_path / "lattices"), "--nodes", "4,8"]) == 0
    text = capsys.readouterr().out
    assert "dspark: dspark" in text
    assert "eagle3: eagle3" in text
    assert "note: edges are recorded for 4 of 16 candidates" in text


@pytest.mark.usefixtures("lattice_command")
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_the_engine_takes_the_replayed_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], temperature: float
) -> None:
    write_models(tmp_path)
    prompts, out = write_prompts(tmp_path), tmp_path / f"dspark{SUFFIX}"
    folders = [str(tmp_path / "target"), str(tmp_path / "dspark")]
    options = ["--requests", "4", "--tokens", "9", "--prompts", str(prompts), "--temperature", str(temperature)]
    assert run(["lattice", "record", *folders, str(out), *options, "--dtype", "float32"]) == 0
    capsys.readouterr()
    report = tmp_path / "verify.json"
    verify = ["lattice", "verify", str(out), *folders, "--dtype", "float32", "--json", str(report)]
    assert run([*verify, "--slots", "3"]) == 0, capsys.readouterr().err
    found = json.loads(report.read_text())
    assert found["num_equal_replies"] == found["num_equal_steps"] == found["num_requests"] == 4
    assert found["engine_tau"] == found["replayed_tau"] == found["engine_tau_of_all"]
    assert run(["lattice", "verify", str(out), folders[0], str(tmp_path / "eagle3")]) == 4
    assert "LG1615" in capsys.readouterr().err


def test_steps_that_replay_does_not_know_are_a_difference() -> None:
    toy = recording([9, 12])
    outputs = [
        ServedOutput(
            request_id=name,
            ids=tuple(toy.replies.reply(index).tolist()),
            finish_reason=FinishReason.LENGTH,
            arrival_ns=arrivals,
        )
        for index, (name, arrivals) in enumerate(zip(toy.replies.request_ids, arrivals_of(toy), strict=True))
    ]
    expected = replay(toy, Chain(num_depths=toy.lattices.num_depths))
    equal = compare_outputs(toy, expected, outputs)
    assert equal.verdict is Verdict.PASS
    assert (equal.num_equal_replies, equal.num_equal_steps, equal.difference) == (2, 2, 0.0)
    slower = replace(outputs[0], arrival_ns=tuple(range(9)))
    other = compare_outputs(toy, expected, [slower, outputs[1]])
    assert other.verdict is Verdict.INCONCLUSIVE  # of two requests only one differs
    assert (other.num_equal_replies, other.num_equal_steps) == (2, 1)
    assert other.difference is not None
    assert other.difference < -0.1
    another = replace(slower, ids=(*slower.ids[:-1], (slower.ids[-1] + 1) % 40))
    parted = compare_outputs(toy, expected, [another, outputs[1]])  # at its last token: its steps say nothing
    assert parted.verdict is Verdict.PASS
    assert (parted.num_equal_replies, parted.num_equal_steps) == (1, 1)
    assert parted.engine_tau_of_all < parted.replayed_tau_of_all
    nothing = compare_outputs(toy, expected, [another, replace(outputs[1], ids=another.ids)])
    assert (nothing.difference, nothing.verdict) == (None, Verdict.INCONCLUSIVE)


def test_a_difference_in_every_request_is_a_fail() -> None:
    check = EngineCheck(
        num_requests=9,
        num_equal_replies=9,
        num_equal_steps=0,
        replayed_tau=3.0,
        engine_tau=2.9,
        half_width=0.01,
        replayed_tau_of_all=3.0,
        engine_tau_of_all=2.9,
    )
    assert check.verdict is Verdict.FAIL
    assert replace(check, half_width=0.05).verdict is Verdict.INCONCLUSIVE
    assert replace(check, engine_tau=2.99).verdict is Verdict.PASS


def arrivals_of(toy: Recording) -> list[tuple[int, ...]]:
    """When tokens arrive if steps are those of the recorded chains: one number per step."""
    everything = []
    for request in range(toy.replies.num_requests):
        reply, arrivals = toy.replies.reply(request).tolist(), [0]
        while len(arrivals) < len(reply):
            begun = len(arrivals)
            drafts = toy.of_request(request).chain[begun].tolist()
            hits = [drafted == true for drafted, true in zip(drafts, reply[begun:], strict=False)]
            count = min([*hits, False].index(False) + 1, len(reply) - begun)
            arrivals += [arrivals[-1] + 1] * count
        everything.append(tuple(arrivals))
    return everything
