"""``lossguard w12``: convert, verify, info. Registered as a command of lossguard by an entry point."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lossguard.cli.console import ConsoleListener, write
from lossguard.cli.output import write_report
from lossguard.gate_result import EXIT_FAIL, EXIT_PASS
from lossguard_mechanisms.weights.w12.failures import missing_package

if TYPE_CHECKING:
    from lossguard_mechanisms.weights.w12.info import ModelInfo, TensorInfo

app = typer.Typer(help="Lossless 12-bit weights: a quarter smaller, every bit kept.", no_args_is_help=True)

ModelArgument = Annotated[Path, typer.Argument(help="a model's folder, in bf16 and safetensors")]
ConvertedArgument = Annotated[Path, typer.Argument(help="a folder that convert has written")]
JsonOption = Annotated[Path | None, typer.Option("--json", help="write the same as JSON to this file")]
MAX_SHOWN = 20


@app.command("convert")
def convert(
    model: ModelArgument,
    out: Annotated[Path, typer.Argument(help="a new folder, or that of an interrupted conversion")],
    escape_limit: Annotated[
        float, typer.Option(min=0.0, max=0.05, help="tensors with a larger share of escapes stay as they are")
    ] = 0.02,
) -> int:
    """Write a W12 copy of a model; run it again after an interruption, and finished shards are kept."""
    with _needs_torch():
        from lossguard_mechanisms.weights.w12.convert import convert as convert_model
        from lossguard_mechanisms.weights.w12.info import model_info
    result = convert_model(model, out, escape_limit=escape_limit, listener=ConsoleListener())
    ratio = result.target_bytes / result.source_bytes
    write(f"{result.num_written} shards written, {result.num_kept} kept: {ratio:.4f} of the model's bytes")
    write(_summary(model_info(out)))
    write(f"prove it: lossguard w12 verify {out} {model}")
    return EXIT_PASS


@app.command("verify")
def verify(converted: ConvertedArgument, model: ModelArgument) -> int:
    """Decode every weight and compare it with the original, bit for bit. Exits 1 if anything differs."""
    with _needs_torch():
        from lossguard_mechanisms.weights.w12.verify import verify as verify_model
    report = verify_model(converted, model, listener=ConsoleListener())
    for difference in report.differences[:MAX_SHOWN]:
        write(f"DIFFERS  {difference.name}: {difference.problem}")
    if len(report.differences) > MAX_SHOWN:
        write(f"... and {len(report.differences) - MAX_SHOWN} more")
    compared = f"{report.num_tensors:,} tensors, {report.num_weights:,} weights, {report.num_files} other files"
    write(f"{compared}: {'every bit is equal' if report.is_equal else 'NOT equal to the original'}")
    return EXIT_PASS if report.is_equal else EXIT_FAIL


@app.command("info")
def info(
    converted: ConvertedArgument,
    json_path: JsonOption = None,
    plot: Annotated[Path | None, typer.Option(help="draw exponents and escapes into this SVG file")] = None,
) -> int:
    """Bits per weight, escapes and the choice of bases for every tensor."""
    with _needs_torch():
        from lossguard_mechanisms.weights.w12.info import exponent_counts, model_info
        from lossguard_mechanisms.weights.w12.plot import write_plot
    found = model_info(converted)
    width = max((len(tensor.name) for tensor in found.tensors), default=0)
    for tensor in found.tensors:
        write(_line(tensor, width))
    write(_summary(found))
    write_report(json_path, found.to_json())
    if plot is not None:
        problem = write_plot(plot, found, exponent_counts(converted))
        write(problem or f"plot: {plot}")
    return EXIT_PASS


def _line(tensor: TensorInfo, width: int) -> str:
    shape = "x".join(map(str, tensor.shape))
    head = f"{tensor.name:<{width}}  {shape:>14}  {tensor.bits_per_weight:8.4f} bits"
    if not tensor.is_w12:
        return f"{head}  {tensor.reason}"
    return f"{head}  escapes {tensor.escape_fraction:.2e}  {'base per row' if tensor.has_base_per_row else 'one base'}"


def _summary(found: ModelInfo) -> str:
    chosen = [tensor for tensor in found.tensors if tensor.is_w12]
    share = sum(one.num_weights for one in chosen) / max(1, sum(one.num_weights for one in found.tensors))
    return (
        f"{len(chosen)} of {len(found.tensors)} tensors in W12 ({100 * share:.2f} % of the weights): "
        f"{found.bits_per_w12_weight:.4f} bits per weight, {found.escape_fraction:.2e} escapes; "
        f"files {found.bits_per_weight:.4f} bits per weight"
    )


@contextmanager
def _needs_torch() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise missing_package("torch") from error
