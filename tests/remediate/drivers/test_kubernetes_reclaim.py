"""Idle pods on a real API server: their owner is warned by an event, and their controller is scaled to zero."""

from __future__ import annotations

import contextlib
import urllib.error
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.remediate.drivers import kubernetes_story as story
from tests.remediate.drivers.kubernetes_story import action, add_pods, driving, finished, running
from tests.support.clusters.kubernetes_server import Cluster
from tests.support.paths import ROOT
from tests.support.waiting import until
from watchkeeper.errors import ActionFailed, ActionRefused
from watchkeeper.model.actions import ActionKind

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(240)]
WARN, RECLAIM = ActionKind.WARN_OWNER, ActionKind.RECLAIM
NODE = "hollow-1"
PACKS = ROOT / "watchkeeper/packs/kubernetes"
SETS = "/apis/apps/v1/namespaces/default/replicasets"


@pytest.fixture
def cluster(kubernetes: Cluster) -> Iterator[Cluster]:
    yield kubernetes
    story.clean(kubernetes)
    until(lambda: not running(kubernetes, NODE))


def pods(cluster: Cluster) -> str:
    return ",".join(f"default/{name}" for name in running(cluster, NODE))


def warnings_of(cluster: Cluster) -> list[dict[str, Any]]:
    pod_events = cluster.ask("/api/v1/namespaces/default/events?fieldSelector=involvedObject.kind=Pod")["items"]
    return [event for event in pod_events if event["reason"] == "WatchkeeperIdle"]


def test_the_owner_reads_on_the_pod_why_when_and_how_to_keep_it(cluster: Cluster) -> None:
    add_pods(cluster, "notebook", NODE)
    warn = action(WARN, NODE, pods=pods(cluster), wait="1h")
    with driving(cluster) as driver:
        for _ in range(2):
            assert driver.perform(warn).text == f"warned the owners of {pods(cluster)}"
        assert f"events about {pods(cluster)}" in driver.describe(warn)
    (event,) = warnings_of(cluster)
    name = event["involvedObject"]["name"]
    assert "Use the GPU within 1h, or run: kubectl annotate pod" in event["message"]
    assert event["message"].endswith(f"-n default {name} watchkeeper.dev/keep=true (watchkeeper:I-7/1-warn_owner)")


def test_what_is_idle_is_scaled_to_nothing_and_says_how_many_there_were(cluster: Cluster) -> None:
    add_pods(cluster, "notebook", NODE, count=2)
    add_pods(cluster, "training", NODE)
    idle = ",".join(name for name in pods(cluster).split(",") if "notebook" in name)
    reclaim = action(RECLAIM, NODE, pods=idle, how="scale_down")
    with driving(cluster) as driver:
        assert driver.perform(reclaim).text == "scaled down ReplicaSet default/notebook"
        finished(driver, reclaim)
    replica_set = cluster.ask(f"{SETS}/notebook")
    assert replica_set["spec"]["replicas"] == 0
    notes = replica_set["metadata"]["annotations"]
    assert (notes["watchkeeper.dev/replicas-before"], notes["watchkeeper.dev/reclaimed-by"]) == (
        "2",
        "watchkeeper:I-7/1-reclaim",
    )
    assert [name.partition("-")[0] for name in running(cluster, NODE)] == ["training"]


def test_a_controller_with_a_pod_at_work_is_not_scaled(cluster: Cluster) -> None:
    add_pods(cluster, "notebook", NODE, count=2)
    first, second = sorted(pods(cluster).split(","))
    with driving(cluster) as driver, pytest.raises(ActionRefused, match=f"not idle, such as {second}"):
        driver.perform(action(RECLAIM, NODE, pods=first))
    assert cluster.ask(f"{SETS}/notebook")["spec"]["replicas"] == 2


def test_requeue_evicts_the_idle_pod_alone(cluster: Cluster) -> None:
    add_pods(cluster, "notebook", NODE, count=2)
    first, second = sorted(pods(cluster).split(","))
    reclaim = action(RECLAIM, NODE, pods=first, how="requeue")
    with driving(cluster) as driver:
        assert f"/pods/{first.partition('/')[2]}/eviction" in driver.describe(reclaim)
        finished(driver, reclaim)
    assert first not in pods(cluster).split(",")
    assert second in pods(cluster).split(",")


def test_a_pod_without_a_controller_is_ended_only_by_cancel(cluster: Cluster) -> None:
    cluster.create_pod("bare", gpus=1, nodeName=NODE)
    until(lambda: running(cluster, NODE) == ["bare"])
    with driving(cluster) as driver:
        with pytest.raises(ActionRefused, match="default/bare has no controller"):
            driver.perform(action(RECLAIM, NODE, pods="default/bare"))
        finished(driver, action(RECLAIM, NODE, pods="default/bare", how="cancel"))
    assert running(cluster, NODE) == []


@pytest.mark.parametrize("kind", [WARN, RECLAIM])
def test_a_pod_that_is_marked_to_be_kept_is_kept(cluster: Cluster, kind: ActionKind) -> None:
    add_pods(cluster, "notebook", NODE)
    name = pods(cluster)
    path = f"/api/v1/namespaces/default/pods/{name.partition('/')[2]}"
    cluster.ask(path, method="PATCH", body={"metadata": {"annotations": {"watchkeeper.dev/keep": "true"}}})
    with driving(cluster) as driver, pytest.raises(ActionRefused, match=f"{name} is excluded from reclaiming"):
        driver.perform(action(kind, NODE, pods=name))
    assert cluster.ask(f"{SETS}/notebook")["spec"]["replicas"] == 1


def test_a_successor_that_was_never_warned_is_left_alone(cluster: Cluster) -> None:
    add_pods(cluster, "notebook", NODE)
    reclaim = action(RECLAIM, NODE, pods=pods(cluster), before="2020-01-01T00:00:00Z")
    with driving(cluster) as driver:
        assert driver.perform(reclaim).is_complete
    assert cluster.ask(f"{SETS}/notebook")["spec"]["replicas"] == 1


@contextlib.contextmanager
def granted(cluster: Cluster, *files: str) -> Iterator[None]:
    """The rights of these manifests, and afterwards no more than before."""
    made = []
    for raw in (raw for file in files for raw in yaml.safe_load_all((PACKS / file).read_text())):
        with contextlib.suppress(urllib.error.HTTPError):
            story.apply(cluster, [raw])
            about = raw["metadata"]
            space = f"/namespaces/{about['namespace']}" if "namespace" in about else ""
            made.append(f"/apis/{raw['apiVersion']}{space}/{raw['kind'].lower()}s/{about['name']}")
    yield
    for path in made:
        cluster.ask(path, method="DELETE")


def test_the_shipped_roles_are_enough_and_without_them_nothing_is_taken(cluster: Cluster) -> None:
    add_pods(cluster, "notebook", NODE)
    named = pods(cluster)
    with driving(cluster, token="hub-token") as driver:
        with pytest.raises(ActionFailed, match=r"cannot get resource.*repair-kubernetes\.md"):
            driver.perform(action(RECLAIM, NODE, pods=named))
        with granted(cluster, "repair-rbac.yaml", "reclaim-rbac.yaml"):
            until(lambda: driver.perform(action(WARN, NODE, pods=named)).is_complete)
            finished(driver, action(RECLAIM, NODE, pods=named))
    assert running(cluster, NODE) == []
