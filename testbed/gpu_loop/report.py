"""The report of a run: one JSON file that grows with every phase, tables in Markdown, and plots if matplotlib is there."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from testbed.gpu_loop.clients import difference_percent

_ALIKE = 1.3
"""Factor up to which two loads count as the same."""
_COMPARED = ("acceptance_length", "tokens_per_second", "concurrency", "step_time_s")


class Report:
    """Written anew after each phase, because the machine may be taken away at any time."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self.content: dict[str, Any] = {"began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "phases": {}}

    def add(self, phase: str, content: Mapping[str, Any]) -> None:
        """Adds or replaces the part of a phase."""
        self.content["phases"][phase] = dict(content)
        self.write()

    def write(self) -> None:
        self._out.mkdir(parents=True, exist_ok=True)
        for name, text in (("report.json", json.dumps(self.content, indent=1, default=str)), ("report.md", markdown(self.content))):
            unfinished = self._out / f".{name}"
            unfinished.write_text(text)
            unfinished.rename(self._out / name)

    def plot(self) -> None:
        """Draws throughput by load, if matplotlib is installed."""
        try:
            import matplotlib
        except ImportError:
            return
        matplotlib.use("Agg")
        from matplotlib import pyplot

        levels = all_levels(self.content)
        if not levels:
            return
        figure, axes = pyplot.subplots(figsize=(8, 5))
        for block in sorted({level["block"] for level in levels}):
            own = sorted((level["clients"], level["client"]["tokens_per_second"]) for level in levels if level["block"] == block)
            axes.plot([c for c, _ in own], [speed for _, speed in own], marker="o", label=f"block {block}, measured by clients")
            guesses = sorted({(lv["clients"], lv["predicted"][str(block)]) for lv in levels if str(block) in lv["predicted"]})
            axes.scatter(
                [c for c, _ in guesses], [speed for _, speed in guesses], marker="x", label=f"block {block}, predicted by the tuner"
            )
        axes.set_xscale("log", base=2)
        axes.set_xlabel("clients in a closed loop")
        axes.set_ylabel("tokens per second")
        axes.set_title(f"{self.content.get('setup', {}).get('engine', '')} {self.content.get('setup', {}).get('model', '')}")
        axes.legend()
        axes.grid(visible=True, alpha=0.3)
        figure.tight_layout()
        figure.savefig(self._out / "throughput.png", dpi=120)
        pyplot.close(figure)


