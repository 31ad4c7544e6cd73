"""``python -m hack.pictures`` draws each dashboard for docs/dashboards/ from the real results of its queries.

It takes about fifteen minutes on the test bed: low and high load, a block size that follows, a good drafter and a broken one, failing
requests, then every query. ``--moments DIRECTORY`` also draws each dashboard as it was at a quiet time, in a rollout and in an incident.
"""

from __future__ import annotations

import argparse
import io
import math
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from hack.pictures.layout import DPI, HEAD_INCH, INCH, PICTURES, ROW_INCH
from hack.pictures.panels import TEXT, Answer, Line, draw
from hack.pictures.scene import REPLICAS, Scene
from monitoring.dashboards import DIRECTORY
from monitoring.dashboards.queries import Panel, PanelQuery, dashboards, panels, queries
from monitoring.dashboards.samples import WINDOW_S
from testbed.cluster import Cluster
from testbed.gates import each_gate
from testbed.narration import say, step
from testbed.operator_process import NAMESPACE, ROOT, install_chart
from testbed.prometheus import Prometheus
from testbed.simulator_process import SimulatorProcess

STARTUP_S = 6.0
MODES = {"chat": "Auto", "code": "Advise"}
LOW, MIDDLE, HIGH = 1, 8, 32
"""Concurrent requests per replica. Block size 16 is best for the first value, 8 for the last."""
IMPATIENT = {
    metric: gate | ({"limit": 25} if metric in ("speed", "ttft", "latency") else {})
    for metric, gate in each_gate(window="5s", interval="1s").items()
}
"""Gates that judge a candidate within seconds of its warm-up and so have wide limits."""
GOOD, BROKEN = "b" * 40, "c" * 40
_OBSERVED = (
    f"count by (deployment) (dflash:revision_pods offset {WINDOW_S}s"
    ' * on (namespace, deployment, revision) group_left () dflash:revision_info{role="candidate"})'
)
"""Candidates that were observed for the window of the ratios."""
STEP_S = 5.0
"""Step in seconds of the range queries for the pictures."""
_COLORS = 96


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m hack.pictures", description=__doc__)
    parser.add_argument(
        "--moments", type=Path, metavar="DIRECTORY", help="also draw each dashboard at a quiet time, in a rollout, in an incident"
    )
    moments_directory: Path | None = parser.parse_args(arguments).moments
    with step("A control plane with simulated B200 nodes, Prometheus with the rules, the engine simulator, the operator"):
        cluster = Cluster().start()
    try:
        install_chart(cluster)
        with SimulatorProcess(cluster) as simulator:
            start = time.time()
            with Scene(cluster, "default", analysis=IMPATIENT, modes=MODES, startup_s=STARTUP_S) as scene:
                moments = play(scene, simulator)
                end = time.time()
                with step("The pictures"):
                    say(f"failed requests: { {name: dict(traffic.log.errors) for name, traffic in scene.traffic.items()} }")
                    for name, dashboard in dashboards(ROOT / DIRECTORY).items():
                        say(picture(dashboard, scene.prometheus, start, end, PICTURES / f"{name}.png"))
                        if moments_directory is not None:
                            for moment, at in moments.items():
                                say(picture(dashboard, scene.prometheus, start, at, moments_directory / f"{name}-{moment}.png"))
    finally:
        cluster.stop()
    return 0


def play(scene: Scene, simulator: SimulatorProcess) -> dict[str, float]:
    """Runs the events that the pictures show. Returns the Unix times of a quiet moment, of one in a rollout and of one in an incident.
    Raises TimeoutError if an event does not happen."""
    moments = {}
    with step(f"{LOW} request at a time for each replica"):
        scene.load(LOW)
        scene.wait_series("predictions", "count by (deployment) (dflash:tuner_predicted_tokens_per_second)", 2)
        time.sleep(WINDOW_S)
        moments["quiet"] = time.time()
    with step(f"{HIGH} at a time for chat: its block size becomes 8; {MIDDLE} for code"):
        scene.load(MIDDLE)
        scene.traffic["chat"].resize(HIGH * REPLICAS)
        scene.wait_series("chat at block size 8", 'dflash:deployment_block_size{deployment="chat"} == 8', 1, 400)
        scene.wait_phase("chat", "Completed")
        time.sleep(30)
    scene.load(MIDDLE)
    with step("A good drafter for both"):
        scene.change_drafter(GOOD)
        scene.wait_series("both candidates observed for the window", _OBSERVED, len(scene.traffic))
        time.sleep(5)
        moments["rollout"] = time.time()
        for name in scene.traffic:
            say(f"{name}: {scene.wait_phase(name, 'Completed', 'RolledBack', 'Held')}")
        time.sleep(15)
    with step("A drafter for chat of which the target accepts nothing"):
        simulator.ask("PUT", "/rules", [{"match": {"drafter_revision": "ccccccc*"}, "faults": {"acceptance": 0.0}}])
        scene.change_drafter(BROKEN, ["chat"])
        say(f"chat: {scene.wait_phase('chat', 'RolledBack', 'Completed', 'Held')}")
        time.sleep(15)
    with step("One request in five to code fails"):
        scene.break_engines(simulator, "code", {"error_status": 500, "error_rate": 0.2})
        time.sleep(75)
        moments["incident"] = time.time()
    return moments


