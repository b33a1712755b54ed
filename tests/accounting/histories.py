"""A small fleet whose history is known minute by minute, told to the shipped rules, and counted by hand beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path

from watchkeeper.accounting import ledger, usage, usage_reader
from watchkeeper.kit import clock
from watchkeeper.model.labels import METRIC_NAME, Labels
from watchkeeper.query import embedded
from watchkeeper.rules import evaluate, rulefile
from watchkeeper.scrape import status_series
from watchkeeper.store.head import head

RULES = Path(rulefile.__file__).parents[1] / "packs" / "rules" / "usage-hours.yaml"
START = datetime(2026, 11, 14, 22, 0, tzinfo=UTC)
EXPECTED = 4


@dataclass(frozen=True, slots=True)
class Minute:
    """What each of the node's GPUs does in one minute: its holder (or None) and its activity (None: not measured)."""

    gpus: tuple[tuple[str | None, float | None], ...]
    is_watched: bool = True


def empty_engine() -> embedded.EmbeddedEngine:
    return embedded.EmbeddedEngine(head.Head(retention_ms=400 * 86_400_000))


def minute_of(samples: Mapping[Labels, float]) -> embedded.EmbeddedEngine:
    """An engine that has seen some series once and has run the rules of one minute over them."""
    engine = empty_engine()
    engine.appender.append(status_series.StatusSeries().samples(dict(samples), clock.to_ms(START)))
    group = next(group for group in rulefile.load_rules([RULES]).groups if group.name == "usage-minutes")
    for result in evaluate.evaluate_each(group, engine, {}, now=START):
        engine.appender.append(result.samples)
    return engine


def engine_of_history(
    history: list[Minute], *, late_seconds: float = 0.2, cut: Mapping[tuple[int, str], int] | None = None
) -> embedded.EmbeddedEngine:
    """An engine that has seen the history and has run the shipped rules at each minute of it that was watched.

    `cut` has the minutes in which the hub was killed after so many rules of a group.
    """
    engine = empty_engine()
    groups = {group.name: group for group in rulefile.load_rules([RULES]).groups}
    state: evaluate.RuleStates = {}
    scraped = status_series.StatusSeries()
    for at, minute in enumerate(history):
        now = START + timedelta(minutes=at)
        if not minute.is_watched:
            continue
        engine.appender.append(scraped.samples(series(minute), clock.to_ms(now)))
        names = ["usage-minutes", *(["usage-hours"] if at and at % 60 == 0 else [])]
        for name in names:
            rules = (cut or {}).get((at, name))
            each = evaluate.evaluate_each(groups[name], engine, state, now=now + timedelta(seconds=late_seconds))
            for result in islice(each, rules):
                state = {**state, result.key: result.state}
                engine.appender.append(result.samples)
            if rules is not None:
                state = {}
    return engine


def series(minute: Minute) -> dict[Labels, float]:
    node = {"cluster": "sim", "Hostname": "n1"}
    made = [
        (Labels({METRIC_NAME: "watchkeeper_node_info", **node, "pool": "h200"}), 1.0),
        (Labels({METRIC_NAME: "watchkeeper_node_expected_gpus", **node}), float(EXPECTED)),
    ]
    for index, (holder, active) in enumerate(minute.gpus):
        gpu = {**node, "UUID": f"GPU-{index}", "gpu": str(index)}
        made.append((Labels({METRIC_NAME: "DCGM_FI_DEV_GPU_TEMP", **gpu, "modelName": "NVIDIA H200"}), 40.0))
        if active is not None:
            made.append((Labels({METRIC_NAME: "DCGM_FI_PROF_SM_ACTIVE", **gpu}), active))
        if holder is not None:
            owner = {"workload_kind": "pod", "workload": holder, "namespace": holder[0], "team": holder[0]}
            made.append((Labels({METRIC_NAME: "watchkeeper_gpu_workload_info", **gpu, **owner}), 1.0))
    return dict(made)


def read_usage(
    engine: embedded.EmbeddedEngine,
    usage_ledger: ledger.UsageLedger | None,
    *,
    since: float,
    until: float,
    by_job: bool,
) -> usage.UsageTable:
    return usage_reader.read_usage_periods(engine, usage_ledger, [(since, until)], by_job=by_job)[0]
