"""The patterns of texts in the spec, each with what it allows and what to do.

A pattern alone explains nothing to a reader. So the CustomResourceDefinition states each as a CEL rule with a message, and ``parse`` says
the same of a spec that reached the operator otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

DNS_SUBDOMAIN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
QUALIFIED_NAME = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
RESOURCE_NAME = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
LABEL_VALUE = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"
DATA_KEY = r"^[-._a-zA-Z0-9]+$"
VARIABLE_NAME = r"^[A-Za-z_][A-Za-z0-9_]*$"
MODEL_ID = r"^[\p{L}\p{N}_][\p{L}\p{M}\p{N}._-]*(/[\p{L}\p{N}_][\p{L}\p{M}\p{N}._-]*)?$"
"""Letters of any script; no leading dash or dot, so it can be neither a flag nor a path."""
GIT_REVISION = r"^[A-Za-z0-9][A-Za-z0-9._/-]*$"
ENGINE_RELEASE = r"^[0-9]+(\.[0-9]+){1,3}([._-]?[a-z]+[0-9]*)?$"
IMAGE = r"^[a-zA-Z0-9][a-zA-Z0-9._:/@-]*$"
EXTRA_ARG = r"^--[a-z0-9][a-z0-9-]*(=.*)?$"
RESTART_ID = r"^[-A-Za-z0-9_.:]*$"
_SPAN = r"([1-9][0-9]{0,4}h)?([1-9][0-9]{0,4}m)?([1-9][0-9]{0,4}s)?"
DURATION = f"^{_SPAN}$"
DURATION_OR_ZERO = f"^(0s|{_SPAN})$"
ABSOLUTE_PATH = r"^/[^\x00-\x1f:]*$"
PERCENT = r"^(100|[0-9]{1,2})%$"
QUANTITY = r"^\+?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][-+]?[0-9]+)?$"
CRON = r"^[0-9A-Za-z*/,-]+( [0-9A-Za-z*/,-]+){4}$"
TIME_ZONE = r"^[A-Za-z][A-Za-z0-9_+/-]*$"


@dataclass(frozen=True, slots=True)
class Refusal:
    """What a pattern allows (follows the field's name), and the remedy."""

    allowed: str
    remedy: str

    @property
    def message(self) -> str:
        return f"{self.allowed}; {self.remedy}"


_SPANS = "hours, minutes and seconds in whole numbers, in this order"
REFUSALS: Mapping[str, Refusal] = {
    DNS_SUBDOMAIN: Refusal(
        "must be the name of a Kubernetes object: lower-case letters, digits, '-' and '.', with a letter or digit at both ends",
        "write metadata.name of the object that is meant",
    ),
    QUALIFIED_NAME: Refusal(
        "must be a name with an optional domain before it, as in example.com/name: letters, digits, '-', '_' and '.'",
        "remove other characters",
    ),
    RESOURCE_NAME: Refusal(
        "must be an extended resource with its domain, as in nvidia.com/gpu", "write the name that the nodes' status has"
    ),
    LABEL_VALUE: Refusal(
        "must be empty or letters, digits, '-', '_' and '.', with a letter or digit at both ends", "remove other characters"
    ),
    DATA_KEY: Refusal("must be a key of a Secret or ConfigMap: letters, digits, '-', '_' and '.'", "write the key as the object has it"),
    VARIABLE_NAME: Refusal(
        "must be the name of an environment variable: letters, digits and '_', not beginning with a digit", "remove other characters"
    ),
    MODEL_ID: Refusal(
        "must be a repository on Hugging Face, as in Qwen/Qwen3.5-9B: OWNER/NAME of letters, digits, '-', '_' and '.', not a path or a URL",
        "for weights of your own, fill a claim with a Hugging Face cache of such a repository, in its directory huggingface, and name the "
        "claim in spec.storage.persistentVolumeClaim with readOnly: true; the engine then runs offline",
    ),
    GIT_REVISION: Refusal(
        "must be a commit, tag or branch: letters, digits, '.', '_', '/' and '-', beginning with a letter or digit",
        "write the 40 digits of a commit, so that replicas never differ",
    ),
    ENGINE_RELEASE: Refusal(
        "must be a release such as 0.5.23 or 0.33.0rc1, without a leading v", "name the image's tag in spec.engine.image"
    ),
    IMAGE: Refusal(
        "must be an image such as registry.example/vllm:v0.33.0 or one with @sha256:…, without a protocol and without spaces",
        "remove what stands before the registry",
    ),
    EXTRA_ARG: Refusal(
        "must be one flag each, --flag or --flag=value in lower case, with dashes and no underscores in its name",
        "join flag and value by '=', and write a short flag such as -tp as its long form",
    ),
    RESTART_ID: Refusal("must be letters, digits, '-', '_', '.' and ':'", "write any other value than before, for instance today's date"),
    DURATION: Refusal(f"must be a time above zero in {_SPANS}, as in 30m, 1h30m or 90s", "write 90s for 1.5m, and 48h for 2d"),
    DURATION_OR_ZERO: Refusal(f"must be 0s or a time in {_SPANS}, as in 30m, 1h30m or 90s", "write 90s for 1.5m, and 48h for 2d"),
    ABSOLUTE_PATH: Refusal("must be an absolute path without ':' and control characters, as in /models", "begin with '/'"),
    PERCENT: Refusal("must be a number of replicas or a percentage from 0% to 100%", 'write 1 without quotation marks, or "25%" with them'),
    QUANTITY: Refusal("must be a quantity such as 500m, 2 or 16Gi", "use the suffixes m, k, M, G, T or Ki, Mi, Gi, Ti"),
    CRON: Refusal(
        "must be five fields of cron (minute, hour, day of month, month, day of week), as in '0 2 * * 6'", "separate them by one space"
    ),
    TIME_ZONE: Refusal("must be the name of a time zone, as in Europe/Berlin or UTC", "use a name of the IANA time zone database"),
}
"""By pattern."""
