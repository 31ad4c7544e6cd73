"""Real Prometheus servers and engine pages for them to scrape, without a cluster."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer, unused_port

from dflash_controller.observe.sources.prometheus.client import Prometheus, PrometheusError, PrometheusSettings
from testbed import binaries

PAGES = Path(__file__).parents[2] / "testbed" / "data" / "metrics"
RECORDED = {"vllm": "vllm-0.26.0.txt", "sglang": "sglang-0.5.17.txt"}


class GrowingPage:
    """A page of an engine whose counters rise by their own value every 100 s, so all quotients stay those of the page."""

    def __init__(self, page: str) -> None:
        self.start = time.monotonic()
        self.page = page

    async def metrics(self, request: web.Request) -> web.Response:
        grown = 1 + (time.monotonic() - self.start) / 100
        lines = []
        for line in self.page.splitlines():
            head, _, value = line.rpartition(" ")
            name = head.partition("{")[0]
            is_counter = not line.startswith("#") and name.endswith(("_total", "_sum", "_count", "_bucket"))
            lines.append(f"{head} {float(value) * grown}" if is_counter else line)
        return web.Response(text="\n".join(lines) + "\n")


@asynccontextmanager
async def served(pages: Mapping[str, str]) -> AsyncIterator[dict[str, int]]:
    """Serves each page at /metrics; yields the ports by name."""
    servers = {}
    for name, page in pages.items():
        app = web.Application()
        app.router.add_get("/metrics", GrowingPage(page).metrics)
        servers[name] = TestServer(app)
        await servers[name].start_server()
    try:
        yield {name: int(server.port or 0) for name, server in servers.items()}
    finally:
        for server in servers.values():
            await server.close()


def _written(directory: Path, config: Mapping[str, Any]) -> Path:
    directory.mkdir()
    file = directory / "prometheus.yml"
    file.write_text(yaml.safe_dump(config))
    return file


@asynccontextmanager
async def prometheus(directory: Path, config: Mapping[str, Any], *flags: str) -> AsyncIterator[str]:
    """Runs a server with this configuration and yields its URL once it answers."""
    file = _written(directory, config)
    listen = f"127.0.0.1:{unused_port()}"
    process = await asyncio.create_subprocess_exec(
        str(binaries.path_of("prometheus")),
        f"--config.file={file}",
        f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address={listen}",
        *flags,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        await answers(f"http://{listen}")
        yield f"http://{listen}"
    finally:
        process.terminate()
        await process.wait()


async def answers(url: str) -> None:
    """Waits for the first answer."""
    client = Prometheus(PrometheusSettings(url, retries=0))
    until = time.monotonic() + 30
    try:
        while True:
            try:
                await client.query("vector(1)")
                return
            except PrometheusError:
                assert time.monotonic() < until
                await asyncio.sleep(0.1)
    finally:
        await client.close()


def scraping(job: str, ports: Mapping[str, int], more: Mapping[str, str] | None = None, **settings: Any) -> dict[str, Any]:
    """A scrape configuration for pods of one port each, with the labels that a PodMonitor sets. Pods are called as their pages."""
    labels = {"namespace": "ns", "serving_dflash_io_deployment": "demo", "serving_dflash_io_revision": "r1"}
    labels |= {"serving_dflash_io_block_size": "16", "serving_dflash_io_role": "engine", **(more or {})}
    targets = [{"targets": [f"127.0.0.1:{port}"], "labels": labels | {"pod": name}} for name, port in ports.items()]
    return {"job_name": job, "scrape_interval": "1s", "static_configs": targets, **settings}


def address(url: str) -> str:
    return url.removeprefix("http://")


def configuration(*scrapes: Mapping[str, Any], rules: Sequence[Path] = (), **more: Any) -> dict[str, Any]:
    """The configuration of a server that evaluates these rule files every second."""
    common = {"evaluation_interval": "1s", **more.pop("global_settings", {})}
    return {"global": common, "scrape_configs": [*scrapes], "rule_files": [str(file) for file in rules], **more}
