"""Pictures: a decision (acceptance, step times with the points they were learned from, expected gain by concurrency), and a benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash_controller.cli.failures import Failure

if TYPE_CHECKING:
    from dflash_controller.cli.explanation import Picture

_PER_DOUBLING = 6


def explanation(picture: Picture, file: str) -> None:
    """Draws the picture into a file. Raises Failure if there is nothing to draw, or the file cannot be written."""
    pyplot = _pyplot()
    if picture.steps is None or picture.acceptance is None:
        raise Failure(f"{picture.name}: nothing has been learned yet, so there is no curve to plot", "Wait until it has served load")
    figure, axes = pyplot.subplots(1, 3, figsize=(15, 4.5), layout="constrained")
    _acceptance(axes[0], picture)
    _steps(axes[1], picture)
    _gains(axes[2], picture)
    figure.suptitle(f"{picture.name}: block size {picture.current}, {picture.said.reason}")
    _save(figure, file)


@dataclass(frozen=True, slots=True)
class Curve:
    """Tokens per second of one replica by clients of a replica. ``color`` is a number: curves of the same workload share it."""

    label: str
    color: int
    points: tuple[tuple[int, float], ...]
    reference: bool = False
    """It is what the others are compared with."""


def benchmark(curves: Sequence[Curve], title: str, file: str) -> None:
    """Draws throughput by concurrency into a file. Raises Failure if there is nothing to draw, or the file cannot be written."""
    shown = [curve for curve in curves if curve.points]
    if not shown:
        raise Failure("nothing was measured, so there is no curve to plot")
    figure, axis = _pyplot().subplots(figsize=(9, 5.5), layout="constrained")
    for curve in shown:
        loads, speeds = zip(*curve.points, strict=True)
        style = {"linestyle": "--", "marker": "s", "alpha": 0.7} if curve.reference else {"linestyle": "-", "marker": "o"}
        axis.plot(loads, speeds, color=f"C{curve.color}", label=curve.label, **style)
    axis.set(title=title, xlabel="clients per replica", ylabel="tokens per second and replica", ylim=(0, None))
    _by_doublings(axis)
    axis.set_xticks(sorted({load for curve in shown for load, _ in curve.points}))
    axis.minorticks_off()
    axis.yaxis.set_major_formatter(lambda value, place: f"{value:,.0f}")
    axis.grid(alpha=0.3)
    axis.legend()
    _save(figure, file)


def drawable(file: str) -> None:
    """Raises Failure if no picture can be written under this name, ModuleNotFoundError without matplotlib."""
    kinds = _pyplot().figure().canvas.get_supported_filetypes()
    _pyplot().close("all")
    if (kind := Path(file).suffix.removeprefix(".").lower()) not in kinds:
        raise Failure(f"{file}: a picture of kind {kind or 'none'} cannot be drawn", "Use a name that ends in .png")


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _save(figure: Any, file: str) -> None:
    try:
        figure.savefig(Path(file), dpi=120)
    except (OSError, ValueError) as error:
        raise Failure(f"{file} cannot be written: {error}") from error
    finally:
        _pyplot().close(figure)


def _acceptance(axis: Any, picture: Picture) -> None:
    blocks = range(2, max(picture.blocks) + 1)
    assert picture.acceptance is not None
    found = [picture.acceptance.length(block) for block in blocks]
    axis.plot(blocks, [length.value for length in found], color="tab:blue")
    low, high = ([length.value * (1 + sign * length.log_sigma) for length in found] for sign in (-1, 1))
    axis.fill_between(blocks, low, high, alpha=0.2, color="tab:blue")
    for line in picture.acceptance_lines():
        axis.plot(line.block, line.length, "o" if line.measured else "x", color="tab:blue")
    axis.set(title="Acceptance (o measured, x inferred)", xlabel="block size", ylabel="tokens per verify step", ylim=(1, None))


def _steps(axis: Any, picture: Picture) -> None:
    loads = _fine(picture)
    for place, block in enumerate(picture.blocks):
        color = f"C{place}"
        label = "off" if block == 1 else f"block {block}"
        axis.plot(loads, [picture.milliseconds(block, load) for load in loads], color=color, label=label)
        points = [point for point in picture.learned.points if point.block == block]
        axis.plot([point.concurrency for point in points], [1000 * point.seconds for point in points], "o", color=color)
    axis.set(title="Step time (points: measured)", xlabel="requests per replica", ylabel="ms per verify step")
    _by_doublings(axis)
    axis.legend()


def _gains(axis: Any, picture: Picture) -> None:
    loads = _fine(picture)
    gains = [picture.gains(load) for load in loads]
    for place, block in enumerate(picture.blocks):
        axis.plot(loads, [found[block] for found in gains], color=f"C{place}", label="off" if block == 1 else f"block {block}")
    if picture.concurrency is not None:
        axis.axvline(picture.concurrency, color="grey", linestyle=":", label="load now")
    axis.axhline(picture.policy.min_gain_percent, color="grey", linestyle="--", label="spec.tuning.minGainPercent")
    axis.set(title="Expected gain over the active block size", xlabel="requests per replica", ylabel="% tokens per second")
    _by_doublings(axis)
    axis.legend()


def _by_doublings(axis: Any) -> None:
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_formatter(lambda value, place: f"{value:g}")


def _fine(picture: Picture) -> list[float]:
    most = picture.concurrencies()[-1]
    doublings = max(1, most.bit_length() - 1)
    return [2 ** (place / _PER_DOUBLING) for place in range(doublings * _PER_DOUBLING + 1)]
