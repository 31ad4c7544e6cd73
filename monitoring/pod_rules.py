"""Recording rules of single pods. They map the two dialects to one set of names. Pure."""

from __future__ import annotations

from dflash_controller.api import names
from dflash_controller.observe.sources.prometheus.reduction import of_its_pod
from monitoring.engine_queries import METRIC_SCHEMAS, level_of, rate_of
from monitoring.rule import POD, POD_INFO, Rule, any_of, listed, quotient, tagged

_LABELS = {"deployment": names.LABEL_DEPLOYMENT, "revision": names.LABEL_REVISION, "block_size": names.LABEL_BLOCK_SIZE}
_DRAFTS_AT = "vllm:spec_decode_num_accepted_tokens_per_pos_total"


def scraped_label(label: str) -> str:
    """Returns a pod's label as Prometheus writes it: characters that a label name may not contain become underscores."""
    return "".join(char if char.isalnum() else "_" for char in label)


DEPLOYMENT_LABEL = scraped_label(names.LABEL_DEPLOYMENT)


def rules() -> list[Rule]:
    """Returns the rules in order: later rules use earlier ones."""
    return [*_pods(), *_speculation(), *_load(), *_requests()]


def _rule(what: str, *exprs: str, also: tuple[str, ...] = ()) -> Rule:
    return Rule(f"dflash:pod_{what}", any_of(*exprs), (*POD, *also))


def _or_zero(engine: str = "") -> str:
    """Returns 0 for every pod (of one engine). A counter that appears with its first increment was 0 before."""
    return f'0 * {POD_INFO}{{engine="{engine}"}}' if engine else f"0 * {POD_INFO}"


def _info(engine: str) -> str:
    """Returns one series per pod, because an engine exports one per rank and sets its own label ``engine``.

    A worker of a replica over several nodes has metrics too. It is no replica, and its counts are those of its leader.
    """
    scraped = ("namespace", "pod", *(scraped_label(source) for source in _LABELS.values()))
    presence = f'{METRIC_SCHEMAS[engine].presence}{{{DEPLOYMENT_LABEL}!="",{scraped_label(names.LABEL_ROLE)}!="{names.ROLE_WORKER}"}}'
    expr = f"group by ({listed(scraped)}) ({of_its_pod(presence)})"
    for label, source in _LABELS.items():
        expr = f'label_replace({expr}, "{label}", "$1", "{scraped_label(source)}", "(.*)")'
    return f'group by ({listed(POD)}) (label_replace({expr}, "engine", "{engine}", "", ""))'


def _pods() -> list[Rule]:
    drafts = f"count by (namespace, pod) (group by (namespace, pod, position) ({of_its_pod(_DRAFTS_AT)})) + 1"
    return [
        Rule(POD_INFO, any_of(_info("vllm"), _info("sglang")), POD),
        _rule(
            "block_size",
            f'{POD_INFO}{{block_size="off"}}',
            tagged(drafts),
            tagged(f"{level_of('sglang', 'block')} > 0"),
        ),
    ]


def _speculation() -> list[Rule]:
    """Returns the rules for drafts and acceptance.

    vLLM counts drafts and accepted tokens every step. SGLang counts verify steps and generated tokens when a request ends. The tokens of a
    step are the accepted ones and one more, so accepted = generated - steps. The first token of a request compensates for its last step,
    which is cut.
    """
    verify, generated = rate_of("sglang", "verify_steps"), rate_of("sglang", "generated")
    position = tagged(f"{rate_of('vllm', 'accepted_at')} / on (namespace, pod) group_left () ({rate_of('vllm', 'drafts')} > 0)")
    return [
        _rule("steps:rate2m", tagged(rate_of("vllm", "drafts")), tagged(verify)),
        _rule("accepted_tokens:rate2m", tagged(rate_of("vllm", "accepted")), tagged(f"clamp_min({generated} - {verify}, 0)")),
        _rule(
            "drafted_tokens:rate2m",
            tagged(rate_of("vllm", "draft_tokens")),
            'dflash:pod_steps:rate2m{engine="sglang"} * (dflash:pod_block_size{engine="sglang"} - 1)',
        ),
        _rule("wasted_tokens:rate2m", "clamp_min(dflash:pod_drafted_tokens:rate2m - dflash:pod_accepted_tokens:rate2m, 0)"),
        _rule("acceptance_length", f"1 + {quotient('dflash:pod_accepted_tokens:rate2m', 'dflash:pod_steps:rate2m')}"),
        _rule("acceptance_ratio", quotient("dflash:pod_accepted_tokens:rate2m", "dflash:pod_drafted_tokens:rate2m")),
        _rule("acceptance_at_position", position, also=("position",)),
    ]


