"""The chart's admission policy on a real API server: it refuses what the operator would call wrong, in the operator's words."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from dflash_controller.api import validation
from dflash_controller.api.names import API_VERSION, KIND, PLURAL
from dflash_controller.api.parse import parse_spec
from dflash_controller.api.policy_types import MAX_BLOCK_SIZE
from dflash_controller.api.types import Spec
from dflash_controller.catalog import Catalog
from dflash_controller.engines import ENGINES
from dflash_controller.engines.releases import TABLE
from dflash_controller.engines.resolve import OperatorDefaults, resolve
from hack.admission_policy import policy_spec
from testbed.api import ApiError
from testbed.cluster import Cluster, CommandError
from testbed.waiting import wait_until

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "dflash-operator"
RELEASE = "policy"
CATALOG = Catalog.load()
POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
LEFT_TO_THE_OPERATOR = (
    "spec.drafter.model: the catalog knows no drafter for ",
    "spec.drafter.trainedBlockSize: the catalog does not know the block size ",
)
"""Beginnings of what the policy does not say: a newer catalog may know the model."""

Case = Mapping[str, Any]
"""A spec."""


def deployment(spec: Case, name: str = "case") -> dict[str, Any]:
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": dict(spec)}


def operator_says(spec: Case) -> str:
    """The operator's own words about a spec, as in the condition Stalled; empty where nothing is wrong."""
    parsed = parse_spec(deployment(spec))
    assert isinstance(parsed, Spec), parsed
    known = CATALOG.find(parsed.target.model)
    drafter = parsed.drafter.model or (known.drafter if known else None)
    pair = CATALOG.pair(parsed.target.model, drafter) if drafter else None
    found = validation.problems(
        parsed,
        owned_flags=ENGINES[parsed.engine.name or "sglang"].owned_flags(),
        trained_block_size=pair.trained_block_size if pair else None,
    )
    resolved = resolve(parsed, "case", "namespace", CATALOG, OperatorDefaults())
    found += resolved if isinstance(resolved, list) else []
    return " ".join(f"{str(one).removesuffix('.')}." for one in found if not str(one).startswith(LEFT_TO_THE_OPERATOR))


class Server:
    """DFlashDeployments of one namespace, over the API."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster, self.namespace = cluster, namespace
        self.path = f"/apis/{API_VERSION}/namespaces/{namespace}/{PLURAL}"

    def says(self, spec: Case) -> str:
        """The policy's words about a new object; empty where it is accepted."""
        return self._words("POST", f"{self.path}?dryRun=All", deployment(spec))

    def says_of_change(self, name: str, change: Case) -> str:
        """The policy's words about an update of a stored object, given as the fields of the spec that change; None removes one."""
        stored = self.cluster.api.get(f"{self.path}/{name}")
        for field, value in change.items():
            *parents, last = field.split(".")
            node = stored["spec"]
            for parent in parents:
                node = node.setdefault(parent, {})
            node[last] = value
            if value is None:
                del node[last]
        return self._words("PUT", f"{self.path}/{name}?dryRun=All", stored)

    def _words(self, method: str, path: str, body: dict[str, Any]) -> str:
        try:
            self.cluster.api.request(method, path, body)
        except ApiError as error:
            _, denied, words = str(error).partition(" denied request: ")
            if error.status != 422 or not denied:
                raise
            return words
        return ""


MISMATCH: Case = {"target": {"model": "Qwen/Qwen3.5-9B"}, "drafter": {"model": "z-lab/Qwen3.5-27B-DFlash"}}
TOO_OLD: Case = {"engine": {"name": "vllm", "version": "0.9.0"}}
ABOVE: Case = {"target": {"model": "openai/gpt-oss-20b"}, "blockSize": 16, "tuning": {"blockSizes": [4, 8, 16]}}


