"""Money: one price book, and no incident that costs more than the GPUs that it affects."""

from __future__ import annotations

from collections.abc import Iterator

from watchkeeper.drill.consistency.invariants import subjects
from watchkeeper.drill.consistency.invariants.table import Contradiction, invariant, require
from watchkeeper.drill.consistency.looks import Look

ROUNDING = 0.02


@invariant
def cost_of_open_incidents(look: Look) -> Iterator[Contradiction]:
    """All open incidents together cost at most what the GPUs that they affect cost, each GPU counted once."""
    gpus, dollars, price = dict[str, int](), 0.0, 0.0
    for card in subjects.cards(look):
        blast = subjects.blast(look, card)
        if blast.get("dollars_per_hour"):
            dollars += blast["dollars_per_hour"]
            price = max(price, blast["dollars_per_hour"] / max(1, blast["gpus"]))
            parts = {hit["workload"]: hit["gpus"] or 0 for hit in blast["hits"]} or {card["place_name"]: blast["gpus"]}
            gpus |= {name: max(gpus.get(name, 0), count) for name, count in parts.items()}
    limit = min(sum(gpus.values()), len(subjects.slots(look))) * price * (1 + ROUNDING)
    yield from require(dollars <= limit, "open incidents", per_hour=round(dollars, 2), limit=round(limit, 2))


@invariant
def price_of_an_incident(look: Look) -> Iterator[Contradiction]:
    """The price of a GPU-hour in the status and of an incident is within those of the price book."""
    prices = subjects.prices(look)
    shown = {"/api/status": look.get("/api/status", "dollars_per_gpu_hour")}
    for card in subjects.all_cards(look):
        blast = subjects.blast(look, card)
        shown[card["id"]] = (blast.get("dollars_per_hour") or 0) / blast["gpus"] if blast.get("gpus") else None
    for where, price in shown.items():
        if price and prices:
            is_right = prices[0] * (1 - ROUNDING) <= price <= prices[1] * (1 + ROUNDING)
            yield from require(is_right, where, per_gpu_hour=price, price_book=prices)


@invariant
def price_of_a_job(look: Look) -> Iterator[Contradiction]:
    """The cost of a job is its GPU-hours at a price of the price book."""
    prices = subjects.prices(look)
    for job in subjects.jobs(look):
        hours, cost = job["gpu_hours"], (job["cost"] or {}).get("amount")
        if prices and hours and cost is not None:
            is_right = prices[0] * (hours - 0.02) <= cost <= prices[1] * (hours + 0.02)
            yield from require(is_right, job["id"], cost=cost, gpu_hours=hours, price_book=prices)


@invariant
def possible_gpu_hours(look: Look) -> Iterator[Contradiction]:
    """No GPU-hours are negative, and no more pass than the fleet has GPUs."""
    total, hours = look.get("/api/usage", "total", default={}), look.get("/api/cost", "recorded_hours")
    for key, value in total.items():
        yield from require(value >= -1e-6, f"usage {key}", value=value)
    # The first minute of a record may be a part of one.
    limit = None if hours is None else (hours + 1 / 60) * len(subjects.slots(look))
    is_right = limit is None or not total or total["total"] <= limit
    yield from require(is_right, "usage total", value=total.get("total"), gpus_times_hours=limit)
