"""A real Prometheus that holds given series, without anything to scrape: for queries whose results a test compares."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

from testbed import binaries
from testbed.waiting import wait_until
from tests.monitoring.story import label_set


@dataclass(frozen=True)
class Recorded:
    """One series: its samples by Unix time."""

    metric: str
    labels: Mapping[str, str]
    samples: Mapping[float, float]


class Answers:
    """The HTTP API of a running Prometheus."""

    def __init__(self, url: str) -> None:
        self._url = url

    def query(self, promql: str, at: float) -> list[tuple[dict[str, str], float]]:
        """Labels and value of each series of an instant query. Raises AssertionError with Prometheus' words where it is refused."""
        try:
            with urlopen(f"{self._url}/api/v1/query?{urlencode({'query': promql, 'time': f'{at:.3f}'})}", timeout=30) as answer:
                result: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        except HTTPError as error:
            raise AssertionError(f"{promql}: {error.read().decode(errors='replace')}") from error
        return [(one["metric"], float(one["value"][1])) for one in result]


@contextmanager
def prometheus(series: Iterable[Recorded], directory: Path) -> Iterator[Answers]:
    """Runs Prometheus over blocks made of these series."""
    page, data, config, log = (directory / name for name in ("series.txt", "data", "prometheus.yml", "log"))
    by_metric: dict[str, list[str]] = {}
    for one in series:
        rows = (f"{one.metric}{label_set(**one.labels)} {value:.10g} {at:.0f}\n" for at, value in one.samples.items())
        by_metric.setdefault(one.metric, []).extend(rows)
    page.write_text("".join(line for rows in by_metric.values() for line in rows) + "# EOF\n")
    made = [str(binaries.path_of("promtool")), "tsdb", "create-blocks-from", "openmetrics", "--quiet", str(page), str(data)]
    subprocess.run(made, check=True, capture_output=True)
    config.write_text("{}\n")
    command = [str(binaries.path_of("prometheus")), f"--config.file={config}", f"--storage.tsdb.path={data}", "--log.format=json"]
    with log.open("wb") as output:
        process = subprocess.Popen([*command, "--web.listen-address=127.0.0.1:0"], stdout=output, stderr=output)
    try:
        yield Answers(wait_until(lambda: _ready(log), "Prometheus to be ready", 60.0, 0.05))
    finally:
        process.terminate()
        process.wait(30)


def _ready(log: Path) -> str | None:
    found = re.search(r'"msg":"Listening on","component":"web","address":"(127\.0\.0\.1:\d+)"', log.read_text(errors="replace"))
    try:
        if found and urlopen(f"http://{found[1]}/-/ready", timeout=1).status == 200:
            return f"http://{found[1]}"
    except OSError:
        pass
    return None
