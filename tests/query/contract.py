"""What the contract suite asks of every engine: a small fleet's samples, and expressions over them.

Debian's Prometheus 2.42 includes the left edge of a range and Prometheus 3 does not, so samples lie 7.3 s behind
the quarters of a minute and questions are asked at half minutes: nothing ever lies on an edge.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import yaml

from tests.query import dashboards
from tests.support.paths import ROOT
from watchkeeper.model.labels import Labels
from watchkeeper.model.samples import STALE, Sample
from watchkeeper.query import engine
from watchkeeper.query.evaluate.notes import COUNTER_ENDINGS

RULES = ROOT / "watchkeeper" / "packs" / "rules"
BEGIN_MS = 1_705_276_800_000  # 2024-01-15 00:00:00 UTC
SAMPLES = 80
STEP_MS = 15_000
SPAN = engine.QueryRange(BEGIN_MS + 330_000, BEGIN_MS + 1_170_000, 60_000)
AT_MS = BEGIN_MS + 1_110_000
BUCKETS = ("0.1", "0.5", "1", "5", "+Inf")

EXPRESSIONS = (
    "temp",
    'temp{gpu=~"[02]", Hostname!="n2"}',
    'temp{Hostname!~"n[12]"}',
    'temp{rack=""}',
    "temp > 70",
    "temp > bool 70",
    "temp >= 60 < 80",
    "70 < temp",
    "temp == temp",
    "temp != 65",
    "-temp",
    "temp % 7",
    "temp ^ 2 / 1000",
    "temp atan2 3",
    "temp offset 3m",
    "temp offset -1m",
    f"temp @ {BEGIN_MS // 1000 + 630}",
    "sum(temp)",
    "sum by (Hostname) (temp)",
    "avg without (gpu) (temp)",
    "min by (Hostname) (temp)",
    "max by (gpu) (temp)",
    "count(temp > 60)",
    "count by (Hostname, rack) (node)",
    "group by (Hostname) (temp)",
    "stddev(temp)",
    "stdvar by (Hostname) (temp)",
    "quantile(0.9, temp)",
    "quantile by (Hostname) (0.25, temp)",
    "topk(3, temp)",
    "bottomk by (Hostname) (1, temp)",
    'count_values("celsius", round(temp, 20))',
    "rate(energy[5m])",
    "increase(energy[5m])",
    "sum by (Hostname) (rate(energy[3m]))",
    "irate(energy[3m])",
    "delta(temp[5m])",
    "idelta(temp[5m])",
    "deriv(temp[5m])",
    "predict_linear(temp[5m], 600)",
    "changes(xid[10m])",
    "resets(energy[10m])",
    "avg_over_time(temp[5m])",
    "min_over_time(temp[5m])",
    "max_over_time(temp[5m])",
    "sum_over_time(temp[5m])",
    "count_over_time(temp[5m])",
    "last_over_time(temp[2m])",
    "present_over_time(temp[2m])",
    "stddev_over_time(temp[5m])",
    "stdvar_over_time(temp[5m])",
    "quantile_over_time(0.75, temp[5m])",
    "max_over_time(sum by (Hostname) (temp)[5m:1m])",
    "avg_over_time(rate(energy[2m])[6m:1m])",
    "abs(temp - 65)",
    "ceil(temp / 7) + floor(temp / 7)",
    "round(temp, 5)",
    "clamp(temp, 60, 70)",
    "clamp_min(temp, 60) - clamp_max(temp, 70)",
    "exp(temp / 50) + ln(temp) + log2(temp) + log10(temp) + sqrt(temp)",
    "sgn(temp - 65)",
    "sin(temp) + cos(temp) + tan(temp)",
    "deg(rad(temp))",
    "temp * on (Hostname) group_left (rack) node",
    "temp / on (Hostname) group_left () sum by (Hostname) (temp)",
    "node * on (Hostname) group_right (rack) temp",
    "temp - ignoring (__name__) temp",
    "temp and on (Hostname) (node{rack='r1'})",
    "temp unless temp > 65",
    "(temp > 70) or on (Hostname) node",
    'label_replace(temp, "host", "$1", "Hostname", "n(.*)")',
    'label_join(node, "both", "/", "rack", "Hostname")',
    "histogram_quantile(0.9, wait_bucket)",
    "histogram_quantile(0.5, sum by (le) (wait_bucket))",
    "histogram_quantile(0.99, sum by (le, Hostname) (rate(wait_bucket[5m])))",
    "absent(temp)",
    'absent(temp{Hostname="n9"})',
    'absent_over_time(temp{Hostname="n9"}[5m])',
    "scalar(sum(temp)) + vector(1)",
    "timestamp(temp)",
    "time() - timestamp(temp)",
    "vector(1)",
    "1 + 2 * 3",
    "hour(vector(time())) * 60 + minute(vector(time()))",
    "day_of_week(vector(time())) + month(vector(time())) + year(vector(time()))",
    "days_in_month(vector(time())) + day_of_month(vector(time())) + day_of_year(vector(time()))",
    "sort(sum by (Hostname) (temp))",
    "gone",
    "late",
    "increase(began[20m])",
    "ratio",
    "ratio > 0 or ratio < 0",
    "max(ratio)",
    "energy / 0",
)


def rule_expressions() -> list[str]:
    """The expressions of the rules that are shipped."""
    return [
        " ".join(str(rule["expr"]).split())
        for path in sorted(RULES.glob("*.yaml"))
        for group in yaml.load(path.read_text(), Loader=yaml.CSafeLoader)["groups"]
        for rule in group["rules"]
    ]


def samples() -> Iterator[Sample]:
    """Everything in the order of time, as servers want it."""
    dice = random.Random(7)
    series = list(_values(dice))
    series += _for_rules(dice, {labels.name for labels, _ in series})
    for turn in range(SAMPLES):
        at_ms = BEGIN_MS + turn * STEP_MS + 7_300
        for labels, values in series:
            value = values[turn]
            if value is not None:
                yield Sample(labels, at_ms, value)


def _series(name: str, **labels: str) -> Labels:
    return Labels({"__name__": name, **labels})


def _values(dice: random.Random) -> Iterator[tuple[Labels, list[float | None]]]:
    turns = range(SAMPLES)
    for number in (1, 2, 3):
        node = f"n{number}"
        rack = {"rack": "r1"} if number < 3 else {}
        yield _series("node", Hostname=node, **rack), [1.0] * SAMPLES
        yield _series("watchkeeper_node_info", cluster="c", Hostname=node, rack="r1"), [1.0] * SAMPLES
        yield _series("watchkeeper_node_expected_gpus", cluster="c", Hostname=node), [4.0] * SAMPLES
        model = _series("watchkeeper:node_model:group", cluster="c", Hostname=node, modelName="H100")
        missing = _series("watchkeeper:fleet_missing:sum", cluster="c", Hostname=node, part="lost")
        yield from ((model, [1.0] * SAMPLES), (missing, [0.5] * SAMPLES))
        age = _series("watchkeeper:training_last_step_age:seconds", cluster="c", job_name=f"j{number}")
        limit = _series("watchkeeper:training_stall_limit:seconds", cluster="c", job_name=f"j{number}")
        yield from ((age, [300.0 * number] * SAMPLES), (limit, [400.0] * SAMPLES))
        yield _series("up", cluster="c", instance=f"{node}:9400", job="dcgm"), [float(number != 3)] * SAMPLES
        for gpu in range(4):
            yield from _gpu(node, gpu, dice)
        base = [10.0 * turn + number for turn in turns]
        for place, bound in enumerate(BUCKETS):
            yield _series("wait_bucket", Hostname=node, le=bound), [(place + 1) * value + 1000 for value in base]
    # A counter of errors that had counted some before it was first seen.
    yield _series("began"), [None if turn < 30 else 5.0 + (turn > 50) for turn in turns]
    # A series that ended with a stale marker, one that began late, and one with numbers that are none.
    yield _series("gone"), [1.0 if turn < 40 else STALE if turn == 40 else None for turn in turns]
    yield _series("late"), [None if turn < 50 else float(turn) for turn in turns]
    yield _series("ratio", kind="inf"), [float("inf") if turn % 2 else 0.5 for turn in turns]


def _gpu(node: str, gpu: int, dice: random.Random) -> Iterator[tuple[Labels, list[float | None]]]:
    own = {"Hostname": node, "gpu": str(gpu)}
    dcgm = {**own, "cluster": "c", "UUID": f"GPU-{node}-{gpu}"}
    if gpu < 2:
        dcgm |= {"namespace": "research", "pod": f"train-{gpu}"}
    temp = [60.0 + 10 * gpu + dice.randint(-5, 5) for _ in range(SAMPLES)]
    energy, total = [], 50_000.0
    for turn in range(SAMPLES):
        total = 20_000.0 if turn == 55 and gpu == 1 else total + dice.randint(100, 400)
        energy.append(total)
    yield _series("temp", **own), list(temp)
    yield _series("energy", **own), list(energy)
    xid = [0.0 if turn < 60 else 79.0 if gpu == 0 else 48.0 for turn in range(SAMPLES)]
    yield _series("xid", **own), list(xid)
    yield from _usage(dcgm, gpu)
    gpu_metrics = {
        "DCGM_FI_DEV_GPU_TEMP": temp if (node, gpu) != ("n2", 3) else temp[:30],
        "DCGM_FI_DEV_GPU_MAX_OP_TEMP": [87.0] * SAMPLES,
        "DCGM_FI_DEV_XID_ERRORS": xid,
        "DCGM_FI_DEV_GPU_UTIL": [float(50 * gpu)] * SAMPLES,
        "DCGM_FI_DEV_FB_USED": [20_000.0] * SAMPLES,
        "DCGM_FI_DEV_POWER_USAGE": [300.0 + value for value in temp],
        "DCGM_FI_DEV_THERMAL_VIOLATION": [1e9 * value for value in energy],
        "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": [32.0 if gpu == 2 else 0.0] * SAMPLES,
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": [5.0 + (turn > 50) for turn in range(SAMPLES)],
        "DCGM_FI_DEV_ROW_REMAP_FAILURE": [float(gpu == 3)] * SAMPLES,
    }
    for name, values in gpu_metrics.items():
        yield _series(name, **dcgm), [*values, *[None] * (SAMPLES - len(values))]


def _usage(dcgm: dict[str, str], gpu: int) -> Iterator[tuple[Labels, list[float | None]]]:
    """What the rules about usage record of a GPU, which one of them joins with another: one series of each."""
    own = {name: dcgm[name] for name in ("cluster", "Hostname", "UUID")}
    place, work = {**own, "modelName": "H100", "pool": "train"}, {"workload": f"train-{gpu}", "team": "research"}
    recorded = (
        (_series("watchkeeper:gpu_place:group", **place), 1.0),
        (_series("watchkeeper:gpu_holder:group", **own, **work), 1.0),
        (_series("watchkeeper:gpu_held:share", **place, **work), 0.5),
        (_series("watchkeeper:gpu_active:ratio", **own, measured="sm_active"), 0.25 * gpu),
        (_series("watchkeeper:gpu_power:watts", **own), 300.0 + gpu),
        (_series("watchkeeper:gpu_free:share", **place), 0.5),
    )
    return ((labels, [value] * SAMPLES) for labels, value in recorded)


def _for_rules(dice: random.Random, known: set[str]) -> Iterator[tuple[Labels, list[float | None]]]:
    """Series for the metrics of shipped rules that are not among the ones above.

    Counters begin high: 2.42 extrapolates one that begins near 0 by another rule than Prometheus 3. No value is 0, as
    MetricsQL fills a gap on the left of `or` (see KNOWN in test_contract).
    """
    for labels in dashboards.series(dashboards.parsed(rule_expressions()), most=1000):
        if labels.name not in known:
            counts = labels.name.lower().endswith(COUNTER_ENDINGS)
            yield labels, [counts * (1e6 + 100 * turn) + dice.randint(1, 100) for turn in range(SAMPLES)]


def rows_of(answer: engine.QueryResult) -> dict[Labels, dict[int, float]]:
    """Series to values by time; an instant answer has one time."""
    return {
        labels: dict(zip(times.tolist(), values.tolist(), strict=True))
        for labels, times, values in answer.frame.rows()
        if len(values)
    }


def differences(ours: engine.QueryResult, theirs: engine.QueryResult) -> list[str]:
    """Where two answers are not equal to 1e-9, a line for each series."""
    mine, other = rows_of(ours), rows_of(theirs)
    found = [f"only here: {labels}" for labels in mine.keys() - other.keys()]
    found += [f"only there: {labels}" for labels in other.keys() - mine.keys()]
    for labels in mine.keys() & other.keys():
        own, their = mine[labels], other[labels]
        if own.keys() != their.keys():
            found.append(f"{labels}: {len(own)} points here, {len(their)} there")
            continue
        a, b = np.array(list(own.values())), np.array([their[at] for at in own])
        if not np.allclose(a, b, rtol=1e-9, atol=1e-12, equal_nan=True):
            at = int(np.flatnonzero(~np.isclose(a, b, rtol=1e-9, atol=1e-12, equal_nan=True))[0])
            found.append(f"{labels}: {a[at]!r} here, {b[at]!r} there")
    return sorted(found)
