"""Speculation: does the drafter fit the traffic, and does speculating pay. Pure."""

from __future__ import annotations

from grafana_foundation_sdk.models import dashboard as models

from dflash_controller.analysis.primary import COLLAPSED
from dflash_controller.planning.revisions.drafter_health import RECOVERED
from monitoring.dashboards.build import BY, OF, Event, Rows, appeared, by_role, dashboard, of, runbook, stable, variables
from monitoring.dashboards.panels import Column, Query, heat, lines, one, rows, scatter

UID = "dflash-speculation"
REVISIONS = 'revision=~"$revision"'
NO_TUNER = "The tuner is off, or has measured too little traffic yet"
NO_POSITIONS = "SGLang does not tell acceptance by position; vLLM does"
LIMITS = [(None, "transparent"), (COLLAPSED, "red"), (RECOVERED, "orange")]
ACCEPTING = [(None, "red"), (COLLAPSED, "orange"), (RECOVERED, "green")]
"""A drafter that works is above the upper one, one below the lower has collapsed; see the runbook."""
MEASURED_SPEED = "dflash:revision_replica_speed"


def decisions() -> list[Event]:
    """What the tuner decided and what became of revisions, as marks on every panel."""
    return [
        Event("Tuner", appeared("dflash:tuner_state", "state, reason", 'state!="Frozen"'), "{{deployment}}: {{state}}, {{reason}}", "blue"),
        Event(
            "Revision",
            appeared("dflash:revision_info", "revision, role", 'role=~"stable|candidate|failed"'),
            "{{deployment}}: {{revision}} is {{role}}",
            "purple",
        ),
    ]


def speculation() -> models.Dashboard:
    """Acceptance, what it costs and what it brings, stable beside candidate."""
    return dashboard(
        UID,
        "DFlash / Speculation",
        "Acceptance length of stable and candidate, drafted, accepted and wasted tokens, speed by block size beside what the tuner"
        " predicts.",
        variables(several=False, revision=True),
        [_now(), _acceptance(), _tokens(), _speed()],
        guide="reference/dashboards.md#speculation",
        events=decisions(),
    )


def _now() -> Rows:
    worst = f"min({stable('dflash:revision_acceptance_length', REVISIONS)})"
    accepted, drafted = (f"sum({of(f'dflash:revision_{what}_tokens:rate2m', REVISIONS)})" for what in ("accepted", "drafted"))
    return Rows(
        "Now",
        [
            one(
                "Acceptance length",
                "Tokens per verify step of the revision in force over the last two minutes; the lowest of the chosen deployments."
                " 1: every draft is refused.",
                "none",
                worst,
                levels=ACCEPTING,
                span=5,
                decimals=2,
            ).links([runbook("speculation-collapsed")]),
            one(
                "Block size in force",
                "The largest, of what is in force; 1: speculation is off.",
                "none",
                f"max({of('dflash:deployment_block_size')})",
                span=5,
            ),
            one(
                "Drafts accepted",
                "Share of the drafted tokens that the target accepted.",
                "percentunit",
                f"{accepted} / ({drafted} > 0)",
                span=5,
            ),
            one(
                "Tokens per second of a replica",
                "While it is busy: requests in a step × tokens per step ÷ time of a step; mean over the chosen deployments.",
                "short",
                f"avg({stable(MEASURED_SPEED, REVISIONS)})",
                span=5,
            ),
            one(
                "Requests in a step",
                "Mean batch of a replica that is not idle, from counters.",
                "short",
                f"avg({stable('dflash:revision_concurrency', REVISIONS)})",
                span=4,
                decimals=1,
            ),
        ],
    )


def _acceptance() -> Rows:
    at = f"avg by (position) ({of('dflash:revision_acceptance_at_position', REVISIONS)})"
    padded = f'label_replace({at}, "position", "0$1", "position", "(.)")'
    concurrency, length = (of(f"dflash:revision_{what}", REVISIONS) for what in ("concurrency", "acceptance_length"))
    return Rows(
        "Acceptance",
        [
            lines(
                "Acceptance length: stable and candidate",
                "1 + accepted ÷ verify steps, from counters; no value while nobody sends requests. The candidate must not stay below the"
                " stable"
                " one. Below 1.3 (red line) the drafter has collapsed, above 1.6 it works.",
                "none",
                Query(by_role("dflash:revision_acceptance_length", "stable|candidate", REVISIONS), "{{deployment}} {{role}} {{revision}}"),
                levels=LIMITS,
                least=1,
            ).links([runbook("speculation-collapsed"), runbook("acceptance-dropped"), runbook("acceptance-drift")]),
            heat(
                "Acceptance by position",
                "Share of verify steps in which the draft at this position was accepted; position 0 is the first draft. Rows that stay"
                " red are"
                " drafted in vain: a smaller block would do. Mean over the chosen deployments. vLLM tells it, SGLang does not.",
                "percentunit",
                Query(padded, "{{position}}"),
                "Position of the draft",
                nothing=NO_POSITIONS,
            ),
            scatter(
                "Acceptance × concurrency",
                "One point per moment and revision: tokens per verify step against requests in a step. A flat cloud is normal: load"
                " changes what"
                " a step costs, not what is accepted. A cloud that falls to the right is traffic that changes with the load.",
                Column("Requests in a step", f"max by (revision) ({concurrency} > 0)"),
                Column("Acceptance length", f"max by (revision) ({length})"),
                "revision",
            ),
            lines(
                "Acceptance length of each pod",
                "One pod alone near 1 usually loaded other weights than its neighbours.",
                "none",
                Query(of("dflash:pod_acceptance_length", REVISIONS), "{{pod}}"),
                levels=LIMITS,
                least=1,
            ).links([runbook("speculation-collapsed")]),
        ],
    )


