"""Why each argument of an engine is there, and where its value comes from.

Read from the rendered command line, so it also explains one that an older release of the operator rendered and stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dflash_controller.api.speculation import Speculation
from dflash_controller.catalog import Catalog, Pair
from dflash_controller.engines import ENGINES
from dflash_controller.engines.backends import BACKENDS
from dflash_controller.engines.flags import Flag, parsed
from dflash_controller.engines.resolved import Resolved
from dflash_controller.engines.sglang.admin import KEY_VARIABLE
from dflash_controller.engines.sglang.names import RENAMED

OPERATOR, USER, CARD, CATALOG = "operator", "spec", "model card", "catalog"
_DEFAULTS: Mapping[str, str] = {
    "--admin-api-key": "clients do not administer the engine: the key is the UID of the pod (docs/reference/security.md)",
    "--decode-log-interval": "the engine logs and counts every 20 steps, so that metrics are fresh",
    "--host": "reachable from every pod network of the cluster",
    "--mamba-radix-cache-strategy": "a target with recurrent layers needs state for draft tokens beside the prefix cache",
    "--max-mamba-cache-size": "slots of recurrent state for spec.engine.maxConcurrency requests, or as many as fit in memory",
    "--max-num-batched-tokens": "a prefill of this length and a block of every request fit in one step",
    "--enable-metrics": "the operator needs the engine's metrics",
    "--extra-metric-labels": "metrics name the DFlashDeployment that they belong to",
    "--shutdown-timeout": "requests in service end within the pod's grace period",
    "--compilation-config": "CUDA graphs for the tokens of one verify step at every concurrency up to the limit",
    "--nnodes": "one rank for each node of a replica",
    "--node-rank": "rank of the node, from the variable that LeaderWorkerSet sets",
    "--dist-init-addr": "address of the leader, from the variable that LeaderWorkerSet sets",
    "--master-addr": "address of the leader, from the variable that LeaderWorkerSet sets",
    "--master-port": "port at which ranks find each other",
    "--headless": "ranks above 0 answer no requests",
    "--speculative-algorithm": "the drafter proposes a whole block in one pass",
}


@dataclass(frozen=True, slots=True)
class Explained:
    """One argument with the source of its value and the reason."""

    argument: str
    source: str
    reason: str


class Sources:
    """Where the values of one revision come from. ``inputs`` are the fields of class revision as the user wrote them.

    ``tuned`` says that the tuner asked for the revision, which may be one that the user asked for before.
    """

    def __init__(
        self, inputs: Mapping[str, Any], written_block: int | None, resolved: Resolved, speculation: Speculation, *, tuned: bool = False
    ) -> None:
        self._inputs, self._block, self._tuned = inputs, written_block, tuned
        self._resolved, self._speculation = resolved, speculation
        self._request = resolved.launch_request(speculation)
        catalog = Catalog.load()
        self._pair: Pair | None = catalog.pair(resolved.target.model, resolved.drafter.model)
        self._known: Pair | None = catalog.find(resolved.target.model)

    def argument(self, token: str) -> Explained:
        """Explains one argument of the engine container."""
        if not token.startswith("-"):
            return Explained(token, *self._target())
        flag = Flag.parse(token)
        extra = [Flag.parse(item).name for item in self._resolved.extra_args]
        if flag.name in extra:
            return Explained(token, f"spec.engine.extraArgs[{extra.index(flag.name)}]", "written by you")
        if (owned := self._owned(flag.name)) is not None:
            return Explained(token, *owned)
        if self._recommended(flag):
            return Explained(token, CARD, f"{self._resolved.drafter.model} recommends it for {self._resolved.engine}")
        if flag.value is not None and BACKENDS[self._resolved.engine].chosen(self._request).get(flag.name) == flag.value:
            return Explained(token, OPERATOR, f"what the drafters' authors measured on {self._resolved.gpu_product}")
        reason = ENGINES[self._resolved.engine].owned_flags().get(flag.name)
        return Explained(token, OPERATOR, _DEFAULTS.get(flag.name) or reason or "default of the operator")

    def variable(self, variable: Mapping[str, Any]) -> Explained:
        """Explains one environment variable."""
        name = str(variable["name"])
        shown = f"{name}={variable['value']}" if "value" in variable else f"{name} (from {_reference(variable)})"
        users = [item.get("name") for item in (self._inputs.get("engine") or {}).get("env") or ()]
        if name in users:
            return Explained(shown, f"spec.engine.env[{users.index(name)}]", "written by you")
        if any(token.partition("=")[0] == name for token in self._resolved.recommended_args if not token.startswith("-")):
            return Explained(shown, CARD, f"{self._resolved.drafter.model} recommends it for {self._resolved.engine}")
        if name == KEY_VARIABLE:
            return Explained(shown, OPERATOR, "the value of --admin-api-key")
        if name.startswith(("HF_", "TRANSFORMERS_")):
            field = "spec.huggingFace" if "TOKEN" in name else "spec.storage" if self._inputs.get("storage") else OPERATOR
            return Explained(shown, field, "access to the model hub and the place of its files")
        return Explained(shown, OPERATOR, "caches of compiled kernels, or what flags of this engine need")

    def left_out(self, arguments: Sequence[str]) -> list[Explained]:
        """Explains what the drafter's card recommends and the command line does not have."""
        present = {flag.name: flag.value for flag in parsed(arguments)}
        runs = f"{self._resolved.engine} {self._resolved.version} on {self._resolved.gpu_product}"
        found = []
        for token in self._resolved.recommended_args:
            for flag in parsed([token]):
                name = RENAMED.get(flag.name, flag.name)
                if name not in present:
                    found.append(Explained(token, CARD, f"of no use for {runs}"))
                elif present[name] != flag.value:
                    found.append(Explained(token, CARD, f"replaced by {Flag(name, present[name])}"))
        return found

    def _recommended(self, flag: Flag) -> bool:
        known = parsed(self._resolved.recommended_args)
        return any((RENAMED.get(each.name, each.name), each.value) == (flag.name, flag.value) for each in known)

    def _owned(self, name: str) -> tuple[str, str] | None:
        """Returns source and reason of a flag that a field of the spec decides; None for other flags."""
        found: Callable[[], tuple[str, str]] | None = {
            "--model-path": self._target,
            "--revision": lambda: self._commit("target"),
            "--served-model-name": lambda: ("spec.target.model", "the name that clients send as model"),
            "--port": lambda: self._field("service.port", f"default port of {self._resolved.engine}"),
            "--tp-size": self._tensor,
            "--tensor-parallel-size": self._tensor,
            "--speculative-draft-model-path": self._drafter,
            "--speculative-draft-model-revision": lambda: self._commit("drafter"),
            "--speculative-num-draft-tokens": self._blocks,
            "--speculative-config": lambda: (self._blocks()[0], f"drafter, and drafts of a step (block size - 1): {self._blocks()[1]}"),
            "--max-running-requests": self._concurrency,
            "--max-num-seqs": self._concurrency,
            "--cuda-graph-max-bs-decode": lambda: (self._concurrency()[0], "CUDA graphs for every number of requests up to the limit"),
        }.get(name)
        return found() if found else None

    def _target(self) -> tuple[str, str]:
        if self._resolved.fetch_image:
            return "spec.target.model", f"{self._resolved.target.model}, fetched by the init container"
        return "spec.target.model", "the model that is served"

    def _drafter(self) -> tuple[str, str]:
        if (self._inputs.get("drafter") or {}).get("model"):
            return "spec.drafter.model", "the drafter that you named"
        return CATALOG, f"the drafter trained for {self._resolved.target.model} ({self._source('pair')})"

    def _commit(self, part: str) -> tuple[str, str]:
        written, model = (self._inputs.get(part) or {}).get("revision"), getattr(self._resolved, part)
        if written == model.revision:
            return f"spec.{part}.revision", "the commit that you named" if model.pinned else "a branch or tag, which may move"
        return OPERATOR, f"the commit that {written or 'the default branch'} named when the revision was made"

    def _tensor(self) -> tuple[str, str]:
        if (self._inputs.get("parallelism") or {}).get("tensor"):
            return "spec.parallelism.tensor", "accelerators of a replica"
        if self._known is not None:
            return CATALOG, f"accelerators that both models fit on ({self._known.sources.get('tensor', 'catalog')})"
        return OPERATOR, "one accelerator per node; spec.parallelism.tensor changes it"

    def _concurrency(self) -> tuple[str, str]:
        return self._field("engine.maxConcurrency", "default number of requests in service at once")

    def _blocks(self) -> tuple[str, str]:
        block = self._speculation.max_block_size
        if self._block == block and not self._tuned:
            return "spec.blockSize", f"block size {block}, as you wrote"
        if block == self._resolved.trained_block_size and not self._tuned:
            written = (self._inputs.get("drafter") or {}).get("trainedBlockSize")
            if written == block:
                return "spec.drafter.trainedBlockSize", f"block size {block}, which the drafter was trained with"
            return CATALOG, f"block size {block}, which the drafter was trained with ({self._source('trainedBlockSize')})"
        return "tuner", f"block size {block}, chosen by the tuner: kubectl dflash explain says why"

    def _source(self, fact: str) -> str:
        return self._pair.sources.get(fact, "not in the catalog") if self._pair else "the drafter's config.json"

    def _field(self, path: str, otherwise: str) -> tuple[str, str]:
        value: Any = self._inputs
        for step in path.split("."):
            value = (value or {}).get(step)
        return (f"spec.{path}", "written by you") if value else (OPERATOR, otherwise)


def _reference(variable: Mapping[str, Any]) -> str:
    kind, reference = next(iter((variable.get("valueFrom") or {"nothing": {}}).items()))
    parts = (kind.removesuffix("Ref"), reference.get("name"), reference.get("key"), reference.get("fieldPath"))
    return " ".join(str(part) for part in parts if part)
