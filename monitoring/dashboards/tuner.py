"""Tuner: what it recommends, why, and whether its predictions were right. Pure."""

from __future__ import annotations

from grafana_foundation_sdk.models import dashboard as models

from dflash_controller.tuner.recommend import LEAST_CONFIDENCE
from monitoring.dashboards import samples
from monitoring.dashboards.build import BY, KEYS, NAME, REVISION_KEYS, Rows, dashboard, deployments, of, of_stable, runbook, variables
from monitoring.dashboards.panels import Column, Query, bars, lines, one, rows, states
from monitoring.dashboards.phases import TUNER_COLORS, TUNER_STATES, tuner_codes
from monitoring.dashboards.speculation import NO_TUNER, decisions
from monitoring.engine_queries import RATE_WINDOW

UID = "dflash-tuner"
SHORT_LIVED = (
    "The value that decided a change may be missing: the rollout begins with that evaluation and freezes the tuner, often before the next"
    " scrape. The Event and status.tuning have it."
)
MOST_MOVED = 1.25
"""A load is steady if the largest prediction within two minutes is at most this multiple of the smallest."""
LATEST = "$__range"
"""Time range in which the latest number of the tuner is searched: it exports none while a rollout freezes it."""


def tuner() -> models.Dashboard:
    """Returns the dashboard: state, recommended and active block size, inputs, switching cost, predicted and measured speed."""
    return dashboard(
        UID,
        "DFlash / Tuner",
        "Which block size the tuner recommends and why, what a change would cost, and how accurate its predictions were.",
        variables(several=False),
        [_now(), _choice(), _inputs(), _record()],
        guide="how-to/explain-a-tuner-decision.md",
        events=decisions(),
    )


def latest(metric: str, **labels: str) -> str:
    return f"last_over_time({of(metric, **labels)}[{LATEST}])"


def number(name: str) -> str:
    """Returns the query for one of the numbers of the newest decision."""
    return latest("dflash:tuner_input", name=name)


def steady() -> str:
    """Returns the predictions that moved little in the last minutes.

    While the load jumps, the speeds of the tuner's window and the load of the prediction are some samples apart, and their quotient says
    nothing about the model.
    """
    predicted = of("dflash:tuner_predicted_tokens_per_second")
    return f"(max_over_time({predicted}[{RATE_WINDOW}]) <= {MOST_MOVED} * min_over_time({predicted}[{RATE_WINDOW}]))"


def _now() -> Rows:
    columns = [
        Column("State", of("dflash:tuner_state"), label="state", colors=TUNER_COLORS),
        Column("Reason", of("dflash:tuner_state"), label="reason"),
        Column("Active", of("dflash:deployment_block_size"), "none", decimals=0),
        Column("Recommended", latest("dflash:tuner_recommended_block_size"), "none", decimals=0),
        Column("Gain", number("gainPercent"), "percent", decimals=1),
        Column("Confidence", number("confidence"), "percentunit", decimals=0),
        Column("Requests in a step", number("concurrency"), "none", decimals=1),
        Column("Acceptance length", number("acceptance"), "none", decimals=2),
    ]
    held = of("dflash:tuner_state", state="Held")
    return Rows(
        "Now",
        [
            rows(
                "Decisions",
                "State of the tuner now, and the numbers of its newest decision; empty if it was off, learning or frozen for the whole"
                " selected range. Gain and confidence are 0 if the active block size is the best one, so after a change they are those of"
                f" the new size, not of the decision to change. {SHORT_LIVED}",
                KEYS,
                columns,
                span=20,
                height=8,
            ),
            one(
                "Tuners held",
                "Deployments whose tuner cannot decide, because metrics or replicas are missing or its predictions were wrong.",
                "short",
                deployments(held),
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
                "State of the tuner over time. Learning: there is too little traffic in the window. Frozen: a rollout, a pin or a pause"
                " prevents changes. Held: metrics or replicas are missing, or its predictions were wrong.",
                Query(tuner_codes(), NAME),
                TUNER_STATES,
                TUNER_COLORS,
                span=12,
            ),
            lines(
                "Block size: recommended and active",
                "If the two differ for long, the gain is too small, the day's changes are used up, or the mode is Advise; the"
                " decision's reason says which.",
                "none",
                Query(of("dflash:deployment_block_size"), f"active {NAME}"),
                Query(of("dflash:tuner_recommended_block_size"), f"recommended {NAME}", dashed=True),
            ),
            bars(
                "Predicted speed by block size",
                "Tokens per second of one replica at the load of the newest decision; block size 1 is speculation off.",
                "short",
                Query(latest("dflash:tuner_predicted_tokens_per_second"), f"{NAME} at {{{{block_size}}}}"),
                nothing=NO_TUNER,
            ),
            lines(
                "Predicted speed over time",
                "The same over time: where lines cross, the load makes another block size the faster one.",
                "short",
                Query(of("dflash:tuner_predicted_tokens_per_second"), f"{NAME} at {{{{block_size}}}}"),
                nothing=NO_TUNER,
            ),
        ],
    )


