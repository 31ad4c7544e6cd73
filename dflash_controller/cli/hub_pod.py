"""Does the model hub answer pods: the pod that asks it with the operator's settings, and what its end means.

Pure, from objects as the API server returns them. The pod's answer is its termination message: reading that needs no right to read logs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote, urlsplit

from dflash_controller.cli import redaction
from dflash_controller.cli.readiness import Check, Result, operator_container, setting
from dflash_controller.planning.state.pod_trouble_cases import IMAGE, OWN_END, WAITING
from dflash_controller.render.compact import compact
from dflash_controller.runtime.settings import HUB_OFF, Settings

NAME = "model hub"
CONTAINER = "ask"
MODEL = "z-lab/Qwen3.5-9B-DFlash"
"""Public, and its description is some kilobytes."""
LIMIT_S = 15
"""Seconds that the program waits for a connection, and for each part of an answer."""
MESSAGE = "/dev/termination-log"
SCRIPT = """\
import json, sys
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, getproxies, proxy_bypass, urlopen
url, limit, message = sys.argv[1], float(sys.argv[2]), sys.argv[3]
told = {}
try:
    asked = urlsplit(url)
    proxy = None if proxy_bypass(asked.netloc) else getproxies().get(asked.scheme)
    if proxy:
        told["proxy"] = urlsplit(proxy if "://" in proxy else "//" + proxy).netloc.rpartition("@")[2]
    with urlopen(Request(url, headers={"User-Agent": "kubectl-dflash"}), timeout=limit) as answer:
        told["status"] = answer.status
        told["commit"] = json.loads(answer.read(2**20)).get("sha")
except HTTPError as error:
    told |= {"status": error.code, "code": error.headers.get("X-Error-Code")}
except Exception as error:
    cause = error.reason if isinstance(getattr(error, "reason", None), Exception) else error
    told |= {"error": [kind.__name__ for kind in type(cause).__mro__], "text": str(cause)[:500]}
with open(message, "w") as file:
    json.dump(told, file)
"""
"""Runs in the operator's image, and needs nothing of it but Python: the image may be of another release than this program.

Proxies and certificates come from the variables that the operator's own client follows. It tells which proxy it used without its password,
the HTTP status, and for what is no answer the classes of the error."""
_NETWORK = re.compile(r"(HTTPS?|NO)_PROXY|SSL_CERT_(FILE|DIR)", re.IGNORECASE)
"""Variables that say how to reach the hub. The others are left out: they may hold secrets of the operator's namespace."""
_CERTIFICATES = re.compile(r"SSL_CERT_(FILE|DIR)", re.IGNORECASE)
_SYSTEM_CERTIFICATES = ("/etc/ssl", "/etc/pki", "/usr/share/ca-certificates", "/usr/local/share/ca-certificates")
_ABSENT = ("RepoNotFound", "RevisionNotFound")
"""Values of X-Error-Code. huggingface.co answers 401 for a repository that does not exist, too."""
_TUNNEL = "Tunnel connection failed"
"""Begins the message of Python's http.client where a proxy refuses CONNECT."""
_SECURITY = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "readOnlyRootFilesystem": True}
_RESOURCES = {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"cpu": "500m", "memory": "128Mi"}}


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked, and from what kind of pod."""

    endpoint: str
    """``off``: the operator asks no hub."""
    namespace: str
    """Of the pod."""
    image: str
    container: Mapping[str, Any]
    """Environment, mounts and how its image is pulled."""
    pod: Mapping[str, Any]
    """Pull secrets, volumes and placement."""
    left_out: tuple[str, ...] = ()
    """What the operator has and this pod cannot have, because it is in objects of the operator's namespace."""
    home: str = ""
    """The operator's namespace."""

    @property
    def off(self) -> bool:
        return self.endpoint.lower() == HUB_OFF

    @property
    def url(self) -> str:
        return f"{self.endpoint.rstrip('/')}/api/models/{quote(MODEL)}/revision/main"


