"""An engine whose whole decode step is one CUDA graph: ``engine = "benchmarks.timing.cuda_graph_loop:create"``.

It stands for a serving engine at its steadiest, so that what the timing gate finds is the hardware and the gate. Rows
of a batch step together from the first prompt token on (the prompt is fed through decode), one token a step. A delay
of known length can be planted in every step: a kernel that spins for ``extra_cycles`` clocks, inside the graph.
On a CPU (``device = "cpu"``) the same step runs eagerly and without a delay, for tests of the loop itself.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from benchmarks.timing.decoder_weights import SHAPES, Decoder, Shape
from lossguard.engines.base import Capabilities, EngineSpec, ForcedPrefix
from lossguard.engines.options import OptionReader, bad_option, refuse_unknown
from lossguard.errors import EngineError
from lossguard.records import FinishReason, Request, ServedOutput

OPTIONS = ("shape", "batch_size", "num_positions", "extra_cycles", "device")
SAMPLING = frozenset({"ignore_eos", "min_tokens", "stop_ids"})
NUM_WARM_STEPS = 3


class GraphLoop:
    """Serves random weights; see ``lossguard.engines.base.Engine`` for the contract of each method."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options = dict(options)
        self.device, self.num_rows = str(options["device"]), int(options["batch_size"])
        self.num_positions, self.extra_cycles = int(options["num_positions"]), int(options["extra_cycles"])
        self.shape = Shape.named(str(options["shape"]))
        self._step: Step | None = None

    @property
    def capabilities(self) -> Capabilities:
        """Greedy decoding to a fixed length; it never stops by itself."""
        return Capabilities(sampling=SAMPLING, logit_dtype="bfloat16", concurrency=self.num_rows)

    def fingerprint(self) -> Mapping[str, Any]:
        """Options, versions and the device's name."""
        name = torch.cuda.get_device_name() if self.device == "cuda" else "cpu"
        return {"engine": "cuda-graph-loop", **self.options, "torch": torch.__version__, "device_name": name}

    def serve(self, requests: Sequence[Request]) -> Iterator[ServedOutput]:
        """Yield replies batch by batch. Raises EngineError if a request does not fit."""
        for request in requests:
            self._require_fit(request)
        if self._step is None:
            self._step = Step(self)
        for at in range(0, len(requests), self.num_rows):
            yield from self._batch(requests[at : at + self.num_rows], self._step)

    def forced_decode(self, batch: Sequence[ForcedPrefix]) -> list[tuple[int, ...]]:
        """Not offered: this engine is for time."""
        raise _refused(f"{len(batch)} forced prefixes", "forced decode")

    def reset(self) -> Mapping[str, Any]:
        """Clear cache, prompts and replies; facts read back from the device, the same after every reset."""
        if self._step is None:
            self._step = Step(self)
        return self._step.clear()

    def close(self) -> None:
        """Drop weights, cache and graph."""
        self._step = None
        if self.device == "cuda":
            torch.cuda.empty_cache()

    def _batch(self, requests: Sequence[Request], step: Step) -> Iterator[ServedOutput]:
        sent_ns = time.monotonic_ns()
        prompt_lengths = [len(request.prompt_ids) for request in requests]
        lengths = zip(prompt_lengths, requests, strict=True)
        ends = [length + request.sampling.max_tokens - 1 for length, request in lengths]
        ids, arrived = step.run([request.prompt_ids for request in requests], max(ends))
        for row, request in enumerate(requests):
            first, last = prompt_lengths[row] - 1, ends[row]
            yield ServedOutput(
                request_id=request.id,
                ids=tuple(ids[row][first:last]),
                finish_reason=FinishReason.LENGTH,
                sent_ns=sent_ns,
                arrival_ns=tuple(arrived[first:last]),
            )

    def _require_fit(self, request: Request) -> None:
        needed = len(request.prompt_ids) + request.sampling.max_tokens
        if needed > self.num_positions or not request.sampling.ignore_eos:
            raise _refused(
                f"{needed} positions, ignore_eos = {request.sampling.ignore_eos}",
                f"up to {self.num_positions} positions, with ignore_eos",
            )


