"""A small client of a model hub that speaks the API of huggingface.co: which commit a revision names, its files, its config.json.

It sends no token: tokens are in the Secrets of users, which the operator has no right to read.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import aiohttp
from yarl import URL

from dflash_controller.engines.drafter_config import relevant
from dflash_controller.model.hub import HubAnswer, ModelFacts, ModelQuestion, is_commit
from dflash_controller.model.measurement import Absent, Error
from dflash_controller.observe.pipeline.body import read_capped

MAX_INFO = 16 * 2**20
"""Bytes of the description of a repository: some hundred for each file."""
MAX_CONFIG = 2**20
MOST_FILES = 2000
"""Files whose sizes are kept; of a larger repository none are, rather than some."""
MAX_REDIRECTS = 5
"""A repository that was renamed redirects to its new name, and huggingface.co small files to its cache."""


@dataclass(frozen=True, slots=True)
class HubSettings:
    """Where the hub is: a setting of the operator, never of a DFlashDeployment. Proxies come from the usual variables (HTTPS_PROXY, …)."""

    endpoint: str
    timeout_s: float = 10.0
    """For everything that is asked of one repository, the wait for a free connection included."""
    connections: int = 8


class _Failed(Exception):
    """The answer that ends the conversation."""

    def __init__(self, answer: Absent | Error) -> None:
        super().__init__(answer)
        self.answer = answer


class HubClient:
    """Asks one hub. One instance serves the whole operator."""

    def __init__(self, settings: HubSettings) -> None:
        self._settings = settings
        self._free = asyncio.Semaphore(settings.connections)
        self._session: aiohttp.ClientSession | None = None

    async def ask(self, question: ModelQuestion) -> HubAnswer:
        """The facts, or why there are none. It never raises for a hub that fails."""
        try:
            async with asyncio.timeout(self._settings.timeout_s), self._free:
                return await self._facts(question)
        except _Failed as failed:
            return failed.answer
        except TimeoutError:
            return Error(f"{self._settings.endpoint} gives no answer within {self._settings.timeout_s:g} s")
        except (ssl.SSLError, aiohttp.ClientSSLError):
            return Error(f"{self._settings.endpoint}: the TLS connection failed")
        except (aiohttp.ClientError, OSError, ValueError):
            # The library's own words change with every attempt: they name addresses and ports.
            return Error(f"{self._settings.endpoint} cannot be reached")

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _facts(self, question: ModelQuestion) -> ModelFacts:
        model, ref = quote(question.model, safe="/"), quote(question.ref, safe="")
        info = _object(await self._get(f"/api/models/{model}/revision/{ref}?blobs=true", question, MAX_INFO))
        commit = info.get("sha")
        if not isinstance(commit, str) or not is_commit(commit):
            raise _Failed(Error(f"{self._settings.endpoint} names no commit for {question.ref} of {question.model}"))
        try:
            config = relevant(_object(await self._get(f"/{model}/resolve/{commit}/config.json", question, MAX_CONFIG)))
        except _Failed as failed:
            if isinstance(failed.answer, Error):
                raise
            config = None  # The files of a gated repository need a token, its commit does not.
        except (RecursionError, ValueError):
            config = None
        return ModelFacts(commit, _sizes(info.get("siblings")), config)

    async def _get(self, path: str, question: ModelQuestion, limit: int) -> bytes:
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None), trust_env=True, raise_for_status=False)
        url = URL(f"{self._settings.endpoint.rstrip('/')}{path}", encoded=True)
        async with self._session.get(url, max_redirects=MAX_REDIRECTS) as response:
            if response.status == 200:
                return await read_capped(response, limit)
            raise _Failed(self._refusal(response, question))

    def _refusal(self, response: aiohttp.ClientResponse, question: ModelQuestion) -> Absent | Error:
        """The hub tells its errors apart by ``X-Error-Code`` (huggingface_hub, utils/_http.py); mirrors often by the status alone."""
        endpoint, code, status = self._settings.endpoint, response.headers.get("X-Error-Code"), response.status
        if code == "RevisionNotFound":
            return Absent(f"{endpoint} has no revision {question.ref} of {question.model}")
        if code == "GatedRepo" or status in (401, 403):
            # huggingface.co answers 401 for a repository that does not exist, too.
            return Absent(
                f"{endpoint} shows {question.model} to nobody without a token (HTTP {status}): it is gated or private, or does not exist, "
                "and the operator reads no Secrets"
            )
        if status == 404:
            return Absent(f"{endpoint} has no {question.model} at revision {question.ref} (HTTP 404)")
        return Error(f"{endpoint} answers HTTP {status}")


def _object(body: bytes) -> Mapping[str, Any]:
    """The JSON object. Raises ValueError for anything else."""
    try:
        found = json.loads(body)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError("no object")
    return found


def _sizes(siblings: Any) -> dict[str, int]:
    found: dict[str, int] = {}
    for item in siblings if isinstance(siblings, list) else ():
        path, size = (item.get("rfilename"), item.get("size")) if isinstance(item, Mapping) else (None, None)
        if isinstance(path, str) and isinstance(size, int) and not isinstance(size, bool) and size >= 0:
            found[path] = size
    return found if len(found) <= MOST_FILES else {}