def question_of(operator: Mapping[str, Any], namespace: str) -> Question:
    """Returns the question that a pod of a namespace asks in place of an operator, given the operator's Deployment.

    Secrets, ConfigMaps and pull secrets are objects of the operator's namespace, and pods of other namespaces cannot have them.
    """
    home = str(operator["metadata"]["namespace"])
    template, container = operator["spec"]["template"]["spec"], operator_container(operator)
    variables = [item for item in container.get("env") or () if _NETWORK.fullmatch(item["name"])]
    at_home = namespace == home
    foreign = [item["name"] for item in variables if "value" not in item] + (["envFrom"] if container.get("envFrom") else [])
    mounts = _certificate_mounts(container)
    if mounts and not at_home:
        # Without the file that it names, Python trusts nobody, which would look like a fault of the hub.
        foreign += [item["name"] for item in variables if _CERTIFICATES.fullmatch(item["name"]) and item["name"] not in foreign]
        foreign += [f"the files at {mount['mountPath']}" for mount in mounts]
    mounted = {mount["name"] for mount in mounts}
    return Question(
        endpoint=setting(operator, "DFLASH_HUGGING_FACE_ENDPOINT") or str(Settings.model_fields["hugging_face_endpoint"].default),
        namespace=namespace,
        # The pods that fetch weights run this image without the operator's pull secrets.
        image=(None if at_home else setting(operator, "DFLASH_FETCH_IMAGE")) or str(container["image"]),
        container={
            "env": [item for item in variables if at_home or item["name"] not in foreign],
            "envFrom": container.get("envFrom") if at_home else None,
            "volumeMounts": mounts if at_home else None,
            # Never, where images are put on the nodes by hand.
            "imagePullPolicy": container.get("imagePullPolicy"),
        },
        pod={
            "imagePullSecrets": template.get("imagePullSecrets") if at_home else None,
            "volumes": [volume for volume in template.get("volumes") or () if volume["name"] in mounted] if at_home else None,
            "nodeSelector": template.get("nodeSelector"),
            "tolerations": template.get("tolerations"),
        },
        left_out=() if at_home else tuple(foreign),
        home=home,
    )


def manifest(question: Question, name: str, limit_s: float) -> dict[str, Any]:
    """Returns the pod. The restricted Pod Security Standard accepts it. It ends by itself some time after ``limit_s``."""
    made: dict[str, Any] = compact(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": question.namespace, "labels": {"app.kubernetes.io/name": "kubectl-dflash-doctor"}},
            "spec": {
                "restartPolicy": "Never",
                "activeDeadlineSeconds": round(limit_s) + 60,
                "terminationGracePeriodSeconds": 1,
                "automountServiceAccountToken": False,
                "enableServiceLinks": False,
                "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
                **question.pod,
                "containers": [
                    {
                        "name": CONTAINER,
                        "image": question.image,
                        "command": ["python3", "-c", SCRIPT],
                        "args": [question.url, str(LIMIT_S), MESSAGE],
                        "resources": _RESOURCES,
                        "securityContext": _SECURITY,
                        # Where the program could not say anything, its log does.
                        "terminationMessagePolicy": "FallbackToLogsOnError",
                        **question.container,
                    }
                ],
            },
        }
    )
    return made


def not_checked(question: Question) -> Check:
    """Returns the check of a run that may create nothing, or of an operator that asks no hub."""
    if question.off:
        return Check(NAME, Result.OK, "the operator asks none (huggingFace.endpoint is off)")
    remedy = f"Add --from-pod: it starts a pod in namespace {question.namespace}, which asks, and removes it."
    return Check(NAME, Result.NOT_CHECKED, f"whether pods reach {question.endpoint}, which the operator asks", remedy)


def no_rights(question: Question, refused: Sequence[str]) -> Check:
    """Returns the check for somebody who may not create such a pod, see how it ends, and remove it."""
    said = f"you may not {', '.join(refused)} in namespace {question.namespace}"
    return Check(NAME, Result.UNKNOWN, said, "Ask for these rights, or name a namespace where you have them with -n.")


def not_created(question: Question, why: str) -> Check:
    """Returns the check for a pod that the API server refuses: a quota, Pod Security, a policy, no such namespace."""
    remedy = f"Let namespace {question.namespace} accept the pod, or name another one with -n."
    return Check(NAME, Result.FAILED, f"the pod that asks cannot be created: {why.rstrip('.')}", remedy)


