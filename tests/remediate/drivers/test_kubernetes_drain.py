"""Drains on a real API server with hollow nodes: budgets, pods that never end, a server that is away, one GPU only."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.remediate.drivers import kubernetes_story as story
from tests.remediate.drivers.kubernetes_story import action, add_pods, budget, driving, finished, running
from tests.support.clusters.kubernetes_server import Cluster
from tests.support.waiting import until
from watchkeeper.errors import ActionRefused
from watchkeeper.model.actions import ActionKind
from watchkeeper.model.fleet import Place
from watchkeeper.remediate.drivers.kubernetes_pods import EvictionRules

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(240)]
CORDON, DRAIN, RESTART = ActionKind.CORDON, ActionKind.DRAIN, ActionKind.RESTART_APP
NODE = "hollow-0"
GPU = "GPU-0d7b8a1c"


@pytest.fixture
def cluster(kubernetes: Cluster) -> Iterator[Cluster]:
    yield kubernetes
    story.clean(kubernetes)
    until(lambda: not running(kubernetes, NODE))


def test_a_drain_moves_pods_and_says_what_is_to_go(cluster: Cluster) -> None:
    add_pods(cluster, "web", NODE, count=3)
    with driving(cluster) as driver:
        assert len(driver.observe(Place("main", node=NODE)).workloads) == 3
        driver.perform(action(CORDON, NODE))
        first = driver.perform(action(DRAIN, NODE))
        assert first.text == "evicted 3 pods, 3 remaining"
        finished(driver, action(DRAIN, NODE))
        assert driver.observe(Place("main", node=NODE)).workloads == ()


def test_a_drain_without_our_cordon_is_refused(cluster: Cluster) -> None:
    add_pods(cluster, "web", NODE)
    with driving(cluster) as driver, pytest.raises(ActionRefused, match="our cordon is gone"):
        driver.perform(action(DRAIN, NODE))
    assert len(running(cluster, NODE)) == 1


def test_a_budget_that_never_allows_is_named_and_respected(cluster: Cluster) -> None:
    add_pods(cluster, "web", NODE, count=2)
    path = budget(cluster, "keep-web", "web", minimum=2)
    with driving(cluster) as driver:
        driver.perform(action(CORDON, NODE))
        for _ in range(3):
            done = driver.perform(action(DRAIN, NODE))
        assert not done.is_complete
        assert len(done.waits_for) == 2
        assert all("disruption budget" in blocker and "keep-web needs 2" in blocker for blocker in done.waits_for)
        assert len(running(cluster, NODE)) == 2
        cluster.ask(path, method="DELETE")
        finished(driver, action(DRAIN, NODE))


def test_a_pod_that_never_ends_is_waited_for_with_its_reason(cluster: Cluster) -> None:
    add_pods(cluster, "stuck", NODE)
    (name,) = running(cluster, NODE)
    path = f"/api/v1/namespaces/default/pods/{name}"
    cluster.ask(path, method="PATCH", body={"metadata": {"finalizers": ["example.com/hold"]}})
    with driving(cluster) as driver:
        driver.perform(action(CORDON, NODE))
        until(lambda: "should have terminated" in "".join(driver.perform(action(DRAIN, NODE)).waits_for))
        (why,) = driver.perform(action(DRAIN, NODE)).waits_for
        assert why.startswith(f"pod default/{name}: should have terminated ")
        assert why.endswith("blocked by its finalizers example.com/hold")
        cluster.ask(
            path, method="PATCH", body={"metadata": {"$deleteFromPrimitiveList/finalizers": ["example.com/hold"]}}
        )
        finished(driver, action(DRAIN, NODE))


def test_a_pod_without_a_controller_needs_permission(cluster: Cluster) -> None:
    cluster.create_pod("alone", gpus=1, nodeName=NODE)
    until(lambda: running(cluster, NODE) == ["alone"])
    with driving(cluster) as driver:
        driver.perform(action(CORDON, NODE))
        (why,) = driver.perform(action(DRAIN, NODE)).waits_for
        assert why.startswith("pod default/alone: it has no controller")
        assert running(cluster, NODE) == ["alone"]
    with driving(cluster, rules=EvictionRules(evict_unmanaged=True)) as driver:
        finished(driver, action(DRAIN, NODE))


def test_an_api_server_that_goes_away_mid_drain_is_waited_for(cluster: Cluster) -> None:
    add_pods(cluster, "web", NODE, count=2)
    path = budget(cluster, "keep-web", "web", minimum=2)
    with driving(cluster) as driver:
        driver.perform(action(CORDON, NODE))
        assert not driver.perform(action(DRAIN, NODE)).is_complete
        cluster.kill_api_server()
        try:
            began = time.monotonic()
            done = driver.perform(action(DRAIN, NODE))
            assert time.monotonic() - began < 30.0
            assert (done.is_complete, done.text) == (False, "drain is blocked")
            assert "connection refused" in done.waits_for[0]
        finally:
            cluster.start_api_server()
        cluster.ask(path, method="DELETE")
        finished(driver, action(DRAIN, NODE))


def test_a_drain_of_one_gpu_moves_its_holders_only(cluster: Cluster) -> None:
    for name in ("sick", "well"):
        add_pods(cluster, name, NODE)
    named = {name.partition("-")[0]: name for name in running(cluster, NODE)}
    with driving(cluster) as driver:
        drain = action(DRAIN, NODE, gpu=GPU, pods=f"default/{named['sick']}")
        assert f"/pods/{named['sick']}/eviction" in driver.describe(drain)
        driver.perform(action(CORDON, NODE))
        finished(driver, drain)
    assert running(cluster, NODE) == [named["well"]]


def test_a_gpu_with_unknown_holders_is_not_drained(cluster: Cluster) -> None:
    add_pods(cluster, "web", NODE)
    with driving(cluster) as driver, pytest.raises(ActionRefused, match="the pods that hold the GPU are unknown"):
        driver.perform(action(DRAIN, NODE, gpu=GPU))
    assert len(running(cluster, NODE)) == 1


def test_a_restart_ends_a_pod_once_and_not_the_one_that_follows_it(cluster: Cluster) -> None:
    restart = action(RESTART, NODE, pods="default/train-0")
    with driving(cluster, rules=EvictionRules(evict_unmanaged=True)) as driver:
        cluster.create_pod("train-0", gpus=1, nodeName=NODE)
        until(lambda: running(cluster, NODE) == ["train-0"])
        assert not driver.perform(restart).is_complete
        finished(driver, restart)
        cluster.create_pod("train-0", gpus=1, nodeName=NODE)
        until(lambda: running(cluster, NODE) == ["train-0"])
        assert driver.perform(restart).is_complete
        assert running(cluster, NODE) == ["train-0"]
        # After a restart of the hub the time tells them apart.
        fresh = action(RESTART, NODE, pods="default/train-0", before="2020-01-01T00:00:00Z")
    with driving(cluster, rules=EvictionRules(evict_unmanaged=True)) as driver:
        assert driver.perform(fresh).is_complete
    assert running(cluster, NODE) == ["train-0"]
