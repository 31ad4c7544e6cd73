"""vLLM: command line and endpoints, release by release."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache

from dflash_controller.api.problem import Problem
from dflash_controller.api.speculation import Off, Schedule
from dflash_controller.engines import listen
from dflash_controller.engines.backends import BACKENDS
from dflash_controller.engines.checks import shape_problems, speculation_problems
from dflash_controller.engines.command_line import compatible, read
from dflash_controller.engines.command_line import problems as broken_rules
from dflash_controller.engines.flags import Flag, index, integer, literal, merge, parsed, variables
from dflash_controller.engines.hardware import latent_attention
from dflash_controller.engines.options import OPTIONS
from dflash_controller.engines.protocol import RENDERED, Fit, Launch, LaunchRequest, Probes, ReleaseProfile
from dflash_controller.engines.releases import version
from dflash_controller.engines.unknown_flags import unknown_flags
from dflash_controller.engines.vllm.limits import GUARD, OWNED, RELEASES, SCHEDULE_SINCE, SHORT
from dflash_controller.engines.vllm.memory import estimate, graph_memory, held_per_request
from dflash_controller.engines.vllm.metrics import METRIC_SCHEMA
from dflash_controller.engines.vllm.probe import VllmReading
from dflash_controller.engines.vllm.rules import BACKEND, RULES
from dflash_controller.engines.vllm.sizes import TOKENS, capture_sizes, safe_token_budget

_MASTER_PORT = 29500
_OPENING = ("VLLM_SERVER_DEV_MODE", "VLLM_ALLOW_RUNTIME_LORA_UPDATING")
"""Variables that open endpoints which replace weights, put the engine to sleep or run code in its workers (dev mode), or load adapters."""
_LEADER = "0"
_WORKER = "$(LWS_WORKER_INDEX)"


class VLLM:
    """vLLM, from the oldest accepted release on."""

    name = "vllm"
    default_port = 8000
    metric_schema = METRIC_SCHEMA

    def dialect(self, version: str) -> ReleaseProfile | Problem:
        """See Engine."""
        return RELEASES.dialect(version)

    def owned_flags(self) -> Mapping[str, str]:
        """See Engine."""
        return OWNED | SHORT

    def probes(self, release: str) -> Probes:
        """HTTP answers only once the engine is ready, so ``/health`` serves all three. Ranks above 0 are headless."""
        return Probes(startup="/health", readiness="/health", liveness="/health", worker=None, timeout_s=10)

    def probe_reading(self) -> VllmReading:
        """See Engine."""
        return VllmReading()

    def cache_environment(self, folder: str) -> Mapping[str, str]:
        """See Engine."""
        return {"VLLM_CACHE_ROOT": f"{folder}/vllm"}

    def problems(self, request: LaunchRequest) -> Sequence[Problem]:
        """See Engine."""
        return list(_problems(request))

    def unknown_flags(self, arguments: Sequence[str], release: str) -> Sequence[Problem]:
        """See Engine."""
        return list(unknown_flags(GUARD, arguments, release, lambda name: False))

    def fit(self, request: LaunchRequest) -> Fit | None:
        """See Engine."""
        return estimate(request)

    def slots_per_request(self, request: LaunchRequest) -> int:
        """vLLM's cache holds state and keys alike, in blocks."""
        return 0

    def slots_flag(self, request: LaunchRequest) -> str:
        """See ``slots_per_request``."""
        return ""

    def held_per_request(self, request: LaunchRequest, context: float) -> float | None:
        """See Engine."""
        return held_per_request(request, context)

    def launch(self, request: LaunchRequest) -> Launch:
        """See Engine. Ranks above 0 read their rank and rank 0's address from the variables LeaderWorkerSet sets."""
        if problems := self.problems(request):
            raise ValueError("; ".join(map(str, problems)))
        return Launch(
            command=("vllm", "serve"),
            args=_arguments(request, _LEADER),
            worker_args=_arguments(request, _WORKER) if request.nodes > 1 else (),
            env=variables(request.recommended_args) | graph_memory(request),
            worker_outlives=_MASTER_PORT if request.nodes > 1 else None,
        )

    def administered_by_clients(self, words: Sequence[str], variables: Mapping[str, str | None]) -> str:
        """See Engine. vLLM has such endpoints only when a variable asks for them, and then for everybody."""
        return next((f"{name} is {variables[name]}" for name in _OPENING if _on(variables.get(name))), "")


def _on(value: str | None) -> bool:
    """Whether vLLM takes the value of a switch for on."""
    return (value or "").strip().lower() not in ("", "0", "false")


