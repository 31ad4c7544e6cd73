"""``kubectl dflash doctor --from-pod`` where a kubelet runs the pod: the operator's image, the restricted standard, the message at its end.

It runs before the tests that end with an uninstallation (files run in alphabetical order).
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

import pytest

from dflash_controller.cli import connection, failures, hub_pod, pod_run
from dflash_controller.cli.program import run
from dflash_controller.cli.readiness import Check, Result
from dflash_controller.cli.where import Where
from testbed.cluster import Cluster
from testbed.waiting import wait_until
from tests.node.release import RELEASE

HUB = """
from http.server import BaseHTTPRequestHandler, HTTPServer
class Hub(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"sha": "0123456789abcdef"}')
HTTPServer(("0.0.0.0", 8000), Hub).serve_forever()
"""


def test_a_pod_asks_the_hub(cluster: Cluster, operator: str, restricted: str, capsys: pytest.CaptureFixture[str]) -> None:
    # Nothing outside is reached from this node.
    where = ("--kubeconfig", str(cluster.admin_kubeconfig), "-n", restricted)
    assert run(["doctor", "--from-pod", "-o", "json", *where]) == failures.NEGATIVE
    [found] = [item for item in json.loads(capsys.readouterr().out) if item["name"] == hub_pod.NAME]
    assert (found["result"], "the name of huggingface.co is not resolved" in found["text"]) == ("FAILED", True), found

    deployment = cluster.get("deployment", RELEASE, "-n", operator)
    question = hub_pod.question_of(deployment, restricted)
    server = hub_pod.manifest(question, "hub", 600)
    [container] = server["spec"]["containers"]
    probe = {"tcpSocket": {"port": 8000}, "periodSeconds": 1}
    server["spec"]["containers"] = [{**container, "command": ["python3", "-c", HUB], "args": [], "readinessProbe": probe}]
    cluster.apply_yaml(server, restricted)
    cluster.kubectl("wait", "pod/hub", "-n", restricted, "--for=condition=Ready", "--timeout=240s")
    address = cluster.get("pod", "hub", "-n", restricted)["status"]["podIP"]
    asked = replace(question, endpoint=f"http://{address}:8000")
    with connection.Cluster(Where(str(cluster.admin_kubeconfig), namespace=restricted)) as client:
        pod = hub_pod.manifest(asked, "ask", 60)
        told: Check = pod_run.run(client, pod, partial(hub_pod.judged, asked), partial(hub_pod.late, asked, limit_s=60), 60)
    assert (told.result, told.text) == (Result.OK, f"http://{address}:8000 answers pods of namespace {restricted}")
    wait_until(lambda: {pod["metadata"]["name"] for pod in cluster.get("pods", "-n", restricted)["items"]} == {"hub"}, "the pods' removal")