class Step:
    """The captured step with its static inputs and outputs."""

    def __init__(self, loop: GraphLoop) -> None:
        device, num_rows = loop.device, loop.num_rows
        self._num_rows, self._extra_cycles = num_rows, loop.extra_cycles
        self.decoder = Decoder(loop.shape, num_rows=num_rows, num_positions=loop.num_positions, device=device)
        self._prompts = torch.zeros(num_rows, loop.num_positions, dtype=torch.int64, device=device)
        self._lengths = torch.zeros(num_rows, dtype=torch.int64, device=device)
        self._position = torch.zeros(1, dtype=torch.int64, device=device)
        self._served = torch.zeros(num_rows, dtype=torch.int64, device=device)
        self._all = torch.zeros(num_rows, loop.num_positions, dtype=torch.int64, device=device)
        self._graph = self._captured() if device == "cuda" else None

    def run(self, prompts: Sequence[Sequence[int]], num_steps: int) -> tuple[list[list[int]], list[int]]:
        """Ids [B][steps] and the client's clock (ns) at the end of every step.

        The next step is launched before the last one is waited for, so that the device never idles between them.
        """
        self._fill(prompts)
        arrived: list[int] = []
        pending: torch.cuda.Event | None = None
        for _ in range(num_steps):
            event = self._launched()
            if pending is not None:
                pending.synchronize()
                arrived.append(time.monotonic_ns())
            elif event is None:
                arrived.append(time.monotonic_ns())
            pending = event
        if pending is not None:
            pending.synchronize()
            arrived.append(time.monotonic_ns())
        return self._all[:, :num_steps].tolist(), arrived

    def clear(self) -> Mapping[str, Any]:
        """Zero everything that a run leaves behind, then read it back with a checksum of the weights."""
        decoder = self.decoder
        left_behind = (
            decoder.keys,
            decoder.values,
            self._prompts,
            self._lengths,
            self._position,
            self._served,
            self._all,
        )
        for tensor in left_behind:
            tensor.zero_()
        return {
            "left_behind": sum(int(tensor.count_nonzero()) for tensor in left_behind),
            "weights": float(decoder.head.double().abs().sum() + decoder.layers[-1].down.double().abs().sum()),
        }

    def _fill(self, prompts: Sequence[Sequence[int]]) -> None:
        self._position.zero_()
        self._lengths.zero_()
        for row, prompt in enumerate(prompts):
            self._prompts[row, : len(prompt)] = torch.tensor(prompt, device=self._prompts.device)
            self._lengths[row] = len(prompt)

    def _launched(self) -> torch.cuda.Event | None:
        if self._graph is None:
            self._body()
            return None
        self._graph.replay()
        event = torch.cuda.Event()
        event.record()
        return event

    def _body(self) -> None:
        from_prompt = self._prompts.gather(1, self._position.expand(self._num_rows, 1))[:, 0]
        ids = torch.where(self._position < self._lengths, from_prompt, self._served)
        self._served.copy_(self.decoder.next_ids(ids, self._position))
        self._all.index_copy_(1, self._position, self._served[:, None])
        if self._extra_cycles:
            torch.cuda._sleep(self._extra_cycles)
        self._position.add_(1)

    def _captured(self) -> torch.cuda.CUDAGraph:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.no_grad(), torch.cuda.stream(stream):
            for _ in range(NUM_WARM_STEPS):
                self._body()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(graph):
            self._body()
        return graph


def create(spec: EngineSpec) -> GraphLoop:
    """Options: ``shape`` (qwen3-8b, tiny), ``batch_size``, ``num_positions``, ``extra_cycles``, ``device``.

    Raises UsageError LG0204.
    """
    refuse_unknown(spec, OPTIONS)
    read = OptionReader(spec.name, spec.options)
    extra_cycles = spec.options.get("extra_cycles", 0)
    if isinstance(extra_cycles, bool) or not isinstance(extra_cycles, int) or extra_cycles < 0:
        raise bad_option(spec.name, f"has extra_cycles = {extra_cycles!r}, which should be a number of clocks")
    device = read.choice("device", "cuda", ("cuda", "cpu"))
    if extra_cycles and device == "cpu":
        raise bad_option(spec.name, "plants extra_cycles on a CPU, which has no such kernel")
    return GraphLoop(
        {
            "shape": read.choice("shape", "qwen3-8b", tuple(SHAPES)),
            "batch_size": read.positive("batch_size", 1),
            "num_positions": read.positive("num_positions", 256),
            "extra_cycles": extra_cycles,
            "device": device,
        }
    )


def step_seconds(loop: GraphLoop, num_steps: int) -> list[float]:
    """Seconds of single steps, for choosing a planted length: the differences of the client's arrival times."""
    if loop._step is None:
        loop._step = Step(loop)
    _, arrived = loop._step.run([[1]] * loop.num_rows, num_steps)
    return [(after - before) / 1e9 for before, after in itertools.pairwise(arrived)]


def _refused(found: str, offered: str) -> EngineError:
    return EngineError(
        f"the loop was asked for {found}",
        why=f"it offers {offered}",
        fix="ask for fewer tokens, or give num_positions in its options",
        code="LG0217",
    )
