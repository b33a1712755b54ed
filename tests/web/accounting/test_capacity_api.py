"""Capacity over a real socket: forecasts from the hub's own samples, and what is true now."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner

from tests.support.manual_clock import ManualClock
from tests.web.kept_services import START
from tests.web.running import Site, serving
from tests.web.small_hub import SmallHub
from watchkeeper.cli.accounting import capacity_text
from watchkeeper.cli.accounting.capacity import command
from watchkeeper.client import answers, reading
from watchkeeper.kit import clock
from watchkeeper.model import cluster, workloads
from watchkeeper.model.labels import Labels
from watchkeeper.model.samples import Sample
from watchkeeper.query import embedded
from watchkeeper.store.head import head

DAYS, FIVE_MINUTES_MS = 6, 300_000
NOW = START.timestamp()


class Schedulers:
    """What a hub's schedulers said last: one job runs on half a node, one waits, one node is drained."""

    inventory = None

    def views(self) -> list[cluster.ClusterView]:
        def job(name: str, **facts: Any) -> workloads.ScheduledWorkload:
            of = workloads.Workload(workloads.WorkloadKind.SLURM_JOB, name)
            return workloads.ScheduledWorkload("main", of, **facts)

        running, pending = workloads.WorkloadState.RUNNING, workloads.WorkloadState.PENDING
        node = {"cluster": "main", "source": "slurm", "is_ready": True, "gpus": 8, "allocatable_gpus": 8}
        return [
            cluster.ClusterView(
                "slurm",
                at_ms=1,
                nodes=(
                    cluster.ScheduledNode(name="gpu-r01-01", state="mixed", is_schedulable=True, **node),  # type: ignore[arg-type]
                    cluster.ScheduledNode(name="gpu-r01-02", state="drained", is_schedulable=False, **node),  # type: ignore[arg-type]
                ),
                workloads=(
                    job(
                        "1",
                        state=running,
                        gpus=5,
                        nodes={"gpu-r01-01": 5},
                        requested_at=NOW - 900,
                        started_at=NOW - 600,
                    ),
                    job("2", state=pending, gpus=8, requested_at=NOW - 1800),
                ),
            )
        ]


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    hub = SmallHub(racks=1, per_rack=2, clock=ManualClock(START))
    kept = embedded.EmbeddedEngine(head.Head(retention_ms=30 * 86_400_000))
    hub.engine, hub.clusters = kept, Schedulers()
    for at_ms in range(clock.to_ms(START) - DAYS * 86_400_000, clock.to_ms(START) + 1, FIVE_MINUTES_MS):
        held = round(60 + 20 * math.sin(2 * math.pi * at_ms / 86_400_000))
        facts = {("watchkeeper_scheduler_gpus", "allocated"): held, ("watchkeeper_scheduler_gpus", "in_service"): 96}
        kept.appender.append(
            Sample(Labels({"__name__": name, "cluster": "main", "state": state}), at_ms, float(value))
            for (name, state), value in facts.items()
        )
    for gpu in hub.fleet.fleet_gpus:
        labels = Labels({"__name__": "DCGM_FI_DEV_GPU_TEMP", "cluster": "main", "UUID": gpu.gpu.uuid})
        kept.appender.append([Sample(labels, clock.to_ms(START), 50.0)])
    with serving(hub) as running:
        yield running
    kept.close()


def test_without_a_scheduler_a_gpu_that_does_not_report_is_out_of_service_and_not_free() -> None:
    hub = SmallHub(racks=1, per_rack=2, clock=ManualClock(START))
    now_ms = clock.to_ms(START)
    hub.fleet.fleet_gpus[0] = replace(hub.fleet.fleet_gpus[0], gone_since_ms=now_ms)
    hub.readings.silent = {gpu.gpu.uuid for gpu in hub.fleet.fleet_gpus[8:]}
    with serving(hub) as running:
        capacity = running.ask("/api/capacity/now?window=1h").json["standing"]
    assert (capacity["gpus"], capacity["in_service_gpus"]) == (16, 7)
    assert capacity["held_gpus"] + capacity["free_gpus"] == 7
    assert capacity["out_of_service"] == [[f"gpu-r01-0{n}", gpus, "not reporting"] for n, gpus in ((1, 1), (2, 8))]


