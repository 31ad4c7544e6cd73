"""Whether the model hub answers pods: the program of the pod against real servers, and what each end means."""

from __future__ import annotations

import json
import os
import socket
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dflash_controller.catalog import Catalog
from dflash_controller.cli import hub_pod, readiness
from dflash_controller.cli.hub_pod import MODEL, SCRIPT, Question, judged, late, manifest, question_of
from dflash_controller.cli.readiness import Check, Result
from testbed.hub_server import HubServer, commit_of

PASSWORD = "pAsSw0rd"
CERTIFICATES = {"name": "SSL_CERT_FILE", "value": "/etc/company/ca.crt"}
OPERATOR: dict[str, Any] = {
    "metadata": {"name": "dflash-operator", "namespace": "dflash-system"},
    "spec": {
        "template": {
            "spec": {
                "imagePullSecrets": [{"name": "registry"}],
                "tolerations": [{"key": "infra", "operator": "Exists"}],
                "containers": [
                    {
                        "name": "operator",
                        "image": "operator:1",
                        "imagePullPolicy": "Never",
                        "env": [
                            {"name": "DFLASH_HUGGING_FACE_ENDPOINT", "value": "https://mirror.example.com/hf"},
                            {"name": "DFLASH_FETCH_IMAGE", "value": "public/operator:1"},
                            {"name": "HTTPS_PROXY", "value": "http://proxy:3128"},
                            {"name": "no_proxy", "valueFrom": {"secretKeyRef": {"name": "network", "key": "no"}}},
                            {"name": "MAIL_PASSWORD", "value": PASSWORD},
                            CERTIFICATES,
                        ],
                        "envFrom": [{"configMapRef": {"name": "more"}}],
                        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}, {"name": "ca", "mountPath": "/etc/company"}],
                    }
                ],
                "volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}}, {"name": "ca", "configMap": {"name": "ca"}}],
            }
        }
    },
}


def question(endpoint: str = "https://huggingface.co") -> Question:
    return Question(endpoint, "models", "operator:1", {}, {})


def ended(message: str, code: int = 0, reason: str = "Completed") -> dict[str, Any]:
    state = {"terminated": {"exitCode": code, "reason": reason, "message": message}}
    other = {"name": "mesh", "state": {"running": {}}}
    return {"status": {"phase": "Running", "containerStatuses": [other, {"name": hub_pod.CONTAINER, "state": state}]}}


def asked(endpoint: str, tmp_path: Path, *, limit: str = "10", **variables: str) -> Check:
    """Runs the pod's program as a process and returns what its termination message comes to."""
    file = tmp_path / "termination-log"
    env = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    [container] = manifest(question(endpoint), "ask", 60)["spec"]["containers"]
    assert container["command"] == ["python3", "-c", SCRIPT]
    subprocess.run([sys.executable, "-c", SCRIPT, container["args"][0], limit, str(file)], env=env | variables, check=True, timeout=60)
    message = file.read_text()
    assert len(message) < 4096, "Kubernetes keeps no more of a termination message"
    assert PASSWORD not in message
    check = judged(question(endpoint), ended(message))
    assert check is not None
    assert (check.remedy == "") is (check.result is Result.OK)
    return check


