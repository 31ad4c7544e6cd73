"""The engines' command lines, parsed as strictly as the engines do: ``parse(engine, release, command)``.

Options come from tables taken from the real parsers. ``argv_rules`` has the engines' checks after parsing.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dflash_controller.api.problem import Problem
from dflash_controller.catalog import Catalog, Pair
from dflash_controller.engines import ENGINES
from testbed.simulator.access import Access
from testbed.simulator.argv_rules import Host, check
from testbed.simulator.option_table import ArgvError, facts, parser
from testbed.simulator.sglang_start import StartError, guarded_by

__all__ = ["ArgvError", "Host", "ParsedArgv", "parse"]

_ENTRY_POINTS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "sglang": (("python3", "-m", "sglang.launch_server"), ("python", "-m", "sglang.launch_server"), ("sglang", "serve")),
    "vllm": (("vllm", "serve"),),
}
_DFLASH_DEFAULT_BLOCK = 16
_SGLANG_DFLASH_REQUESTS = 48
_SGLANG_REQUESTS = 4096
_VLLM_REQUESTS = 1024
_VLLM_CAPTURE = 512


@dataclass(frozen=True, slots=True)
class ParsedArgv:
    """A command line that the engine accepts. ``values`` holds every option by argparse destination; None if unset."""

    engine: str
    release: str
    values: Mapping[str, Any] = field(repr=False)
    admin_paths: frozenset[str] = field(default=frozenset(), repr=False)
    """Paths that SGLang guards with its admin key."""

    @property
    def access(self) -> Access:
        """Who may call which endpoint. With several tokenizer processes SGLang checks no key."""
        if self.engine == "vllm":
            keys = self.values["api_key"]
            return Access("vllm", api_key=keys[0] if isinstance(keys, list) and keys else _text(keys))
        if int(self.values["tokenizer_worker_num"] or 1) > 1:
            return Access()
        return Access("sglang", self.values["api_key"], self.values["admin_api_key"], self.admin_paths)

    @property
    def target(self) -> str:
        """Model id or path of the target."""
        return str(self.values["model_path"] if self.engine == "sglang" else self.values["model_tag"] or self.values["model"])

    @property
    def pair(self) -> Pair | None:
        """What the catalog knows of the target, or of the name that it is served by; None if it knows neither."""
        return _catalog().find(self.target) or _catalog().find(self.served_model_name)

    @property
    def target_revision(self) -> str | None:
        """``--revision``."""
        return _text(self.values["revision"])

    @property
    def served_model_name(self) -> str:
        """The name that clients use; by default the target's."""
        name = self.values["served_model_name"]
        if isinstance(name, list):
            name = name[0] if name else None
        return str(name or self.target)

    @property
    def speculative_config(self) -> Mapping[str, Any] | None:
        """vLLM's ``--speculative-config``."""
        config: Mapping[str, Any] | None = self.values.get("speculative_config")
        return config

    @property
    def drafting(self) -> bool:
        """Whether speculation is on."""
        return bool(self.values.get("speculative_algorithm") or self.speculative_config)

    @property
    def block_size(self) -> int:
        """Tokens verified per step and request; 1 while speculation is off. With a schedule it is the largest block size."""
        if not self.drafting:
            return 1
        if config := self.speculative_config:
            return int(config["num_speculative_tokens"]) + 1
        return int(self.values["speculative_num_draft_tokens"] or self.values["speculative_dflash_block_size"] or _DFLASH_DEFAULT_BLOCK)

    @property
    def schedule(self) -> tuple[tuple[int, int, int], ...] | None:
        """vLLM's table of (first, last, drafts) by number of requests in a step, ascending, or None. Under data parallelism vLLM only warns
        and does not follow the table."""
        table = (self.speculative_config or {}).get("num_speculative_tokens_per_batch_size")
        if not table or int(self.values["data_parallel_size"]) > 1:
            return None
        return tuple(sorted((int(low), int(high), int(drafts)) for low, high, drafts in table))

    @property
    def drafter(self) -> str | None:
        """Model id or path of the drafter; None while speculation is off."""
        if not self.drafting:
            return None
        return _text(self.speculative_config["model"] if self.speculative_config else self.values["speculative_draft_model_path"])

    @property
    def drafter_revision(self) -> str | None:
        """The drafter's revision if one is given."""
        if self.engine == "vllm":
            return _text((self.speculative_config or {}).get("revision"))
        return _text(self.values["speculative_draft_model_revision"])

    @property
    def port(self) -> int:
        """TCP port of the HTTP server."""
        return int(self.values["port"])

    @property
    def tensor_parallel(self) -> int:
        """GPUs over all nodes."""
        return int(self.values["tp_size" if self.engine == "sglang" else "tensor_parallel_size"])

    @property
    def nodes(self) -> int:
        """Number of pods of one replica."""
        return int(self.values["nnodes"])

    @property
    def node_rank(self) -> int:
        """0 for the pod that serves requests."""
        return int(self.values["node_rank"])

    @property
    def meets_at(self) -> tuple[str, int]:
        """Host and port of rank 0, where the ranks of several nodes meet; no host on a single node."""
        if self.nodes == 1:
            return "", 0
        if self.engine == "vllm":
            return str(self.values["master_addr"]), int(self.values["master_port"])
        host, _, port = str(self.values["dist_init_addr"]).rpartition(":")
        return host, int(port)

    @property
    def max_concurrency(self) -> int:
        """Maximum requests in one step."""
        if self.engine == "vllm":
            return int(self.values["max_num_seqs"] or _VLLM_REQUESTS)
        # SGLang resets an unset limit to 48 with DFlash.
        return int(self.values["max_running_requests"] or (_SGLANG_DFLASH_REQUESTS if self.drafting else _SGLANG_REQUESTS))

    @property
    def state_slots(self) -> int | None:
        """Slots of state that SGLang is told to hold; None where it divides the memory by itself."""
        slots = self.values.get("max_mamba_cache_size") if self.engine == "sglang" else None
        return None if slots is None else int(slots)

    @property
    def slots_per_request(self) -> int:
        """Slots that SGLang counts for each request of a hybrid target (``_calculate_mamba_ratio``)."""
        if self.values["disable_radix_cache"]:
            return 1
        strategy = self.values["mamba_radix_cache_strategy"]
        if strategy == "no_buffer":
            return 3
        return 4 if self.values["disable_overlap_schedule"] or strategy == "extra_buffer_lazy" else 5

    @property
    def memory_share(self) -> float | None:
        """Part of the accelerator's memory that vLLM takes, or SGLang for weights and cache; None where it decides by itself."""
        share = self.values["mem_fraction_static" if self.engine == "sglang" else "gpu_memory_utilization"]
        return None if share is None else float(share)

    @property
    def half_state(self) -> bool:
        """Whether recurrent states are kept in 16 bits."""
        return self.values["mamba_ssm_dtype" if self.engine == "sglang" else "mamba_ssm_cache_dtype"] in ("bfloat16", "float16")

    @property
    def state_ratio(self) -> float | None:
        """SGLang's memory of states to that of keys and values; None where it decides by itself."""
        ratio = self.values["mamba_full_memory_ratio"]
        return None if ratio is None else float(ratio)

    @property
    def caches_prefixes(self) -> bool:
        """Whether vLLM is told to keep the states of prefixes."""
        return bool(self.values["enable_prefix_caching"])

    @property
    def captured_tokens(self) -> int:
        """Tokens of the largest step whose CUDA graph vLLM captures."""
        config = self.values["compilation_config"] or {}
        return int(config.get("max_cudagraph_capture_size") or self.values["max_cudagraph_capture_size"] or _VLLM_CAPTURE)

    @property
    def metrics_enabled(self) -> bool:
        """Whether ``/metrics`` shows the engine's metrics."""
        return bool(self.values["enable_metrics"]) if self.engine == "sglang" else not self.values["disable_log_stats"]

    @property
    def extra_metric_labels(self) -> Mapping[str, str]:
        """SGLang's ``--extra-metric-labels``."""
        labels: Mapping[str, str] = self.values.get("extra_metric_labels") or {}
        return labels

    @property
    def shutdown_timeout_s(self) -> int | None:
        """Seconds that requests may still run after SIGTERM. vLLM: 0 aborts at once; None (SGLang): no limit."""
        return int(self.values["shutdown_timeout"]) if self.engine == "vllm" else None

    @property
    def decode_log_interval(self) -> int:
        """Decode steps between two updates of SGLang's gauges."""
        return int(self.values.get("decode_log_interval") or 40)

    @property
    def metrics_of_all_schedulers(self) -> bool:
        """Whether every tensor rank of SGLang exports all its metrics, and not the first alone."""
        return bool(self.values.get("enable_metrics_for_all_schedulers"))


