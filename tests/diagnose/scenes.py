"""Series around a place: ranks of a job, a pod in its cluster, a node among its neighbours."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from tests.diagnose.stories import NOON, an_engine, an_incident, facts_about
from watchkeeper.diagnose.explain import diagnose
from watchkeeper.kit import clock
from watchkeeper.model import diagnosis, fleet, labels, samples
from watchkeeper.query import embedded, engine

JOB = fleet.Place("main", domain="job=llm")
POD = fleet.Place("main", domain="pod=ml/notebook")


def add_sample(engine: embedded.EmbeddedEngine, metric: str, value: float, /, *, at: float = 0.0, **named: str) -> None:
    pairs = {"__name__": metric, "cluster": "main", **named}
    engine.appender.append([samples.Sample(labels.Labels(pairs), clock.to_ms(NOON + timedelta(seconds=at)), value)])


def a_job(
    seconds: Mapping[int, float], *, world: int = 4, wait: float = 0.0, age: float = 1.0
) -> embedded.EmbeddedEngine:
    """A job whose ranks compute so long a step; `wait` is the share of time without input."""
    engine = an_engine()
    for rank, taken in seconds.items():
        named = {"job_name": "llm", "rank": str(rank)}
        add_sample(engine, "training_step_compute_seconds", taken, **named)
        add_sample(engine, "training_last_step_timestamp_seconds", NOON.timestamp() - age, **named)
    add_sample(engine, "training_world_size", world, job_name="llm")
    for at in (-240, -120, 0):
        add_sample(engine, "training_data_wait_seconds_total", 1000 + wait * at, at=at, job_name="llm")
    return engine


def about_job(cause: str, engine: embedded.EmbeddedEngine) -> diagnosis.Diagnosis:
    family = "nccl" if cause.startswith("nccl") else "training"
    return diagnose(facts_about(an_incident(cause, JOB, family=family), engine=engine), NOON)


def a_cluster(
    free: Mapping[str, int], *, gpus: int, taint: bool = False, tolerates: bool = True
) -> embedded.EmbeddedEngine:
    """A pod that waits, and nodes of eight GPUs with so many free."""
    engine, pod = an_engine(), {"namespace": "ml", "pod": "notebook"}
    add_sample(engine, "kube_pod_status_phase", 1, phase="Pending", **pod)
    add_sample(engine, "kube_pod_container_resource_requests", gpus, resource="nvidia_com_gpu", **pod)
    if tolerates:
        add_sample(engine, "kube_pod_tolerations", 1, key="nvidia.com/gpu", effect="NoSchedule", **pod)
    for node, count in free.items():
        add_sample(engine, "watchkeeper:kube_node_free_gpus:count", count, node=node)
        for what in ("allocatable", "capacity"):
            add_sample(engine, f"kube_node_status_{what}", 8, resource="nvidia_com_gpu", node=node)
        if taint:
            add_sample(
                engine, "kube_node_spec_taint", 1, node=node, key="nvidia.com/gpu", value="present", effect="NoSchedule"
            )
    return engine


def about_pod(engine: embedded.EmbeddedEngine, *, guess: str = "insufficient_gpu_capacity") -> diagnosis.Diagnosis:
    return diagnose(facts_about(an_incident(guess, POD, family="scheduling"), engine=engine), NOON)


class CountingEngine(embedded.EmbeddedEngine):
    query_count = 0

    def instant(self, expr: str, at_ms: int) -> engine.QueryResult:
        self.query_count += 1
        return super().instant(expr, at_ms)
