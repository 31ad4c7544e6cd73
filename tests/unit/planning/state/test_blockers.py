"""What the API server refuses is told as what it is."""

from __future__ import annotations

import pytest

from dflash_controller.planning.state.blockers import refused

_TYPED = "failed to create typed patch object (ns/x; {}): {}: field not declared in schema"


@pytest.mark.parametrize(
    ("message", "forbidden", "reason"),
    [
        (_TYPED.format("apps/v1, Kind=Deployment", ".spec.template.spec.affinity.nodeAffinity.foo"), False, "InvalidSpec"),
        (_TYPED.format("serving.dflash.io/v1alpha1, Kind=DFlashDeployment", ".status.rollout.reason"), False, "DefinitionOutdated"),
        ("services is forbidden", True, "PermissionDenied"),
    ],
)
def test_a_refusal_is_named_by_whose_matter_it_is(message: str, forbidden: bool, reason: str) -> None:
    assert refused(message, forbidden=forbidden).reason == reason