def test_of_a_node_whose_scheduler_counts_slices_the_gpus_that_report_are_counted() -> None:
    hub = SmallHub(racks=1, per_rack=2, clock=ManualClock(START))
    node_fields = {
        "cluster": hub.fleet.fleet_gpus[0].cluster,
        "source": "kubernetes",
        "is_ready": True,
        "gpu_part": 1 / 7,
    }
    names = ("gpu-r01-01", "gpu-r01-02")
    nodes = [
        cluster.ScheduledNode(name=name, state="Ready", is_schedulable=name != names[1], gpus=56, **node_fields)  # type: ignore[arg-type]
        for name in names
    ]
    hub.clusters = type(
        "Told", (Schedulers,), {"views": lambda _: [cluster.ClusterView("kubernetes", 1, tuple(nodes))]}
    )()
    with serving(hub) as running:
        capacity = running.ask("/api/capacity/now?window=1h").json["standing"]
    assert (capacity["gpus"], capacity["in_service_gpus"], capacity["held_gpus"]) == (16, 16, 16)
    assert capacity["out_of_service"] == [], "the GPUs of the cordoned node are still allocated"


def test_demand_is_forecast_by_the_hour_with_its_error_and_a_sentence(site: Site) -> None:
    forecast = site.ask("/api/capacity/forecast?horizon=1d").json
    assert (forecast["ok"], forecast["step"], len(forecast["forecast"]), forecast["capacity_gpus"]) == (
        True,
        "1h",
        24,
        96,
    )
    assert forecast["sentence"].startswith("Not full within 1d")
    assert forecast["backtest"]["wape"] < 0.05
    expected = 60 + 20 * math.sin(2 * math.pi * (NOW + 1800 + 6 * 3600) / 86_400)
    assert forecast["forecast"][6]["mean"] == pytest.approx(expected, abs=4)
    assert set(forecast["forecast"][0]) == {"time", "mean", "low", "high"}


def test_capacity_now_counts_free_gpus_by_shape_and_names_what_is_drained(site: Site) -> None:
    answer = site.ask("/api/capacity/now?window=1h").json
    assert (answer["standing"]["free_gpus"], answer["standing"]["held_gpus"], answer["standing"]["gpus"]) == (3, 5, 16)
    assert answer["standing"]["out_of_service"] == [["gpu-r01-02", 8, "drained"]]
    assert answer["unmapped"]["nvlink"] == 2
    assert list(capacity_text.now(reading.read_answer(answers.CapacityNow, answer)))[-1].startswith("Unmapped: ")
    assert [
        (wait["gpus"], wait["waiting"], wait["longest_seconds"], wait["p50_seconds"]) for wait in answer["waits"]
    ] == [
        (5, 0, None, 300.0),
        (8, 1, 1800.0, None),
    ]


def test_advice_is_data_and_the_same_request_is_answered_from_the_cache(site: Site) -> None:
    first, second = (site.ask("/api/capacity/advice?horizon=1d&target=0.5").json for _ in range(2))
    assert first == second
    assert first["advice"][0]["action"] == "add"
    assert first["advice"][0]["gpus"] == pytest.approx(80 / 0.5 - 96, abs=8)


def held_since(minutes: int, *, cluster_name: str = "main", gpu: str) -> Iterator[Sample]:
    """A day of a GPU that was idle until a job took it `minutes` ago, and has been busy since."""
    now, labels = clock.to_ms(START), {"cluster": cluster_name, "Hostname": "n1", "UUID": gpu}
    owner = {**labels, "workload": f"job-{minutes}", "workload_kind": "slurm_job"}
    for ago in range(1440, -1, -1):
        at_ms, is_held = now - ago * 60_000, ago <= minutes
        facts = {"DCGM_FI_PROF_SM_ACTIVE": 0.9 if is_held else 0.0, "DCGM_FI_DEV_FB_USED": 100.0}
        yield from (Sample(Labels({"__name__": name, **labels}), at_ms, value) for name, value in facts.items())
        if is_held:
            for name in ("watchkeeper:gpu_holder:group", "watchkeeper_gpu_workload_info"):
                yield Sample(Labels({"__name__": name, **owner}), at_ms, 1.0)


def small_hub() -> SmallHub:
    hub = SmallHub(racks=1, per_rack=2, clock=ManualClock(START))
    hub.engine = embedded.EmbeddedEngine(head.Head(retention_ms=30 * 86_400_000))
    return hub