@pytest.fixture(scope="module")
def server(cluster: Cluster) -> Iterator[Server]:
    """A namespace served by a release with the policy, and in it two wrong objects that were stored before it."""
    served = Server(cluster, cluster.create_namespace())
    for name, spec in (("mismatched", {**MISMATCH, **TOO_OLD}), ("above", ABOVE)):
        cluster.api.request("POST", served.path, deployment(spec, name))
    values = f"watchNamespaces={{{served.namespace}}},deployment.create=false,crds.install=false,dashboards.enabled=false"
    cluster.helm("install", RELEASE, str(CHART), "--namespace", served.namespace, "--set", values)
    # A policy takes effect once the API server's cache has it and its binding.
    wait_until(partial(served.says, MISMATCH), "the policy to take effect")
    yield served
    cluster.helm("uninstall", RELEASE, "--namespace", served.namespace)
    cluster.empty_namespace(served.namespace)


def pairs() -> list[Case]:
    """Every target with each of its drafters and with drafters of others, also in capitals and small letters."""
    found: list[Case] = []
    for i, pair in enumerate(CATALOG.pairs):
        others = [CATALOG.pairs[(i + step) % len(CATALOG.pairs)].drafters[-1] for step in (1, 2, 7, 13)]
        found += [{"target": {"model": pair.target}, "drafter": {"model": drafter}} for drafter in (*pair.drafters, *others)]
        found.append({"target": {"model": pair.target}})
        for change in (str.upper, str.lower):
            found += [
                {"target": {"model": change(pair.target)}, "drafter": {"model": change(drafter)}} for drafter in (pair.drafter, others[0])
            ]
    return found


def block_sizes() -> list[Case]:
    """At and above the trained block size of every target, with its drafter left out, named by a mirror, and with a size of the spec."""
    found: list[Case] = []
    for pair in CATALOG.pairs:
        trained = pair.trained_block_size or 8
        target = {"target": {"model": pair.target}}
        mirror = {**target, "drafter": {"model": pair.drafters[-1].upper()}}
        own = {**target, "drafter": {"trainedBlockSize": MAX_BLOCK_SIZE}}
        other = {**target, "drafter": {"model": "acme/own-drafter"}}
        for base in (target, mirror, own, other):
            found += [{**base, "blockSize": size} for size in (trained, trained + 1, MAX_BLOCK_SIZE)]
            found += [{**base, "tuning": {"blockSizes": [1, trained, trained + 1, MAX_BLOCK_SIZE]}}]
        found.append({**target, "blockSize": trained + 1, "tuning": {"blockSizes": [2, trained + 2]}})
    return found


def versions() -> list[Case]:
    """Around the oldest release of every engine, with every kind of suffix, and what is no release."""
    found: list[Case] = []
    for engine, releases in TABLE.items():
        major, minor, patch = map(int, releases.floor.split("."))
        near = [f"{major}.{minor}.{patch + step}" for step in (-1, 0, 1) if patch + step >= 0]
        near += [f"{major}.{minor + step}.{other}" for step in (-1, 1) for other in (0, 99)]
        near += [f"{major + 1}.0.0", "0.0.0", f"{major}.{minor}.0{patch}"]
        written = [number + suffix for number in near for suffix in ("", "rc2", "a1", "b1", "dev3", ".dev3", "post1", ".post1")]
        written += [*releases.tested, f"{major}.{minor}", f"{major}.{minor}.{patch}.1", f"{releases.floor}rc", f"{releases.floor}-x1"]
        written += [f"0.0.{'9' * 25}", f"{major}.{minor}.{'9' * 25}", f"{major}.{minor}.{patch}final1"]
        found += [{"target": {"model": "acme/own"}, "engine": {"name": engine, "version": version}} for version in written]
    unnamed = {"version": "0.5.0"}
    found += [{"target": {"model": "Qwen/Qwen3.5-9B"}, "engine": unnamed}, {**MISMATCH, "engine": unnamed}, {**ABOVE, "engine": unnamed}]
    return found


