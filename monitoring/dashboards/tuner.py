"""Tuner: what it wants, why, and whether it was right. Pure."""

from __future__ import annotations

from grafana_foundation_sdk.models import dashboard as models

from dflash_controller.tuner.policy import LEAST_CONFIDENCE
from monitoring.dashboards.build import BY, Rows, by_role, dashboard, of, runbook, variables
from monitoring.dashboards.panels import Column, Query, bars, lines, one, rows, states
from monitoring.dashboards.phases import TUNER_COLORS, TUNER_STATES, tuner_codes
from monitoring.dashboards.speculation import MEASURED_SPEED, NO_TUNER, decisions

UID = "dflash-tuner"
LATEST = "$__range"
"""How far back a figure of the tuner is taken from: it gives none while it is frozen by a rollout."""


def tuner() -> models.Dashboard:
    """State, recommendation beside what is in force, inputs, price of a change, prediction beside what came of it."""
    return dashboard(
        UID,
        "DFlash / Tuner",
        "Which block size the tuner wants and why, what a change would cost, and how good its predictions were.",
        variables(several=False),
        [_now(), _choice(), _inputs(), _record()],
        guide="how-to/explain-a-tuner-decision.md",
        events=decisions(),
    )


def latest(metric: str, **labels: str) -> str:
    return f"last_over_time({of(metric, **labels)}[{LATEST}])"


def number(name: str) -> str:
    """One of the numbers that the newest decision rests on."""
    return f"max by ({BY}) ({latest('dflash:tuner_input', name=name)})"


def _now() -> Rows:
    columns = [
        Column("State", f"group by ({BY}, state) ({of('dflash:tuner_state')})", label="state"),
        Column("Reason", f"group by ({BY}, reason) ({of('dflash:tuner_state')})", label="reason"),
        Column("In force", of("dflash:deployment_block_size"), "none", decimals=0),
        Column("Wanted", f"max by ({BY}) ({latest('dflash:tuner_recommended_block_size')})", "none", decimals=0),
        Column("Gain", number("gainPercent"), "percent", decimals=1),
        Column("Chance of a gain", number("confidence"), "percentunit", decimals=0),
        Column("Requests in a step", number("concurrency"), "none", decimals=1),
        Column("Acceptance length", number("acceptance"), "none", decimals=2),
    ]
    held = of("dflash:tuner_state", state="Held")
    return Rows(
        "Now",
        [
            rows(
                "Decisions",
                "What the tuner says now, and the numbers of its newest judgement: none while it is off, learning or frozen for longer"
                " than the"
                " range shown.",
                ["namespace", "deployment"],
                columns,
                span=20,
                height=8,
            ),
            one(
                "Held",
                "Deployments whose tuner would act or advise and cannot: metrics are missing, replicas are missing, or its predictions"
                " were wrong.",
                "short",
                f"count({held}) or vector(0)",
                levels=[(None, "green"), (1.0, "orange")],
            ).links([runbook("tuner-held")]),
        ],
    )


def _choice() -> Rows:
    return Rows(
        "Choice",
        [
            states(
                "State",
                "What the tuner does over time. Frozen: a rollout, a pin or a pause stands against any change.",
                Query(tuner_codes(), "{{deployment}}"),
                TUNER_STATES,
                TUNER_COLORS,
                span=12,
            ),
            lines(
                "Block size: wanted and in force",
                "Where the two differ for long, the gain is too small, the day's changes are used up, or the mode is Advise; the"
                " decision says which.",
                "none",
                Query(of("dflash:deployment_block_size"), "{{deployment}} in force"),
                Query(of("dflash:tuner_recommended_block_size"), "{{deployment}} wanted", dashed=True),
            ),
            bars(
                "Predicted speed by block size",
                "Tokens per second of one replica at the load of the newest judgement; block 1 is no speculation.",
                "short",
                Query(latest("dflash:tuner_predicted_tokens_per_second"), "{{deployment}} at {{block_size}}"),
                nothing=NO_TUNER,
            ),
            lines(
                "Predicted speed over time",
                "The same over time: the lines cross where the load makes another block the better one.",
                "short",
                Query(of("dflash:tuner_predicted_tokens_per_second"), "{{deployment}} at {{block_size}}"),
                nothing=NO_TUNER,
            ),
        ],
    )


def _inputs() -> Rows:
    def numbers(pattern: str) -> Query:
        return Query(of("dflash:tuner_input", name=pattern), "{{deployment}} {{name}}")

    return Rows(
        "What it rests on",
        [
            lines(
                "Load",
                "Requests in a step of one replica, mean over the tuner's window.",
                "none",
                numbers("concurrency"),
                span=8,
                nothing=NO_TUNER,
            ),
            lines(
                "Acceptance",
                "Tokens per verify step at the block in force, as fitted.",
                "none",
                numbers("acceptance"),
                span=8,
                least=1,
                nothing=NO_TUNER,
            ),
            lines(
                "Gain of the wanted block",
                "Predicted, against what is in force; 0 where that is the best.",
                "percent",
                numbers("gainPercent"),
                span=8,
                least=None,
                nothing=NO_TUNER,
            ),
            lines(
                "Price of a change",
                "Seconds of one replica's work. A restart costs costSeconds; not changing has cost regretSeconds so far; a change is due"
                " when the debt"
                " reaches neededSeconds.",
                "s",
                numbers("costSeconds|regretSeconds|neededSeconds"),
                nothing=NO_TUNER,
            ),
            lines(
                "Chance that the wanted block is faster",
                f"Below {LEAST_CONFIDENCE:.0%} nothing is changed.",
                "percentunit",
                numbers("confidence"),
                span=12,
                levels=[(None, "transparent"), (LEAST_CONFIDENCE, "green")],
                nothing=NO_TUNER,
            ),
        ],
    )


def _record() -> Rows:
    used = f"round(max by ({BY}) ({by_role('dflash:revision_block_size_used', 'stable')} or {of('dflash:deployment_block_size')}))"
    at_block = f'count_values by ({BY}) ("block_size", {used})'
    predicted = f"max by ({BY}) ({of('dflash:tuner_predicted_tokens_per_second')} and on ({BY}, block_size) {at_block})"
    measured = f"max by ({BY}) ({by_role(MEASURED_SPEED, 'stable')})"
    changed = f"changes({of('dflash:deployment_block_size')}[1h])"
    return Rows(
        "Was it right",
        [
            lines(
                "Measured against predicted speed",
                "Speed of a busy replica ÷ what the tuner predicts for the block in use at the load it sees. 1 is a perfect model; after"
                " a change it"
                " shows whether the promise was kept. No value while a schedule mixes blocks.",
                "percentunit",
                Query(f"{measured} / ({predicted} > 0)", "{{deployment}}"),
                span=8,
                levels=[(None, "transparent"), (1.0, "green")],
                nothing=NO_TUNER,
            ),
            lines(
                "Error of the model",
                "How far measured step times lay from predicted ones after the last change; 0 before the first. Two large misses in a"
                " day and the tuner holds.",
                "percent",
                Query(of("dflash:tuner_input", name="modelErrorPercent"), "{{deployment}}"),
                span=8,
                least=None,
                nothing=NO_TUNER,
            ),
            lines(
                "Changes of the block size",
                "Within the hour before each moment. Several an hour are flapping.",
                "short",
                Query(changed, "{{deployment}}"),
                span=8,
            ).links([runbook("tuner-flapping")]),
        ],
    )