@pytest.mark.slow
def test_a_workload_is_measured_over_the_time_that_it_held_its_gpus() -> None:
    hub = small_hub()
    for at, minutes in enumerate((1500, 400, 30, 2)):
        hub.engine.appender.append(held_since(minutes, gpu=f"GPU-{at}"))
    hub.engine.appender.append(held_since(1499, cluster_name="other", gpu="GPU-9"))
    with serving(hub) as running:
        sizing = running.ask("/api/capacity/now?cluster=main").json["rightsizing"]
    fits = {advice["name"]: (advice["fit"], advice["why"]) for advice in sizing}
    busy = ("keep", "SM activity 90 % on average, 90 % at p95: it uses its GPU")
    assert fits == {
        "job-1500": busy,
        "job-400": busy,
        "job-30": busy,
        "job-2": ("unknown", "measured on its GPUs for less than ten minutes"),
    }


def test_work_on_gpus_that_were_released_does_not_count() -> None:
    hub, silent_ms = small_hub(), clock.to_ms(START) - 600_000
    hub.engine.appender.append(held_since(1500, gpu="GPU-0"))
    hub.engine.appender.append(sample for sample in held_since(1499, gpu="GPU-1") if sample.at_ms < silent_ms)
    with serving(hub) as running:
        assert running.ask("/api/capacity/now").json["use"]["used_gpus"] == pytest.approx(0.9)


def test_without_recorded_rules_the_fit_of_a_workload_is_unknown() -> None:
    hub = small_hub()
    hub.engine.appender.append(
        sample for sample in held_since(30, gpu="GPU-0") if sample.labels.name != "watchkeeper:gpu_holder:group"
    )
    with serving(hub) as running:
        sizing = running.ask("/api/capacity/now").json["rightsizing"]
    assert [(advice["name"], advice["fit"]) for advice in sizing] == [("job-30", "unknown")]


def exported(pod: str, active: float, *, ago: range, slice: str = "") -> Iterator[Sample]:
    """Minutes of a GPU or slice on the page of an exporter that writes the pod on its series, and of the rules."""
    now, cut = clock.to_ms(START), {"GPU_I_ID": slice, "GPU_I_PROFILE": "3g.71gb"} if slice else {}
    gpu = {"cluster": "main", "Hostname": "n1", "UUID": "GPU-0", "modelName": "NVIDIA H200", **cut}
    labels = {**gpu, "namespace": "ml", "pod": pod}
    owner = {**gpu, "namespace": "ml", "workload": pod, "workload_kind": "pod"}
    facts = {"DCGM_FI_PROF_SM_ACTIVE": active, "DCGM_FI_DEV_FB_USED": 4000.0, "DCGM_FI_DEV_FB_FREE": 67_424.0}
    for minutes in ago:
        at_ms = now - minutes * 60_000
        yield from (Sample(Labels({"__name__": name, **labels}), at_ms, value) for name, value in facts.items())
        yield Sample(Labels({"__name__": "watchkeeper:gpu_holder:group", **owner}), at_ms, 1.0)
        used = Labels({"__name__": "watchkeeper:workload_gpus:sum", **owner, "part": "used"}).with_labels(
            UUID="", GPU_I_ID=""
        )
        yield Sample(used, at_ms, active * 3 / 7 if slice else active)
        if minutes == 0:
            yield Sample(Labels({"__name__": "watchkeeper_gpu_workload_info", **owner}), at_ms, 1.0)


def judged(*exported_samples: Iterator[Sample]) -> tuple[dict[str, tuple[str, str]], float]:
    hub = small_hub()
    for samples in exported_samples:
        hub.engine.appender.append(samples)
    accounted = Labels({"__name__": "watchkeeper:gpus_accounted:sum", "cluster": "main"})
    hub.engine.appender.append(Sample(accounted, clock.to_ms(START) - ago * 60_000, 8.0) for ago in range(120, -1, -1))
    with serving(hub) as running:
        answer = running.ask("/api/capacity/now?window=2h").json
    return {advice["name"]: (advice["fit"], advice["profile"]) for advice in answer["rightsizing"]}, answer["use"][
        "used_gpus"
    ]


def test_use_by_the_previous_holder_does_not_count() -> None:
    before, after = range(120, 110, -1), range(110, -1, -1)
    fits, used = judged(exported("gone", 0.9, ago=before), exported("idle", 0.0, ago=after))
    assert fits == {"ml/idle": ("give_back", "")}
    assert used == 0


