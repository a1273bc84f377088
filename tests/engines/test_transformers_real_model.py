"""The transformers engine on the built-in model in bfloat16, where ties and padding are real."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lossguard.records import Request, SamplingParams
from tests.engines.tiny_systems import engine, ids_of, prefixes, serve

pytestmark = pytest.mark.slow


def make_requests(number: int, max_tokens: int = 24) -> list[Request]:
    generator = torch.Generator().manual_seed(2)
    sampling = SamplingParams(max_tokens=max_tokens, stop_ids=(2,))
    return [
        Request(
            id=f"r{index}",
            prompt_ids=tuple(torch.randint(20, 5_000, (12 + 5 * (index % 4),), generator=generator).tolist()),
            sampling=sampling,
            set="s",
            cluster=f"r{index}",
        )
        for index in range(number)
    ]


def test_forced_decode_repeats_stocks_own_replies_bit_for_bit(smollm2_path: Path) -> None:
    requests = make_requests(12)
    system = engine(str(smollm2_path), batch_size=12)
    outputs = list(system.serve(requests))
    batch = prefixes(requests, outputs)
    assert system.forced_decode(batch) == ids_of(outputs)
    altered = [replace(batch[0], served_ids=(*requests[1].prompt_ids[:8], *batch[0].served_ids[8:])), *batch[1:]]
    served = system.forced_decode(altered)
    assert served[1:] == ids_of(outputs)[1:]
    assert served[0] != outputs[0].ids
    assert served[0][0] == outputs[0].ids[0]


def test_packed_weights_serve_the_same_replies_with_the_same_logprobs(smollm2_path: Path) -> None:
    requests = [replace(item, sampling=replace(item.sampling, logprobs=2)) for item in make_requests(9)]
    plain = serve(str(smollm2_path), requests, batch_size=9)
    packed = serve(str(smollm2_path), requests, batch_size=9, packed_weights=True)
    assert [output.ids for output in plain] == [output.ids for output in packed]
    assert [output.logprobs for output in plain] == [output.logprobs for output in packed]


def test_quantised_weights_serve_other_replies(smollm2_path: Path) -> None:
    requests = make_requests(4)
    plain = ids_of(serve(str(smollm2_path), requests))
    assert ids_of(serve(str(smollm2_path), requests, weight_round_trip="int4")) != plain
    assert ids_of(serve(str(smollm2_path), requests, quantization="int8-dynamic")) != plain
