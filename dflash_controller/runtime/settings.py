"""The operator's own settings: environment variables ``DFLASH_…``, checked at start."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator

from dflash_controller.api.problem import Problem
from dflash_controller.engines import ENGINES

PREFIX = "DFLASH_"
_SERVICE_ACCOUNT_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

Seconds = Annotated[float, Field(gt=0)]
_SERVICE_LINK = re.compile(r"_SERVICE_(HOST|PORT)(_\w+)?$|_PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?$")
"""Variables that the kubelet adds for each Service of the namespace: for one called dflash-x, DFLASH_X_SERVICE_HOST, DFLASH_X_PORT, …"""
HUB_OFF = "off"
_FILES = tuple(f"prometheus_{name}_file" for name in ("bearer_token", "basic_auth", "ca", "cert", "key"))
_LISTS = ("namespaces", "allowed_host_paths", "pod_ips", "prometheus_replica_labels")


class SettingsError(Exception):
    """A variable has an invalid value; the message names the variable."""


class Settings(BaseModel):
    """Each setting is read from the variable ``DFLASH_`` plus its name in capitals. Commas separate lists; empty counts as absent."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    namespaces: tuple[str, ...] = ()
    """Namespaces to serve; empty: all of them."""
    workers: Annotated[int, Field(ge=1, le=64)] = 8
    """Maximum number of concurrent reconciles."""
    resync_seconds: Seconds = 300.0
    """Time between two full lists of all objects."""

    prometheus_url: str | None = None
    """Base URL of a Prometheus HTTP API; empty: the operator scrapes the engines itself."""
    prometheus_bearer_token_file: str | None = None
    """File with a bearer token, read at every request."""
    prometheus_basic_auth_file: str | None = None
    """File with one line, ``user:password``."""
    prometheus_ca_file: str | None = None
    """CA bundle for the certificate of Prometheus; absent: the system's CAs."""
    prometheus_cert_file: str | None = None
    """Client certificate, if Prometheus requires one."""
    prometheus_key_file: str | None = None
    """Key of the client certificate."""
    prometheus_tenant: str | None = None
    """Sent as ``X-Scope-OrgID`` (Mimir, Thanos, Cortex)."""
    prometheus_matcher: dict[str, str] = {}
    """Label matchers added to every query if one Prometheus has several clusters, such as ``cluster=eu-1``."""
    prometheus_replica_labels: tuple[str, ...] = ()
    """Labels in which copies of one series differ if replicas of Prometheus write to one store, beyond ``prometheus_replica`` and
    ``replica``."""
    scrape_seconds: Seconds = 30.0
    """Time between two collections of metrics, from Prometheus or by direct scrapes."""
    metrics_window_seconds: Seconds = 300.0
    """Window of the metrics in the status."""
    warm_up_seconds: Annotated[float, Field(ge=0)] = 60.0
    """Time before the metrics of a candidate's first replica count, because it still compiles kernels and captures graphs. The tuner
    learns no step times from an engine that has served load for less."""
    tuning_seconds: Seconds = 60.0
    """Time between two evaluations of a deployment by the tuner."""
    tuning_slot_seconds: Seconds = 60.0
    """The tuner adds up loads and acceptance over this time; a shorter ``spec.tuning.window`` counts as this long."""
    learned_record_seconds: Seconds = 3600.0
    """Minimum time between two writes of what the tuner has learned to the stable revision."""

    sglang_version: str | None = None
    """SGLang release for DFlashDeployments without spec.engine.version; absent: the newest contract-tested release."""
    vllm_version: str | None = None
    """The same for vLLM."""
    sglang_image: str | None = None
    """Image with ``{version}`` as the placeholder for the release; absent: the project's image on Docker Hub."""
    vllm_image: str | None = None
    """The same for vLLM."""
    fetch_image: str | None = None
    """Image with ``dflash-fetch``, normally the operator's own. New revisions with ``spec.storage`` and pinned commits then have their
    weights fetched by an init container; absent: engines download them by themselves."""
    allowed_host_paths: tuple[str, ...] = ()
    """Directories under which ``spec.storage.hostPath`` may be; empty: not allowed."""

    hugging_face_endpoint: str = "https://huggingface.co"
    """Base URL of the model hub, or a mirror of it, that resolves branches to commits and has each drafter's config.json; ``off``: none is
    asked. Proxies are those of HTTPS_PROXY, HTTP_PROXY and NO_PROXY."""
    hugging_face_seconds: Seconds = 600.0
    """Time between two questions whether a branch has moved."""

    pod_ips: tuple[str, ...] = ()
    """Addresses of the operator's own pod, whose families engines listen on; absent: ``POD_IPS``; empty: both families."""

    http_host: str | None = None
    """Listen address of metrics and health; absent: all addresses, IPv4 and IPv6."""
    http_port: Annotated[int, Field(ge=0, le=65535)] = 8080
    """Port of metrics and health; 0: any free port."""
    log_format: Literal["json", "text"] = "json"
    """One JSON object per line, or text for people."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """DEBUG, INFO, WARNING or ERROR."""

    leader_election: bool = True
    """Set to false only if exactly one process runs."""
    lease_name: str = "dflash-operator"
    """Name of the Lease. Operators that serve different namespaces need different names."""
    lease_namespace: str = ""
    """Namespace of the Lease; absent: ``POD_NAMESPACE``, the service account's namespace, or ``default``."""
    lease_duration_seconds: Seconds = 15.0
    """Time without a renewal after which another replica takes over."""
    renew_deadline_seconds: Seconds = 10.0
    """Time without a successful renewal after which the leader exits."""
    retry_period_seconds: Seconds = 2.0
    """Time between two renewals."""
    pod_name: str = ""
    """Identity of the Lease holder; absent: ``POD_NAME``, ``POD_ID`` or the host name."""

    @field_validator("allowed_host_paths")
    @classmethod
    def _absolute(cls, paths: tuple[str, ...]) -> tuple[str, ...]:
        for path in paths:
            if not path.startswith("/") or ".." in path.split("/"):
                raise ValueError(f"{path!r} is not an absolute path without '..'")
        return paths

    @field_validator("pod_ips")
    @classmethod
    def _addresses(cls, addresses: tuple[str, ...]) -> tuple[str, ...]:
        for address in addresses:
            ip_address(address)
        return addresses

    @property
    def pod_ip_families(self) -> tuple[str, ...]:
        """IPv4, IPv6 or both, the family of the pod's first address first; empty if no address is known."""
        return tuple(dict.fromkeys(f"IPv{ip_address(address).version}" for address in self.pod_ips))

    @field_validator("sglang_version", "vllm_version")
    @classmethod
    def _release(cls, version: str | None, info: ValidationInfo) -> str | None:
        if version is not None and isinstance(problem := ENGINES[str(info.field_name).partition("_")[0]].dialect(version), Problem):
            raise ValueError(f"{problem.message}. {problem.remedy}")
        return version

    @field_validator("sglang_image", "vllm_image")
    @classmethod
    def _template(cls, image: str | None) -> str | None:
        if image is not None and "{version}" not in image:
            raise ValueError("must contain {version}, or every release would run the same image")
        return image

    @field_validator(*_FILES)
    @classmethod
    def _readable(cls, path: str | None) -> str | None:
        if path is not None and not os.access(path, os.R_OK):
            raise ValueError("is not a readable file")
        return path

    @field_validator("prometheus_matcher", mode="before")
    @classmethod
    def _labels(cls, text: str | dict[str, str]) -> dict[str, str]:
        if isinstance(text, dict):
            return text
        labels = dict(part.partition("=")[::2] for part in text.split(",") if part)
        if not all(name.isidentifier() and value for name, value in labels.items()):
            raise ValueError("must be label=value pairs, separated by commas")
        return labels

    @field_validator("prometheus_replica_labels")
    @classmethod
    def _label_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if not all(name.isascii() and name.isidentifier() for name in names):
            raise ValueError("must be label names, separated by commas")
        return names

    @field_validator("hugging_face_endpoint")
    @classmethod
    def _hub(cls, url: str) -> str:
        if url.lower() == HUB_OFF:
            return HUB_OFF
        if not url.startswith(("http://", "https://")):
            raise ValueError("must begin with http:// or https://, or be off")
        return url.rstrip("/")

    @field_validator("prometheus_url")
    @classmethod
    def _http(cls, url: str | None) -> str | None:
        if url is not None and not url.startswith(("http://", "https://")):
            raise ValueError("must begin with http:// or https://")
        return url.rstrip("/") if url else None

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.lease_duration_seconds > self.renew_deadline_seconds > self.retry_period_seconds:
            raise ValueError(
                "DFLASH_LEASE_DURATION_SECONDS must be greater than DFLASH_RENEW_DEADLINE_SECONDS, "
                "and that greater than DFLASH_RETRY_PERIOD_SECONDS"
            )
        return self

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Self:
        """Reads the settings. Raises SettingsError for an invalid value and for an unknown ``DFLASH_`` variable."""
        given = {name.removeprefix(PREFIX).lower(): value.strip() for name, value in environ.items() if name.startswith(PREFIX)}
        unknown = sorted(name for name in set(given) - set(cls.model_fields) if not _SERVICE_LINK.search(f"_{name.upper()}"))
        if unknown:
            raise SettingsError("; ".join(f"{PREFIX}{name.upper()}: unknown setting" for name in unknown))
        values: dict[str, Any] = {name: value for name, value in given.items() if value and name in cls.model_fields}
        for name in _LISTS:
            if name in values:
                values[name] = tuple(part.strip() for part in values[name].split(",") if part.strip())
        values.setdefault("pod_ips", tuple(part for part in environ.get("POD_IPS", "").split(",") if part))
        values.setdefault("lease_namespace", environ.get("POD_NAMESPACE") or _own_namespace())
        values.setdefault("pod_name", environ.get("POD_NAME") or environ.get("POD_ID") or environ.get("HOSTNAME") or os.uname().nodename)
        try:
            return cls(**values)
        except ValidationError as error:
            raise SettingsError("; ".join(_complaint(dict(detail)) for detail in error.errors())) from error


def _complaint(detail: dict[str, Any]) -> str:
    message = str(detail["msg"]).removeprefix("Value error, ")
    return f"{PREFIX}{str(detail['loc'][0]).upper()}: {message}, not {detail['input']!r}" if detail["loc"] else message


def _own_namespace() -> str:
    try:
        return _SERVICE_ACCOUNT_NAMESPACE.read_text().strip()
    except OSError:
        return "default"
