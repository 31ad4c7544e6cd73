"""SGLang: command line and endpoints, release by release."""

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
from dflash_controller.engines.protocol import RENDERED, Fit, Launch, LaunchRequest, Probes, ReleaseProfile
from dflash_controller.engines.releases import version
from dflash_controller.engines.sglang import admin
from dflash_controller.engines.sglang.limits import GUARD, OWNED, RELEASES, release_problems, usable
from dflash_controller.engines.sglang.metrics import METRIC_SCHEMA
from dflash_controller.engines.sglang.names import DP_ATTENTION, DRAFT_BACKEND, LORA, OPTIONS, RENAMED, STRATEGY, TARGET_BACKEND
from dflash_controller.engines.sglang.probe import SglangReading
from dflash_controller.engines.sglang.rules import RULES
from dflash_controller.engines.sglang.state_cache import SLOTS, estimate, held_per_request, slots, slots_per_request
from dflash_controller.engines.unknown_flags import unknown_flags

_DIST_INIT_PORT = 20000
_WORKERS_WAIT_SINCE = "0.5.21"
"""Release from which ranks > 0 that are told to stop wait until rank 0 has drained."""
_DECODE_LOG_INTERVAL = 20
_PLAN_STREAM = "SGLANG_ENABLE_OVERLAP_PLAN_STREAM"


class SGLang:
    """SGLang, from the oldest accepted release on."""

    name = "sglang"
    default_port = 30000
    metric_schema = METRIC_SCHEMA

    def dialect(self, version: str) -> ReleaseProfile | Problem:
        """See Engine."""
        return RELEASES.dialect(version)

    def owned_flags(self) -> Mapping[str, str]:
        """See Engine."""
        return OWNED

    def probes(self, release: str) -> Probes:
        """``/health`` waits for a scheduler step (1 s at least, 20 s at most). ``/ready`` (0.5.20) also fails while draining or paused.

        Ranks above 0 serve a ``/health`` that is always 200.
        """
        ready = "/ready" if version(release) >= version("0.5.20") else "/health"
        return Probes(startup="/health", readiness=ready, liveness="/health", worker="/health", timeout_s=25)

    def probe_reading(self) -> SglangReading:
        """See Engine."""
        return SglangReading()

    def cache_environment(self, folder: str) -> Mapping[str, str]:
        """See Engine. SGLang has none."""
        return {}

    def problems(self, request: LaunchRequest) -> Sequence[Problem]:
        """See Engine."""
        return list(_problems(request))

    def unknown_flags(self, arguments: Sequence[str], release: str) -> Sequence[Problem]:
        """See Engine."""
        return list(unknown_flags(GUARD, arguments, release, lambda name: name in RENAMED or _declines(name, release)))

    def fit(self, request: LaunchRequest) -> Fit | None:
        """See Engine."""
        return estimate(request, _settings(request))

    def slots_per_request(self, request: LaunchRequest) -> int:
        """See Engine."""
        return slots_per_request(_settings(request)) if request.hybrid_target else 0

    def slots_flag(self, request: LaunchRequest) -> str:
        """See Engine."""
        slots = self.slots_per_request(request)
        return str(Flag(SLOTS, str(slots * request.max_concurrency))) if slots else ""

    def held_per_request(self, request: LaunchRequest, context: float) -> float | None:
        """See Engine."""
        return held_per_request(request, _settings(request), context)

    def launch(self, request: LaunchRequest) -> Launch:
        """See Engine. Ranks above 0 read their rank and rank 0's address from the variables that LeaderWorkerSet sets."""
        if problems := self.problems(request):
            raise ValueError("; ".join(map(str, problems)))
        extra = _extra(request)
        return Launch(
            command=admin.command(extra, request),
            args=_arguments(request, "0"),
            worker_args=_arguments(request, "$(LWS_WORKER_INDEX)") if request.nodes > 1 else (),
            env=_environment(request, {flag.name for flag in extra}),
            pod_fields=admin.fields(extra, request),
            worker_outlives=_DIST_INIT_PORT if request.nodes > 1 and version(request.release) < version(_WORKERS_WAIT_SINCE) else None,
        )

    def administered_by_clients(self, words: Sequence[str], variables: Mapping[str, str | None]) -> str:
        """See Engine."""
        return admin.opened_by(words, variables)


@lru_cache(maxsize=RENDERED)
def _problems(request: LaunchRequest) -> Sequence[Problem]:
    dialect = RELEASES.dialect(request.release)
    if isinstance(dialect, Problem):
        return (dialect,)
    problems = [*shape_problems(request), *GUARD.problems(request.extra_args, request.release)]
    if isinstance(request.speculation, Schedule):
        message = "SGLang has no schedule of block sizes in any release"
        return (*problems, Problem("spec.tuning.actuator", message, "Use Restart, or vLLM 0.26.0 or later."))
    if broken := list(speculation_problems(request)):
        return (*problems, *broken)
    problems += release_problems(request)
    return tuple(broken_rules(read(request, _arguments(request, "0"), OPTIONS), RULES, problems))