def judged(question: Question, pod: Mapping[str, Any]) -> Check | None:
    """Returns what the pod has found out or why it never will; None while it may still answer."""
    status = pod.get("status") or {}
    state = _state(pod)
    if ended := state.get("terminated"):
        return _answer(question, ended)
    if reason := _trouble(state.get("waiting")):
        return _cannot_start(question, state["waiting"], reason)
    if status.get("phase") == "Failed":
        why = ": ".join(filter(None, (status.get("reason"), status.get("message")))) or "it has ended"
        cause = "its node gave it up" if status.get("reason", "") not in OWN_END else "it did not end in time"
        return _no_answer(f"{cause} ({why})", "Try again.")
    return None


def late(question: Question, pod: Mapping[str, Any], limit_s: float) -> Check:
    """Returns the check for a pod that has not answered in ``limit_s`` seconds: what it still waits for."""
    conditions: Sequence[Mapping[str, Any]] = (pod.get("status") or {}).get("conditions") or ()
    scheduled: Mapping[str, Any] = next((item for item in conditions if item["type"] == "PodScheduled"), {})
    since, more = f"for {limit_s:g} s", "Try again with a longer --timeout."
    if scheduled.get("status") == "False":
        said = f"no node accepts it {since}: {scheduled.get('reason')}: {scheduled.get('message')}".rstrip(": ")
        return _no_answer(said, "Make room, or name a namespace with -n whose pods may run.")
    if not (pod.get("spec") or {}).get("nodeName"):
        return _no_answer(f"it is not scheduled {since}", "Look at the scheduler of the cluster.")
    waiting = _state(pod).get("waiting") or {}
    if waiting.get("reason") in WAITING:
        return _cannot_start(question, waiting, waiting["reason"])
    if waiting:
        return _no_answer(f"its container is not started {since} ({waiting.get('reason')})", f"The image may still be pulled. {more}")
    return _no_answer(f"it runs and says nothing {since}", more)


def gone(question: Question, why: str) -> Check:
    """Returns the check for a pod that could no longer be read."""
    return _no_answer(why.rstrip("."), "Try again.")


