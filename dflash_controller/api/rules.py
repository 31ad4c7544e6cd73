"""CEL rules of the CRD: what one object alone shows to be wrong, with the field and the remedy in each message.

``validation`` states the same in Python. Every list, map and text a rule looks at is bounded in the types, which bounds the cost.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from dflash_controller.api.validation import MAX_NAME_LENGTH, OWNED_LABELS, OWNED_PREFIX

PIPELINE_FLAGS = ("--pipeline-parallel-size", "--pp-size")


@dataclass(frozen=True, slots=True)
class Rule:
    """One CEL expression on the schema node at ``path`` (names joined by dots, ``[]`` for the items of a list; empty for the root)."""

    path: str
    expression: str
    message: str
    field: str = ""
    """JSON path of the field to blame, below the node; empty for the node itself."""
    message_expression: str = ""
    """CEL expression of a message that names what is wrong; the API server uses ``message`` where the result is too long."""

    def to_json(self) -> dict[str, Any]:
        """As it stands in ``x-kubernetes-validations``."""
        rule = {"rule": self.expression, "message": self.message}
        rule |= {"messageExpression": self.message_expression} if self.message_expression else {}
        return {**rule, "fieldPath": self.field} if self.field else rule


def rules(owned_flags: Mapping[str, Mapping[str, str]]) -> tuple[Rule, ...]:
    """All rules. ``owned_flags``: by engine, the flags that extraArgs may not set, with the field (or reason) that decides each."""
    return (*_FIXED, *_extra_args(owned_flags))


def _extra_args(owned_flags: Mapping[str, Mapping[str, str]]) -> list[Rule]:
    default = "sglang"
    found = []
    for engine, reasons in sorted(owned_flags.items()):
        long = {flag: reason for flag, reason in reasons.items() if flag.startswith("--")}
        named = f"(has(self.name) ? self.name : '{default}') == '{engine}'"
        rest = f"set by the operator for {engine}, or abbreviates a flag that is; remove it"
        found.append(
            _no_flag_of(
                long,
                f"!({named}) || ",
                f"spec.engine.extraArgs: a flag is {rest} and use the field of the spec",
                f"' is {rest}: ' + ({_reason(long)})",
            )
        )
    return found


def _no_flag_of(flags: Collection[str], unless: str, message: str, rest: str) -> Rule:
    """Returns the rule that no argument sets one of the flags, with a message that begins with the field and the argument's name.

    An argument sets a flag by its name or by the beginning of it: argparse takes an unambiguous beginning for the flag. ``unless`` is the
    beginning of the expression, ``message`` is for an API server that finds the other one too long, and ``rest`` is the CEL expression of
    what follows the name, which it calls ``n``.
    """
    listed = _cel_list(flags)
    named = f"self.extraArgs.filter(a, {listed}.exists(f, f.startsWith(a.split('=')[0])))[0].split('=')[0]"
    return Rule(
        "spec.engine",
        f"!has(self.extraArgs) || {unless}self.extraArgs.all(a, !{listed}.exists(f, f.startsWith(a.split('=')[0])))",
        message,
        ".extraArgs",
        f"[{named}].map(n, 'spec.engine.extraArgs: ' + n + {rest})[0]",
    )


def _reason(reasons: Mapping[str, str]) -> str:
    """Returns the CEL expression of the reason for the flag that is called ``n``, or that ``n`` is the beginning of."""
    by_reason: dict[str, list[str]] = {}
    for flag, reason in reasons.items():
        by_reason.setdefault(reason, []).append(flag)
    *others, last = sorted(by_reason)
    tests = (f"{_cel_list(by_reason[reason])}.exists(f, f.startsWith(n)) ? {_cel_text(reason)} : " for reason in others)
    return f"{''.join(tests)}{_cel_text(last)}"


def _cel_text(text: str) -> str:
    return "'" + text.replace("'", r"\'") + "'"


def _cel_list(values: Any) -> str:
    return json.dumps(sorted(values)).replace('"', "'")


_SORTED = "self.blockSizes.isSorted() && self.blockSizes.all(b, self.blockSizes.exists_one(c, c == b))"
_ZERO = "(self.{0} == 0 || self.{0} == '0%')"


def _within_limit(resource: str, cel_name: str) -> Rule:
    both = " || ".join(["!has(self.requests)", "!has(self.limits)", f"!has(self.requests.{cel_name})", f"!has(self.limits.{cel_name})"])
    return Rule(
        "spec.podTemplate.resources",
        f"{both} || quantity(string(self.requests.{cel_name})).compareTo(quantity(string(self.limits.{cel_name}))) <= 0",
        f"spec.podTemplate.resources: the request for {resource} is above its limit; lower the request or raise the limit",
    )


_FIXED: tuple[Rule, ...] = (
    Rule(
        "",
        f"self.metadata.name.size() <= {MAX_NAME_LENGTH} && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        f"metadata.name: must be at most {MAX_NAME_LENGTH} lower-case letters, digits and dashes, begin with a letter and not end with a "
        "dash; choose another name",
    ),
    Rule(
        "spec",
        "!has(self.blockSize) || !has(self.drafter) || !has(self.drafter.trainedBlockSize) || "
        "self.blockSize <= self.drafter.trainedBlockSize",
        "spec.blockSize: is larger than spec.drafter.trainedBlockSize; lower it",
        ".blockSize",
    ),
    Rule(
        "spec",
        "!has(self.tuning) || !has(self.tuning.blockSizes) || !has(self.drafter) || !has(self.drafter.trainedBlockSize) || "
        "self.tuning.blockSizes.all(b, b <= self.drafter.trainedBlockSize)",
        "spec.tuning.blockSizes: a block size is larger than spec.drafter.trainedBlockSize; remove it",
        ".tuning.blockSizes",
    ),
    Rule(
        "spec",
        "!has(self.tuning) || !has(self.tuning.actuator) || self.tuning.actuator != 'Schedule' || "
        "(has(self.engine) && has(self.engine.name) && self.engine.name == 'vllm')",
        "spec.tuning.actuator: SGLang has no schedule of block sizes; use Restart or Auto, or spec.engine.name vllm",
        ".tuning.actuator",
    ),
    Rule(
        "spec.tuning",
        f"!has(self.blockSizes) || ({_SORTED})",
        "spec.tuning.blockSizes: block sizes must ascend, each once; sort them and remove repetitions",
        ".blockSizes",
    ),
    _no_flag_of(
        PIPELINE_FLAGS,
        "",
        "spec.engine.extraArgs: DFlash cannot run with pipeline parallelism; remove the flag, spec.parallelism.tensor spans all nodes",
        "' is for pipeline parallelism, which DFlash cannot run with; remove it: spec.parallelism.tensor spans all nodes'",
    ),
    Rule(
        "spec.engine.env[]",
        "!(has(self.value) && has(self.valueFrom))",
        "spec.engine.env: a variable has both value and valueFrom; keep one of them",
    ),
    Rule(
        "spec.engine.env[].valueFrom",
        "[has(self.secretKeyRef), has(self.configMapKeyRef), has(self.fieldRef)].exists_one(given, given)",
        "spec.engine.env.valueFrom: must have exactly one source; keep one of secretKeyRef, configMapKeyRef, fieldRef",
    ),
    Rule(
        "spec.parallelism",
        "!has(self.nodes) || self.nodes == 1 || has(self.tensor)",
        "spec.parallelism.tensor: must be set when nodes is above 1; set it to the accelerators over all nodes",
    ),
    Rule(
        "spec.parallelism",
        "!has(self.nodes) || !has(self.tensor) || self.tensor % self.nodes == 0",
        "spec.parallelism.tensor: must be a multiple of spec.parallelism.nodes; change one of them",
        ".tensor",
    ),
    Rule(
        "spec.rollout",
        f"!(has(self.maxUnavailable) && {_ZERO.format('maxUnavailable')} && (!has(self.maxSurge) || {_ZERO.format('maxSurge')}))",
        "spec.rollout.maxUnavailable: is 0 while maxSurge is 0 too, so nothing could ever be replaced; raise one of the two",
        ".maxUnavailable",
    ),
    Rule(
        "spec.storage",
        "[has(self.emptyDir), has(self.persistentVolumeClaim), has(self.hostPath), has(self.image)].exists_one(given, given)",
        "spec.storage: must have exactly one field; keep one of emptyDir, persistentVolumeClaim, hostPath, image",
    ),
    Rule(
        "spec.storage.hostPath",
        "!self.path.contains('/../') && !self.path.endsWith('/..')",
        "spec.storage.hostPath.path: must not step upwards with '..'; write the plain path",
        ".path",
    ),
    Rule(
        "spec.scheduling.tolerations[]",
        "(has(self.key) && self.key != '') || (has(self.operator) && self.operator == 'Exists')",
        "spec.scheduling.tolerations: a toleration without key needs operator Exists; set one of them",
    ),
    Rule(
        "spec.scheduling.tolerations[]",
        "!has(self.operator) || self.operator != 'Exists' || !has(self.value) || self.value == ''",
        "spec.scheduling.tolerations: operator Exists takes no value; remove the value",
    ),
    Rule(
        "spec.scheduling.tolerations[]",
        "!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')",
        "spec.scheduling.tolerations: tolerationSeconds needs effect NoExecute; set the effect or remove it",
    ),
    Rule(
        "spec.scheduling.topologySpreadConstraints[]",
        "!has(self.minDomains) || self.whenUnsatisfiable == 'DoNotSchedule'",
        "spec.scheduling.topologySpreadConstraints: minDomains needs whenUnsatisfiable DoNotSchedule; change it or remove minDomains",
    ),
    Rule(
        "spec.podTemplate.metadata",
        f"!has(self.labels) || self.labels.all(k, !k.startsWith('{OWNED_PREFIX}') && !(k in {_cel_list(OWNED_LABELS)}))",
        f"spec.podTemplate.metadata.labels: keys below {OWNED_PREFIX} and {', '.join(OWNED_LABELS)} are the operator's; use other keys",
        ".labels",
    ),
    Rule(
        "spec.podTemplate.metadata",
        f"!has(self.annotations) || self.annotations.all(k, !k.startsWith('{OWNED_PREFIX}'))",
        f"spec.podTemplate.metadata.annotations: keys below {OWNED_PREFIX} are the operator's; use other keys",
        ".annotations",
    ),
    Rule(
        "spec.service",
        f"!has(self.annotations) || self.annotations.all(k, !k.startsWith('{OWNED_PREFIX}'))",
        f"spec.service.annotations: keys below {OWNED_PREFIX} are the operator's; use other keys",
        ".annotations",
    ),
    _within_limit("cpu", "cpu"),
    _within_limit("memory", "memory"),
    _within_limit("ephemeral-storage", "ephemeral__dash__storage"),
)
