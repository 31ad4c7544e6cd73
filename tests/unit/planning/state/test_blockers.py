"""What the API server refuses is told as what it is."""

from __future__ import annotations

import pytest

from dflash_controller.api.conditions import Reason
from dflash_controller.planning.state.blockers import refused_before, refused_write

_TYPED = "failed to create typed patch object (ns/x; {}): {}: field not declared in schema"


@pytest.mark.parametrize(
    ("message", "forbidden", "passing", "reason"),
    [
        (_TYPED.format("apps/v1, Kind=Deployment", ".spec.template.spec.affinity.nodeAffinity.foo"), False, False, "InvalidSpec"),
        (_TYPED.format("serving.dflash.io/v1alpha1, Kind=DFlashDeployment", ".status.rollout.reason"), False, False, "DefinitionOutdated"),
        ("services is forbidden", True, False, "PermissionDenied"),
        ('services "chat" is forbidden: exceeded quota: lb, requested: services.loadbalancers=1, limited: 0', True, False, "QuotaExceeded"),
        ('admission webhook "policy.example" denied the request: no team label', True, False, "AdmissionDenied"),
        ('admission webhook "policy.example" denied the request: no team label', False, False, "AdmissionDenied"),
        ('Internal error occurred: failed calling webhook "policy.example": connection refused', False, True, "WritesFail"),
    ],
)
def test_a_refusal_is_named_by_whose_matter_it_is(message: str, forbidden: bool, passing: bool, reason: str) -> None:
    found = refused_write(message, forbidden=forbidden, passing=passing)
    assert found.reason == reason
    for status in ("True", "False"):
        shown = {"status": {"conditions": [{"type": "Stalled", "status": status, "reason": str(found.reason)}]}}
        assert refused_before(shown) == (status == "True")


@pytest.mark.parametrize(
    "message",
    [
        'Deployment.apps "chat-r1" is invalid: spec.template.spec.volumes[1]: Required value: must specify a volume type',
        'failed to create typed patch object: .spec.template.spec.volumes[name="storage"].image: field not declared in schema',
    ],
    ids=["feature gate off", "older release"],
)
def test_a_cluster_without_image_volumes_is_named_with_the_remedy(message: str) -> None:
    found = refused_write(message, forbidden=False, passing=False)
    assert found.reason is Reason.INVALID_SPEC
    assert found.message.startswith(f"spec.storage.image: the cluster has no image volumes: {message}")
    assert "persistentVolumeClaim with readOnly" in found.message
