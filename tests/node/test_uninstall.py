"""The last test of the installation: what is left without it."""

from __future__ import annotations

from testbed.cluster import Cluster
from testbed.waiting import wait_until
from tests.e2e.conftest import Say
from tests.node.load import Load
from tests.node.release import RELEASE
from tests.node.test_real_node import MODEL, address, spec
from tests.support.deployment import Deployment


def test_uninstall_leaves_the_definition_and_the_engines_and_nothing_else(
    cluster: Cluster, restricted: str, operator: str, say: Say
) -> None:
    deployment = Deployment(cluster, restricted).create(spec("sglang", replicas=1))
    deployment.wait_done(300)
    say(cluster.kubectl("get", "all,dfd", "-A"))
    cluster.helm("uninstall", RELEASE, "--namespace", operator, "--wait")
    pods = f"/api/v1/namespaces/{operator}/pods"
    wait_until(lambda: not cluster.api.get(pods)["items"], "the operator's pods to end", 180)
    kinds = cluster.kubectl("api-resources", "--verbs=list", "-o", "name").split()
    kinds = [kind for kind in kinds if not kind.startswith(("events", "componentstatuses"))]
    left = cluster.get(",".join(kinds), "-A", f"-lapp.kubernetes.io/instance={RELEASE}")["items"]
    assert [(item["kind"], item["metadata"]["name"]) for item in left] == [
        ("CustomResourceDefinition", "dflashdeployments.serving.dflash.io")
    ]
    remaining = cluster.get("all,secrets,configmaps,leases,networkpolicies,pdb", "--namespace", operator)["items"]
    names = {(item["kind"], item["metadata"]["name"]) for item in remaining}
    assert names <= {("ConfigMap", "kube-root-ca.crt"), ("Lease", RELEASE)}, names
    with Load(address(cluster, deployment), MODEL, rate=5.0) as load:
        wait_until(lambda: load.answered > 5, "the engine to serve on without its operator", 180)
    assert not load.log.errors