def test_mig_instances_are_measured_separately_and_count_as_shares_of_their_gpu() -> None:
    whole = range(120, -1, -1)
    fits, used = judged(exported("busy", 0.9, ago=whole, slice="1"), exported("small", 0.1, ago=whole, slice="2"))
    assert fits == {"ml/busy": ("keep", ""), "ml/small": ("smaller_slice", "1g.18gb")}
    assert used == pytest.approx((0.9 + 0.1) * 3 / 7)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("forecast?horizon=soon", "not a duration"),
        ("forecast?horizon=2y", "at most 26w"),
        ("forecast?about=cost", "expected demand"),
        ("forecast?target=3", "a share from 0.05 to 1"),
        ("forecast?cluster=%22%7D", "is not a valid cluster name"),
        ("now?window=9w", "at most 1w"),
    ],
)
def test_an_invalid_parameter_is_refused_with_what_is_expected(site: Site, query: str, words: str) -> None:
    reply = site.ask(f"/api/capacity/{query}")
    assert reply.status == 400
    assert words in reply.json["error"]


def test_a_hub_without_samples_gives_the_reason(site: Site) -> None:
    reply = site.ask("/api/capacity/forecast?cluster=elsewhere")
    assert (reply.status, reply.json["forecast"]) == (200, [])
    words = "learning: 0 min of 2 days; no sample of allocated GPUs"
    assert reply.json["reason"] == words
    result = CliRunner().invoke(command, ["forecast", "--hub", site.url, "--cluster", "elsewhere"])
    assert result.output.startswith(words)
    assert site.ask("/api/capacity/advice?cluster=elsewhere").json["sentence"] is None


@pytest.mark.parametrize(
    ("minutes", "reason"),
    [
        (2, "learning: 0 min of 2 days"),
        (10, "learning: 10 min of 2 days"),
        (20, "learning: 20 min of 2 days"),
        (300, "learning: 5 h of 2 days"),
        (47 * 60, "learning: 47 h of 2 days"),
    ],
)
def test_below_two_days_of_history_every_answer_says_how_much_is_learnt_and_advises_nothing(
    minutes: int, reason: str
) -> None:
    hub, now_ms = small_hub(), clock.to_ms(START)
    for state, gpus in (("allocated", 90.0), ("in_service", 96.0)):
        labels = Labels({"__name__": "watchkeeper_scheduler_gpus", "cluster": "main", "state": state})
        # The step that is not over does not count.
        ages = range(minutes + 2, -1, -1)
        hub.engine.appender.append(Sample(labels, now_ms - age * 60_000, gpus) for age in ages)
    with serving(hub) as running:
        forecast, advice = (running.ask(f"/api/capacity/{name}").json for name in ("forecast", "advice"))
        options = ["forecast", "--hub", running.url]
        text, plain = (CliRunner().invoke(command, [*options, *more]) for more in ([], ["--json"]))
    assert (forecast["reason"], forecast["learning"]["needed_seconds"]) == (reason, 2 * 86_400)
    assert forecast["learning"]["history_seconds"] == minutes // 5 * 300
    assert [forecast[name] for name in ("sentence", "full", "need", "advice", "forecast")] == [None] * 4 + [[]]
    assert (advice["reason"], advice["sentence"]) == (reason, None)
    assert not [row for row in advice["advice"] if row["action"] in ("add", "shrink", "none")]
    assert text.output == f"{reason}; there is no forecast and no advice until then\n"
    assert (text.exit_code, json.loads(plain.output)["learning"]) == (0, forecast["learning"])


def test_after_two_days_there_is_a_forecast() -> None:
    hub, now_ms = small_hub(), clock.to_ms(START)
    labels = Labels({"__name__": "watchkeeper_scheduler_gpus", "cluster": "main", "state": "allocated"})
    hub.engine.appender.append(Sample(labels, now_ms - age * 60_000, 90.0) for age in range(2 * 1440, -1, -1))
    with serving(hub) as running:
        forecast = running.ask("/api/capacity/forecast?horizon=1d").json
    assert (forecast["reason"], forecast["learning"], len(forecast["forecast"])) == (None, None, 24)


def test_the_command_prints_the_sentence_and_a_picture(site: Site) -> None:
    result = CliRunner().invoke(command, ["forecast", "--hub", site.url, "--horizon", "1d"])
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0].startswith("Not full within 1d")
    assert any("* expected" in line for line in lines)
    now = CliRunner().invoke(command, ["now", "--hub", site.url, "--window", "1h"]).output
    assert now.startswith("3 of 8 GPUs in service are free, 5 are allocated; the fleet has 16.")
    assert "Out of service: gpu-r01-02, 8 GPUs: drained." in now
    plain = json.loads(CliRunner().invoke(command, ["forecast", "--hub", site.url, "--horizon", "1d", "--json"]).output)
    assert plain["about"] == "demand"
