"""Moments: an answer must not contradict the clock, nor the look before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from watchkeeper.drill.consistency.invariants import subjects
from watchkeeper.drill.consistency.invariants.table import Contradiction, invariant, over_time, require
from watchkeeper.drill.consistency.looks import Look

# Keys of times that may be ahead.
AHEAD = ("until", "ends_at", "retry_at", "approved_until", "starts_at")
PAST_PAGES = (
    "/api/incidents",
    "/api/jobs",
    "/api/nodes",
    "/api/history",
    "/api/repairs",
    "/api/journal",
    "/api/drills",
)
FAILURES = ("hub_loop_failures_total", "rules_missed_evaluations_total")
LEARNING_HOURS = 48


@invariant
def future_times(look: Look) -> Iterator[Contradiction]:
    """No page shows a time in the future for something that has happened."""
    now = f"{look.at:%Y-%m-%dT%H:%M:%S}"
    for name, answer in look.answers.items():
        for key, text in times(answer) if name.startswith(PAST_PAGES) else ():
            yield from require(key in AHEAD or text[:19] <= now, name, key=key, time=text, now=now)


def times(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """All times in an answer with their keys."""
    if isinstance(value, dict):
        for inner_key, inner in value.items():
            yield from times(inner, inner_key)
    elif isinstance(value, list):
        for inner in value:
            yield from times(inner, key)
    elif isinstance(value, str) and len(value) == 27 and value[10] == "T" and value[-1] == "Z":
        yield key, value


@invariant
def every_answer(look: Look) -> Iterator[Contradiction]:
    """Every endpoint and command answers, without an internal error."""
    for name, answer in look.answers.items():
        status = answer.get("status") if isinstance(answer, dict) else None
        is_right = not isinstance(status, int) or 0 < status < 500
        code = answer.get("code") if isinstance(answer, dict) and name.startswith("watchkeeper") else None
        yield from require(is_right and code in (None, 0, 1), name, status=status, code=code, answer=str(answer)[:300])


@invariant
def working_hub(look: Look) -> Iterator[Contradiction]:
    """No loop and no rule of the hub fails, no evaluation is missed, and the audit log is intact."""
    for name in FAILURES:
        count = sum(look.get("/metrics", f"watchkeeper_{name}", default={}).values())
        yield from require(not count, name, count=count, degraded=look.get("/api/status", "degraded"))
    for rule in look.rows("/api/rules", "rules"):
        yield from require(rule["health"] != "err", f"rule {rule['name']}", problem=rule["problem"])
    is_intact = look.get("/api/journal/verify", "is_intact", default=True)
    yield from require(is_intact, "audit log", is_intact=is_intact)


@invariant
def flapping_alerts(look: Look) -> Iterator[Contradiction]:
    """No alert begins again more than once in ten minutes."""
    for series in look.rows("query: flaps", "data", "result"):
        yield Contradiction(str(series["metric"]), {"begun again in 10 min": series["value"][1]})


@invariant
def early_forecasts(look: Look) -> Iterator[Contradiction]:
    """With less than two days of history, the forecast of capacity and its advice are unknown."""
    hours = look.get("/api/cost", "recorded_hours", default=LEARNING_HOURS)
    shown = {
        "/api/capacity/forecast": look.get("/api/capacity/forecast", "forecast"),
        "/api/capacity/advice": look.get("/api/capacity/advice", "sentence"),
    }
    for name, forecast in shown.items():
        yield from require(hours >= LEARNING_HOURS or not forecast, name, hours=round(hours, 2), forecast=forecast)


@over_time
def same_incident(before: Look, now: Look) -> Iterator[Contradiction]:
    """An incident keeps its id, place and opening time, and ends only when its signals have."""
    cards = {card["id"]: card for card in subjects.all_cards(now)}
    for card in subjects.all_cards(before):
        later = cards.get(card["id"], {})
        is_same = all(later.get(key) == card[key] for key in ("place", "opened_at"))
        has_ended = later.get("state") == "resolved" and later.get("part_of") is None and card["state"] != "resolved"
        is_right = is_same and not (has_ended and subjects.lasting(now, card))
        yield from require(is_right, card["id"], before=card["opened_at"], now=later.get("opened_at"), ended=has_ended)


@over_time
def returns_under_its_id(before: Look, now: Look) -> Iterator[Contradiction]:
    """An alert of a resolved incident that fires again soon after reopens this incident, and opens no other."""
    ended = [card for card in subjects.all_cards(before) if card["state"] == "resolved"]
    owners = {member["ref"]: card["id"] for card in ended for member in subjects.members(before, card)}
    earlier = {card["id"] for card in subjects.all_cards(before)}
    is_soon = (now.at - before.at).total_seconds() < 300
    for card in subjects.cards(now):
        for member in subjects.members(now, card) if is_soon and card["id"] not in earlier else ():
            owner = owners.get(member["ref"]) if member["kind"] == "alert" else None
            yield from require(owner is None, card["id"], signal=member["ref"], resolved=owner)


@over_time
def growing_counters(before: Look, now: Look) -> Iterator[Contradiction]:
    """A counter of the hub falls only at a restart."""
    later = now.get("/metrics", default={}) if before.restarts == now.restarts else {}
    for name, series in before.get("/metrics", default={}).items():
        for labels, value in series.items() if name.endswith("_total") else ():
            current = later.get(name, {}).get(labels, value)
            yield from require(current >= value, f"{name}{labels}", before=value, now=current)


@over_time
def growing_totals(before: Look, now: Look) -> Iterator[Contradiction]:
    """GPU-hours, money and the audit log only grow, while no record is older than their window."""
    is_short = now.get("/api/cost", "recorded_hours", default=24) < 24
    for path, *keys in (("/api/usage", "total", "total"), ("/api/cost", "money"), ("/api/journal", "last")):
        earlier, later = before.get(path, *keys, default=0), now.get(path, *keys)
        is_right = later is None or not is_short or later >= earlier - 1e-6
        yield from require(is_right, path, before=earlier, now=later)