@contextmanager
def says(answer: bytes) -> Iterator[int]:
    """A server that answers whatever it is asked with these bytes."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while self.rfile.readline().strip():
                pass
            self.wfile.write(answer)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def test_a_hub_that_answers(tmp_path: Path) -> None:
    with HubServer() as hub:
        hub.publish(MODEL, commit_of("a"), {"config.json": {}})
        found = asked(hub.url, tmp_path)
        assert (found.result, found.text) == (Result.OK, f"{hub.url} answers pods of namespace models")
        assert asked(f"{hub.url}/", tmp_path).result is Result.OK
        found = asked(hub.url, tmp_path, http_proxy=f"http://me:{PASSWORD}@127.0.0.1:{hub.url.rpartition(':')[2]}")
        assert (found.result, "through the proxy 127.0.0.1:" in found.text) == (Result.OK, True)
        assert asked(hub.url, tmp_path, http_proxy="http://127.0.0.1:1", no_proxy="127.0.0.1").result is Result.OK
        hub.repositories.clear()
        missing = asked(hub.url, tmp_path)
        assert (missing.result, f"has no {MODEL} (HTTP 401)" in missing.text) == (Result.ADVICE, True)


@pytest.mark.parametrize(
    ("status", "result", "text", "remedy"),
    [
        (401, Result.FAILED, "shows nothing without a token (HTTP 401)", "sends none"),
        (403, Result.FAILED, "shows nothing without a token (HTTP 403)", "sends none"),
        (404, Result.ADVICE, f"has no {MODEL}", "mirror must have the models"),
        (407, Result.FAILED, "the proxy refuses (HTTP 407)", "HTTPS_PROXY"),
        (429, Result.ADVICE, "HTTP 429", "Pin commits"),
        (502, Result.FAILED, "answers HTTP 502", "Look at the hub"),
        (200, Result.FAILED, "not as a model hub does", "huggingFace.endpoint"),
    ],
)
def test_a_hub_that_refuses(status: int, result: Result, text: str, remedy: str, tmp_path: Path) -> None:
    with HubServer() as hub:
        hub.status = status
        found = asked(hub.url, tmp_path)
    assert (found.result, text in found.text, remedy in found.remedy) == (result, True, True), found


def test_a_hub_that_cannot_be_reached(tmp_path: Path) -> None:
    with socket.socket() as unused, socket.socket() as silent:
        for each in (unused, silent):
            each.bind(("127.0.0.1", 0))
        silent.listen()
        refused, hangs = (f"127.0.0.1:{each.getsockname()[1]}" for each in (unused, silent))
        found = asked(f"https://{refused}", tmp_path)
        assert f"{refused} refuses the connection" in found.text
        assert "huggingFace.endpoint" in found.remedy
        through = asked("https://huggingface.co", tmp_path, https_proxy=f"http://me:{PASSWORD}@{refused}")
        assert f"https://huggingface.co through the proxy {refused} cannot be reached: {refused} refuses" in through.text
        assert "HTTPS_PROXY in extraEnv" in through.remedy
        for scheme in ("http", "https"):
            found = asked(f"{scheme}://{hangs}", tmp_path, limit="0.3")
            assert f"{hangs} gives no answer within 15 s" in found.text
            assert "NetworkPolicies" in found.remedy
    found = asked("https://no-such-host.invalid", tmp_path)
    assert "the name of no-such-host.invalid is not resolved" in found.text
    assert "port 53" in found.remedy
    with HubServer() as hub:
        found = asked(hub.url.replace("http:", "https:"), tmp_path)
    assert "the TLS connection failed" in found.text
    assert "SSL_CERT_FILE" in found.remedy
    with says(b"HTTP/1.1 403 Forbidden\r\n\r\n") as port:
        found = asked("https://huggingface.co", tmp_path, https_proxy=f"http://127.0.0.1:{port}")
    assert "the proxy refuses (Tunnel connection failed: 403 Forbidden)" in found.text
    with says(b"SSH-2.0-OpenSSH\r\n") as port:
        found = asked(f"http://127.0.0.1:{port}", tmp_path)
    assert "cannot be reached" in found.text
    with says(b"") as port:
        found = asked(f"http://127.0.0.1:{port}", tmp_path)
    assert "closed connection" in found.text
    assert {check.result for check in (found, through)} == {Result.FAILED}


def test_a_question_is_that_of_the_operator() -> None:
    home = question_of(OPERATOR, "dflash-system")
    pod = manifest(home, "ask", 60)["spec"]
    [container] = pod["containers"]
    assert home.url == f"https://mirror.example.com/hf/api/models/{MODEL}/revision/main"
    assert [item["name"] for item in container["env"]] == ["HTTPS_PROXY", "no_proxy", "SSL_CERT_FILE"]
    assert (container["image"], pod["imagePullSecrets"], home.left_out) == ("operator:1", [{"name": "registry"}], ())
    assert (pod["volumes"], container["volumeMounts"]) == (
        [{"name": "ca", "configMap": {"name": "ca"}}],
        [{"name": "ca", "mountPath": "/etc/company"}],
    )
    assert container["envFrom"] == [{"configMapRef": {"name": "more"}}]
    assert PASSWORD not in json.dumps(pod)


def test_a_pod_of_another_namespace_has_no_objects_of_the_operators() -> None:
    away = question_of(OPERATOR, "models")
    pod = manifest(away, "ask", 60)["spec"]
    [container] = pod["containers"]
    assert [item["name"] for item in container["env"]] == ["HTTPS_PROXY"], "a file that is not there would make every certificate wrong"
    assert (container["image"], container["imagePullPolicy"]) == ("public/operator:1", "Never")
    assert pod["tolerations"] == [{"key": "infra", "operator": "Exists"}]
    assert not {"imagePullSecrets", "volumes"} & pod.keys()
    assert not {"envFrom", "volumeMounts"} & container.keys()
    assert away.left_out == ("no_proxy", "envFrom", "SSL_CERT_FILE", "the files at /etc/company")
    told = json.dumps({"error": ["SSLCertVerificationError", "SSLError", "OSError"], "text": "unable to get local issuer certificate"})
    check = judged(away, ended(told))
    assert check is not None
    assert "without no_proxy, envFrom, SSL_CERT_FILE, the files at /etc/company: -n dflash-system uses them" in check.remedy


def test_a_certificate_of_the_image_is_kept_everywhere() -> None:
    bare: dict[str, Any] = json.loads(json.dumps(OPERATOR))
    bare["spec"]["template"]["spec"]["containers"][0] |= {"volumeMounts": [], "envFrom": []}
    away = question_of(bare, "models")
    assert CERTIFICATES in manifest(away, "ask", 60)["spec"]["containers"][0]["env"]
    assert away.left_out == ("no_proxy",)


def test_the_endpoint_without_a_setting_is_the_operators_default() -> None:
    bare: dict[str, Any] = json.loads(json.dumps(OPERATOR))
    bare["spec"]["template"]["spec"]["containers"][0]["env"] = []
    assert question_of(bare, "models").endpoint == "https://huggingface.co"
    bare["spec"]["template"]["spec"]["containers"][0]["env"] = [{"name": "DFLASH_HUGGING_FACE_ENDPOINT", "value": "Off"}]
    off = question_of(bare, "models")
    assert off.off
    assert hub_pod.not_checked(off).result is Result.OK
    assert MODEL in {pair.drafter for pair in Catalog.load().pairs}


def test_an_operator_serves_some_namespaces() -> None:
    def serving(*namespaces: str) -> dict[str, Any]:
        env = [{"name": "DFLASH_NAMESPACES", "value": ",".join(namespaces)}] if namespaces else []
        return {"spec": {"template": {"spec": {"containers": [{"name": "mesh"}, {"name": "operator", "env": env}]}}}}

    one, all_ = serving("a", "b"), serving()
    assert readiness.operator_of([one, all_], "b") is one
    assert readiness.operator_of([one, all_], "c") is all_
    assert readiness.operator_of([one], "c") is None


def waiting(reason: str, message: str = "words of the kubelet") -> dict[str, Any]:
    status = {"name": hub_pod.CONTAINER, "state": {"waiting": {"reason": reason, "message": message}}}
    return {"spec": {"nodeName": "n"}, "status": {"phase": "Pending", "containerStatuses": [status]}}


def test_a_pod_that_cannot_answer_says_why() -> None:
    asking = question()
    for pod, text in (
        (waiting("ImagePullBackOff"), "the image of container ask cannot be pulled (ImagePullBackOff: words of the kubelet)"),
        (waiting("InvalidImageName"), "the image of container ask cannot be pulled"),
        (waiting("CreateContainerConfigError", "container has runAsNonRoot"), "container has runAsNonRoot"),
        ({"status": {"phase": "Failed", "reason": "Evicted", "message": "low on memory"}}, "gave it up (Evicted: low on memory)"),
        ({"status": {"phase": "Failed", "reason": "DeadlineExceeded"}}, "did not end in time"),
        (ended("", 128, "StartError"), "ended with exit code 128 (StartError)"),
        (ended("Traceback\n  ImportError", 1, "Error"), "exit code 1 (Error): Traceback ImportError"),
        (ended("[1]"), "exit code 0"),
    ):
        found = judged(asking, pod)
        assert found is not None, pod
        assert (found.result, text in found.text, found.remedy != "") == (Result.FAILED, True, True), found
    for pod in ({}, {"status": {"phase": "Pending"}}, waiting("ContainerCreating"), waiting("ErrImagePull")):
        assert judged(asking, pod) is None, "it may still answer"


def test_a_pod_that_takes_too_long_says_what_it_waits_for() -> None:
    asking = question()
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available"}
    for pod, text in (
        ({"status": {"conditions": [unscheduled]}}, "no node accepts it for 60 s: Unschedulable: 0/3 nodes are available"),
        ({"status": {"conditions": [{**unscheduled, "reason": "SchedulingGated", "message": ""}]}}, "SchedulingGated"),
        ({}, "not scheduled for 60 s"),
        (waiting("ErrImagePull"), "cannot be pulled"),
        (waiting("ContainerCreating"), "not started for 60 s (ContainerCreating)"),
        ({"spec": {"nodeName": "n"}, "status": {"phase": "Running"}}, "runs and says nothing for 60 s"),
    ):
        found = late(asking, pod, 60)
        assert (found.result, text in found.text, found.remedy != "") == (Result.FAILED, True, True), found