def picture(dashboard: Mapping[str, Any], prometheus: Prometheus, start: float, end: float, file: Path) -> str:
    """Draws a dashboard from the results of its queries over this time. Returns a line about the written file."""
    whole = str(math.ceil(end - start))
    values = {"namespace": ".+", "deployment": ".+", "revision": ".+", "operator": NAMESPACE}
    values |= {"__rate_interval": "15s", "__interval": "5s", "__range": f"{whole}s", "__range_s": whole}

    def asked(query: PanelQuery) -> list[Line]:
        expr = query.filled(values)
        if query.instant:
            found = [{"metric": one["metric"], "values": [one["value"]]} for one in prometheus.query(expr, end)]
        else:
            found = prometheus.query_range(expr, start, end, STEP_S)
        return [Line(query.ref, one["metric"], *np.array(one["values"], dtype=np.float64).T) for one in found]

    marks = []
    for query in queries(dashboard):
        if query.kind == "annotation":
            color = next(item["iconColor"] for item in dashboard["annotations"]["list"] if f"annotation {item['name']}" == query.panel)
            marks += [(float(line.times[0]), str(color)) for line in asked(query)]
    answers = [Answer(panel, [line for query in panel.queries for line in asked(query)], start, end, marks) for panel in panels(dashboard)]
    _save(_drawn(str(dashboard["title"]), dashboard, answers), file)
    return f"{file.name}: {len(answers)} panels, {file.stat().st_size // 1000} kB"


def _drawn(title: str, dashboard: Mapping[str, Any], answers: list[Answer]) -> Figure:
    mpl.rcParams.update({"font.size": 6, "axes.edgecolor": "#c8ccd1", "axes.linewidth": 0.5, "text.color": TEXT})
    height = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in dashboard["panels"]) * ROW_INCH + HEAD_INCH
    figure = Figure(figsize=(24 * INCH, height), dpi=DPI, facecolor="white")
    figure.text(0.01, 1 - 0.2 / height, title, fontsize=11, weight="bold", va="center")
    for panel in dashboard["panels"]:
        if panel["type"] == "row":
            figure.text(
                0.01,
                1 - (HEAD_INCH + (panel["gridPos"]["y"] + 0.6) * ROW_INCH) / height,
                panel["title"],
                fontsize=8,
                weight="bold",
                va="center",
            )
    for answer in answers:
        _place(figure, answer, height)
    return figure


def _place(figure: Figure, answer: Answer, height: float) -> None:
    """Places a panel on the grid, with its title above and room for labels on the left and a legend below."""
    grid = answer.panel.spec["gridPos"]
    width = 24 * INCH
    left, top = grid["x"] * INCH, HEAD_INCH + grid["y"] * ROW_INCH
    # A title in two lines begins where one in one line would.
    figure.text((left + 0.12) / width, 1 - (top + 0.05) / height, _short(answer.panel, grid["w"]), fontsize=7, weight="bold", va="top")
    wide, deep = grid["w"] * INCH, grid["h"] * ROW_INCH
    margins = {"stat": (0.05, 0.05), "table": (0.1, 0.05), "bargauge": (1.6, 0.1), "state-timeline": (0.9, 0.45)}
    at_left, below = margins.get(answer.panel.kind, (0.55, 0.62))
    if answer.panel.kind == "bargauge":
        at_left = max([at_left, *(0.055 * len(answer.legend(line)) for line in answer.lines)])
    right = 0.55 if answer.panel.kind == "heatmap" else 0.2
    box = (left + at_left, height - top - deep + below, wide - at_left - right, deep - below - 0.28)
    axes = figure.add_axes((box[0] / width, box[1] / height, box[2] / width, box[3] / height))
    axes.tick_params(labelsize=5.5, length=2, colors=TEXT)
    draw(axes, answer)


def _short(panel: Panel, columns: int) -> str:
    """Returns the title: of a number in two lines if it is long, of others cut off."""
    most = int(columns * INCH * 13)
    if panel.kind == "stat":
        return textwrap.fill(panel.title, most, max_lines=2, placeholder="…")
    return panel.title if len(panel.title) <= most else panel.title[: most - 1] + "…"


def _save(figure: Figure, file: Path) -> None:
    """Saves the figure with few colors, so that the file is small."""
    page = io.BytesIO()
    figure.savefig(page, format="png")
    page.seek(0)
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.open(page).convert("RGB").quantize(_COLORS, method=Image.Quantize.MEDIANCUT).save(file, optimize=True)


if __name__ == "__main__":
    sys.exit(main())