def unknown_models() -> list[Case]:
    """What a newer catalog may know, and what no catalog does: quantised copies, own drafters, names in other scripts."""
    models = ("acme/own", "Qwen/Qwen3.5-9B-FP8", "模型/一", "z-lab/Qwen3.5-9B-DFlash")
    drafters = ("z-lab/gpt-oss-20b-DFlash", "acme/own-drafter", "Ünïcode/drafter", "Qwen/Qwen3.5-9B")
    return [{"target": {"model": model}, "drafter": {"model": drafter}, "blockSize": 16} for model in models for drafter in drafters]


KINDS = {"pairs": pairs, "block sizes": block_sizes, "versions": versions, "unknown models": unknown_models}


@pytest.mark.parametrize("kind", KINDS)
def test_policy_and_operator_say_the_same(server: Server, kind: str) -> None:
    differing, refused, accepted = {}, 0, 0
    for spec in KINDS[kind]():
        told, expected = server.says(spec), operator_says(spec)
        refused, accepted = refused + bool(told), accepted + (not told)
        if told != expected:
            differing[json.dumps(spec, ensure_ascii=False)] = (told, expected)
    assert differing == {}
    assert accepted >= 16
    assert refused >= (0 if kind == "unknown models" else 40)


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({"target": {"model": "moonshotai/Kimi-\N{KELVIN SIGN}2.5"}, "blockSize": 16}, id="letter made small by Python alone"),
        pytest.param(
            {"target": {"model": "acme/own"}, "engine": {"name": "sglang", "version": f"0.5.{13:019}"}}, id="number longer than CEL holds"
        ),
    ],
)
def test_what_cel_cannot_tell_is_left_to_the_operator(server: Server, spec: Case) -> None:
    """The only differences known, each in this direction."""
    assert server.says(spec) == ""
    assert operator_says(spec) != ""


@pytest.mark.parametrize(
    "file", [*(ROOT / "tests/api/valid").glob("*.yaml"), *(ROOT / "examples").glob("*.yaml")], ids=lambda file: file.stem
)
def test_valid_objects_and_examples_are_accepted(server: Server, file: Path) -> None:
    specs = [one["spec"] for one in yaml.safe_load_all(file.read_text(encoding="utf-8")) if one and one["kind"] == KIND]
    assert specs
    assert [server.says(spec) for spec in specs] == [""] * len(specs)


def test_apply_shows_field_and_remedy(server: Server) -> None:
    file = ROOT / "tests/api/invalid/drafter-of-another-target.yaml"
    with pytest.raises(CommandError) as refusal:
        server.cluster.kubectl("--namespace", server.namespace, "apply", "-f", str(file))
    assert (
        "denied request: spec.drafter.model: z-lab/Qwen3.5-27B-DFlash was trained for Qwen/Qwen3.5-27B, not for Qwen/Qwen3.5-9B. "
        "Use z-lab/Qwen3.5-9B-DFlash, or omit spec.drafter.model." in refusal.value.stderr
    )


def test_the_expressions_have_the_types_of_the_definition(server: Server) -> None:
    """The API server checks them against the schema of the kind, and writes what it finds into the policy's status."""

    def checked() -> Any:
        policy = server.cluster.api.get(f"{POLICIES}/{server.namespace}.{RELEASE}-dflash-operator")
        return policy if policy.get("status", {}).get("observedGeneration") == policy["metadata"]["generation"] else None

    policy = wait_until(checked, "the policy's expressions to be checked")
    assert policy["status"]["typeChecking"] == {}