def all_levels(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns every measured level of load of all phases."""
    return [level for phase in content["phases"].values() for level in phase.get("levels", ())]


def compared(level: Mapping[str, Any]) -> dict[str, float | None]:
    """Returns by how many percent the product's figures are above the clients', by name; None where one is missing.

    The step of the clients is the time of a stream for as many tokens as the product says that a step commits: under load an engine may
    put two steps into one part. The acceptance is compared with what was imposed.
    """
    product, client = level["product"], level["client"]
    acceptance, per_token = product.get("acceptance_length"), client.get("seconds_per_token")
    truth = {
        "acceptance_length": level.get("imposed_acceptance"),
        "tokens_per_second": client.get("tokens_per_second"),
        "concurrency": client.get("concurrency"),
        "step_time_s": per_token * acceptance if per_token and acceptance else None,
    }
    return {name: difference_percent(product.get(name), truth[name]) for name in _COMPARED}


def markdown(content: Mapping[str, Any]) -> str:
    """Returns the report for people."""
    setup = content.get("setup", {})
    lines = [f"# {setup.get('engine')} {setup.get('release')}: {setup.get('model')}, {setup.get('product')}", ""]
    lines += [f"* {name}: {value}" for name, value in setup.items()]
    lines += [f"* began {content['began']}", f"* phases done: {', '.join(_done(content)) or 'none'}", ""]
    if "failed" in content:
        lines += [f"**Requests: {content.get('answered', 0):,} answered, {content['failed']} failed** {content.get('errors') or ''}", ""]
    lines += _levels(content) + _decisions(content) + _rollouts(content) + _starts(content) + _changes(content)
    if warnings := content.get("warnings"):
        lines += ["## Warnings of the engine", "", *_table("times | text", [(item["count"], _cell(item["text"])) for item in warnings])]
    if timeline := content.get("timeline"):
        rows = [(item["at_s"], _cell(item["what"]), _cell(item["text"])) for item in timeline]
        lines += ["## Time line", "", *_table("s | what | text", rows)]
    return "\n".join(lines)


def _done(content: Mapping[str, Any]) -> list[str]:
    return [name for name, phase in content["phases"].items() if "skipped" not in phase]


def _levels(content: Mapping[str, Any]) -> list[str]:
    levels = all_levels(content)
    if not levels:
        return []
    rows = []
    for level in levels:
        product, client, off = level["product"], level["client"], compared(level)
        rows.append(
            (
                level["block"],
                level["clients"],
                _number(client.get("tokens_per_second"), 0),
                f"{_number(product.get('tokens_per_second'), 0)} ({_percent(off['tokens_per_second'])})",
                f"{_number(product.get('acceptance_length'), 2)} ({_percent(off['acceptance_length'])})",
                f"{_number(product.get('step_time_s'), 1, 1000)} ({_percent(off['step_time_s'])})",
                f"{_number(product.get('concurrency'), 1)} ({_percent(off['concurrency'])})",
                _number(client.get("time_to_first_token_mean_s"), 0, 1000),
                level["failed"],
                _excluded(product.get("samples") or []),
            )
        )
    return [
        "## Product against clients",
        "",
        "Per replica. Percentages: the product's figure against the clients' (acceptance: against the imposed one).",
        "",
        *_table(
            "block | clients | tokens/s clients | product | acceptance | step ms | concurrency | TTFT ms | failed | left out of the curve",
            rows,
        ),
    ]


def _excluded(samples: Sequence[Mapping[str, Any]]) -> str:
    """Returns why load samples are no points of the tuner's curve, and how many of all."""
    reasons = Counter(sample["excluded"] for sample in samples if sample["excluded"])
    return ", ".join(f"{reason} {count} of {len(samples)}" for reason, count in reasons.most_common())


def _decisions(content: Mapping[str, Any]) -> list[str]:
    levels = all_levels(content)
    if not levels:
        return []
    best = best_blocks(levels)
    rows = []
    said = [("advise", item) for item in content["phases"].get("advise", {}).get("said", ())]
    for phase, level in [*(("load", level) for level in levels), *said]:
        gauges, clients = level["told"]["gauges"], level["clients"]
        seen = gauges.get("tuner_input concurrency")
        alike = seen is not None and 1 / _ALIKE <= seen / clients <= _ALIKE
        guesses = ", ".join(
            f"{block}: {_number(value, 0)} ({_percent(_error(levels, int(block), clients, value) if alike else None)})"
            for block, value in sorted(level["predicted"].items(), key=lambda item: int(item[0]))
        )
        recommended = _number(gauges.get("tuner_recommended_block_size"), 0)
        rows.append((phase, level["block"], clients, _number(seen, 1), guesses, recommended, best.get(clients, "")))
    return [
        "## Prediction against measurement",
        "",
        "Percentages: against what clients measured at this block and load, where the tuner saw about this load.",
        "",
        *_table(
            "phase | block in use | clients | load seen by the tuner | predicted tokens/s by block | fastest predicted | fastest measured",
            rows,
        ),
    ]


def _error(levels: list[dict[str, Any]], block: int, clients: int, predicted: float) -> float | None:
    return difference_percent(predicted, measured(levels, block, clients))


def measured(levels: list[dict[str, Any]], block: int, clients: int) -> float | None:
    """Returns the clients' tokens per second at a block size and a number of clients, the newest measurement."""
    found = [level["client"].get("tokens_per_second") for level in levels if (level["block"], level["clients"]) == (block, clients)]
    return found[-1] if found else None


def best_blocks(levels: list[dict[str, Any]]) -> dict[int, str]:
    """Returns the fastest block size by number of clients, where more than one was measured, with its lead over the next."""
    found: dict[int, str] = {}
    for clients in sorted({level["clients"] for level in levels}):
        speeds = {
            block: speed
            for block in {level["block"] for level in levels}
            if (speed := measured(levels, block, clients)) is not None and speed > 0
        }
        if len(speeds) > 1:
            first, second = sorted(speeds, key=lambda block: -speeds[block])[:2]
            found[clients] = f"{first} ({100 * (speeds[first] / speeds[second] - 1):+.1f} %)"
    return found


def _rollouts(content: Mapping[str, Any]) -> list[str]:
    rows = [
        (
            name,
            phase.get("what", ""),
            phase.get("ended", ""),
            _number(phase.get("seconds"), 1),
            phase.get("met", ""),
            phase.get("failed", ""),
            _cell(phase.get("message", "")),
        )
        for name, phase in content["phases"].items()
        if "ended" in phase or "requests_under_way" in phase
    ]
    if not rows:
        return []
    head = "phase | what | ended | seconds | answered by the candidate | failed | message"
    return ["## Changes and drain", "", *_table(head, rows)]


def _starts(content: Mapping[str, Any]) -> list[str]:
    processes = content.get("processes") or []
    if not processes:
        return []
    rows = [
        (
            item["pod"],
            item.get("block", ""),
            item.get("gpus", ""),
            _number(item.get("ready_s"), 1),
            _number(item.get("stop_s"), 1),
            item.get("exitCode", ""),
        )
        for item in processes
    ]
    return ["## Processes", "", *_table("pod | block | GPU | start to ready s | SIGTERM to end s | exit code", rows)]


def _changes(content: Mapping[str, Any]) -> list[str]:
    changes = content.get("changes") or []
    extra = content.get("extra_args") or []
    if not changes and not extra:
        return []
    lines = ["## What was added to the operator's command line", ""]
    lines += [f"* spec.engine.extraArgs of this run: `{' '.join(extra)}`"] if extra else []
    lines += [f"* {item['what']}: {item['why']}" for item in changes]
    return [*lines, ""]


def _table(head: str, rows: Iterable[Sequence[object]]) -> list[str]:
    """Returns the lines of a table and an empty one. ``head`` has its columns, divided by " | "."""
    columns = head.split(" | ")
    return [f"| {head} |", "| --- " * len(columns) + "|", *(f"| {' | '.join(map(str, row))} |" for row in rows), ""]


def _number(value: float | None, digits: int, factor: float = 1.0) -> str:
    return "" if value is None else f"{value * factor:,.{digits}f}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:+.1f} %"


def _cell(text: object) -> str:
    return str(text).replace("|", "\\|").replace("\n", " ")
