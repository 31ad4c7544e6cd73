"""A client for the queries of the Prometheus HTTP API (Thanos and Mimir speak it too)."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import aiohttp

from dflash_controller.observe.pipeline.body import read_capped

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PrometheusSettings:
    """Where Prometheus is and who the operator is to it: settings of the operator, never of a DFlashDeployment.

    Files are read again for each request, or when they change, so rotated credentials need no restart.
    """

    url: str
    """Base URL, without ``/api/v1``."""
    bearer_token_file: str | None = None
    basic_auth_file: str | None = None
    """One line, ``user:password``."""
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    tenant: str | None = None
    """``X-Scope-OrgID`` of Thanos and Mimir."""
    matcher: Mapping[str, str] = field(default_factory=dict)
    """Labels every selected series must have: tells clusters apart in a shared Prometheus."""
    replica_labels: tuple[str, ...] = ()
    """Labels in which scrapes of one pod differ, beyond the usual ones (``reduction.SCRAPE_IDENTITY``)."""
    timeout_s: float = 10.0
    retries: int = 2
    """After a 5xx or a connection error; a time-out is not repeated."""
    backoff_s: float = 0.25
    max_body: int = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Row:
    """One sample of a vector. ``value`` may be NaN or infinite."""

    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Course:
    """One series of a matrix: its value by time (seconds since the epoch). Values may be NaN or infinite."""

    labels: Mapping[str, str]
    points: Sequence[tuple[float, float]]


class PrometheusError(Exception):
    """The answer cannot be used: no connection, a time-out, an error status, a malformed body. An empty vector is an answer."""


class _Unavailable(PrometheusError):
    """Worth another try."""


class Prometheus:
    """Asks one server. One instance serves the whole operator."""

    def __init__(self, settings: PrometheusSettings) -> None:
        self._settings = settings
        self._session: aiohttp.ClientSession | None = None
        self._tls: tuple[tuple[float, ...], ssl.SSLContext] | None = None

    async def query(self, promql: str, at_s: float | None = None) -> list[Row]:
        """The vector of an instant query, evaluated at a time in seconds since the epoch, or now. Raises PrometheusError."""
        moment = {} if at_s is None else {"time": f"{at_s:.3f}"}
        return await self._answer("query", {"query": promql, **moment}, _vector)

    async def query_range(self, promql: str, start_s: float, end_s: float, step_s: float) -> list[Course]:
        """The matrix of a range query. Raises PrometheusError."""
        span = {"start": f"{start_s:.3f}", "end": f"{end_s:.3f}", "step": f"{step_s:g}"}
        return await self._answer("query_range", {"query": promql, **span}, _matrix)

    async def _answer(self, endpoint: str, form: Mapping[str, str], read: Callable[[int, bytes], T]) -> T:
        for attempt in range(self._settings.retries + 1):
            try:
                # In a thread: a fleet's answer is some megabytes.
                return await asyncio.to_thread(read, *await self._ask(endpoint, form))
            except _Unavailable:
                if attempt == self._settings.retries:
                    raise
                await asyncio.sleep(self._settings.backoff_s * 2**attempt)
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _ask(self, endpoint: str, form: Mapping[str, str]) -> tuple[int, bytes]:
        settings = self._settings
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=settings.timeout_s))
        form = {**form, "timeout": f"{settings.timeout_s:g}s"}
        url = f"{settings.url.rstrip('/')}/api/v1/{endpoint}"
        try:
            headers, tls = self._credentials(), self._tls_context()
            async with self._session.post(url, data=form, headers=headers, ssl=tls, allow_redirects=False) as response:
                return response.status, await read_capped(response, settings.max_body)
        except TimeoutError:
            raise PrometheusError(f"no answer within {settings.timeout_s:g} s") from None
        except (ssl.SSLError, aiohttp.ClientSSLError) as error:
            raise PrometheusError(f"TLS: {error}") from None
        except aiohttp.ClientConnectionError as error:
            raise _Unavailable(f"connection failed: {error}") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise PrometheusError(str(error) or type(error).__name__) from None

    def _credentials(self) -> dict[str, str]:
        settings = self._settings
        headers = {"X-Scope-OrgID": settings.tenant} if settings.tenant else {}
        if settings.bearer_token_file:
            headers["Authorization"] = f"Bearer {Path(settings.bearer_token_file).read_text(encoding='utf-8').strip()}"
        elif settings.basic_auth_file:
            user, _, password = Path(settings.basic_auth_file).read_text(encoding="utf-8").strip().partition(":")
            headers["Authorization"] = aiohttp.encode_basic_auth(user, password, encoding="utf-8")
        return headers

    def _tls_context(self) -> ssl.SSLContext | bool:
        """Made anew when a file changes; True, aiohttp's default, where none is set."""
        settings = self._settings
        files = [name for name in (settings.ca_file, settings.cert_file, settings.key_file) if name]
        if not files:
            return True
        stamps = tuple(Path(name).stat().st_mtime for name in files)
        if self._tls is None or self._tls[0] != stamps:
            context = ssl.create_default_context(cafile=settings.ca_file)
            if settings.cert_file:
                context.load_cert_chain(settings.cert_file, settings.key_file)
            self._tls = (stamps, context)
        return self._tls[1]

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None


def _result(status: int, body: bytes, kind: str) -> Any:
    failure = _Unavailable if status >= 500 else PrometheusError
    try:
        answer: Any = json.loads(body)
    except (RecursionError, ValueError):
        raise failure(f"HTTP status {status}, not JSON") from None
    if not isinstance(answer, dict) or answer.get("status") != "success":
        fields = answer if isinstance(answer, dict) else {}
        raise failure(f"HTTP status {status}: {fields.get('errorType', 'no error type')}: {str(fields.get('error', ''))[:200]}")
    if status != 200:
        raise failure(f"HTTP status {status}")
    try:
        data = answer["data"]
        if data["resultType"] != kind:
            raise PrometheusError(f"a {data['resultType']} instead of a {kind}")
        return data["result"]
    except (KeyError, TypeError) as error:
        raise PrometheusError(f"malformed {kind}: {error!r}") from None


def _vector(status: int, body: bytes) -> list[Row]:
    result = _result(status, body, "vector")
    try:
        return [Row(row["metric"], float(row["value"][1])) for row in result]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise PrometheusError(f"malformed vector: {error!r}") from None


def _matrix(status: int, body: bytes) -> list[Course]:
    result = _result(status, body, "matrix")
    try:
        return [Course(row["metric"], [(float(at), float(value)) for at, value in row["values"]]) for row in result]
    except (KeyError, TypeError, ValueError) as error:
        raise PrometheusError(f"malformed matrix: {error!r}") from None