def parse(engine: str, release: str, command: Sequence[str], host: Host | None = None) -> ParsedArgv:
    """Returns a container's command and arguments parsed, with ``$(NAME)`` already expanded.

    A release without its own table is parsed as its nearest older tested one. ``host`` states facts of the machine that some checks need;
    without it those checks pass. Whether a target is hybrid the catalog knows, too.

    Raises ArgvError when the engine would exit, ValueError for an engine or release that does not exist.
    """
    dialect = ENGINES[engine].dialect(release) if engine in ENGINES else None
    if dialect is None or isinstance(dialect, Problem):
        raise ValueError(str(dialect) if dialect else f"no engine {engine!r}")
    arguments = _arguments(engine, command)
    name = f"{engine}-{dialect.release}"
    guarded = _guarded(command, facts(name)) if engine == "sglang" else frozenset()
    if engine == "vllm":
        arguments = _flexible(arguments)
    values = vars(parser(name).parse_args(arguments))
    parsed, host = ParsedArgv(engine, release, values, guarded), host or Host()
    if host.hybrid_target is None and (pair := parsed.pair):
        host = replace(host, hybrid_target=pair.hybrid)
    check(engine, release, values, facts(name), host)
    return parsed


@functools.cache
def _catalog() -> Catalog:
    return Catalog.load()


