"""Takes secrets out of what a bug report holds. What cannot be told from a secret is taken out too. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

GONE = "REDACTED"
_SECRET_NAME = re.compile(
    r"(token|secret|passw|credential|api[-_]?key|apikey|private[-_]?key|access[-_]?key|authorization|cookie|license[-_]?key)", re.IGNORECASE
)
_NO_SECRET = re.compile(
    r"(tokens\b|tokenizer|token[-_](num|ids?|budget)|num[-_]\w*tokens?|max[-_]\w*tokens?|draft[-_]tokens|tokensPer|secretKeyRef|secretRef"
    r"|secretName|tokenSecretRef|imagePullSecrets|automountServiceAccountToken)",
    re.IGNORECASE,
)
"""Names that look like those of secrets and are not: numbers of tokens, and references to Secrets, which hold names only."""
_KNOWN_VARIABLES = (
    "SGLANG_",
    "VLLM_",
    "NCCL_",
    "GLOO_",
    "CUDA_",
    "DFLASH_",
    "HF_HOME",
    "HF_HUB_",
    "HF_ENDPOINT",
    "TRANSFORMERS_OFFLINE",
    "POD_",
)
_PATTERNS = (
    re.compile(r"\bhf_[A-Za-z0-9]{8,}"),
    re.compile(r"\b(?:sk|pk|rk|ghp|gho|ghs|glpat|xox[abp])[-_][A-Za-z0-9_-]{8,}"),
    re.compile(r"\bgithub_pat_[A-Za-z0-9_]{8,}"),
    re.compile(r"\bAKIA[0-9A-Z]{12,}"),
    re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?"),
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
)
_HEADER = re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{6,}")
_URL = re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)")
_ASSIGNED = re.compile(
    r"""(?P<name>[\w.-]*(?:token|secret|passw|credential|api[-_]?key|private[-_]?key|access[-_]?key|authorization|cookie)[\w.-]*)"""
    r"""(?P<sign>["']?\s*[=:]\s*["']?)(?P<value>[^\s"',;&}]+)""",
    re.IGNORECASE,
)


def text(value: str) -> str:
    """Returns a text, such as a log, without secrets: known forms of tokens, headers, URLs with passwords, assignments to telling names."""
    for pattern in _PATTERNS:
        value = pattern.sub(GONE, value)
    value = _HEADER.sub(lambda match: f"{match[1]} {GONE}", value)
    value = _URL.sub(GONE, value)
    return _ASSIGNED.sub(_assigned, value)


def data(value: Any, name: str = "") -> Any:
    """Returns an object without secrets. ``name`` is the key that it stands under. JSON inside a text is read too."""
    if isinstance(value, Mapping):
        return _mapping(value)
    if isinstance(value, list):
        return [_variable(item) if name == "env" and isinstance(item, Mapping) else data(item, name) for item in value]
    if not isinstance(value, str):
        return value
    if value and _is_secret(name):
        return GONE
    if value[:1] in ("{", "["):
        try:
            return json.dumps(data(json.loads(value), name), ensure_ascii=False)
        except (RecursionError, ValueError):
            return text(value)
    return text(value)


def _mapping(value: Mapping[str, Any]) -> dict[str, Any]:
    if value.get("kind") == "Secret":
        value = {**value, **{key: dict.fromkeys(value[key] or {}, GONE) for key in ("data", "stringData") if key in value}}
    return {str(key): data(item, str(key)) for key, item in value.items()}


def _variable(variable: Mapping[str, Any]) -> dict[str, Any]:
    """A variable may hold anything under any name, so only those that engines and operator are known by keep their values."""
    found = _mapping(variable)
    known = str(variable.get("name", "")).startswith(_KNOWN_VARIABLES) and not _is_secret(str(variable.get("name", "")))
    return found if known or "value" not in found else {**found, "value": GONE}


def _is_secret(name: str) -> bool:
    return bool(_SECRET_NAME.search(name)) and not _NO_SECRET.search(name)


def _assigned(match: re.Match[str]) -> str:
    harmless = (
        _NO_SECRET.search(match["name"]) or match["value"] in ("null", "None", "true", "false", GONE) or match["value"].startswith("$(")
    )
    return match[0] if harmless else f"{match['name']}{match['sign']}{GONE}"