@lru_cache(maxsize=RENDERED)
def _arguments(request: LaunchRequest, rank: str) -> tuple[str, ...]:
    owned, defaults, extra = _owned(request, rank), _defaults(request), _extra(request)

    def merged(recommended: Sequence[Flag]) -> tuple[str, ...]:
        return merge(owned, defaults=defaults, recommended=recommended, extra=extra, option=option)

    def option(name: str) -> str:
        return OPTIONS.meaning(name, request.release).option

    arguments = merged(compatible(_recommended(request), lambda flags: read(request, merged(flags), OPTIONS), RULES, OPTIONS))
    return tuple(argument for argument in arguments if not _declines(argument, request.release))


def _declines(argument: str, release: str) -> bool:
    """Whether it turns off a switch that SGLang cannot turn off. It has done its work: the recommended switch is not among the flags."""
    name = argument.partition("=")[0]
    return name.startswith("--no-") and name not in OPTIONS.known(release) and OPTIONS.meaning(name, release).off


def _extra(request: LaunchRequest) -> list[Flag]:
    return _current_names(_without_drafter(request, parsed(request.extra_args)))


def _host(request: LaunchRequest) -> str:
    """The user's address, else one that every pod network reaches. Several tokenizer processes share one socket that uvicorn binds."""
    extra = index(_extra(request))
    several = (integer(extra.get("--tokenizer-worker-num", "")) or 1) > 1
    return extra.get(listen.HOST, listen.host(request, listen.ONE_SOCKET if several else listen.ASYNCIO))


def _owned(request: LaunchRequest, rank: str) -> list[Flag]:
    flags = [Flag("--model-path", literal(request.target_source.model))]
    if revision := request.target_source.revision:
        flags.append(Flag("--revision", literal(revision)))
    flags += [
        Flag("--served-model-name", literal(request.served_model_name)),
        Flag(listen.HOST, _host(request)),
        Flag("--port", str(request.port)),
        Flag("--tp-size", str(request.tensor_parallel)),
    ]
    if request.nodes > 1:
        address = f"$(LWS_LEADER_ADDRESS):{_DIST_INIT_PORT}"
        flags += [Flag("--nnodes", str(request.nodes)), Flag("--node-rank", rank), Flag("--dist-init-addr", address)]
    if not isinstance(request.speculation, Off):
        flags += [Flag("--speculative-algorithm", "DFLASH"), Flag("--speculative-draft-model-path", literal(request.drafter_source.model))]
        if revision := request.drafter_source.revision:
            flags.append(Flag("--speculative-draft-model-revision", literal(revision)))
        flags.append(Flag("--speculative-num-draft-tokens", str(request.speculation.max_block_size)))
    # unset, DFlash resets --max-running-requests to 48; verify graphs are captured by number of requests
    flags += [
        Flag("--max-running-requests", str(request.max_concurrency)),
        Flag("--cuda-graph-max-bs-decode", str(request.max_concurrency)),
        Flag("--enable-metrics"),
    ]
    if request.metric_labels:
        labels = json.dumps(dict(sorted(request.metric_labels.items())), separators=(",", ":"), ensure_ascii=False)
        flags.append(Flag("--extra-metric-labels", literal(labels)))
    return flags


def _defaults(request: LaunchRequest) -> list[Flag]:
    """What the drafters' authors measured, by GPU. Targets with latent attention keep SGLang's own choice of back end."""
    flags = [Flag("--decode-log-interval", str(_DECODE_LOG_INTERVAL)), *admin.flag(_extra(request), request)]
    chosen = BACKENDS["sglang"].chosen(request)
    if TARGET_BACKEND in chosen and not latent_attention(request):
        flags.append(Flag(TARGET_BACKEND, chosen[TARGET_BACKEND]))
    if DRAFT_BACKEND in chosen and not isinstance(request.speculation, Off):
        flags.append(Flag(DRAFT_BACKEND, chosen[DRAFT_BACKEND]))
    if request.hybrid_target:
        flags.append(Flag(STRATEGY, "extra_buffer"))
    return [*flags, *slots(request, _settings(request))]


def _settings(request: LaunchRequest) -> dict[str, str]:
    """Returns the flags that decide how memory is divided: the card's, then the user's."""
    return index([*_recommended(request), *_extra(request)])


def _recommended(request: LaunchRequest) -> list[Flag]:
    """Recommended flags under this release's names, without the operator's own and those of no use here."""
    flags = _current_names(parsed(request.recommended_args))
    return _without_drafter(request, [flag for flag in flags if flag.name not in OWNED and usable(flag, request)])


def _current_names(flags: Sequence[Flag]) -> list[Flag]:
    return [Flag(RENAMED.get(flag.name, flag.name), flag.value) for flag in flags]


def _without_drafter(request: LaunchRequest, flags: list[Flag]) -> list[Flag]:
    """Flags about the drafter mean nothing while speculation is off."""
    return [flag for flag in flags if not (isinstance(request.speculation, Off) and flag.name.startswith("--speculative-"))]


def _environment(request: LaunchRequest, extra: set[str]) -> dict[str, str]:
    env = variables(request.recommended_args)
    if isinstance(request.speculation, Off) or extra.intersection(LORA):
        env.pop(_PLAN_STREAM, None)  # LoRA with DFlash refuses it (0.5.19)
    if extra.intersection(DP_ATTENTION) and not isinstance(request.speculation, Off):
        env["SGLANG_ENABLE_DP_SPEC_PREFILL_COORDINATION"] = "0"  # DFlash with DP attention demands it (0.5.23)
    return env
