"""A cluster whose API server has no image volumes, as those of releases before 1.35 by default."""

from __future__ import annotations

from testbed.cluster import Cluster
from testbed.nodes import NodePool
from testbed.operator_process import OperatorProcess, install_chart
from testbed.waiting import wait_until
from tests.support.deployment import Deployment, rollout_spec


def test_what_the_cluster_lacks_is_named_with_the_remedy_and_a_claim_helps() -> None:
    with Cluster(pools=(NodePool("b200", 1),), feature_gates="ImageVolume=false") as cluster:
        install_chart(cluster)
        namespace = cluster.create_namespace()
        operator = OperatorProcess(cluster, {"namespaces": namespace, "leader_election": "false", "log_format": "text"})
        operator.start().wait_to_lead()
        try:
            deployment = Deployment(cluster, namespace).create(rollout_spec(1, storage={"image": {"reference": "example.com/weights:1"}}))
            wait_until(lambda: deployment.condition("Stalled")[:2] == ("True", "InvalidSpec"), "the refusal")
            message = deployment.condition("Stalled")[2]
            assert message.startswith("spec.storage.image: the cluster has no image volumes: ")
            assert "feature gate ImageVolume" in message
            assert "persistentVolumeClaim with readOnly" in message

            claim = {"claimName": "models", "readOnly": True}
            deployment.patch(storage={"image": None, "persistentVolumeClaim": claim})
            wait_until(lambda: deployment.condition("Stalled")[0] == "False", "the refusal to be over")
        finally:
            operator.kill()
