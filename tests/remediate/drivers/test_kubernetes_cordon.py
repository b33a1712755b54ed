"""Cordons on a real API server: ours are marked and undone, those of others are left alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.remediate.drivers import kubernetes_story as story
from tests.remediate.drivers.kubernetes_story import action, add_node, driving, finished, node, reached
from tests.support.clusters.kubernetes_server import TOKEN, Cluster
from tests.support.paths import ROOT
from tests.support.running_product import await_that
from watchkeeper.errors import ActionFailed, ActionRefused
from watchkeeper.model.actions import ActionKind
from watchkeeper.model.fleet import Place
from watchkeeper.remediate.drivers.kubernetes import KubernetesDriver
from watchkeeper.remediate.drivers.kubernetes_client import ApiCall, ApiClient, ApiResponse

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(240)]
CORDON, UNCORDON = ActionKind.CORDON, ActionKind.UNCORDON
MANIFEST = ROOT / "watchkeeper/packs/kubernetes/repair-rbac.yaml"
PLACE = Place("main", node="plain")
FOREIGN = {"key": "example.com/mine", "effect": "NoSchedule"}


@pytest.fixture
def cluster(kubernetes: Cluster) -> Iterator[Cluster]:
    add_node(kubernetes, "plain")
    yield kubernetes
    story.clean(kubernetes)


def patch(cluster: Cluster, body: dict[str, Any], name: str = "plain") -> None:
    cluster.ask(f"/api/v1/nodes/{name}", method="PATCH", body=body)


def own_condition(cluster: Cluster) -> tuple[str, str] | None:
    conditions = node(cluster, "plain")["status"].get("conditions", [])
    return next(
        (
            (condition["status"], condition["reason"])
            for condition in conditions
            if condition["type"] == "WatchkeeperUnhealthy"
        ),
        None,
    )


def events(cluster: Cluster) -> list[str]:
    node_events = cluster.ask("/api/v1/namespaces/default/events?fieldSelector=involvedObject.name=plain")["items"]
    return [event["reason"] for event in node_events if event["source"].get("component") == "watchkeeper"]


def taints(cluster: Cluster) -> set[str]:
    return {taint["key"] for taint in node(cluster, "plain")["spec"].get("taints", [])}


def test_a_cordon_is_marked_reported_and_removed_again(cluster: Cluster) -> None:
    # A new node has a taint until the node controller takes it off; it writes the whole list that it read before.
    await_that(lambda: not taints(cluster))
    patch(cluster, {"spec": {"taints": [FOREIGN]}})
    with driving(cluster) as driver:
        driver.perform(action(CORDON, "plain", cause="gpu_fell_off_bus"))
        observed = driver.observe(PLACE)
        assert (observed.is_schedulable, observed.cordoned_by, observed.maintained_by) == (
            False,
            "watchkeeper:I-7/1-cordon",
            (),
        )
        assert taints(cluster) >= {"watchkeeper.dev/unhealthy", "example.com/mine"}
        assert own_condition(cluster) == ("True", "GpuFellOffBus")
        assert events(cluster) == ["WatchkeeperCordoned"]
        driver.perform(action(UNCORDON, "plain"))
        observed = driver.observe(PLACE)
    assert (observed.is_schedulable, observed.cordoned_by) == (True, None)
    assert "watchkeeper.dev/unhealthy" not in taints(cluster)
    assert "example.com/mine" in taints(cluster)
    assert own_condition(cluster) == ("False", "Repaired")


def test_a_cordon_that_is_performed_again_changes_nothing(cluster: Cluster) -> None:
    with driving(cluster) as driver:
        driver.perform(action(CORDON, "plain"))
        before = node(cluster, "plain")["metadata"]["annotations"]
        assert driver.perform(action(CORDON, "plain")).text == "plain is already cordoned by watchkeeper:I-7/1-cordon"
        driver.perform(action(UNCORDON, "plain"))
        assert driver.perform(action(UNCORDON, "plain")).text == "plain has no cordon of Watchkeeper's"
    assert "watchkeeper.dev/cordoned-at" in before
    assert len(events(cluster)) == 2


def test_a_cordon_of_another_user_is_neither_taken_over_nor_undone(cluster: Cluster) -> None:
    cluster.cordon("plain")
    with driving(cluster) as driver:
        with pytest.raises(ActionRefused, match="another user has cordoned it"):
            driver.perform(action(CORDON, "plain"))
        with pytest.raises(ActionRefused, match="the cordon is not Watchkeeper's"):
            driver.perform(action(UNCORDON, "plain"))
        observed = driver.observe(PLACE)
    assert (observed.is_schedulable, observed.cordoned_by, observed.maintained_by) == (
        False,
        None,
        ("another user's cordon",),
    )
    assert own_condition(cluster) is None


def test_a_cordon_of_another_incident_is_not_undone(cluster: Cluster) -> None:
    with driving(cluster) as driver:
        driver.perform(action(CORDON, "plain", incident="I-7"))
        with pytest.raises(ActionRefused, match=r"belongs to watchkeeper:I-7/1-cordon, not to I-70"):
            driver.perform(action(UNCORDON, "plain", incident="I-70"))
        assert driver.observe(PLACE).is_schedulable is False


def test_a_node_that_a_user_uncordons_during_a_repair_stays_uncordoned(cluster: Cluster) -> None:
    with driving(cluster) as driver:
        driver.perform(action(CORDON, "plain"))
        cluster.cordon("plain", cordoned=False)
        observed = driver.observe(PLACE)
        assert (observed.is_schedulable, observed.cordoned_by) == (True, "watchkeeper:I-7/1-cordon")
        with pytest.raises(ActionRefused, match="another user uncordoned the node"):
            finished(driver, action(ActionKind.DRAIN, "plain"))
        assert driver.observe(PLACE).cordoned_by is None
    assert "watchkeeper.dev/unhealthy" not in taints(cluster)
    assert own_condition(cluster) == ("False", "Repaired")


def test_a_node_maintained_by_nvsentinel_is_not_changed(cluster: Cluster) -> None:
    patch(cluster, {"metadata": {"labels": {"dgxc.nvidia.com/nvsentinel-state": "quarantined"}}})
    with driving(cluster) as driver, pytest.raises(ActionRefused, match="it is maintained by NVSentinel"):
        driver.perform(action(CORDON, "plain"))
    assert "unschedulable" not in node(cluster, "plain")["spec"]


def test_a_node_that_another_user_takes_over_stays_cordoned(cluster: Cluster) -> None:
    with driving(cluster) as driver:
        driver.perform(action(CORDON, "plain"))
        patch(cluster, {"metadata": {"labels": {"watchkeeper.dev/maintenance": "disk"}}})
        assert "stays cordoned by an administrator" in driver.perform(action(UNCORDON, "plain")).text
        observed = driver.observe(PLACE)
    assert (observed.is_schedulable, observed.cordoned_by) == (False, None)
    assert "watchkeeper.dev/unhealthy" not in taints(cluster)


def test_what_node_problem_detector_has_found_is_seen(cluster: Cluster) -> None:
    condition = {"type": "KernelDeadlock", "status": "True", "reason": "DockerHung", "message": "task docker:7 blocked"}
    fine = {"type": "ReadonlyFilesystem", "status": "False"}
    cluster.ask("/api/v1/nodes/plain/status", method="PATCH", body={"status": {"conditions": [condition, fine]}})
    with driving(cluster) as driver:
        (problem, *_) = driver.observe(PLACE).health_problems
    assert problem == "node-problem-detector (condition KernelDeadlock=True: task docker:7 blocked)"


class Meddled(ApiClient):
    """A cluster in which another client writes the node right before each of our first patches."""

    def __init__(self, cluster: Cluster, times: int) -> None:
        super().__init__(reached(cluster))
        self.cluster, self.times = cluster, times

    def send(self, call: ApiCall, **more: Any) -> ApiResponse:
        if call.method == "PATCH" and self.times and not call.path.endswith("/status"):
            self.times -= 1
            patch(self.cluster, {"metadata": {"annotations": {"example.com/count": str(self.times)}}})
        return super().send(call, **more)


def test_conflicts_are_retried_with_a_fresh_read(cluster: Cluster) -> None:
    client = Meddled(cluster, 3)
    driver = KubernetesDriver(client)
    assert driver.perform(action(CORDON, "plain")).is_complete
    client.times = 99
    done = driver.perform(action(UNCORDON, "plain"))
    assert not done.is_complete
    assert "5 times" in done.waits_for[0]
    assert driver.observe(PLACE).cordoned_by == "watchkeeper:I-7/1-cordon"
    driver.close()


def test_expired_credentials_are_waited_for_and_read_again(cluster: Cluster, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("expired")
    with driving(cluster, token_file=token) as driver:
        done = driver.perform(action(CORDON, "plain"))
        assert not done.is_complete
        assert "rejected our credentials" in done.waits_for[0]
        with pytest.raises(ActionFailed, match="credentials"):
            driver.observe(PLACE)
        token.write_text(TOKEN)
        assert driver.perform(action(CORDON, "plain")).is_complete


def test_a_recreated_node_has_no_mark_and_another_incarnation(cluster: Cluster) -> None:
    with driving(cluster) as driver:
        driver.perform(action(CORDON, "plain"))
        before = driver.observe(PLACE).incarnation
        cluster.ask("/api/v1/nodes/plain", method="DELETE")
        assert driver.observe(PLACE).exists is False
        assert "has left the cluster" in driver.perform(action(UNCORDON, "plain")).text
        with pytest.raises(ActionFailed, match="the cluster has no node plain"):
            driver.perform(action(ActionKind.DRAIN, "plain"))
        add_node(cluster, "plain")
        observed = driver.observe(PLACE)
        assert (observed.cordoned_by, observed.incarnation == before) == (None, False)
        with pytest.raises(ActionRefused, match="our cordon is gone"):
            driver.perform(action(ActionKind.DRAIN, "plain"))


def test_the_shipped_role_is_enough_and_without_it_nothing_is_done(cluster: Cluster) -> None:
    with driving(cluster, token="hub-token") as driver:
        with pytest.raises(ActionFailed, match=r"cannot get resource .nodes.*repair-kubernetes\.md"):
            driver.perform(action(CORDON, "plain"))
        story.apply(cluster, list(yaml.safe_load_all(MANIFEST.read_text())))
        story.add_pods(cluster, "small", "hollow-0")
        for kind in (CORDON, ActionKind.DRAIN, UNCORDON):
            assert "right" not in story.finished(driver, action(kind, "hollow-0")).text
        assert driver.observe(Place("main", node="hollow-0")).is_schedulable