def test_other_namespaces_are_left_alone(server: Server, namespace: str) -> None:
    assert Server(server.cluster, namespace).says(MISMATCH) == ""
    assert server.says(MISMATCH) != ""


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("mismatched", {"replicas": 5}),
        ("mismatched", {"restartId": "again"}),
        ("mismatched", {"drafter.revision": "main"}),
        ("mismatched", {"blockSize": 4}),
        ("mismatched", {"drafter.trainedBlockSize": 8}),
        ("mismatched", {"engine.maxConcurrency": 8}),
        ("above", {"tuning.mode": "Off"}),
        ("above", {"engine.name": "vllm"}),
        # Corrections.
        ("mismatched", {"drafter": None, "engine.version": None}),
        ("above", {"blockSize": 8, "tuning": None}),
        ("above", {"drafter.trainedBlockSize": 16}),
    ],
    ids=str,
)
def test_what_was_stored_before_can_still_be_changed(server: Server, name: str, change: Case) -> None:
    assert server.says_of_change(name, change) == ""


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("mismatched", {"target.model": "Qwen/Qwen3.5-4B"}, ["spec.drafter.model: z-lab/Qwen3.5-27B-DFlash was trained for"]),
        ("mismatched", {"drafter.model": "z-lab/gpt-oss-20b-DFlash"}, ["spec.drafter.model: z-lab/gpt-oss-20b-DFlash was trained for"]),
        ("mismatched", {"engine.version": "0.10.0"}, ["spec.engine.version: vLLM 0.10.0 is older than"]),
        ("mismatched", {"engine.name": "sglang", "engine.version": "0.5.0"}, ["spec.engine.version: SGLang 0.5.0 is older than"]),
        ("above", {"blockSize": 12}, ["spec.blockSize: 12 is larger than 8"]),
        ("above", {"tuning.blockSizes": [8, 12]}, ["spec.tuning.blockSizes[1]: 12 is larger than 8"]),
        ("above", {"target.model": "openai/gpt-oss-120b"}, ["spec.blockSize: 16 is larger than 10", "spec.tuning.blockSizes[2]: 16"]),
    ],
    ids=str,
)
def test_only_what_a_change_touches_is_judged(server: Server, name: str, change: Case, words: list[str]) -> None:
    told = server.says_of_change(name, change)
    assert [part for part in words if part not in told] == []
    assert told.count("spec.") - told.count("omit spec.") == len(words)


def test_scale_status_metadata_and_deletion_are_never_refused(server: Server) -> None:
    def kubectl(*arguments: str) -> str:
        return server.cluster.kubectl("--namespace", server.namespace, *arguments)

    name = "dfd/mismatched"
    kubectl("scale", name, "--replicas=3")
    kubectl("patch", name, "--subresource=status", "--type=merge", "-p", '{"status": {"replicas": 3}}')
    kubectl("label", name, "team=a")
    for finalizers in ('["example.com/kept"]', "[]"):
        kubectl("patch", name, "--type=merge", "-p", f'{{"metadata": {{"finalizers": {finalizers}}}}}')
    stored = server.cluster.get("--namespace", server.namespace, name)
    assert (stored["spec"]["replicas"], stored["status"]["replicas"], stored["metadata"]["labels"]) == (3, 3, {"team": "a"})
    kubectl("delete", name)
    server.cluster.api.request("DELETE", f"{server.path}/above")


def test_a_catalog_ten_times_as_long_is_evaluated_too(cluster: Cluster, namespace: str) -> None:
    """The API server limits what the expressions of a policy may cost; beyond it, the policy would let everything pass."""
    long = [
        *(
            replace(pair, target=f"{pair.target}-{i}", drafter=f"{pair.drafter}-{i}", mirrors=tuple(f"{one}-{i}" for one in pair.mirrors))
            for i in range(9)
            for pair in CATALOG.pairs
        ),
        *CATALOG.pairs,
    ]
    name, selector = f"long.{namespace}", {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    binding = {"policyName": name, "validationActions": ["Deny"], "matchResources": {"namespaceSelector": selector}}
    kinds = {"ValidatingAdmissionPolicy": policy_spec(Catalog(long), TABLE), "ValidatingAdmissionPolicyBinding": binding}
    objects = [
        {"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}
        for kind, spec in kinds.items()
    ]
    cluster.apply_yaml(objects)
    try:
        limited = Server(cluster, namespace)
        wait_until(partial(limited.says, MISMATCH), "the policy to take effect")
        assert limited.says(ABOVE) == operator_says(ABOVE)
    finally:
        cluster.kubectl("delete", "validatingadmissionpolicybinding,validatingadmissionpolicy", name)
