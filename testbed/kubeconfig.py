"""Writes kubeconfig files for the identities that work on a cluster."""

from __future__ import annotations

import base64
from pathlib import Path

import yaml

from testbed.api import AdminApi


def write_service_account_kubeconfig(api: AdminApi, namespace: str, name: str, path: Path, lifetime_s: int = 86400) -> Path:
    """Writes a self-contained kubeconfig of an existing ServiceAccount with a fresh token. Its default namespace is that of the account.

    Raises ApiError if the account does not exist.
    """
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": lifetime_s}}
    answer = api.request("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token", request)
    authority = base64.b64encode(api.ca_file.read_bytes()).decode()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "testbed", "cluster": {"server": api.server, "certificate-authority-data": authority}}],
        "users": [{"name": name, "user": {"token": answer["status"]["token"]}}],
        "contexts": [{"name": name, "context": {"cluster": "testbed", "user": name, "namespace": namespace}}],
        "current-context": name,
    }
    path.write_text(yaml.safe_dump(config))
    path.chmod(0o600)
    return path