def _certificate_mounts(container: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Returns the mounts that hold certificates: at a path that a variable names, or where the system keeps its own."""
    named = [item["value"] for item in container.get("env") or () if _CERTIFICATES.fullmatch(item["name"]) and item.get("value")]
    places = [PurePosixPath(path) for path in named]
    system = [PurePosixPath(path) for path in _SYSTEM_CERTIFICATES]
    return [
        mount
        for mount in container.get("volumeMounts") or ()
        if any(place.is_relative_to(mount["mountPath"]) for place in places)
        or any(PurePosixPath(mount["mountPath"]).is_relative_to(place) for place in system)
    ]


def _state(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the state of the container that asks; a webhook may have added others."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return next((item.get("state") or {} for item in statuses if item["name"] == CONTAINER), {})


def _trouble(waiting: Mapping[str, Any] | None) -> str | None:
    """Returns the reason with which a container waits in vain. A first failed pull may be a matter of the moment."""
    reason = (waiting or {}).get("reason")
    return reason if reason in WAITING and reason != "ErrImagePull" else None


def _cannot_start(question: Question, waiting: Mapping[str, Any], reason: str) -> Check:
    said = WAITING[reason].says.format(container=CONTAINER)
    remedy = f"Check that {question.image} is an image of the operator, and what the message names."
    if WAITING[reason] is IMAGE:
        remedy = (
            f"Nodes must be able to pull {question.image} for namespace {question.namespace}; settings.fetchImage can name another image."
        )
    return _no_answer(f"{said} ({reason}: {waiting.get('message') or 'no message'})", remedy)


def _no_answer(why: str, remedy: str) -> Check:
    return Check(NAME, Result.FAILED, f"the pod that asks gave no answer: {why}", remedy)


# What the pod says


def _answer(question: Question, ended: Mapping[str, Any]) -> Check:
    try:
        told = json.loads(ended.get("message") or "")
        if not isinstance(told, dict):
            raise ValueError("no object")
    except (RecursionError, ValueError):
        said = " ".join(str(ended.get("message") or "").split())
        why = f"its program ended with exit code {ended.get('exitCode')} ({ended.get('reason')})" + (f": {said}" if said else "")
        return _no_answer(redaction.text(why), f"Check that {question.image} is an image of the operator.")
    found = _by_status(question, told) if told.get("status") else _by_error(question, told)
    if question.left_out and found.result is not Result.OK:
        more = f" The pod was without {', '.join(question.left_out)}: -n {question.home} uses them too."
        return Check(found.name, found.result, found.text, f"{found.remedy}{more}")
    return found


def _by_status(question: Question, told: Mapping[str, Any]) -> Check:
    status, asked = told["status"], _asked(question, told)
    proxied = " and at the proxy" if told.get("proxy") else ""
    if told.get("code") in _ABSENT:
        status = 404
    match status:
        case 200 if told.get("commit"):
            return Check(NAME, Result.OK, f"{asked} answers pods of namespace {question.namespace}")
        case 200:
            said = "answers, and not as a model hub does"
            return Check(NAME, Result.FAILED, f"{asked} {said}", f"Look at huggingFace.endpoint of the chart{proxied}.")
        case 401 | 403:
            remedy = "The operator sends none: let the hub show public models to everybody, or set huggingFace.endpoint to off."
            remedy += " The refusal may be the proxy's." if proxied else ""
            return Check(NAME, Result.FAILED, f"{asked} shows nothing without a token (HTTP {status})", remedy)
        case 404:
            said = f"{asked} answers, and has no {MODEL} (HTTP {told['status']})"
            return Check(NAME, Result.ADVICE, said, "A mirror must have the models that you serve. Check the path of huggingFace.endpoint.")
        case 407:
            return _proxy_refuses(asked, "HTTP 407")
        case 429:
            said = f"{asked} answers, and refuses so many questions from one address (HTTP 429)"
            return Check(NAME, Result.ADVICE, said, "Branches are resolved later than they could be. Pin commits, or use a mirror.")
    return Check(NAME, Result.FAILED, f"{asked} answers HTTP {status}", f"Look at the hub{proxied}.")


def _by_error(question: Question, told: Mapping[str, Any]) -> Check:
    kinds, text, proxy = told.get("error") or (), redaction.text(str(told.get("text") or "no details")), told.get("proxy")
    asked, peer = _asked(question, told), str(proxy or urlsplit(question.endpoint).netloc.rpartition("@")[2])
    where = "HTTPS_PROXY in extraEnv" if proxy else "huggingFace.endpoint"
    if text.startswith(_TUNNEL):
        return _proxy_refuses(asked, text)
    if "gaierror" in kinds:
        remedy = f"Check {where} of the chart, the cluster's DNS, and that NetworkPolicies allow port 53."
        if not proxy:
            remedy += " Where pods resolve no outside names, set a proxy (HTTPS_PROXY in extraEnv) or a mirror."
        return _unreachable(asked, f"the name of {peer} is not resolved ({text})", remedy)
    if "ConnectionRefusedError" in kinds:
        return _unreachable(asked, f"{peer} refuses the connection", f"Check host and port of {where} of the chart, and firewalls.")
    if "SSLError" in kinds:
        remedy = (
            "Where a proxy or mirror has a CA of your own, mount its certificate (extraVolumes) and name it in SSL_CERT_FILE (extraEnv)."
        )
        return _unreachable(asked, f"the TLS connection failed ({text})", remedy)
    if "TimeoutError" in kinds:
        remedy = "Allow the connection in NetworkPolicies and firewalls" + ("." if proxy else ", or set a proxy (HTTPS_PROXY in extraEnv).")
        return _unreachable(asked, f"{peer} gives no answer within {LIMIT_S} s", remedy)
    if "OSError" in kinds:
        return _unreachable(asked, text, f"Check {where} of the chart, the network of the nodes, NetworkPolicies and firewalls.")
    return _unreachable(asked, text, f"Check {where} of the chart.")


def _asked(question: Question, told: Mapping[str, Any]) -> str:
    endpoint, proxy = redaction.text(question.endpoint), told.get("proxy")
    return f"{endpoint} through the proxy {proxy}" if proxy else endpoint


def _unreachable(asked: str, why: str, remedy: str) -> Check:
    return Check(NAME, Result.FAILED, f"{asked} cannot be reached: {why}", remedy)


def _proxy_refuses(asked: str, why: str) -> Check:
    remedy = "Let the proxy pass the hub on; if it asks for a password, HTTPS_PROXY in extraEnv must have it."
    return Check(NAME, Result.FAILED, f"{asked} cannot be reached: the proxy refuses ({why})", remedy)
