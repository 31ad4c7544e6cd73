"""The HTTP server of simulated engines. One application may serve many engines: the address that a client connected to identifies the
engine.

SGLang's endpoints for administration answer 200 and do nothing. Besides its own API every engine answers, on the same port:

* ``GET /sim/state``: settings, phase, faults, requests in service;
* ``GET /sim/faults``, ``PATCH /sim/faults`` (some fields), ``DELETE /sim/faults`` (all back to sound); fields as in ``faults.Faults``;
* ``POST /sim/crash`` (``{"code": 137, "message": "..."}``, both optional): the process dies and connections break;
* ``POST /sim/drain``: SIGTERM.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from functools import partial
from json import JSONDecodeError
from typing import Any, Protocol

from aiohttp import web

from testbed.simulator import native_api as native
from testbed.simulator import openai_api as openai
from testbed.simulator.batching import Request
from testbed.simulator.engine import Phase
from testbed.simulator.host import Host
from testbed.simulator.text import Steps, chances

_Handler = Callable[[web.Request, Host], Awaitable[web.StreamResponse]]
_Next = Callable[[web.Request], Awaitable[web.StreamResponse]]
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Directory(Protocol):
    """Which engine listens at which address."""

    def find(self, address: str, port: int) -> Host | None:
        """Returns the engine at an address; None if nothing listens there."""


class OneHost:
    """A directory with a single engine at every address: the engine is the whole process."""

    def __init__(self, host: Host) -> None:
        self.host = host

    def find(self, address: str, port: int) -> Host | None:
        return self.host


class _Cut(Exception):
    """Breaks the connection without an answer."""


class EngineApp:
    """The aiohttp application."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self.app = app = web.Application(middlewares=[self._middleware], client_max_size=16 * 1024 * 1024)
        for path in ("/health", "/health_generate", "/ping"):
            app.router.add_get(path, self._route(self._health))
        app.router.add_get("/ready", self._route(self._ready))
        app.router.add_get("/v1/models", self._route(self._models))
        app.router.add_get("/version", self._route(self._version))
        for path in ("/server_info", "/get_server_info"):
            app.router.add_get(path, self._route(self._server_info))
        app.router.add_get("/metrics", self._route(self._metrics))
        app.router.add_post("/v1/completions", self._route(self._completions))
        app.router.add_post("/v1/chat/completions", self._route(self._completions))
        app.router.add_post("/generate", self._route(self._generate))
        app.router.add_get("/sim/state", self._route(self._sim_state))
        app.router.add_get("/sim/faults", self._route(self._sim_faults))
        app.router.add_patch("/sim/faults", self._route(self._sim_faults))
        app.router.add_delete("/sim/faults", self._route(self._sim_faults))
        app.router.add_post("/sim/crash", self._route(self._sim_crash))
        app.router.add_post("/sim/drain", self._route(self._sim_drain))

    def runner(self) -> web.AppRunner:
        """Returns a runner that cancels the handlers of disconnected clients, so that their requests are aborted as in a real engine."""
        return web.AppRunner(self.app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)

    def _host(self, request: web.Request) -> Host:
        assert request.transport is not None
        address, port = request.transport.get_extra_info("sockname")[:2]
        host = self._directory.find(address, port)
        if host is None:
            raise _Cut
        return host

    def _route(self, handler: _Handler) -> _Next:
        async def handle(request: web.Request) -> web.StreamResponse:
            return await handler(request, self._host(request))

        return handle

    @web.middleware
    async def _middleware(self, request: web.Request, handler: _Next) -> web.StreamResponse:
        try:
            host = self._host(request)
            if request.path.startswith("/sim/"):
                return await handler(request)
            return await self._as_engine(request, host, handler)
        except _Cut:
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=503)

    async def _as_engine(self, request: web.Request, host: Host, handler: _Next) -> web.StreamResponse:
        engine = host.engine
        starting = engine.phase(host.clock.now()) is Phase.STARTING
        if starting and (engine.settings.node_rank > 0 or not engine.answers_http_while_starting):
            raise _Cut
        if engine.settings.node_rank > 0:
            return await self._as_worker(request, host, handler)
        if engine.settings.access.refuses(request.method, request.path, request.headers.get("Authorization")):
            return web.json_response({"error": "Unauthorized"}, status=401)
        if engine.faults.hang and request.path != "/metrics":
            await host.closed.wait()
            raise _Cut
        endpoint, began = request.path, host.clock.now()
        engine.metrics.http_started(endpoint, request.method)
        status, sent = 500, 0
        try:
            response = await handler(request)
            status, sent = response.status, response.body_length
            return response
        except web.HTTPNotFound:
            if request.path not in engine.settings.access.admin_paths:
                status = 404
                raise
            status = 200
            return web.json_response({"success": True, "message": "simulated: nothing happens"})
        except web.HTTPException as answer:
            status = answer.status
            raise
        finally:
            engine.metrics.http_finished(endpoint, request.method, status, host.clock.now() - began, (request.content_length or 0, sent))

    async def _as_worker(self, request: web.Request, host: Host, handler: _Next) -> web.StreamResponse:
        """Answers for ranks above 0: SGLang's dummy server always reports healthy and has no API; a vLLM worker has no server at all."""
        if host.engine.settings.engine != "sglang":
            raise _Cut
        if request.path in ("/health", "/health_generate", "/ping"):
            return web.Response(status=200)
        if request.path == "/metrics":
            return await handler(request)
        raise web.HTTPNotFound

    async def _health(self, request: web.Request, host: Host) -> web.StreamResponse:
        if request.path == "/health_generate" and host.engine.settings.engine != "sglang":
            raise web.HTTPNotFound
        healthy = host.engine.healthy(host.clock.now())
        if healthy and request.path != "/ping" and host.health_delay_s:
            await asyncio.sleep(host.health_delay_s)
        return web.Response(status=200 if healthy else 503)

    async def _ready(self, request: web.Request, host: Host) -> web.StreamResponse:
        if not host.engine.has_ready_endpoint:
            raise web.HTTPNotFound
        return web.Response(status=200 if host.engine.healthy(host.clock.now()) else 503)

    async def _models(self, request: web.Request, host: Host) -> web.StreamResponse:
        self._require_started(host)
        return web.json_response(openai.models(host.engine.settings.served_model_name, host.created))

    async def _version(self, request: web.Request, host: Host) -> web.StreamResponse:
        if host.engine.settings.engine != "vllm":
            raise web.HTTPNotFound
        return web.json_response({"version": host.engine.settings.release})

    async def _server_info(self, request: web.Request, host: Host) -> web.StreamResponse:
        settings = host.engine.settings
        if settings.engine != "sglang":
            raise web.HTTPNotFound
        self._require_started(host)
        return web.json_response(
            {
                "model_path": settings.target,
                "served_model_name": settings.served_model_name,
                "tp_size": settings.tensor_parallel,
                "max_running_requests": settings.max_concurrency,
                "speculative_algorithm": "DFLASH" if settings.block_size > 1 else None,
                "speculative_draft_model_path": settings.drafter,
                "speculative_draft_model_revision": settings.drafter_revision,
                "speculative_num_draft_tokens": settings.block_size if settings.block_size > 1 else None,
                "version": settings.release,
                "api_key": settings.access.api_key,
                "admin_api_key": settings.access.admin_key,
                "launch_command": " ".join(settings.argv),
                "internal_states": [{"effective_max_running_requests_per_dp": settings.served}],
            }
        )

    async def _metrics(self, request: web.Request, host: Host) -> web.StreamResponse:
        page = host.engine.page(host.clock.now())
        if page is None:
            raise web.HTTPNotFound
        return web.Response(body=page.encode(), headers={"Content-Type": _METRICS_TYPE})

    def _require_started(self, host: Host) -> None:
        if host.engine.phase(host.clock.now()) is Phase.STARTING:
            raise web.HTTPServiceUnavailable

    async def _completions(self, request: web.Request, host: Host) -> web.StreamResponse:
        self._require_started(host)
        engine, settings = host.engine, host.engine.settings
        status = engine.api_error()
        if status is not None:
            return _error(status, "simulated fault", "InternalServerError")
        try:
            ask = openai.parse(await request.json(), request.headers, chat=request.path == "/v1/chat/completions", target=settings.target)
        except (openai.BadRequest, JSONDecodeError) as problem:
            return _error(400, str(problem), "BadRequestError")
        if settings.engine == "vllm" and ask.model not in (None, settings.served_model_name):
            return _error(404, f"The model `{ask.model}` does not exist.", "NotFoundError")
        sim = _request(host, ask)
        ident = host.next_id("chatcmpl" if ask.chat else "cmpl")
        if not engine.accepts(host.clock.now()):
            sim.aborted = True
        if ask.stream:
            return await self._stream(request, host, ask, sim, ident)
        if not sim.aborted:
            async for _ in host.generate(sim):
                pass
        if host.closed.is_set() and sim.aborted:
            raise _Cut
        text = "".join(engine.text(ask.prompt, sim.generated))
        return web.json_response(
            openai.answer(ask, ident, settings.served_model_name, host.created, text, sim.generated, _reason(ask, sim))
        )

    async def _stream(self, request: web.Request, host: Host, ask: openai.Ask, sim: Request, ident: str) -> web.StreamResponse:
        name, created = host.engine.settings.served_model_name, int(time.time())
        response = await _event_stream(request)
        tokens = host.engine.text(ask.prompt, ask.max_tokens)
        steps, sent, events = Steps(sim), 0, b""
        if not sim.aborted:
            async for generated in host.generate(sim):
                for end in steps.ends():
                    reason = _reason(ask, sim) if end == generated and sim.done else None
                    text, first = "".join(tokens[sent:end]), sent == 0
                    events += openai.event(openai.chunk(ask, ident, name, created, text, reason, first=first, generated=end))
                    sent = end
                if events:
                    await response.write(events)
                    events = b""
        if host.closed.is_set() and sim.aborted:
            raise _Cut
        if sim.aborted:
            events = openai.event(openai.chunk(ask, ident, name, created, "", "abort", first=sent == 0, generated=sent))
        if ask.include_usage:
            events += openai.event(openai.usage_chunk(ask, ident, name, created, sent))
        await response.write(events + openai.LAST_EVENT)
        await response.write_eof()
        return response

    async def _generate(self, request: web.Request, host: Host) -> web.StreamResponse:
        """Serves SGLang's own API."""
        engine, settings = host.engine, host.engine.settings
        if settings.engine != "sglang":
            raise web.HTTPNotFound
        self._require_started(host)
        status = engine.api_error()
        if status is not None:
            return _error(status, "simulated fault", "InternalServerError")
        try:
            ask = native.parse(await request.json())
        except (openai.BadRequest, JSONDecodeError) as problem:
            return web.json_response({"error": {"message": str(problem)}}, status=400)
        sim, ident = _request(host, ask), host.next_id("gen")
        tokens = engine.text(ask.prompt, ask.max_tokens)
        response = await _event_stream(request) if ask.stream else None
        steps = Steps(sim)
        async for generated in host.generate(sim):
            ends = [end for end in steps.ends() if end < generated or not sim.done]
            outputs = [native.output(ask, ident, settings, sim, tokens[:end], last=False) for end in ends]
            if response is not None and outputs:
                await response.write(b"".join(map(openai.event, outputs)))
        if host.closed.is_set() and sim.aborted:
            raise _Cut
        last = native.output(ask, ident, settings, sim, tokens[: sim.generated], last=True)
        if response is None:
            return web.json_response(last)
        await response.write(openai.event(last) + openai.LAST_EVENT)
        await response.write_eof()
        return response

    async def _sim_state(self, request: web.Request, host: Host) -> web.StreamResponse:
        engine, now = host.engine, host.clock.now()
        engine.advance(now)
        return web.json_response(
            {
                "settings": asdict(engine.settings),
                "phase": engine.phase(now).value,
                "faults": engine.faults.to_json(),
                "table": engine.batch.table.name,
                "running": len(engine.batch.in_service),
                "waiting": len(engine.batch.waiting),
            },
            # JSON has no sets.
            dumps=partial(json.dumps, default=sorted),
        )

    async def _sim_faults(self, request: web.Request, host: Host) -> web.StreamResponse:
        if request.method == "DELETE":
            host.set_faults(type(host.engine.faults)())
        elif request.method == "PATCH":
            try:
                changes = await request.json()
                if not isinstance(changes, dict):
                    raise ValueError("the body must be a JSON object")
                host.patch_faults(changes)
            except ValueError as problem:
                return web.json_response({"error": str(problem)}, status=400)
        return web.json_response(host.engine.faults.to_json())

    async def _sim_crash(self, request: web.Request, host: Host) -> web.StreamResponse:
        body: dict[str, Any] = await request.json() if request.can_read_body else {}
        host.exit(int(body.get("code", 137)), str(body.get("message", "killed by /sim/crash")))
        return web.json_response({})

    async def _sim_drain(self, request: web.Request, host: Host) -> web.StreamResponse:
        host.drain()
        return web.json_response({})


def _request(host: Host, ask: openai.Ask) -> Request:
    settings, table = host.engine.settings, host.engine.batch.table
    return Request(
        workload=table.workload(ask.workload),
        prompt_tokens=ask.prompt_tokens,
        max_tokens=ask.max_tokens,
        streaming=ask.stream,
        chances=chances(settings.target, settings.drafter, settings.drafter_revision, ask.prompt),
        draws=[],
    )


async def _event_stream(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"})
    await response.prepare(request)
    return response


def _reason(ask: openai.Ask, sim: Request) -> str:
    if sim.aborted:
        return "abort"
    return "length" if ask.limited else "stop"


def _error(status: int, message: str, kind: str) -> web.Response:
    return web.json_response(openai.error(status, message, kind), status=status)