def _arguments(engine: str, command: Sequence[str]) -> list[str]:
    if _is_program(engine, command):
        return list(command[3:])
    for entry in _ENTRY_POINTS[engine]:
        if tuple(command[: len(entry)]) == entry:
            return list(command[len(entry) :])
    raise ArgvError(127, f"exec: {' '.join(command[:3])}: not an entry point of {engine}\n")


def _is_program(engine: str, command: Sequence[str]) -> bool:
    return engine == "sglang" and len(command) > 2 and command[0] in ("python", "python3") and command[1] == "-c"


def _guarded(command: Sequence[str], known: Mapping[str, Any]) -> frozenset[str]:
    if not _is_program("sglang", command):
        return frozenset(known["admin_paths"])
    try:
        return guarded_by(command[2], tuple(known["open_paths"]), tuple(known["admin_paths"]))
    except StartError as error:
        raise ArgvError(1, f"{error}\n") from None


def _flexible(arguments: Sequence[str]) -> list[str]:
    """Does what vLLM's FlexibleArgumentParser does first: ``_`` becomes ``-`` in names, ``--a.b=c`` becomes ``--a {"b": c}``."""
    result: list[str] = []
    nested: dict[str, dict[str, Any]] = {}
    pending = iter(arguments)
    for argument in pending:
        name, equals, value = argument.partition("=")
        if not name.startswith("--"):
            result.append(argument)
            continue
        head, dot, path = name.partition(".")
        head = head.replace("_", "-")
        if not dot:
            result.append(head + equals + value)
            continue
        text = value if equals else next(pending, "")
        keys = path.split(".")
        place = nested.setdefault(head, {})
        for key in keys[:-1]:
            place = place.setdefault(key, {})
        place[keys[-1]] = _json_or_text(text)
    return result + [part for head, value in nested.items() for part in (head, json.dumps(value))]


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