def _inputs() -> Rows:
    def numbers(pattern: str) -> Query:
        return Query(of("dflash:tuner_input", name=pattern), f"{NAME} {{{{name}}}}")

    return Rows(
        "Inputs of the decision",
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
                "Tokens per verify step at the active block size, as fitted. After a change to a smaller block size it is lower, and that"
                " is no worse drafter.",
                "none",
                numbers("acceptance"),
                span=8,
                least=1,
                nothing=NO_TUNER,
            ),
            lines(
                "Predicted gain",
                f"Gain of the recommended block size over the active one; 0 if the active one is the best. {SHORT_LIVED}",
                "percent",
                numbers("gainPercent"),
                span=8,
                least=None,
                nothing=NO_TUNER,
            ),
            lines(
                "Cost of switching and of not switching",
                "In seconds of the whole fleet at full speed. A change costs costSeconds. regretSeconds is what running a slower block size"
                f" than the best one has cost so far; a change is due when it reaches neededSeconds. {SHORT_LIVED}",
                "s",
                numbers("costSeconds|regretSeconds|neededSeconds"),
                nothing=NO_TUNER,
            ),
            lines(
                "Confidence in the gain",
                f"Probability that the recommended block size is faster. Below {100 * LEAST_CONFIDENCE:.0f} % there is no change."
                f" {SHORT_LIVED}",
                "percentunit",
                numbers("confidence"),
                span=12,
                levels=[(None, "transparent"), (LEAST_CONFIDENCE, "green")],
                nothing=NO_TUNER,
            ),
        ],
    )


def _record() -> Rows:
    drafted = f"(1 + {samples.ratio('drafted_tokens', 'steps', REVISION_KEYS, least=samples.STEPS)})"
    used = f"round({of_stable(drafted)} or {of('dflash:deployment_block_size')})"
    at_block = f'count_values by ({BY}) ("block_size", {used})'
    # The operator exports both for the same window and load.
    measured, predicted = (
        f"max by ({BY}, block_size) ({of(f'dflash:tuner_{what}_tokens_per_second')})" for what in ("measured", "predicted")
    )
    accuracy = f"max by ({BY}) ({measured} / ({predicted} > 0) and on ({BY}, block_size) {at_block} and on ({BY}, block_size) {steady()})"
    changed = f"changes({of('dflash:deployment_block_size')}[1h])"
    return Rows(
        "Accuracy of the predictions",
        [
            lines(
                "Measured against predicted speed",
                "Speed of a busy replica ÷ the tuner's prediction for the block size in use, both over the tuner's window. At 100 % the"
                " model is exact, above it is faster than predicted; after a change it shows whether the predicted gain was reached. No"
                " value while the load changes fast or a schedule mixes sizes.",
                "percentunit",
                Query(accuracy, NAME),
                span=8,
                levels=[(None, "transparent"), (1.0, "green")],
                nothing=NO_TUNER,
            ),
            lines(
                "Error of the model",
                "Difference of measured from predicted step times after the last change; 0 before the first. Below 0 (the line) steps are"
                " faster than predicted, above it slower. An error is large if the uncertainty of prediction and measurement does not"
                " explain it, which no fixed percentage says. After two large errors in a day, of either sign, *State* is Held.",
                "percent",
                Query(of("dflash:tuner_input", name="modelErrorPercent"), NAME),
                span=8,
                levels=[(None, "transparent"), (0.0, "green")],
                least=None,
                nothing=NO_TUNER,
            ),
            lines(
                "Changes of the block size",
                "Number in the preceding hour. Several an hour are flapping.",
                "short",
                Query(changed, NAME),
                span=8,
            ).links([runbook("tuner-flapping")]),
        ],
    )
