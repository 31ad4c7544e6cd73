"""Revision and spec in, manifests out. Pure: the same input gives the same manifest, byte for byte.

No manifest holds ``ownerReferences`` or, for workloads, ``replicas``: whoever applies it adds them.
No empty list or map is rendered, so that "rendered is contained in live" decides whether a write is needed.
"""