@lru_cache(maxsize=RENDERED)
def _problems(request: LaunchRequest) -> Sequence[Problem]:
    dialect = RELEASES.dialect(request.release)
    if isinstance(dialect, Problem):
        return (dialect,)
    problems = [*shape_problems(request), *GUARD.problems(request.extra_args, request.release)]
    if broken := list(speculation_problems(request)):
        return (*problems, *broken)
    if isinstance(request.speculation, Schedule) and version(request.release) < version(SCHEDULE_SINCE):
        message = f"vLLM {request.release} cannot follow a schedule of block sizes with CUDA graphs"
        problems.append(Problem("spec.tuning.actuator", message, f"Use Restart, or vLLM {SCHEDULE_SINCE} or later."))
    return tuple(broken_rules(read(request, _arguments(request, _LEADER)[1:], OPTIONS["vllm"]), RULES, problems))


@lru_cache(maxsize=RENDERED)
def _arguments(request: LaunchRequest, rank: str) -> tuple[str, ...]:
    measured, extra = BACKENDS["vllm"].measured, parsed(request.extra_args)
    owned, defaults = _owned(request, rank), _defaults(request)
    known = [flag for flag in parsed(request.recommended_args) if flag.name not in (*OWNED, TOKENS) and measured(flag, request)]

    def merged(recommended: Sequence[Flag]) -> tuple[str, ...]:
        return merge(owned, defaults=defaults, recommended=recommended, extra=extra, option=option)

    def option(name: str) -> str:
        return OPTIONS["vllm"].meaning(name, request.release).option

    return (
        literal(request.target_source.model),
        *merged(compatible(known, lambda flags: read(request, merged(flags), OPTIONS["vllm"]), RULES, OPTIONS["vllm"])),
    )


def _distributed(request: LaunchRequest, rank: str) -> list[Flag]:
    if request.nodes == 1:
        return []
    return [
        Flag("--nnodes", str(request.nodes)),
        Flag("--node-rank", rank),
        Flag("--master-addr", "$(LWS_LEADER_ADDRESS)"),
        Flag("--master-port", str(_MASTER_PORT)),
        *([] if rank == _LEADER else [Flag("--headless")]),
    ]


def _owned(request: LaunchRequest, rank: str) -> list[Flag]:
    flags = []
    if revision := request.target_source.revision:
        flags.append(Flag("--revision", literal(revision)))
    flags += [
        Flag("--served-model-name", literal(request.served_model_name)),
        Flag(listen.HOST, index(parsed(request.extra_args)).get(listen.HOST, listen.host(request, listen.ONE_SOCKET))),
        Flag("--port", str(request.port)),
        Flag("--tensor-parallel-size", str(request.tensor_parallel)),
        *_distributed(request, rank),
    ]
    if config := _speculative_config(request):
        flags.append(Flag("--speculative-config", literal(config)))
    sizes = capture_sizes(request, integer(index(parsed(request.extra_args)).get(TOKENS, "")))
    capture = json.dumps({"cudagraph_capture_sizes": sizes, "max_cudagraph_capture_size": sizes[-1]}, separators=(",", ":"))
    return [
        *flags,
        Flag("--max-num-seqs", str(request.max_concurrency)),
        Flag("--compilation-config", capture),
        Flag("--shutdown-timeout", str(request.shutdown_timeout_s)),
    ]


def _speculative_config(request: LaunchRequest) -> str | None:
    if isinstance(request.speculation, Off):
        return None
    config: dict[str, object] = {
        "method": "dflash",
        "model": request.drafter_source.model,
        "num_speculative_tokens": request.speculation.max_block_size - 1,
    }
    if revision := request.drafter_source.revision:
        config["revision"] = revision
    if isinstance(request.speculation, Schedule):
        config["num_speculative_tokens_per_batch_size"] = [list(r) for r in request.speculation.ranges]
    return json.dumps(config, separators=(",", ":"), ensure_ascii=False)


def _defaults(request: LaunchRequest) -> list[Flag]:
    recommended = integer(index(parsed(request.recommended_args)).get(TOKENS, "")) or 0
    flags = [Flag(TOKENS, str(max(safe_token_budget(request), recommended)))]
    # the draft block attends non-causally: FLASH_ATTN does so in every release
    backend = BACKENDS["vllm"].chosen(request).get(BACKEND)
    if backend and not latent_attention(request):
        flags.append(Flag(BACKEND, backend))
    return flags
