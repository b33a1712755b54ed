"""Which pods a drain moves, leaves, and waits for: the rules of kubectl drain, without a cluster."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.remediate.drivers import kubernetes_pods as pods
from watchkeeper.remediate.drivers.kubernetes_pods import DrainDecision, EvictionRules

STRICT, FREE = EvictionRules(), EvictionRules(evict_unmanaged=True, delete_empty_dirs=True)
NOW = datetime(2026, 11, 15, 9, tzinfo=UTC)
OWNED = {"ownerReferences": [{"kind": "ReplicaSet", "name": "web", "controller": True}]}
EVERYTHING = [{"operator": "Exists"}]


def pod(about: dict[str, Any] | None = None, spec: dict[str, Any] | None = None, phase: str = "Running") -> pods.Raw:
    named = {"namespace": "research", "name": "train-0", "uid": "u1", **(about or {})}
    return {"metadata": named, "spec": spec or {}, "status": {"phase": phase}}


@pytest.mark.parametrize(
    ("raw", "strict", "free"),
    [
        (pod(OWNED), DrainDecision.EVICT, DrainDecision.EVICT),
        (pod(), DrainDecision.WAIT, DrainDecision.EVICT),
        (
            pod({"ownerReferences": [{"kind": "DaemonSet", "controller": True}]}),
            DrainDecision.LEAVE,
            DrainDecision.LEAVE,
        ),
        (pod({"annotations": {pods.MIRROR_ANNOTATION: "x"}}), DrainDecision.LEAVE, DrainDecision.LEAVE),
        (pod(phase="Succeeded"), DrainDecision.LEAVE, DrainDecision.LEAVE),
        (pod(OWNED, phase="Failed"), DrainDecision.LEAVE, DrainDecision.LEAVE),
        (pod(OWNED, {"volumes": [{"name": "scratch", "emptyDir": {}}]}), DrainDecision.WAIT, DrainDecision.EVICT),
        (
            pod(OWNED, {"volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}]}),
            DrainDecision.EVICT,
            DrainDecision.EVICT,
        ),
        (pod({**OWNED, "deletionTimestamp": "2026-11-15T09:00:30Z"}), DrainDecision.ENDING, DrainDecision.ENDING),
    ],
)
def test_what_a_drain_does_with_a_pod(raw: pods.Raw, strict: DrainDecision, free: DrainDecision) -> None:
    assert (pods.classify_pod(raw, STRICT).decision, pods.classify_pod(raw, FREE).decision) == (strict, free)


@pytest.mark.parametrize(
    ("created", "tolerations", "fate"),
    [
        ("2026-11-15T08:59:00Z", EVERYTHING, DrainDecision.EVICT),
        ("2026-11-15T09:01:00Z", EVERYTHING, DrainDecision.LEAVE),
        ("2026-11-15T09:01:00Z", [{"key": pods.TAINT, "operator": "Exists"}], DrainDecision.LEAVE),
        # It got in between our look and our patch; the scheduler would not send it again.
        ("2026-11-15T09:01:00Z", [{"key": "nvidia.com/gpu", "operator": "Exists"}], DrainDecision.EVICT),
        ("2026-11-15T09:01:00Z", [{"operator": "Exists", "effect": "NoExecute"}], DrainDecision.EVICT),
    ],
)
def test_a_pod_that_tolerates_the_cordon_is_moved_once(
    created: str, tolerations: list[Any], fate: DrainDecision
) -> None:
    raw = pod({**OWNED, "creationTimestamp": created}, {"tolerations": tolerations})
    assert pods.classify_pod(raw, STRICT, since="2026-11-15T09:00:00Z").decision is fate


@pytest.mark.parametrize(
    ("about", "words"),
    [
        ({"deletionTimestamp": "2026-11-15T09:00:30Z"}, "terminating, 30 s of its grace period left"),
        ({"deletionTimestamp": "2026-11-15T08:58:00Z"}, "terminated 120 s ago, not confirmed by its kubelet"),
        ({"deletionTimestamp": "2026-11-15T08:58:00Z", "finalizers": ["x/y"]}, "blocked by its finalizers x/y"),
        ({"deletionTimestamp": "rubbish"}, "terminating"),
    ],
)
def test_a_pod_that_ends_says_when_it_should_have(about: dict[str, Any], words: str) -> None:
    assert pods.classify_pod(pod(about), STRICT, at=NOW).status_text.endswith(words)


def test_the_budget_that_holds_a_pod_is_named() -> None:
    message = "The disruption budget web needs 1 healthy pods and has 1 currently"
    status = {"details": {"causes": [{"reason": "DisruptionBudget", "message": message}]}}
    assert pods.read_budget_message(status) == message
    several = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
    assert pods.read_budget_message({"message": several}) == several
    assert pods.read_budget_message({"message": "Too many requests, please try again later."}) is None


@pytest.mark.slow
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(st.sampled_from(["ownerReferences", "volumes", "tolerations", "emptyDir", "x"]), inner)
        ),
    )
)
def test_a_pod_of_any_shape_is_sorted(rubbish: Any) -> None:
    raw = {"metadata": {"name": "x", "ownerReferences": rubbish}, "spec": rubbish, "status": rubbish}
    assert pods.classify_pod(raw, STRICT, at=NOW, since="2026-11-15T09:00:00Z").decision in DrainDecision
