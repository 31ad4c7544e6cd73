"""What the product says about an engine: its formulas on the engine's own pages, its status, its metrics page."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from dflash_controller.engines import ENGINES
from dflash_controller.model.load_sample import LoadSample
from dflash_controller.model.measurement import Value
from dflash_controller.observe.load.samples import Follower
from dflash_controller.observe.pipeline.metrics import revision_metrics
from dflash_controller.observe.sources.scrape.exposition import read_page
from dflash_controller.observe.sources.scrape.ring import Ring
from testbed.demo_deployment import Deployment

_EVERY_S = 2.0
_SAMPLE_S = 4.0
_PAGE_TIMEOUT_S = 10.0


class Pages:
    """Reads the /metrics pages of engines from its own thread during its ``with`` block, and computes what the operator would.

    ``warm_up_s`` is the operator's setting.
    """

    def __init__(self, engine: str, urls: Sequence[str], warm_up_s: float) -> None:
        self._engines = [_Engine(engine, url, warm_up_s) for url in urls]
        self._schema = ENGINES[engine].metric_schema
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pages", daemon=True)

    def __enter__(self) -> Pages:
        self._read()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()
        self._read()

    def figures(self) -> dict[str, Any]:
        """Returns the metrics of the whole block as the operator shows them, and its load samples as the tuner gets them. Tokens per second
        are per replica."""
        windows = [window for engine in self._engines if (window := engine.ring.window(time.monotonic()))]
        if not windows:
            return {}
        shown = revision_metrics(self._schema, windows, expected=len(windows), speculation_on=True)
        figures: dict[str, Any] = {
            name: measured.value
            for name in ("acceptance_length", "concurrency", "tokens_per_second", "block_size", "step_time_s")
            if isinstance(measured := getattr(shown, name), Value)
        }
        if "tokens_per_second" in figures:
            figures["tokens_per_second"] /= len(windows)
        # The first one is never steady, because nothing is known of the load before it.
        figures["samples"] = [
            {"step_s": sample.step_s, "concurrency": sample.concurrency, "excluded": sample.excluded, "inconsistent": sample.inconsistent}
            for engine in self._engines
            for sample in engine.samples[1:]
        ]
        return {**figures, "window_s": shown.window_s, "slowest_page_s": max(engine.slowest_s for engine in self._engines)}

    def _run(self) -> None:
        while not self._ended.wait(_EVERY_S):
            self._read()

    def _read(self) -> None:
        for engine in self._engines:
            engine.read()


class _Engine:
    """The pages of one engine."""

    def __init__(self, engine: str, url: str, warm_up_s: float) -> None:
        self._schema = ENGINES[engine].metric_schema
        self._follower = Follower(engine, speculation_on=True, warm_up_s=warm_up_s)
        self._url = url
        self.ring = Ring(3600.0)
        self.samples: list[LoadSample] = []
        self.slowest_s = 0.0

    def read(self) -> None:
        began = time.monotonic()
        try:
            with urlopen(f"{self._url}/metrics", timeout=_PAGE_TIMEOUT_S) as answer:
                text = answer.read().decode()
        except OSError:
            return
        ended = time.monotonic()
        self.slowest_s = max(self.slowest_s, ended - began)
        page = read_page(text, self._schema)
        if page is None:
            return
        self.ring.add((began + ended) / 2, page)
        step = self.ring.step(_SAMPLE_S, 10 * _SAMPLE_S)
        sample = self._follower.take(step, time.time()) if step is not None else None
        if sample is not None:
            self.samples.append(sample)


def told(deployment: Deployment, operator_page: str) -> dict[str, Any]:
    """Returns what the operator tells at this moment: metrics and tuning of the status, and its gauges of this deployment."""
    status = deployment.status()
    return {"metrics": status.get("metrics") or {}, "tuning": status.get("tuning") or {}, "gauges": gauges(operator_page, deployment.name)}


def gauges(page: str, deployment: str) -> dict[str, float]:
    """Returns the tuner's gauges of one deployment by name, with the label that tells several apart."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(page):
        if not family.name.startswith(("dflash_tuner_", "dflash_startup_")):
            continue
        for sample in family.samples:
            if sample.labels.get("deployment") == deployment:
                others = [value for label, value in sorted(sample.labels.items()) if label not in ("namespace", "deployment")]
                found[" ".join([sample.name.removeprefix("dflash_"), *others])] = sample.value
    return found


def predicted(told: Mapping[str, Any]) -> dict[int, float]:
    """Returns the predicted tokens per second of one replica by block size."""
    name = "tuner_predicted_tokens_per_second "
    return {int(key.removeprefix(name)): value for key, value in told["gauges"].items() if key.startswith(name)}
