"""Recording rules for what the operator exports about each deployment. Pure.

The operator's series have the namespace of the deployment. A scrape that sets ``namespace`` to that of the operator's pod renames this
label to ``exported_namespace``; these rules restore its name. Only the leader exports the series, but during a handover two replicas may.
"""

from __future__ import annotations

from monitoring.rule import DEPLOYMENT, REVISION_INFO, Rule, listed

NORMALISED = {
    REVISION_INFO: (*DEPLOYMENT, "revision", "role"),
    "dflash:rollout_phase": (*DEPLOYMENT, "phase"),
    "dflash:rollout_info": (*DEPLOYMENT, "revision", "origin"),
    "dflash:rollout_verdict": (*DEPLOYMENT, "metric", "verdict"),
    "dflash:rollout_metric": (*DEPLOYMENT, "metric", "side"),
    "dflash:tuner_state": (*DEPLOYMENT, "state", "reason"),
    "dflash:tuner_recommended_block_size": DEPLOYMENT,
    "dflash:tuner_predicted_tokens_per_second": (*DEPLOYMENT, "block_size"),
    "dflash:tuner_measured_tokens_per_second": (*DEPLOYMENT, "block_size"),
    "dflash:tuner_crossover_concurrency": DEPLOYMENT,
    "dflash:tuner_input": (*DEPLOYMENT, "name"),
    "dflash:condition_since_timestamp_seconds": (*DEPLOYMENT, "type", "status", "reason"),
    "dflash:notice": (*DEPLOYMENT, "reason"),
    "dflash:replicas_desired": DEPLOYMENT,
    "dflash:replicas_serving": DEPLOYMENT,
    "dflash:max_concurrency": (*DEPLOYMENT, "limit"),
    "dflash:startup_budget_seconds": DEPLOYMENT,
    "dflash:startup_seconds": DEPLOYMENT,
}


def rules() -> list[Rule]:
    since = "dflash:condition_since_timestamp_seconds"
    taken = [Rule(record, _normalised(record.replace("dflash:", "dflash_"), keys), keys) for record, keys in NORMALISED.items()]
    return [*taken, Rule("dflash:condition_seconds", f"time() - {since}", NORMALISED[since])]


def _normalised(metric: str, keys: tuple[str, ...]) -> str:
    return f'max by ({listed(keys)}) (label_replace({metric}, "namespace", "$1", "exported_namespace", "(.+)"))'