def _load() -> list[Rule]:
    return [
        _rule("generated_tokens:rate2m", *(tagged(rate_of(engine, "tokens")) for engine in METRIC_SCHEMAS), _or_zero()),
        _rule("prompt_tokens:rate2m", *(tagged(rate_of(engine, "prompt")) for engine in METRIC_SCHEMAS), _or_zero()),
        _rule("decode_seconds:rate2m", tagged(rate_of("vllm", "step_seconds")), tagged(_sglang_decode_seconds()), _or_zero("sglang")),
        _rule("decode_steps:rate2m", tagged(rate_of("vllm", "request_steps")), tagged(_sglang_decode_steps()), _or_zero("sglang")),
        _rule("step_seconds", quotient("dflash:pod_decode_seconds:rate2m", "dflash:pod_decode_steps:rate2m") + " > 0"),
        _rule("concurrency", *_concurrency(), _or_zero()),
        _rule(
            "requests_running",
            tagged(level_of("vllm", "waiting", "vllm:num_requests_running")),
            tagged(f"{level_of('sglang', 'waiting', 'sglang:num_running_reqs')} and on (namespace, pod) {rate_of('sglang', 'passes')} > 0"),
            _or_zero("sglang"),
        ),
        _rule(
            "requests_waiting",
            tagged(level_of("vllm", "waiting")),
            tagged(level_of("sglang", "waiting")),
        ),
        _rule("kv_cache_usage", tagged(level_of("vllm", "cache_use")), tagged(level_of("sglang", "cache_use"))),
        _rule("startup_seconds", tagged(_startup()), also=("stage",)),
    ]


def _sglang_decode_seconds() -> str:
    """Returns the decode seconds: the time of requests without queue and prefill.

    SGLang counts queue and prefill when a request enters. If far more requests enter than end, the difference is meaningless, so it is
    floored at 0.
    """
    e2e, queue, prefill = (rate_of("sglang", part) for part in ("e2e_seconds", "queue_seconds", "prefill_seconds"))
    return f"clamp_min({e2e} - {queue} - {prefill}, 0)"


def _sglang_decode_steps() -> str:
    """Returns the decode steps. Without speculation every token after a request's first is a step."""
    alone = f"{rate_of('sglang', 'generated')} - {rate_of('sglang', 'requests')}"
    return f"({rate_of('sglang', 'verify_steps')} or ({alone}))"


def _concurrency() -> tuple[str, ...]:
    """Returns the concurrency per engine, measured as the operator does it (``engines.*.metrics``).

    vLLM: the larger of mean batch and mean over time, because both are, if anything, too low. SGLang: tokens per pass ÷ tokens per step;
    the latter is taken from the last hour if no request ended recently.
    """
    batch, over_time = quotient(rate_of("vllm", "request_steps"), rate_of("vllm", "steps")), rate_of("vllm", "step_seconds")
    per_pass = tagged(quotient(rate_of("sglang", "tokens"), rate_of("sglang", "passes")))
    length = f'(last_over_time(dflash:pod_acceptance_length{{engine="sglang"}}[1h]) or {POD_INFO}{{engine="sglang",block_size="off"}})'
    return tagged(f"({batch} >= {over_time}) or {over_time}"), f"{per_pass} / {length}"


def _startup() -> str:
    stages = f'label_replace({of_its_pod("sglang:startup_time_seconds")}, "stage", "$1", "phase", "(.*)")'
    return f"max by (namespace, pod, stage) ({stages})"


def _requests() -> list[Rule]:
    """Returns the rules for requests and failed requests.

    A request has failed if it ended by an error or was answered with 5xx. vLLM answers an error with 5xx unless the answer has begun, so
    the larger count is used. Of the failed requests, vLLM's own count of requests includes only those that ended by an error, and SGLang's
    includes none.
    """
    ended, answered = rate_of("vllm", "errors"), rate_of("vllm", "error_answers")
    failed = "dflash:pod_failed_requests:rate2m"
    return [
        _rule(
            "failed_requests:rate2m",
            tagged(f"({ended} >= {answered}) or {answered} or {ended}"),
            tagged(rate_of("sglang", "error_answers")),
            _or_zero(),
        ),
        _rule(
            "requests:rate2m",
            f"{tagged(rate_of('vllm', 'requests'))} + {failed} - {tagged(ended)}",
            f"{tagged(rate_of('sglang', 'requests'))} + {failed}",
            failed,
        ),
    ]
