"""Renders manifests from revision and spec. Pure: the same input gives the same manifest, byte for byte.

Manifests have no ``ownerReferences`` and workloads no ``replicas``: the caller adds them before the apply.
No empty list or map is rendered, so that a write is needed only if the live object does not contain the rendered fields.
"""
