"""Which requests an engine refuses for want of a key, as the engines' own middleware does."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

_ALWAYS_OPEN = ("/health", "/metrics", "/ready")
"""Beginnings of paths that SGLang never guards, for probes and Prometheus."""
_VLLM_GUARDED = ("/v1", "/v2", "/inference")
"""Beginnings of paths that vLLM guards. Everything else is open with a key, too."""


@dataclass(frozen=True, slots=True)
class Access:
    """The keys of one engine."""

    engine: str = "sglang"
    api_key: str | None = None
    admin_key: str | None = None
    admin_paths: frozenset[str] = frozenset()
    """What SGLang guards with the admin key; with the API key where there is no admin key."""

    def refuses(self, method: str, path: str, authorization: str | None) -> bool:
        """Whether the answer is 401."""
        if method == "OPTIONS":
            return False
        if self.engine == "vllm":
            return bool(self.api_key) and path.startswith(_VLLM_GUARDED) and not _bears(authorization, self.api_key)
        if path.startswith(_ALWAYS_OPEN):
            return False
        key = (self.admin_key if path in self.admin_paths else None) or self.api_key
        return bool(key) and not _bears(authorization, key)


def _bears(authorization: str | None, key: str | None) -> bool:
    kind, _, value = (authorization or "").partition(" ")
    return kind.lower() == "bearer" and secrets.compare_digest(value.encode(), (key or "").encode())