def _tokens() -> Rows:
    def tokens(what: str) -> Query:
        return Query(f"sum by ({BY}) ({of(f'dflash:revision_{what}_tokens:rate2m', REVISIONS)})", f"{what} {{{{deployment}}}}")

    wasted, drafted = (f"sum by ({BY}) ({of(f'dflash:revision_{what}_tokens:rate2m', REVISIONS)})" for what in ("wasted", "drafted"))
    return Rows(
        "Tokens",
        [
            lines(
                "Drafted tokens: accepted and wasted",
                "Per second. Both together are what was drafted, block size − 1 for each verify step. Wasted ones cost compute once"
                " batches are large.",
                "short",
                tokens("accepted"),
                tokens("wasted"),
                stacked=True,
            ),
            lines(
                "Wasted share of drafts",
                "Wasted ÷ drafted. It is high by nature at large blocks; what matters is whether speed by block still favours the block.",
                "percentunit",
                Query(f"{wasted} / ({drafted} > 0)", "{{deployment}}"),
                span=6,
            ),
            lines(
                "Drafted and generated",
                "Tokens per second: drafted by the drafter, and given to users.",
                "short",
                tokens("drafted"),
                tokens("generated"),
                span=6,
            ),
        ],
    )


def _speed() -> Rows:
    speed = of(MEASURED_SPEED, REVISIONS)
    predicted = of("dflash:tuner_predicted_tokens_per_second")
    return Rows(
        "Speed by block size",
        [
            lines(
                "Speed by block size: measured and predicted",
                "Tokens per second of one busy replica, by block size. Dashed: what the tuner predicts at the load it sees, block 1 is no"
                " speculation. The prediction for the block in force should lie near the measured line; the highest is what the tuner"
                " wants.",
                "short",
                Query(f"max by ({BY}, block_size) ({speed})", "{{deployment}} measured at {{block_size}}"),
                Query(predicted, "{{deployment}} predicted at {{block_size}}", dashed=True),
            ).links([runbook("speculation-slower-than-baseline")]),
            lines(
                "Time of a step",
                "Seconds of one verify step by block size; grows with block size × requests in a step.",
                "s",
                Query(f"max by ({BY}, block_size) ({of('dflash:revision_step_seconds', REVISIONS)})", "{{deployment}} at {{block_size}}"),
            ),
            lines(
                "Block size over time",
                "In force, and mean of what was really drafted: the two differ where vLLM follows the load by a schedule.",
                "none",
                Query(of("dflash:deployment_block_size"), "{{deployment}} in force"),
                Query(by_role("dflash:revision_block_size_used", "stable", REVISIONS), "{{deployment}} used", dashed=True),
            ),
            rows(
                "Revisions",
                "The chosen revisions that serve, with what they accept and how fast they are.",
                ["deployment", "revision"],
                [
                    Column(
                        "Role", f"group by (deployment, revision, role) ({by_role('dflash:revision_pods', '.+', REVISIONS)})", label="role"
                    ),
                    Column(
                        "Block size",
                        f"group by (deployment, revision, block_size) (dflash:revision_pods{{{OF}, {REVISIONS}}})",
                        label="block_size",
                    ),
                    Column(
                        "Acceptance length",
                        f"max by (deployment, revision) ({of('dflash:revision_acceptance_length', REVISIONS)})",
                        decimals=2,
                    ),
                    Column("Tokens/s of a replica", f"max by (deployment, revision) ({speed})", decimals=0),
                    Column(
                        "Requests in a step", f"max by (deployment, revision) ({of('dflash:revision_concurrency', REVISIONS)})", decimals=1
                    ),
                ],
                span=12,
            ),
        ],
    )
