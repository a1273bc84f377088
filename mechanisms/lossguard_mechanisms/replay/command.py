"""``lossguard lattice``: record, replay, info, verify. Registered as a command of lossguard by an entry point."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from lossguard.cli.console import ConsoleListener, write
from lossguard.cli.output import write_report
from lossguard.gate_result import EXIT_FAIL, EXIT_INCONCLUSIVE, EXIT_PASS
from lossguard.records import Verdict
from lossguard_mechanisms.replay.failures import bad_nodes, bad_option, missing_package
from lossguard_mechanisms.trees.names import CHAIN

app = typer.Typer(
    help="What a drafter proposes everywhere, recorded once; tree policies on it, exactly.", no_args_is_help=True
)

PlaceArgument = Annotated[Path, typer.Argument(help="a recording, or a folder with some")]
JsonOption = Annotated[Path | None, typer.Option("--json", help="write the same as JSON to this file")]
MOST_NODES = 4096
VERIFY_SCHEMA_ID = "https://lossguard/schema/lattice-verify-1.json"
INFO_SCHEMA_ID = "https://lossguard/schema/lattice-info-1.json"


@app.command("replay")
def replay(
    place: PlaceArgument,
    policy: Annotated[
        list[str] | None,
        typer.Option(help="chain, ddtree, best-first, eagle-2, static, oracle; all if none is named"),
    ] = None,
    nodes: Annotated[
        str, typer.Option(help="drafted tokens that a step may verify, with commas between")
    ] = "8,16,32,64",
    json_path: JsonOption = None,
    plot: Annotated[Path | None, typer.Option(help="draw tau against nodes into this SVG file")] = None,
) -> int:
    """Tokens per step (tau) of tree policies, by prompt set, with intervals by request. Needs no model and no GPU."""
    from lossguard_mechanisms.replay.comparison import compare, to_json
    from lossguard_mechanisms.replay.plot import write_plot
    from lossguard_mechanisms.replay.store import SUFFIX, load_recording, recording_paths
    from lossguard_mechanisms.replay.table import render

    budgets = _budgets(nodes)
    comparisons = []
    for path in recording_paths(place):
        name = path.name.removesuffix(SUFFIX)
        comparisons.append(compare(name, load_recording(path), policy or [], budgets))
        write(("\n" if len(comparisons) > 1 else "") + render(comparisons[-1]))
    write_report(json_path, to_json(comparisons))
    if plot is not None:
        write(write_plot(plot, comparisons) or f"plot: {plot}")
    return EXIT_PASS


@app.command("info")
def info(place: PlaceArgument, json_path: JsonOption = None) -> int:
    """Where a recording comes from, what it holds, and that its content is what its hash names."""
    from lossguard_mechanisms.replay.comparison import summary_of
    from lossguard_mechanisms.replay.store import load_recording, recording_paths
    from lossguard_mechanisms.replay.table import describe

    summaries = []
    for path in recording_paths(place):
        recording = load_recording(path)
        size, tokens = path.stat().st_size, recording.replies.num_tokens
        write(describe(path.name, recording))
        write(f"  {size:,} bytes, {size / tokens:,.0f} for each reply token")
        for note in recording.provenance.notes:
            write(f"  note: {note}")
        summaries.append({"name": path.name, "num_bytes": size, **summary_of(recording)})
    write_report(json_path, {"schema": INFO_SCHEMA_ID, "schema_version": "1.0", "recordings": summaries})
    return EXIT_PASS


@app.command("verify")
def verify(
    recording: Annotated[Path, typer.Argument(help="a recording")],
    target: Annotated[Path, typer.Argument(help="the folder of its target")],
    drafter: Annotated[Path, typer.Argument(help="the folder of its drafter")],
    policy: Annotated[str, typer.Option(help="chain, ddtree, best-first, eagle-2 or static")] = CHAIN,
    nodes: Annotated[int, typer.Option(min=1, max=63, help="drafted tokens of a tree; not of a chain")] = 16,
    slots: Annotated[int, typer.Option(min=1, help="requests that are served together")] = 8,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    dtype: Annotated[str, typer.Option(help="bfloat16, float16 or float32")] = "bfloat16",
    json_path: JsonOption = None,
) -> int:
    """Serve the recorded prompts with the embedded engine and compare its tokens per step with the replayed ones."""
    with _needs_torch():
        from lossguard_mechanisms.replay.engine_check import ServingOrder, check_against_engine
    from lossguard_mechanisms.replay.store import load_recording

    order = ServingOrder(
        target=target, drafter=drafter, slots=slots, device=device, dtype=dtype, policy=policy, num_nodes=nodes
    )
    check = check_against_engine(load_recording(recording), order, ConsoleListener())
    write(
        f"{check.num_equal_replies} of {check.num_requests} replies are token for token the recorded ones, "
        f"{check.num_equal_steps} of these took the replayed number of steps"
    )
    if check.difference is not None:
        interval = "" if check.half_width is None else f" ±{100 * check.half_width:.2f}"
        write(
            f"tokens per step of {policy} on these: replayed {check.replayed_tau:.4f}, engine {check.engine_tau:.4f} "
            f"({100 * check.difference:+.2f}{interval} %)"
        )
    write(f"on all replies: replayed {check.replayed_tau_of_all:.4f}, engine {check.engine_tau_of_all:.4f}")
    write_report(json_path, {"schema": VERIFY_SCHEMA_ID, "schema_version": "1.0", **check.to_json()})
    write(f"{check.verdict.value}: within half a per cent is asked; bfloat16 needs many requests, float32 few")
    return {Verdict.PASS: EXIT_PASS, Verdict.FAIL: EXIT_FAIL, Verdict.INCONCLUSIVE: EXIT_INCONCLUSIVE}[check.verdict]


@app.command("record")
def record(
    target: Annotated[Path, typer.Argument(help="the target's folder")],
    drafter: Annotated[Path, typer.Argument(help="the folder of its drafter")],
    out: Annotated[Path, typer.Argument(help="the file to write, NAME.lattice.safetensors")],
    prompts: Annotated[list[str] | None, typer.Option(help="prompt sets to answer, 'default' if none is named")] = None,
    run: Annotated[Path | None, typer.Option(help="take prompts and replies from this run folder instead")] = None,
    system: Annotated[str, typer.Option(help="whose replies of the run")] = "stock",
    requests: Annotated[int, typer.Option(min=1, help="how many prompts at most")] = 40,
    tokens: Annotated[int, typer.Option(min=1, help="how long replies may be; not with --run")] = 64,
    temperature: Annotated[float, typer.Option(min=0.0, help="of the target's sampling; not with --run")] = 0.0,
    seed: Annotated[int, typer.Option(help="of prompts and sampling; not with --run")] = 17,
    depths: Annotated[
        int | None, typer.Option(min=1, help="how far ahead; all that the drafter has if not given")
    ] = None,
    candidates: Annotated[int | None, typer.Option(min=1, help="kept per depth; all 16 if not given")] = None,
    edges: Annotated[int | None, typer.Option(min=0, help="candidates whose pairs are kept; 0 for no edges")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    dtype: Annotated[str, typer.Option(help="bfloat16, float16 or float32")] = "bfloat16",
    rows: Annotated[int, typer.Option(min=1, help="tokens of all sequences that are in memory at once")] = 8192,
) -> int:
    """Let the target answer prompts, or take a run's replies, and record its drafter's lattice at every position."""
    with _needs_torch():
        from lossguard_mechanisms.replay.columns import RecordingOptions
        from lossguard_mechanisms.replay.making import Order, make_recording
    from lossguard_mechanisms.replay.sources import Wanted
    from lossguard_mechanisms.replay.store import SUFFIX, require_place, save_recording
    from lossguard_mechanisms.replay.table import describe

    if not out.name.endswith(SUFFIX):
        raise bad_option(f"the file {out.name!r} does not end in {SUFFIX}, by which a folder's recordings are found")
    require_place(out)
    wanted = Wanted(
        sets=tuple(prompts or ["default"]),
        num_requests=requests,
        max_tokens=tokens,
        temperature=temperature,
        seed=seed,
    )
    options = RecordingOptions(
        num_depths=depths, num_candidates=candidates, num_edge_candidates=edges, rows_at_once=rows
    )
    order = Order(
        target=target,
        drafter=drafter,
        wanted=wanted,
        options=options,
        device=device,
        dtype=dtype,
        run=run,
        system=system,
    )
    recording = make_recording(order, ConsoleListener())
    save_recording(out, recording)
    write(describe(out.name, recording))
    write(f"{out.stat().st_size:,} bytes; replay it: lossguard lattice replay {out}")
    return EXIT_PASS


def _budgets(text: str) -> tuple[int, ...]:
    """``8,16`` to (8, 16)."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and 1 <= int(part) <= MOST_NODES for part in parts):
        raise bad_nodes(text)
    return tuple(sorted({int(part) for part in parts}))


@contextmanager
def _needs_torch() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise missing_package("torch") from error
