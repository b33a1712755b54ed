"""What the driver sends, and how it takes answers that a real API server gives only now and then."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.remediate.drivers.kubernetes_story import action
from tests.support.scripted_server import Reply, Scripted, serving
from watchkeeper.errors import ActionFailed, ActionRefused
from watchkeeper.model.actions import ActionKind
from watchkeeper.net import access
from watchkeeper.readers.clusters import kubeconfig
from watchkeeper.remediate.drivers.kubernetes import KubernetesDriver
from watchkeeper.remediate.drivers.kubernetes_client import ApiCall, ApiClient, ApiResponse

CORDON, DRAIN, UNCORDON = ActionKind.CORDON, ActionKind.DRAIN, ActionKind.UNCORDON
MARKS = {"watchkeeper.dev/cordoned-by": "watchkeeper:I-7/1-cordon"}
PLAIN = {"metadata": {"name": "n1", "resourceVersion": "5"}}
OURS = {"metadata": {"name": "n1", "annotations": MARKS}, "spec": {"unschedulable": True}}
UNSCHEDULABLE, UNHEALTHY = "node.kubernetes.io/unschedulable", "watchkeeper.dev/unhealthy"
OWNER = [{"kind": "Job", "name": "train", "controller": True}]
POD = {"metadata": {"namespace": "research", "name": "train-0", "uid": "u1", "ownerReferences": OWNER}}
PODS = {"items": [POD]}


@contextmanager
def driving(*script: Reply) -> Iterator[tuple[Scripted, KubernetesDriver]]:
    with serving(*script) as server:
        driver = KubernetesDriver(ApiClient(kubeconfig.ApiServer(server.url, access.NO_ACCESS, "test")))
        try:
            yield server, driver
        finally:
            driver.close()


def answers(*bodies: Any) -> list[Reply]:
    return [Reply(body=body) for body in bodies]


def test_the_dry_run_shows_the_calls_and_makes_none() -> None:
    with driving() as (server, driver):
        assert driver.describe(action(CORDON, "n1")) == (
            'PATCH /api/v1/nodes/n1 {"metadata":{"annotations":{"watchkeeper.dev/cordoned-by":'
            '"watchkeeper:I-7/1-cordon"}},"spec":{"unschedulable":true,"taints":[{"key":"node.kubernetes.io/unschedulable",'
            '"effect":"NoSchedule"},{"key":"watchkeeper.dev/unhealthy","value":"I-7",'
            '"effect":"NoSchedule"}]}} and all other taints; '
            "PATCH /api/v1/nodes/n1/status with the condition WatchkeeperUnhealthy=True; "
            "POST /api/v1/namespaces/default/events with reason WatchkeeperCordoned"
        )
        assert driver.describe(action(DRAIN, "n1")).startswith("GET /api/v1/pods?fieldSelector=spec.nodeName%3Dn1; ")
        assert '"unschedulable":null' in driver.describe(action(UNCORDON, "n1"))
        assert driver.describe(action(ActionKind.REBOOT, "n1")).startswith("on n1: systemctl reboot")
        assert server.connections == 0


def test_a_cordon_is_a_look_and_one_patch_of_the_version_that_was_seen() -> None:
    with driving(*answers(PLAIN, OURS, {}, {})) as (server, driver):
        driver.perform(action(CORDON, "n1"))
        verbs = [" ".join(request.split()[:2]) for request in server.requests]
        assert verbs == [
            "GET /api/v1/nodes/n1",
            "PATCH /api/v1/nodes/n1",
            "PATCH /api/v1/nodes/n1/status",
            "POST /api/v1/namespaces/default/events",
        ]
        assert json.loads(server.bodies[1])["metadata"]["resourceVersion"] == "5"


def test_cordon_and_uncordon_leave_no_taint_for_the_node_controller_to_write() -> None:
    foreign = {"key": "example.com/mine", "effect": "NoSchedule"}
    before = {"metadata": PLAIN["metadata"], "spec": {"taints": [foreign]}}
    with driving(*answers(before, OURS, {}, {})) as (server, driver):
        driver.perform(action(CORDON, "n1"))
        cordoned = json.loads(server.bodies[1])["spec"]
    assert [taint["key"] for taint in cordoned["taints"]] == ["example.com/mine", UNSCHEDULABLE, UNHEALTHY]
    with driving(*answers({"metadata": OURS["metadata"], "spec": cordoned}, PLAIN, {}, {})) as (server, driver):
        driver.perform(action(UNCORDON, "n1"))
        assert json.loads(server.bodies[1])["spec"] == {"unschedulable": None, "taints": [foreign]}


@pytest.mark.parametrize("kind", [DRAIN, UNCORDON])
def test_our_taint_goes_after_the_node_controllers_when_somebody_else_uncordons(kind: ActionKind) -> None:
    """Before Kubernetes 1.26 its list of taints is written whole, as it was read: ours would be back, for good."""
    taints = [{"key": UNSCHEDULABLE, "effect": "NoSchedule"}, {"key": UNHEALTHY, "effect": "NoSchedule"}]
    settling = {"metadata": OURS["metadata"], "spec": {"taints": taints}}
    with driving(*answers(settling)) as (server, driver):
        (why,) = driver.perform(action(kind, "n1")).waits_for
        assert "the node was uncordoned, but the node controller has not removed" in why
        assert len(server.requests) == 1
    settled = {"metadata": OURS["metadata"], "spec": {"taints": taints[1:]}}
    with driving(*answers(settled, PLAIN, {}, {})) as (server, driver):
        if kind is DRAIN:
            with pytest.raises(ActionRefused, match="another user uncordoned the node during the repair"):
                driver.perform(action(kind, "n1"))
        else:
            assert driver.perform(action(kind, "n1")).text == "uncordoned n1"
        assert json.loads(server.bodies[1])["spec"]["taints"] is None


def test_without_the_right_to_tell_others_the_cordon_counts() -> None:
    script = [*answers(PLAIN, OURS), Reply(status=403), Reply(status=403)]
    with driving(*script) as (_, driver):
        assert driver.perform(action(CORDON, "n1")).text.endswith("(no permission to write its condition and event)")


def test_a_current_server_is_asked_with_policy_v1_for_this_very_pod() -> None:
    with driving(*answers(OURS, PODS), Reply(status=201)) as (server, driver):
        done = driver.perform(action(DRAIN, "n1"))
        assert done.waits_for == ("pod research/train-0: terminating",)
        sent = json.loads(server.bodies[-1])
        assert (sent["apiVersion"], sent["deleteOptions"]) == ("policy/v1", {"preconditions": {"uid": "u1"}})


def test_a_throttled_eviction_is_not_taken_for_a_budget() -> None:
    busy = Reply(status=429, body=b"Too many requests, please try again later.", headers={"Retry-After": "60"})
    with driving(*answers(OURS, PODS), busy) as (_, driver):
        (why,) = driver.perform(action(DRAIN, "n1")).waits_for
        assert "it is busy, Retry-After 60 s" in why


def test_an_empty_cache_is_not_believed_before_the_sure_answer() -> None:
    with driving(*answers(OURS, {"items": []}, PODS), Reply(status=201)) as (server, driver):
        assert not driver.perform(action(DRAIN, "n1")).is_complete
        lists = [request.split()[1] for request in server.requests if "/pods?" in request]
        assert ["resourceVersion=0" in path for path in lists] == [True, False]


def test_a_server_that_says_no_is_a_failure_and_one_in_trouble_is_waited_for() -> None:
    no = Reply(status=422, body={"message": "taints: invalid"})
    with driving(no) as (_, driver), pytest.raises(ActionFailed, match="refused: taints: invalid"):
        driver.perform(action(CORDON, "n1"))
    with driving(Reply(status=500, body={"message": "etcdserver: leader changed"})) as (_, driver):
        (why,) = driver.perform(action(CORDON, "n1")).waits_for
        assert "etcdserver: leader changed" in why


@pytest.mark.parametrize("pod", ["train-0", "a/b/c", "/x"])
def test_a_pod_that_is_not_named_in_full_is_refused(pod: str) -> None:
    with driving() as (_, driver), pytest.raises(ActionRefused, match="is not a pod such as research/train-0"):
        driver.perform(action(ActionKind.RESTART_APP, "n1", pods=pod))


def test_what_kubernetes_cannot_do_is_refused() -> None:
    with driving() as (_, driver), pytest.raises(ActionRefused, match="has no call for reset_gpu"):
        driver.perform(action(ActionKind.RESET_GPU, "n1"))


def test_a_stop_in_the_middle_of_a_drain_evicts_no_further_pod() -> None:
    second = {"metadata": {**POD["metadata"], "name": "train-1", "uid": "u2"}}
    with driving(*answers(OURS, {"items": [POD, second]}, {})) as (_, driver):
        sent: list[str] = []
        driver._is_stopped = lambda: any("eviction" in call for call in sent)
        send = driver.client.send

        def noted(call: ApiCall, **more: Any) -> ApiResponse:
            sent.append(call.path)
            return send(call, **more)

        driver.client.send = noted  # type: ignore[method-assign, assignment]
        done = driver.perform(action(DRAIN, "n1"))
        assert (done.is_complete, sum("eviction" in path for path in sent)) == (False, 1)
        assert "repairs are halted" in done.waits_for[-1]
