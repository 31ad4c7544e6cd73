"""The admission webhook for new pods of LeaderWorkerSets: what LeaderWorkerSet adds to them, and what keeps leaders from being Ready."""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aiohttp import web

from testbed.leader_worker_set import objects
from testbed.leader_worker_set.objects import Object

PATH = "/pods"


class PodAdmission:
    """A webhook on a free port of 127.0.0.1. With ``plays_controller`` pods get what LeaderWorkerSet's own webhook gives them."""

    def __init__(self, certificate: Path, key: Path, *, plays_controller: bool) -> None:
        self._tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._tls.load_cert_chain(certificate, key)
        self._patch: Callable[[Object, str], list[dict[str, Any]]] = _as_the_controller if plays_controller else _leaders_held
        self._runner: web.AppRunner | None = None

    async def start(self) -> str:
        """Returns the URL once it answers."""
        application = web.Application(client_max_size=2**24)
        application.router.add_post(PATH, self._review)
        self._runner = web.AppRunner(application, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self._tls).start()
        return f"https://127.0.0.1:{self._runner.addresses[0][1]}{PATH}"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _review(self, http: web.Request) -> web.Response:
        request = (await http.json())["request"]
        patch = json.dumps(self._patch(request["object"], request["namespace"]))
        response = {"uid": request["uid"], "allowed": True, "patchType": "JSONPatch", "patch": base64.b64encode(patch.encode()).decode()}
        return web.json_response({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})


def _leaders_held(pod: Object, _: str) -> list[dict[str, Any]]:
    return [_add("/metadata/annotations", {**(pod["metadata"].get("annotations") or {}), **objects.held(pod)})]


def _as_the_controller(pod: Object, namespace: str) -> list[dict[str, Any]]:
    added = objects.additions(pod, namespace)
    patch = [_add(f"/metadata/{field}", added[field]) for field in ("labels", "annotations")]
    first = [{"name": name, "value": value} for name, value in added["env"].items()]
    for field in ("containers", "initContainers"):
        for index, container in enumerate(pod["spec"].get(field) or ()):
            others = [item for item in container.get("env") or () if item["name"] not in added["env"]]
            patch.append(_add(f"/spec/{field}/{index}/env", [*first, *others]))
    return patch


def _add(path: str, value: Any) -> dict[str, Any]:
    return {"op": "add", "path": path, "value": value}
